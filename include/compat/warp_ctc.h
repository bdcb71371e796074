/* warp-ctc's C interface (Baidu's ctc.h) over prnn: a client compiles against prnn when it includes this header instead
 * of ctc.h, and links with -lprnn instead of -lwarpctc. Arguments, layouts and results are warp-ctc's.
 *
 * CTC_GPU: activations, gradients and workspace lie on the current device, labels, lengths and costs in host memory, so
 * that a call waits for the options' stream, and cannot be captured into a graph; prnnCTCLoss on a CUDA handle does not
 * wait. A bad label makes its sequence cost NaN there. Without a GPU, or in a build without CUDA, the answer is
 * CTC_STATUS_EXECUTION_FAILED.
 * As in warp-ctc, labels that the frames are too few for cost 0. Unlike there, a probability may be less than the
 * smallest normal number: logits of -1e30 cost 1e30.
 * num_threads is not read: the number of threads is OpenMP's (OMP_NUM_THREADS).
 * get_workspace_size has the name that warp-transducer uses too: this header and warp_transducer.h cannot be included
 * in one file, just as the originals. */
#ifndef PRNN_COMPAT_WARP_CTC_H_
#define PRNN_COMPAT_WARP_CTC_H_

#include <stdbool.h>

#include "../prnn_losses.h"
#include "../prnn_transfer.h"

typedef enum {
  CTC_STATUS_SUCCESS = 0,
  CTC_STATUS_MEMOPS_FAILED = 1,
  CTC_STATUS_INVALID_VALUE = 2,
  CTC_STATUS_EXECUTION_FAILED = 3,
  CTC_STATUS_UNKNOWN_ERROR = 4
} ctcStatus_t;

typedef enum { CTC_CPU = 0, CTC_GPU = 1 } ctcComputeLocation;

/* To be zeroed before its members are set. */
typedef struct ctcOptions {
  ctcComputeLocation loc;
#if defined(__GNUC__)
  __extension__ /* unnamed unions came with C11 */
#endif
      union {
    unsigned int num_threads; /* CTC_CPU */
    prnnStream_t stream;      /* CTC_GPU */
  };
  int blank_label;
} ctcOptions;

static inline int get_warpctc_version(void) { return 2; }

static inline const char* ctcGetStatusString(ctcStatus_t status) {
  switch (status) {
    case CTC_STATUS_SUCCESS: return "no error";
    case CTC_STATUS_MEMOPS_FAILED: return "memory could not be allocated";
    case CTC_STATUS_INVALID_VALUE: return "an argument is NULL, out of range, or disagrees with another";
    case CTC_STATUS_EXECUTION_FAILED: return "execution failed, or the device is not served";
    default: return "unknown error";
  }
}

static inline ctcStatus_t prnn_compat_ctc_status(prnnStatus_t status) {
  switch (status) {
    case PRNN_STATUS_SUCCESS: return CTC_STATUS_SUCCESS;
    case PRNN_STATUS_ALLOC_FAILED: return CTC_STATUS_MEMOPS_FAILED;
    case PRNN_STATUS_BAD_PARAM: return CTC_STATUS_INVALID_VALUE;
    case PRNN_STATUS_EXECUTION_FAILED:
    case PRNN_STATUS_NOT_INITIALIZED:
    case PRNN_STATUS_NOT_SUPPORTED: return CTC_STATUS_EXECUTION_FAILED;
    default: return CTC_STATUS_UNKNOWN_ERROR;
  }
}

/* prnn's options for a batch of warp-ctc's. */
static inline ctcStatus_t prnn_compat_ctc_options(prnnDataType_t type, const int* label_lengths,
                                                  const int* input_lengths, int alphabet_size, int minibatch,
                                                  ctcOptions given, prnnCTCLossOptions_t* options) {
  int n;
  if (label_lengths == NULL || input_lengths == NULL || alphabet_size <= 0 || minibatch <= 0) {
    return CTC_STATUS_INVALID_VALUE;
  }
  if (given.loc != CTC_CPU && given.loc != CTC_GPU) return CTC_STATUS_INVALID_VALUE;
  prnnInitCTCLossOptions(options);
  options->dataType = type;
  options->targetLayout = PRNN_TARGETS_CONCATENATED;
  options->batch = minibatch;
  options->maxFrames = 1;
  options->classes = alphabet_size;
  options->blank = given.blank_label;
  for (n = 0; n < minibatch; ++n) {
    if (label_lengths[n] < 0 || input_lengths[n] < 0) return CTC_STATUS_INVALID_VALUE;
    if (input_lengths[n] > options->maxFrames) options->maxFrames = input_lengths[n];
    if (label_lengths[n] > options->maxTargets) options->maxTargets = label_lengths[n];
    options->targetElements += label_lengths[n];
  }
  return CTC_STATUS_SUCCESS;
}

/* The handle of a call; prnn_compat_ctc_done() takes it back. */
static inline prnnStatus_t prnn_compat_ctc_handle(ctcOptions given, prnnHandle_t* handle) {
  return given.loc == CTC_GPU ? prnnBorrowHandle(given.stream, handle) : prnnCreateCPU(handle);
}

static inline void prnn_compat_ctc_done(ctcOptions given, prnnHandle_t handle) {
  if (given.loc != CTC_GPU) prnnDestroy(handle);
}

/* Where a call on a GPU has what its client has on the host: at the front of the workspace. Offsets in bytes. */
typedef struct {
  size_t labels, label_lengths, input_lengths, costs, end;
} prnnCompatCTCFront;

static inline prnnCompatCTCFront prnn_compat_ctc_front(const prnnCTCLossOptions_t* options, ctcOptions given) {
  const size_t real = options->dataType == PRNN_DATA_DOUBLE ? sizeof(double) : sizeof(float);
  const size_t batch = (size_t)options->batch;
  prnnCompatCTCFront front = {0, 0, 0, 0, 0};
  if (given.loc != CTC_GPU) return front;
  front.label_lengths = ((size_t)options->targetElements * sizeof(int) + 255) / 256 * 256;
  front.input_lengths = front.label_lengths + (batch * sizeof(int) + 255) / 256 * 256;
  front.costs = front.input_lengths + (batch * sizeof(int) + 255) / 256 * 256;
  front.end = front.costs + (batch * real + 255) / 256 * 256;
  return front;
}

/* Bytes of the workspace behind its front. */
static inline prnnStatus_t prnn_compat_ctc_space(prnnHandle_t handle, const prnnCTCLossOptions_t* options,
                                                 size_t* bytes) {
  size_t workspace = 0, reserve = 0;
  prnnStatus_t status = prnnGetCTCLossWorkspaceSize(handle, options, &workspace);
  if (status == PRNN_STATUS_SUCCESS) status = prnnGetCTCLossReserveSize(handle, options, &reserve);
  *bytes = workspace + reserve;
  return status;
}

static inline ctcStatus_t prnn_compat_ctc_size(prnnDataType_t type, const int* label_lengths, const int* input_lengths,
                                               int alphabet_size, int minibatch, ctcOptions given, size_t* size_bytes) {
  prnnCTCLossOptions_t options;
  prnnHandle_t handle = NULL;
  size_t size = 0;
  prnnStatus_t status;
  const ctcStatus_t taken =
      prnn_compat_ctc_options(type, label_lengths, input_lengths, alphabet_size, minibatch, given, &options);
  if (taken != CTC_STATUS_SUCCESS) return taken;
  if (size_bytes == NULL) return CTC_STATUS_INVALID_VALUE;
  status = prnn_compat_ctc_handle(given, &handle);
  if (status == PRNN_STATUS_SUCCESS) status = prnn_compat_ctc_space(handle, &options, &size);
  if (status == PRNN_STATUS_SUCCESS) *size_bytes = prnn_compat_ctc_front(&options, given).end + size;
  prnn_compat_ctc_done(given, handle);
  return prnn_compat_ctc_status(status);
}

/* Costs of 0 for the labels that, with a blank between equal ones, are more than the frames. */
static inline void prnn_compat_ctc_no_path(prnnDataType_t type, const int* flat_labels, const int* label_lengths,
                                           const int* input_lengths, int minibatch, void* costs) {
  int n, i;
  for (n = 0; n < minibatch; flat_labels += label_lengths[n], ++n) {
    int frames = label_lengths[n];
    for (i = 1; i < label_lengths[n]; ++i) frames += flat_labels[i] == flat_labels[i - 1];
    if (frames <= input_lengths[n]) continue;
    if (type == PRNN_DATA_DOUBLE) {
      ((double*)costs)[n] = 0;
    } else {
      ((float*)costs)[n] = 0;
    }
  }
}

static inline ctcStatus_t prnn_compat_ctc_loss(prnnDataType_t type, const void* activations, void* gradients,
                                               const int* flat_labels, const int* label_lengths,
                                               const int* input_lengths, int alphabet_size, int minibatch, void* costs,
                                               void* workspace, ctcOptions given) {
  const bool gpu = given.loc == CTC_GPU;
  prnnCTCLossOptions_t options;
  prnnCompatCTCFront front;
  prnnHandle_t handle = NULL;
  size_t size = 0, lengths, labels;
  char* at = (char*)workspace;
  prnnStatus_t status;
  const ctcStatus_t taken =
      prnn_compat_ctc_options(type, label_lengths, input_lengths, alphabet_size, minibatch, given, &options);
  if (taken != CTC_STATUS_SUCCESS) return taken;
  if (gpu && (workspace == NULL || costs == NULL)) return CTC_STATUS_INVALID_VALUE;
  front = prnn_compat_ctc_front(&options, given);
  labels = (size_t)options.targetElements * sizeof(int);
  lengths = (size_t)minibatch * sizeof(int);
  status = prnn_compat_ctc_handle(given, &handle);
  if (status == PRNN_STATUS_SUCCESS) status = prnn_compat_ctc_space(handle, &options, &size);
  if (gpu && status == PRNN_STATUS_SUCCESS) status = prnnCopy(handle, at + front.labels, flat_labels, labels);
  if (gpu && status == PRNN_STATUS_SUCCESS) status = prnnCopy(handle, at + front.label_lengths, label_lengths, lengths);
  if (gpu && status == PRNN_STATUS_SUCCESS) status = prnnCopy(handle, at + front.input_lengths, input_lengths, lengths);
  if (status == PRNN_STATUS_SUCCESS) {
    status = prnnCTCLoss(handle, &options, activations, gpu ? (const int*)(at + front.labels) : flat_labels,
                         gpu ? (const int*)(at + front.input_lengths) : input_lengths,
                         gpu ? (const int*)(at + front.label_lengths) : label_lengths, gpu ? at + front.costs : costs,
                         gradients, at + front.end, size);
  }
  if (gpu && status == PRNN_STATUS_SUCCESS) {
    status = prnnCopy(handle, costs, at + front.costs,
                      (size_t)minibatch * (type == PRNN_DATA_DOUBLE ? sizeof(double) : sizeof(float)));
  }
  if (status == PRNN_STATUS_SUCCESS) {
    prnn_compat_ctc_no_path(type, flat_labels, label_lengths, input_lengths, minibatch, costs);
  }
  prnn_compat_ctc_done(given, handle);
  return prnn_compat_ctc_status(status);
}

/* Costs {minibatch} and, unless gradients is NULL, their gradients.
 * activations, gradients: {max of input_lengths, minibatch, alphabet_size}, logits; workspace: on the GPU for CTC_GPU.
 * flat_labels: the labels of the sequences one after the other. These, the lengths and the costs: on the host.
 * workspace: as many bytes as get_workspace_size tells. */
static inline ctcStatus_t compute_ctc_loss(const float* activations, float* gradients, const int* flat_labels,
                                           const int* label_lengths, const int* input_lengths, int alphabet_size,
                                           int minibatch, float* costs, void* workspace, ctcOptions options) {
  return prnn_compat_ctc_loss(PRNN_DATA_FLOAT, activations, gradients, flat_labels, label_lengths, input_lengths,
                              alphabet_size, minibatch, costs, workspace, options);
}

static inline ctcStatus_t compute_ctc_loss_double(const double* activations, double* gradients, const int* flat_labels,
                                                  const int* label_lengths, const int* input_lengths, int alphabet_size,
                                                  int minibatch, double* costs, void* workspace, ctcOptions options) {
  return prnn_compat_ctc_loss(PRNN_DATA_DOUBLE, activations, gradients, flat_labels, label_lengths, input_lengths,
                              alphabet_size, minibatch, costs, workspace, options);
}

static inline ctcStatus_t get_workspace_size(const int* label_lengths, const int* input_lengths, int alphabet_size,
                                             int minibatch, ctcOptions info, size_t* size_bytes) {
  return prnn_compat_ctc_size(PRNN_DATA_FLOAT, label_lengths, input_lengths, alphabet_size, minibatch, info,
                              size_bytes);
}

static inline ctcStatus_t get_workspace_size_double(const int* label_lengths, const int* input_lengths,
                                                    int alphabet_size, int minibatch, ctcOptions info,
                                                    size_t* size_bytes) {
  return prnn_compat_ctc_size(PRNN_DATA_DOUBLE, label_lengths, input_lengths, alphabet_size, minibatch, info,
                              size_bytes);
}

#endif /* PRNN_COMPAT_WARP_CTC_H_ */
