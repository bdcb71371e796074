/* cuDNN v5's names for prnn's recurrent layers: a client of cuDNN v5's RNN functions compiles against prnn when it
 * includes this header instead of cudnn.h, and links with -lprnn instead of -lcudnn. Descriptors, dropout and RNN
 * functions are covered, cuDNN's other families are not.
 *
 * Define PRNN_COMPAT_CPU before including it to have cudnnCreate make a CPU handle; every data pointer is a host
 * pointer then. What prnn adds (prnnSetRNNBackend, prnnGetLastErrorMessage, ...) can be called beside these names.
 *
 * cudaStream_t comes from CUDA's own headers, as with cudnn.h; cudnnSetStream takes it. */
#ifndef PRNN_COMPAT_CUDNN_RNN_H_
#define PRNN_COMPAT_CUDNN_RNN_H_

#ifdef CUDNN_H_
#error "compat/cudnn_rnn.h takes the place of cudnn.h; the two cannot be included together"
#endif

#include "../persistent_rnn.h"

/* The version whose functions these are. */
#define CUDNN_MAJOR 5
#define CUDNN_MINOR 0
#define CUDNN_PATCHLEVEL 5
#define CUDNN_VERSION (CUDNN_MAJOR * 1000 + CUDNN_MINOR * 100 + CUDNN_PATCHLEVEL)
#define CUDNN_DIM_MAX PRNN_DIM_MAX

typedef prnnHandle_t cudnnHandle_t;
typedef prnnStatus_t cudnnStatus_t;
typedef prnnDataType_t cudnnDataType_t;
typedef prnnTensorFormat_t cudnnTensorFormat_t;
typedef prnnTensorDescriptor_t cudnnTensorDescriptor_t;
typedef prnnFilterDescriptor_t cudnnFilterDescriptor_t;
typedef prnnDropoutDescriptor_t cudnnDropoutDescriptor_t;
typedef prnnRNNDescriptor_t cudnnRNNDescriptor_t;
typedef prnnRNNMode_t cudnnRNNMode_t;
typedef prnnDirectionMode_t cudnnDirectionMode_t;
typedef prnnRNNInputMode_t cudnnRNNInputMode_t;

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
#define cudnnSetTensorNdDescriptor prnnSetTensorNdDescriptor
#define cudnnGetTensorNdDescriptor prnnGetTensorNdDescriptor
#define cudnnCreateFilterDescriptor prnnCreateFilterDescriptor
#define cudnnDestroyFilterDescriptor prnnDestroyFilterDescriptor
#define cudnnSetFilterNdDescriptor prnnSetFilterNdDescriptor
#define cudnnGetFilterNdDescriptor prnnGetFilterNdDescriptor
#define cudnnCreateDropoutDescriptor prnnCreateDropoutDescriptor
#define cudnnDestroyDropoutDescriptor prnnDestroyDropoutDescriptor
#define cudnnDropoutGetStatesSize prnnDropoutGetStatesSize
#define cudnnSetDropoutDescriptor prnnSetDropoutDescriptor

#define cudnnCreateRNNDescriptor prnnCreateRNNDescriptor
#define cudnnDestroyRNNDescriptor prnnDestroyRNNDescriptor
#define cudnnSetRNNDescriptor prnnSetRNNDescriptor
#define cudnnSetRNNDescriptor_v5 prnnSetRNNDescriptor /* its name in cuDNN 7 */
#define cudnnGetRNNWorkspaceSize prnnGetRNNWorkspaceSize
#define cudnnGetRNNTrainingReserveSize prnnGetRNNTrainingReserveSize
#define cudnnGetRNNParamsSize prnnGetRNNParamsSize
#define cudnnGetRNNLinLayerMatrixParams prnnGetRNNLinLayerMatrixParams
#define cudnnGetRNNLinLayerBiasParams prnnGetRNNLinLayerBiasParams
#define cudnnRNNForwardInference prnnRNNForwardInference
#define cudnnRNNForwardTraining prnnRNNForwardTraining
#define cudnnRNNBackwardData prnnRNNBackwardData
#define cudnnRNNBackwardWeights prnnRNNBackwardWeights

#endif /* PRNN_COMPAT_CUDNN_RNN_H_ */
