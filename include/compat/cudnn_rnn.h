/* cuDNN's names for prnn's recurrent layers: a client of cuDNN's RNN functions compiles against prnn when it includes
 * this header instead of cudnn.h, and links with -lprnn instead of -lcudnn. Descriptors, dropout and RNN functions are
 * covered, cuDNN's other families are not: a convolution descriptor answers CUDNN_STATUS_NOT_SUPPORTED, so that helper
 * code which mentions one compiles.
 *
 * Define before including it
 * - PRNN_COMPAT_CUDNN_MAJOR as 5, the default, or 7: the version whose signatures and CUDNN_VERSION the client sees.
 *   Clients of 8 and 9 (cudnnRNNForward) include compat/cudnn_rnn_v8.h.
 * - PRNN_COMPAT_CPU to have cudnnCreate make a CPU handle; every data pointer is a host pointer then.
 * prnn's own functions (prnnSetRNNBackend, prnnGetLastErrorMessage, ...) can be called beside these names.
 *
 * Beside the real cudnn.h: every name here is a macro, a type or a constant, and none reaches the linker, so that one
 * translation unit can use this header and another cudnn.h, in a program linked with both libraries. Within one
 * translation unit include persistent_rnn.h and cudnn.h; prnn's own names do not collide with cuDNN's.
 *
 * cudaStream_t comes from CUDA's own headers, as with cudnn.h; cudnnSetStream takes it. */
#ifndef PRNN_COMPAT_CUDNN_RNN_H_
#define PRNN_COMPAT_CUDNN_RNN_H_

#ifdef CUDNN_H_
#error "compat/cudnn_rnn.h takes the place of cudnn.h; to use both in one translation unit, include persistent_rnn.h"
#endif
#define CUDNN_H_ /* cudnn.h, included after this header, adds nothing */

#include "../persistent_rnn.h"

/* The version whose functions these are. */
#ifndef PRNN_COMPAT_CUDNN_MAJOR
#define PRNN_COMPAT_CUDNN_MAJOR 5
#endif
#ifndef PRNN_COMPAT_CUDNN_RNN_V8_H_ /* which has the recurrent functions of 8 and 9, and the rest from here */
#if PRNN_COMPAT_CUDNN_MAJOR != 5 && PRNN_COMPAT_CUDNN_MAJOR != 7
#error "PRNN_COMPAT_CUDNN_MAJOR must be 5 or 7; compat/cudnn_rnn_v8.h has the functions of 8 and 9"
#endif
#endif
#define CUDNN_MAJOR PRNN_COMPAT_CUDNN_MAJOR
#define CUDNN_MINOR 0
#define CUDNN_PATCHLEVEL 5
#if PRNN_COMPAT_CUDNN_MAJOR >= 9
#define CUDNN_VERSION (CUDNN_MAJOR * 10000 + CUDNN_MINOR * 100 + CUDNN_PATCHLEVEL)
#else
#define CUDNN_VERSION (CUDNN_MAJOR * 1000 + CUDNN_MINOR * 100 + CUDNN_PATCHLEVEL)
#endif
#define CUDNN_DIM_MAX PRNN_DIM_MAX

typedef prnnHandle_t cudnnHandle_t;
typedef prnnStatus_t cudnnStatus_t;
typedef prnnDataType_t cudnnDataType_t;
typedef prnnTensorFormat_t cudnnTensorFormat_t;
typedef prnnTensorDescriptor_t cudnnTensorDescriptor_t;
typedef prnnFilterDescriptor_t cudnnFilterDescriptor_t;
typedef prnnDropoutDescriptor_t cudnnDropoutDescriptor_t;
#if PRNN_COMPAT_CUDNN_MAJOR < 8
typedef prnnRNNDescriptor_t cudnnRNNDescriptor_t;
#endif
typedef prnnRNNMode_t cudnnRNNMode_t;
typedef prnnDirectionMode_t cudnnDirectionMode_t;
typedef prnnRNNInputMode_t cudnnRNNInputMode_t;
typedef struct prnnCompatConvolution* cudnnConvolutionDescriptor_t; /* there are none */
typedef enum { CUDNN_CONVOLUTION = 0, CUDNN_CROSS_CORRELATION = 1 } cudnnConvolutionMode_t;

#define CUDNN_STATUS_SUCCESS PRNN_STATUS_SUCCESS
#define CUDNN_STATUS_NOT_INITIALIZED PRNN_STATUS_NOT_INITIALIZED
#define CUDNN_STATUS_ALLOC_FAILED PRNN_STATUS_ALLOC_FAILED
#define CUDNN_STATUS_BAD_PARAM PRNN_STATUS_BAD_PARAM
#define CUDNN_STATUS_INTERNAL_ERROR PRNN_STATUS_INTERNAL_ERROR
#define CUDNN_STATUS_INVALID_VALUE PRNN_STATUS_INVALID_VALUE
#define CUDNN_STATUS_ARCH_MISMATCH PRNN_STATUS_ARCH_MISMATCH
#define CUDNN_STATUS_MAPPING_ERROR PRNN_STATUS_MAPPING_ERROR
#define CUDNN_STATUS_EXECUTION_FAILED PRNN_STATUS_EXECUTION_FAILED
#define CUDNN_STATUS_NOT_SUPPORTED PRNN_STATUS_NOT_SUPPORTED
#define CUDNN_STATUS_LICENSE_ERROR PRNN_STATUS_LICENSE_ERROR

#define CUDNN_DATA_FLOAT PRNN_DATA_FLOAT
#define CUDNN_DATA_DOUBLE PRNN_DATA_DOUBLE
#define CUDNN_DATA_HALF PRNN_DATA_HALF
#if PRNN_COMPAT_CUDNN_MAJOR >= 7 /* prnn takes none of these */
#define CUDNN_DATA_INT8 ((prnnDataType_t)3)
#define CUDNN_DATA_INT32 ((prnnDataType_t)4)
#define CUDNN_DATA_INT8x4 ((prnnDataType_t)5)
#define CUDNN_DATA_UINT8 ((prnnDataType_t)6)
#define CUDNN_DATA_UINT8x4 ((prnnDataType_t)7)
#define CUDNN_DATA_INT8x32 ((prnnDataType_t)8)
#else /* no such names: a compiler's error shows what a client of version 6 or 7 has to define */
#define CUDNN_DATA_INT8 CUDNN_DATA_INT8_wants_PRNN_COMPAT_CUDNN_MAJOR_defined_as_7
#define CUDNN_DATA_INT32 CUDNN_DATA_INT32_wants_PRNN_COMPAT_CUDNN_MAJOR_defined_as_7
#define CUDNN_DATA_UINT8 CUDNN_DATA_UINT8_wants_PRNN_COMPAT_CUDNN_MAJOR_defined_as_7
#endif
#define CUDNN_TENSOR_NCHW PRNN_TENSOR_NCHW
#define CUDNN_TENSOR_NHWC PRNN_TENSOR_NHWC

#define CUDNN_RNN_RELU PRNN_RNN_RELU
#define CUDNN_RNN_TANH PRNN_RNN_TANH
#define CUDNN_LSTM PRNN_LSTM
#define CUDNN_GRU PRNN_GRU
#define CUDNN_UNIDIRECTIONAL PRNN_UNIDIRECTIONAL
#define CUDNN_BIDIRECTIONAL PRNN_BIDIRECTIONAL
#define CUDNN_LINEAR_INPUT PRNN_LINEAR_INPUT
#define CUDNN_SKIP_INPUT PRNN_SKIP_INPUT
typedef enum {
  CUDNN_RNN_ALGO_STANDARD = 0,
  CUDNN_RNN_ALGO_PERSIST_STATIC = 1,
  CUDNN_RNN_ALGO_PERSIST_DYNAMIC = 2
} cudnnRNNAlgo_t;

typedef prnnMathType_t cudnnMathType_t;
#define CUDNN_DEFAULT_MATH PRNN_DEFAULT_MATH
#define CUDNN_TENSOR_OP_MATH PRNN_TENSOR_OP_MATH
#define CUDNN_TENSOR_OP_MATH_ALLOW_CONVERSION PRNN_TENSOR_OP_MATH_ALLOW_CONVERSION

#ifdef PRNN_COMPAT_CPU
#define cudnnCreate prnnCreateCPU
#else
#define cudnnCreate prnnCreate
#endif
#define cudnnGetVersion() ((size_t)CUDNN_VERSION)
#define cudnnGetErrorString prnnGetErrorString
#define cudnnDestroy prnnDestroy
#define cudnnSetStream prnnSetStream
#define cudnnGetStream prnnGetStream

#define cudnnCreateTensorDescriptor prnnCreateTensorDescriptor
#define cudnnDestroyTensorDescriptor prnnDestroyTensorDescriptor
#define cudnnSetTensor4dDescriptor prnn_compat_cudnn_tensor_4d
#define cudnnSetTensorNdDescriptor prnnSetTensorNdDescriptor
#define cudnnGetTensorNdDescriptor prnnGetTensorNdDescriptor
#define cudnnCreateFilterDescriptor prnnCreateFilterDescriptor
#define cudnnDestroyFilterDescriptor prnnDestroyFilterDescriptor
#define cudnnSetFilter4dDescriptor prnn_compat_cudnn_filter_4d
#define cudnnSetFilterNdDescriptor prnnSetFilterNdDescriptor
#define cudnnGetFilterNdDescriptor prnnGetFilterNdDescriptor
#define cudnnCreateDropoutDescriptor prnnCreateDropoutDescriptor
#define cudnnDestroyDropoutDescriptor prnnDestroyDropoutDescriptor
#define cudnnDropoutGetStatesSize prnnDropoutGetStatesSize
#define cudnnSetDropoutDescriptor prnnSetDropoutDescriptor
#define cudnnRestoreDropoutDescriptor prnnRestoreDropoutDescriptor

#if PRNN_COMPAT_CUDNN_MAJOR < 8
#define cudnnCreateRNNDescriptor prnnCreateRNNDescriptor
#define cudnnDestroyRNNDescriptor prnnDestroyRNNDescriptor
#define cudnnSetRNNDescriptor_v5 prnnSetRNNDescriptor
#define cudnnSetRNNDescriptor_v6 prnn_compat_cudnn_rnn_v6
#if PRNN_COMPAT_CUDNN_MAJOR == 5 /* by a name that a compiler's error of too many arguments shows */
#define cudnnSetRNNDescriptor prnn_compat_cudnn_rnn_v5_or_define_PRNN_COMPAT_CUDNN_MAJOR_as_7
#else
#define cudnnSetRNNDescriptor cudnnSetRNNDescriptor_v6
#endif
#define cudnnSetRNNMatrixMathType prnnSetRNNMatrixMathType
#define cudnnGetRNNWorkspaceSize prnnGetRNNWorkspaceSize
#define cudnnGetRNNTrainingReserveSize prnnGetRNNTrainingReserveSize
#define cudnnGetRNNParamsSize prnnGetRNNParamsSize
#define cudnnGetRNNLinLayerMatrixParams prnnGetRNNLinLayerMatrixParams
#define cudnnGetRNNLinLayerBiasParams prnnGetRNNLinLayerBiasParams
#define cudnnRNNForwardInference prnnRNNForwardInference
#define cudnnRNNForwardTraining prnnRNNForwardTraining
#define cudnnRNNBackwardData prnnRNNBackwardData
#define cudnnRNNBackwardWeights prnnRNNBackwardWeights
#endif

#define cudnnCreateConvolutionDescriptor prnn_compat_cudnn_create_convolution
#define cudnnDestroyConvolutionDescriptor prnn_compat_cudnn_destroy_convolution
#define cudnnSetConvolution2dDescriptor prnn_compat_cudnn_set_convolution

/* As cuDNN, NOT_SUPPORTED for an image of more than 2^31 - 1 elements. */
static inline cudnnStatus_t prnn_compat_cudnn_tensor_4d(cudnnTensorDescriptor_t tensor, cudnnTensorFormat_t format,
                                                        cudnnDataType_t type, int n, int c, int h, int w) {
  const int dims[] = {n, c, h, w};
  int nchw[] = {0, 0, 0, 1}, nhwc[] = {0, 1, 0, 0};
  if (format != CUDNN_TENSOR_NCHW && format != CUDNN_TENSOR_NHWC) return CUDNN_STATUS_BAD_PARAM;
  if (n < 1 || c < 1 || h < 1 || w < 1) return prnnSetTensorNdDescriptor(tensor, type, 4, dims, dims); /* refuses it */
  if ((int64_t)c * h > INT32_MAX || (int64_t)c * h * w > INT32_MAX) return CUDNN_STATUS_NOT_SUPPORTED;
  nchw[0] = nhwc[0] = c * h * w;
  nchw[1] = h * w, nchw[2] = w;
  nhwc[2] = w * c, nhwc[3] = c;
  return prnnSetTensorNdDescriptor(tensor, type, 4, dims, format == CUDNN_TENSOR_NHWC ? nhwc : nchw);
}

static inline cudnnStatus_t prnn_compat_cudnn_filter_4d(cudnnFilterDescriptor_t filter, cudnnDataType_t type,
                                                        cudnnTensorFormat_t format, int k, int c, int h, int w) {
  const int dims[] = {k, c, h, w};
  return prnnSetFilterNdDescriptor(filter, type, format, 4, dims);
}

#if PRNN_COMPAT_CUDNN_MAJOR < 8
static inline cudnnStatus_t prnn_compat_cudnn_rnn_v5_or_define_PRNN_COMPAT_CUDNN_MAJOR_as_7(
    cudnnRNNDescriptor_t rnn, int hidden_size, int layers, cudnnDropoutDescriptor_t dropout,
    cudnnRNNInputMode_t input_mode, cudnnDirectionMode_t direction, cudnnRNNMode_t mode, cudnnDataType_t type) {
  return prnnSetRNNDescriptor(rnn, hidden_size, layers, dropout, input_mode, direction, mode, type);
}

/* PERSIST_STATIC is the resident kernels or NOT_SUPPORTED; STANDARD is whatever is best. */
static inline cudnnStatus_t prnn_compat_cudnn_rnn_v6(cudnnHandle_t handle, cudnnRNNDescriptor_t rnn, int hidden_size,
                                                     int layers, cudnnDropoutDescriptor_t dropout,
                                                     cudnnRNNInputMode_t input_mode, cudnnDirectionMode_t direction,
                                                     cudnnRNNMode_t mode, cudnnRNNAlgo_t algo, cudnnDataType_t type) {
  cudnnStatus_t status;
  (void)handle;
  if (algo != CUDNN_RNN_ALGO_STANDARD && algo != CUDNN_RNN_ALGO_PERSIST_STATIC) return CUDNN_STATUS_NOT_SUPPORTED;
  status = prnnSetRNNDescriptor(rnn, hidden_size, layers, dropout, input_mode, direction, mode, type);
  if (status != CUDNN_STATUS_SUCCESS) return status;
  return prnnSetRNNBackend(rnn, algo == CUDNN_RNN_ALGO_STANDARD ? PRNN_BEST_BACKEND : PRNN_PERSISTENT_BACKEND);
}
#endif

static inline cudnnStatus_t prnn_compat_cudnn_create_convolution(cudnnConvolutionDescriptor_t* convolution) {
  (void)convolution;
  return CUDNN_STATUS_NOT_SUPPORTED;
}

static inline cudnnStatus_t prnn_compat_cudnn_destroy_convolution(cudnnConvolutionDescriptor_t convolution) {
  (void)convolution;
  return CUDNN_STATUS_NOT_SUPPORTED;
}

static inline cudnnStatus_t prnn_compat_cudnn_set_convolution(cudnnConvolutionDescriptor_t convolution, int pad_h,
                                                              int pad_w, int stride_h, int stride_w, int dilation_h,
                                                              int dilation_w, cudnnConvolutionMode_t mode
#if PRNN_COMPAT_CUDNN_MAJOR >= 6
                                                              ,
                                                              cudnnDataType_t type
#endif
) {
#if PRNN_COMPAT_CUDNN_MAJOR >= 6
  (void)type;
#endif
  (void)convolution, (void)pad_h, (void)pad_w, (void)stride_h, (void)stride_w, (void)dilation_h, (void)dilation_w;
  (void)mode;
  return CUDNN_STATUS_NOT_SUPPORTED;
}

#endif /* PRNN_COMPAT_CUDNN_RNN_H_ */
