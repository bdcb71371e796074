/* warp-transducer's C interface (HawkAaron's rnnt.h) over prnn: a client compiles against prnn when it includes this
 * header instead of rnnt.h, and links with -lprnn instead of -lwarprnnt. Arguments, layouts and results are those of
 * warp-transducer: on a CPU log-probabilities in and gradients with respect to them out, on a GPU logits and gradients
 * with respect to these, the log-softmax being part of the loss.
 *
 * Layouts: {minibatch, maxT, maxU, alphabet_size} on a GPU, where batch_first is not read, and on a CPU if batch_first
 * is true; otherwise {maxT, maxU, minibatch, alphabet_size}.
 *
 * RNNT_GPU: activations, gradients and workspace lie on the current device, costs on the host; labels and lengths lie
 * on either, since warp-transducer's documentation says host and its own clients give device memory. A call waits for
 * the options' stream, and cannot be captured into a graph; prnnRNNTLoss on a CUDA handle does not wait. A bad label or
 * length makes its sequence cost NaN there. Without a GPU, or in a build without CUDA, the answer is
 * RNNT_STATUS_EXECUTION_FAILED.
 * num_threads is not read: the number of threads is OpenMP's (OMP_NUM_THREADS).
 * get_workspace_size has the name that warp-ctc uses too: this header and warp_ctc.h cannot be included in one file,
 * just as the originals. */
#ifndef PRNN_COMPAT_WARP_TRANSDUCER_H_
#define PRNN_COMPAT_WARP_TRANSDUCER_H_

#include <stdbool.h>
#include <string.h>

#include "../prnn_losses.h"
#include "../prnn_transfer.h"

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
  unsigned int num_threads;
  prnnStream_t stream; /* RNNT_GPU */
  int blank_label;
  int maxT;         /* frames of the activations */
  int maxU;         /* the most labels of a sequence, plus 1 */
  bool batch_first; /* RNNT_CPU */
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
    case PRNN_STATUS_EXECUTION_FAILED:
    case PRNN_STATUS_NOT_INITIALIZED:
    case PRNN_STATUS_NOT_SUPPORTED: return RNNT_STATUS_EXECUTION_FAILED;
    default: return RNNT_STATUS_UNKNOWN_ERROR;
  }
}

static inline void prnn_compat_rnnt_options(prnnDataType_t type, int maxT, int maxU, int minibatch, bool gpu,
                                            prnnRNNTLossOptions_t* options) {
  prnnInitRNNTLossOptions(options);
  options->dataType = type;
  options->input = gpu ? PRNN_LOSS_LOGITS : PRNN_LOSS_LOG_PROBS;
  options->batch = minibatch;
  options->maxFrames = maxT;
  options->maxTargets = (int64_t)maxU - 1;
  options->classes = 2; /* the workspace does not depend on it */
}

/* The handle of a call; prnn_compat_rnnt_done() takes it back. */
static inline prnnStatus_t prnn_compat_rnnt_handle(bool gpu, prnnStream_t stream, prnnHandle_t* handle) {
  return gpu ? prnnBorrowHandle(stream, handle) : prnnCreateCPU(handle);
}

static inline void prnn_compat_rnnt_done(bool gpu, prnnHandle_t handle) {
  if (!gpu) prnnDestroy(handle);
}

/* The front of the workspace: on a GPU labels, lengths and costs, on a CPU the loss's inputs, of
 * activations that are not batch-first. Offsets in bytes. */
typedef struct {
  size_t labels, label_lengths, input_lengths, costs, end;
} prnnCompatRNNTFront;

static inline prnnCompatRNNTFront prnn_compat_rnnt_front(prnnDataType_t type, int maxT, int maxU, int minibatch,
                                                         bool gpu) {
  const size_t batch = (size_t)minibatch, real = type == PRNN_DATA_DOUBLE ? sizeof(double) : sizeof(float);
  prnnCompatRNNTFront front = {0, 0, 0, 0, 0};
  if (!gpu) {
    front.end = (batch * (size_t)maxT * (size_t)maxU * 2 * real + 255) / 256 * 256;
    return front;
  }
  front.label_lengths = (batch * (size_t)(maxU - 1) * sizeof(int) + 255) / 256 * 256;
  front.input_lengths = front.label_lengths + (batch * sizeof(int) + 255) / 256 * 256;
  front.costs = front.input_lengths + (batch * sizeof(int) + 255) / 256 * 256;
  front.end = front.costs + (batch * real + 255) / 256 * 256;
  return front;
}

/* Bytes of the workspace behind its front. */
static inline prnnStatus_t prnn_compat_rnnt_space(prnnHandle_t handle, const prnnRNNTLossOptions_t* options,
                                                  size_t* bytes) {
  size_t workspace = 0, reserve = 0;
  prnnStatus_t status = prnnGetRNNTLossWorkspaceSize(handle, options, &workspace);
  if (status == PRNN_STATUS_SUCCESS) status = prnnGetRNNTLossReserveSize(handle, options, &reserve);
  *bytes = workspace + reserve;
  return status;
}

static inline rnntStatus_t prnn_compat_rnnt_size(prnnDataType_t type, int maxT, int maxU, int minibatch, bool gpu,
                                                 size_t* size_bytes) {
  prnnRNNTLossOptions_t options;
  prnnHandle_t handle = NULL;
  size_t size = 0;
  prnnStatus_t status;
  if (size_bytes == NULL) return RNNT_STATUS_INVALID_VALUE;
  prnn_compat_rnnt_options(type, maxT, maxU, minibatch, gpu, &options);
  status = prnn_compat_rnnt_handle(gpu, NULL, &handle);
  if (status == PRNN_STATUS_SUCCESS) status = prnn_compat_rnnt_space(handle, &options, &size);
  if (status == PRNN_STATUS_SUCCESS) *size_bytes = prnn_compat_rnnt_front(type, maxT, maxU, minibatch, gpu).end + size;
  prnn_compat_rnnt_done(gpu, handle);
  return prnn_compat_rnnt_status(status);
}

/* Whether the lengths and the labels that they take in are in range. */
static inline bool prnn_compat_rnnt_in_range(const int* flat_labels, const int* label_lengths, const int* input_lengths,
                                             int alphabet_size, int minibatch, rnntOptions given) {
  int n, u;
  if (label_lengths == NULL || input_lengths == NULL || (flat_labels == NULL && given.maxU > 1)) return false;
  if (given.blank_label < 0 || given.blank_label >= alphabet_size) return false;
  for (n = 0; n < minibatch; ++n) {
    if (input_lengths[n] < 1 || input_lengths[n] > given.maxT) return false;
    if (label_lengths[n] < 0 || label_lengths[n] >= given.maxU) return false;
    for (u = 0; u < label_lengths[n]; ++u) {
      const int label = flat_labels[(size_t)n * (size_t)(given.maxU - 1) + (size_t)u];
      if (label < 0 || label >= alphabet_size || label == given.blank_label) return false;
    }
  }
  return true;
}

/* Copies the blanks and labels of time-first activations to gathered {minibatch, maxT, maxU, 2}; or, if activations is
 * NULL, from there to where they lie in time-first gradients. */
static inline void prnn_compat_rnnt_gather(size_t real, const char* activations, char* gradients, char* gathered,
                                           const int* flat_labels, const int* label_lengths, const int* input_lengths,
                                           int alphabet_size, int minibatch, rnntOptions given) {
  const size_t width = (size_t)given.maxU, batch = (size_t)minibatch, classes = (size_t)alphabet_size;
  size_t n, t, u, arc;
  for (n = 0; n < batch; ++n) {
    for (t = 0; t < (size_t)input_lengths[n]; ++t) {
      for (u = 0; u <= (size_t)label_lengths[n]; ++u) {
        for (arc = 0; arc < (u < (size_t)label_lengths[n] ? 2 : 1); ++arc) {
          const int k = arc == 0 ? given.blank_label : flat_labels[n * (width - 1) + u];
          const size_t in_time_first = (((t * width + u) * batch + n) * classes + (size_t)k) * real;
          const size_t in_gathered = (((n * (size_t)given.maxT + t) * width + u) * 2 + arc) * real;
          if (activations != NULL) {
            memcpy(gathered + in_gathered, activations + in_time_first, real);
          } else {
            memcpy(gradients + in_time_first, gathered + in_gathered, real);
          }
        }
      }
    }
  }
}

static inline prnnStatus_t prnn_compat_rnnt_on_cpu(prnnHandle_t handle, prnnRNNTLossOptions_t* options,
                                                   const void* activations, void* gradients, const int* flat_labels,
                                                   const int* label_lengths, const int* input_lengths, int minibatch,
                                                   void* costs, char* workspace, size_t front, size_t size,
                                                   rnntOptions given) {
  const size_t real = options->dataType == PRNN_DATA_DOUBLE ? sizeof(double) : sizeof(float);
  const int classes = (int)options->classes;
  prnnStatus_t status;
  if (given.batch_first) {
    return prnnRNNTLoss(handle, options, activations, flat_labels, input_lengths, label_lengths, NULL, costs, gradients,
                        workspace + front, size);
  }
  if (activations == NULL ||
      !prnn_compat_rnnt_in_range(flat_labels, label_lengths, input_lengths, classes, minibatch, given)) {
    return PRNN_STATUS_BAD_PARAM;
  }
  prnn_compat_rnnt_gather(real, (const char*)activations, NULL, workspace, flat_labels, label_lengths, input_lengths,
                          classes, minibatch, given);
  options->input = PRNN_LOSS_GATHERED;
  options->classes = 2;
  status = prnnRNNTLoss(handle, options, workspace, NULL, input_lengths, label_lengths, NULL, costs,
                        gradients == NULL ? NULL : workspace, workspace + front, size);
  if (status == PRNN_STATUS_SUCCESS && gradients != NULL) {
    memset(gradients, 0, (size_t)minibatch * (size_t)given.maxT * (size_t)given.maxU * (size_t)classes * real);
    prnn_compat_rnnt_gather(real, NULL, (char*)gradients, workspace, flat_labels, label_lengths, input_lengths, classes,
                            minibatch, given);
  }
  return status;
}

static inline prnnStatus_t prnn_compat_rnnt_on_gpu(prnnHandle_t handle, const prnnRNNTLossOptions_t* options,
                                                   const void* activations, void* gradients, const int* flat_labels,
                                                   const int* label_lengths, const int* input_lengths, int minibatch,
                                                   void* costs, char* workspace, const prnnCompatRNNTFront* front,
                                                   size_t size) {
  const size_t batch = (size_t)minibatch, lengths = batch * sizeof(int);
  const size_t labels = batch * (size_t)options->maxTargets * sizeof(int);
  const size_t real = options->dataType == PRNN_DATA_DOUBLE ? sizeof(double) : sizeof(float);
  int* const own_labels = (int*)(void*)(workspace + front->labels);
  int* const own_label_lengths = (int*)(void*)(workspace + front->label_lengths);
  int* const own_input_lengths = (int*)(void*)(workspace + front->input_lengths);
  void* const own_costs = workspace + front->costs;
  prnnStatus_t status = prnnCopy(handle, own_labels, flat_labels, labels);
  if (status == PRNN_STATUS_SUCCESS) status = prnnCopy(handle, own_label_lengths, label_lengths, lengths);
  if (status == PRNN_STATUS_SUCCESS) status = prnnCopy(handle, own_input_lengths, input_lengths, lengths);
  if (status == PRNN_STATUS_SUCCESS) {
    status = prnnRNNTLoss(handle, options, activations, own_labels, own_input_lengths, own_label_lengths, NULL,
                          own_costs, gradients, workspace + front->end, size);
  }
  if (status == PRNN_STATUS_SUCCESS) status = prnnCopy(handle, costs, own_costs, batch * real);
  return status;
}

static inline rnntStatus_t prnn_compat_rnnt_loss(prnnDataType_t type, const void* activations, void* gradients,
                                                 const int* flat_labels, const int* label_lengths,
                                                 const int* input_lengths, int alphabet_size, int minibatch,
                                                 void* costs, void* workspace, rnntOptions given) {
  const bool gpu = given.loc == RNNT_GPU;
  prnnRNNTLossOptions_t options;
  prnnCompatRNNTFront front;
  prnnHandle_t handle = NULL;
  size_t size = 0;
  prnnStatus_t status;
  if (!gpu && given.loc != RNNT_CPU) return RNNT_STATUS_INVALID_VALUE;
  if (given.maxT < 1 || given.maxU < 1 || minibatch < 1) return RNNT_STATUS_INVALID_VALUE;
  if (workspace == NULL || costs == NULL) return RNNT_STATUS_INVALID_VALUE;
  prnn_compat_rnnt_options(type, given.maxT, given.maxU, minibatch, gpu, &options);
  options.classes = alphabet_size;
  options.blank = given.blank_label;
  front = prnn_compat_rnnt_front(type, given.maxT, given.maxU, minibatch, gpu);
  status = prnn_compat_rnnt_handle(gpu, gpu ? given.stream : NULL, &handle);
  if (status == PRNN_STATUS_SUCCESS) status = prnn_compat_rnnt_space(handle, &options, &size);
  if (status == PRNN_STATUS_SUCCESS) {
    status = gpu ? prnn_compat_rnnt_on_gpu(handle, &options, activations, gradients, flat_labels, label_lengths,
                                           input_lengths, minibatch, costs, (char*)workspace, &front, size)
                 : prnn_compat_rnnt_on_cpu(handle, &options, activations, gradients, flat_labels, label_lengths,
                                           input_lengths, minibatch, costs, (char*)workspace, front.end, size, given);
  }
  prnn_compat_rnnt_done(gpu, handle);
  return prnn_compat_rnnt_status(status);
}

/* Costs {minibatch} and, unless gradients is NULL, their gradients.
 * activations, gradients: log-probabilities on a CPU, logits on a GPU; every element of gradients is written.
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
