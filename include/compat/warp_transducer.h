/* warp-transducer's C interface (HawkAaron's rnnt.h) over prnn: a client compiles against prnn when it includes this
 * header instead of rnnt.h, and links with -lprnn instead of -lwarprnnt. Arguments, layouts and results are those of
 * warp-transducer on a CPU: log-probabilities in, gradients with respect to them out.
 *
 * RNNT_CPU alone: for a GPU, where warp-transducer takes labels and returns costs in host memory and so waits for the
 * device, compute_rnnt_loss answers RNNT_STATUS_EXECUTION_FAILED; call prnnRNNTLoss on a CUDA handle instead.
 * num_threads is not read: the number of threads is OpenMP's (OMP_NUM_THREADS). batch_first must be true; the
 * time-first layout is answered with RNNT_STATUS_INVALID_VALUE.
 * get_workspace_size has the name that warp-ctc uses too: this header and warp_ctc.h cannot be included in one file,
 * just as the originals. */
#ifndef PRNN_COMPAT_WARP_TRANSDUCER_H_
#define PRNN_COMPAT_WARP_TRANSDUCER_H_

#include <stdbool.h>

#include "../prnn_losses.h"

typedef enum {
  RNNT_STATUS_SUCCESS = 0,
  RNNT_STATUS_MEMOPS_FAILED = 1,
  RNNT_STATUS_INVALID_VALUE = 2,
  RNNT_STATUS_EXECUTION_FAILED = 3,
  RNNT_STATUS_UNKNOWN_ERROR = 4
} rnntStatus_t;

typedef enum { RNNT_CPU = 0, RNNT_GPU = 1 } rnntComputeLocation;

/* To be zeroed before its members are set. */
typedef struct rnntOptions {
  rnntComputeLocation loc;
#if defined(__GNUC__)
  __extension__ /* unnamed unions came with C11 */
#endif
      union {
    unsigned int num_threads; /* RNNT_CPU */
    prnnStream_t stream;      /* RNNT_GPU */
  };
  int blank_label;
  int maxT; /* frames of the activations */
  int maxU; /* the most labels of a sequence, plus 1 */
  bool batch_first;
} rnntOptions;

static inline int get_warprnnt_version(void) { return 1; }

static inline const char* rnntGetStatusString(rnntStatus_t status) {
  switch (status) {
    case RNNT_STATUS_SUCCESS: return "no error";
    case RNNT_STATUS_MEMOPS_FAILED: return "memory could not be allocated";
    case RNNT_STATUS_INVALID_VALUE: return "an argument is NULL, out of range, or disagrees with another";
    case RNNT_STATUS_EXECUTION_FAILED: return "execution failed, or the device is not served";
    default: return "unknown error";
  }
}

static inline rnntStatus_t prnn_compat_rnnt_status(prnnStatus_t status) {
  switch (status) {
    case PRNN_STATUS_SUCCESS: return RNNT_STATUS_SUCCESS;
    case PRNN_STATUS_ALLOC_FAILED: return RNNT_STATUS_MEMOPS_FAILED;
    case PRNN_STATUS_BAD_PARAM: return RNNT_STATUS_INVALID_VALUE;
    case PRNN_STATUS_EXECUTION_FAILED: return RNNT_STATUS_EXECUTION_FAILED;
    default: return RNNT_STATUS_UNKNOWN_ERROR;
  }
}

static inline void prnn_compat_rnnt_options(prnnDataType_t type, int maxT, int maxU, int minibatch,
                                            prnnRNNTLossOptions_t* options) {
  prnnInitRNNTLossOptions(options);
  options->dataType = type;
  options->input = PRNN_LOSS_LOG_PROBS;
  options->batch = minibatch;
  options->maxFrames = maxT;
  options->maxTargets = maxU - 1;
  options->classes = 2; /* the workspace does not depend on it */
}

static inline rnntStatus_t prnn_compat_rnnt_size(prnnDataType_t type, int maxT, int maxU, int minibatch, bool gpu,
                                                 size_t* size_bytes) {
  prnnRNNTLossOptions_t options;
  prnnHandle_t handle = NULL;
  size_t workspace = 0, reserve = 0;
  prnnStatus_t status;
  if (size_bytes == NULL) return RNNT_STATUS_INVALID_VALUE;
  if (gpu) return RNNT_STATUS_EXECUTION_FAILED;
  prnn_compat_rnnt_options(type, maxT, maxU, minibatch, &options);
  status = prnnCreateCPU(&handle);
  if (status == PRNN_STATUS_SUCCESS) status = prnnGetRNNTLossWorkspaceSize(handle, &options, &workspace);
  if (status == PRNN_STATUS_SUCCESS) status = prnnGetRNNTLossReserveSize(handle, &options, &reserve);
  if (status == PRNN_STATUS_SUCCESS) *size_bytes = workspace + reserve;
  prnnDestroy(handle);
  return prnn_compat_rnnt_status(status);
}

static inline rnntStatus_t prnn_compat_rnnt_loss(prnnDataType_t type, const void* activations, void* gradients,
                                                 const int* flat_labels, const int* label_lengths,
                                                 const int* input_lengths, int alphabet_size, int minibatch,
                                                 void* costs, void* workspace, rnntOptions given) {
  prnnRNNTLossOptions_t options;
  prnnHandle_t handle = NULL;
  size_t size = 0;
  prnnStatus_t status;
  const rnntStatus_t sized =
      prnn_compat_rnnt_size(type, given.maxT, given.maxU, minibatch, given.loc != RNNT_CPU, &size);
  if (sized != RNNT_STATUS_SUCCESS) return sized;
  if (!given.batch_first) return RNNT_STATUS_INVALID_VALUE;
  prnn_compat_rnnt_options(type, given.maxT, given.maxU, minibatch, &options);
  options.classes = alphabet_size;
  options.blank = given.blank_label;
  status = prnnCreateCPU(&handle);
  if (status == PRNN_STATUS_SUCCESS) {
    status = prnnRNNTLoss(handle, &options, activations, flat_labels, input_lengths, label_lengths, NULL, costs,
                          gradients, workspace, size);
  }
  prnnDestroy(handle);
  return prnn_compat_rnnt_status(status);
}

/* Costs {minibatch} and, unless gradients is NULL, their gradients.
 * activations, gradients: {minibatch, maxT, maxU, alphabet_size}, log-probabilities.
 * flat_labels: {minibatch, maxU - 1}, padded.
 * workspace: as many bytes as get_workspace_size tells. */
static inline rnntStatus_t compute_rnnt_loss(const float* activations, float* gradients, const int* flat_labels,
                                             const int* label_lengths, const int* input_lengths, int alphabet_size,
                                             int minibatch, float* costs, void* workspace, rnntOptions options) {
  return prnn_compat_rnnt_loss(PRNN_DATA_FLOAT, activations, gradients, flat_labels, label_lengths, input_lengths,
                               alphabet_size, minibatch, costs, workspace, options);
}

static inline rnntStatus_t compute_rnnt_loss_fp64(const double* activations, double* gradients, const int* flat_labels,
                                                  const int* label_lengths, const int* input_lengths, int alphabet_size,
                                                  int minibatch, double* costs, void* workspace, rnntOptions options) {
  return prnn_compat_rnnt_loss(PRNN_DATA_DOUBLE, activations, gradients, flat_labels, label_lengths, input_lengths,
                               alphabet_size, minibatch, costs, workspace, options);
}

/* In C++ also with the element size as last argument, as later versions of warp-transducer have it. */
#ifdef __cplusplus
static inline rnntStatus_t get_workspace_size(int maxT, int maxU, int minibatch, bool gpu, size_t* size_bytes,
                                              size_t dtype_size = sizeof(float)) {
  return prnn_compat_rnnt_size(dtype_size == sizeof(double) ? PRNN_DATA_DOUBLE : PRNN_DATA_FLOAT, maxT, maxU, minibatch,
                               gpu, size_bytes);
}
#else
static inline rnntStatus_t get_workspace_size(int maxT, int maxU, int minibatch, bool gpu, size_t* size_bytes) {
  /* Room for doubles, for C has no argument that tells. */
  return prnn_compat_rnnt_size(PRNN_DATA_DOUBLE, maxT, maxU, minibatch, gpu, size_bytes);
}
#endif

#endif /* PRNN_COMPAT_WARP_TRANSDUCER_H_ */
