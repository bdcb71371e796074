/* prnn: types shared by the recurrent layers (persistent_rnn.h) and the losses (prnn_losses.h).
 *
 * Status codes, the library handle, and the tensor, filter and dropout descriptors. Names, values and parameter order
 * follow cuDNN v5 with `prnn` for `cudnn`.
 *
 * Conventions of every header of prnn
 * - All functions that return prnnStatus_t check every argument before they touch any output. A call that returns
 *   anything but PRNN_STATUS_SUCCESS has written to none of its outputs, with one exception: a kernel that fails while
 *   it runs on a GPU is reported as PRNN_STATUS_EXECUTION_FAILED by a later call on the same handle.
 * - prnnGetLastErrorMessage() gives one sentence on the last call that failed, with the offending values.
 * - Objects made by a prnnCreate... function belong to the caller, who gives them to the matching prnnDestroy...
 *   function. Destroying NULL is allowed and does nothing.
 * - "device pointer" means memory of the handle's device: host memory on a handle made by prnnCreateCPU(), GPU memory
 *   on one made by prnnCreate().
 * - Every array of numbers is aligned to its elements (a float to 4 bytes, for instance), or the answer is BAD_PARAM;
 *   more only where a header says so.
 * - A handle and the objects used with it may be used by one thread at a time. Different handles are independent.
 */
#ifndef PRNN_TYPES_H_
#define PRNN_TYPES_H_

#include <stddef.h>
#include <stdint.h>

#define PRNN_MAJOR 0
#define PRNN_MINOR 1
#define PRNN_PATCHLEVEL 0
#define PRNN_VERSION (PRNN_MAJOR * 1000 + PRNN_MINOR * 100 + PRNN_PATCHLEVEL)

#if defined(__GNUC__)
#define PRNN_API __attribute__((visibility("default")))
#else
#define PRNN_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* Outcome of a call. The values are cuDNN's. */
typedef enum {
  PRNN_STATUS_SUCCESS = 0,
  PRNN_STATUS_NOT_INITIALIZED = 1,  /* the handle is NULL, or its device cannot be used */
  PRNN_STATUS_ALLOC_FAILED = 2,     /* host memory for a handle, a descriptor or scratch could not be had */
  PRNN_STATUS_BAD_PARAM = 3,        /* an argument is NULL, out of range, or disagrees with another */
  PRNN_STATUS_INTERNAL_ERROR = 4,   /* a fault of the library's own */
  PRNN_STATUS_INVALID_VALUE = 5,    /* reserved */
  PRNN_STATUS_ARCH_MISMATCH = 6,    /* the library holds no code for this GPU's architecture */
  PRNN_STATUS_MAPPING_ERROR = 7,    /* reserved */
  PRNN_STATUS_EXECUTION_FAILED = 8, /* a kernel, of this call or an earlier one, failed while it ran */
  PRNN_STATUS_NOT_SUPPORTED = 9,    /* valid arguments, but no kernel serves them; the message says which limit */
  PRNN_STATUS_LICENSE_ERROR = 10    /* reserved */
} prnnStatus_t;

/* The status that the original persistent-rnn returned for a layer that does not fit. */
#define PRNN_NOT_SUPPORTED PRNN_STATUS_NOT_SUPPORTED

/* Type of the elements of a tensor. 0 to 2 are cuDNN v5's values. */
typedef enum {
  PRNN_DATA_FLOAT = 0,
  PRNN_DATA_DOUBLE = 1,
  PRNN_DATA_HALF = 2,
  PRNN_DATA_BFLOAT16 = 9 /* the value of CUDNN_DATA_BFLOAT16 in later versions of cuDNN */
} prnnDataType_t;

/* Layout of a filter. Weights are opaque, so both are taken and neither changes anything. */
typedef enum { PRNN_TENSOR_NCHW = 0, PRNN_TENSOR_NHWC = 1 } prnnTensorFormat_t;

/* The largest number of dimensions of a descriptor. */
#define PRNN_DIM_MAX 8

typedef struct prnnContext* prnnHandle_t;
typedef struct prnnTensorStruct* prnnTensorDescriptor_t;
typedef struct prnnFilterStruct* prnnFilterDescriptor_t;
typedef struct prnnDropoutStruct* prnnDropoutDescriptor_t;

/* A CUDA stream: cudaStream_t and CUstream convert to it without a cast. NULL is the default stream. */
typedef struct CUstream_st* prnnStream_t;

/* The version of the library that runs, PRNN_VERSION of its headers. */
PRNN_API size_t prnnGetVersion(void);

/* The name of a status, "PRNN_STATUS_BAD_PARAM" for instance; never NULL, static storage. */
PRNN_API const char* prnnGetErrorString(prnnStatus_t status);

/* One sentence, with the values concerned, on the last call on this handle that did not succeed; "" if none failed.
 * With a NULL handle: on the calling thread's last failed call that had no valid handle (descriptor functions for
 * instance). Never NULL. The text is the library's and holds until the next failure on the same handle (or thread). */
PRNN_API const char* prnnGetLastErrorMessage(prnnHandle_t handle);

/* Makes a handle on the current CUDA device, and has cuBLAS, if there is one, load its code. NOT_SUPPORTED if the
 * library was built without CUDA; NOT_INITIALIZED if there is no usable driver or GPU. *handle is written on success
 * alone. */
PRNN_API prnnStatus_t prnnCreate(prnnHandle_t* handle);

/* Makes a handle whose functions run on the CPU, on the calling thread and its OpenMP threads, and return when done.
 * All data pointers given together with it are host pointers. */
PRNN_API prnnStatus_t prnnCreateCPU(prnnHandle_t* handle);

/* Frees a handle. Work already enqueued on its stream goes on. */
PRNN_API prnnStatus_t prnnDestroy(prnnHandle_t handle);

/* The stream to which every later call on the handle enqueues its kernels. The handle does not own it. On a CPU handle
 * it is stored and has no effect. */
PRNN_API prnnStatus_t prnnSetStream(prnnHandle_t handle, prnnStream_t stream);
PRNN_API prnnStatus_t prnnGetStream(prnnHandle_t handle, prnnStream_t* stream);

/* Tensor descriptors: element type, 1 to PRNN_DIM_MAX dimensions (each > 0), and strides in elements (each > 0). */
PRNN_API prnnStatus_t prnnCreateTensorDescriptor(prnnTensorDescriptor_t* tensorDesc);
PRNN_API prnnStatus_t prnnDestroyTensorDescriptor(prnnTensorDescriptor_t tensorDesc);
PRNN_API prnnStatus_t prnnSetTensorNdDescriptor(prnnTensorDescriptor_t tensorDesc, prnnDataType_t dataType, int nbDims,
                                                const int dimA[], const int strideA[]);
/* Reads the first min(nbDimsRequested, nbDims) dimensions back; *nbDims is the descriptor's own number. Each output may
 * be NULL when not wanted. */
PRNN_API prnnStatus_t prnnGetTensorNdDescriptor(const prnnTensorDescriptor_t tensorDesc, int nbDimsRequested,
                                                prnnDataType_t* dataType, int* nbDims, int dimA[], int strideA[]);

/* Filter descriptors: element type, layout, 1 to PRNN_DIM_MAX dimensions, densely packed. prnn uses them for packed
 * weights, {size in elements, 1, 1}. */
PRNN_API prnnStatus_t prnnCreateFilterDescriptor(prnnFilterDescriptor_t* filterDesc);
PRNN_API prnnStatus_t prnnDestroyFilterDescriptor(prnnFilterDescriptor_t filterDesc);
PRNN_API prnnStatus_t prnnSetFilterNdDescriptor(prnnFilterDescriptor_t filterDesc, prnnDataType_t dataType,
                                                prnnTensorFormat_t format, int nbDims, const int filterDimA[]);
/* As prnnGetTensorNdDescriptor. A filter without elements (the layer-0 input matrices of SKIP_INPUT) reads back as zero
 * dimensions. */
PRNN_API prnnStatus_t prnnGetFilterNdDescriptor(const prnnFilterDescriptor_t filterDesc, int nbDimsRequested,
                                                prnnDataType_t* dataType, prnnTensorFormat_t* format, int* nbDims,
                                                int filterDimA[]);

/* Dropout between the layers of a stack. */
PRNN_API prnnStatus_t prnnCreateDropoutDescriptor(prnnDropoutDescriptor_t* dropoutDesc);
PRNN_API prnnStatus_t prnnDestroyDropoutDescriptor(prnnDropoutDescriptor_t dropoutDesc);

/* Bytes of device memory that prnnSetDropoutDescriptor() wants for the state of the random numbers. */
PRNN_API prnnStatus_t prnnDropoutGetStatesSize(prnnHandle_t handle, size_t* sizeInBytes);

/* dropout: the probability, in [0, 1), with which an element becomes zero; the others are scaled by 1 / (1 - dropout).
 * states: device memory, at least prnnDropoutGetStatesSize() bytes, owned by the caller, in use for as long as the
 *   descriptor is. NULL with stateSizeInBytes = 0 is taken too; a training call that would draw from it then fails.
 * seed: written to states by this call. The state also counts the training calls that drew from it, so that the masks
 *   differ from call to call and the whole sequence of masks follows from the seed. The seed is the first eight bytes
 * of states, so that a client may replace it on the device. */
PRNN_API prnnStatus_t prnnSetDropoutDescriptor(prnnDropoutDescriptor_t dropoutDesc, prnnHandle_t handle, float dropout,
                                               void* states, size_t stateSizeInBytes, unsigned long long seed);

/* As prnnSetDropoutDescriptor(), but states are taken as they are, and nothing is written to them: two 64-bit integers
 * of any values, the seed and the number of training calls that drew, as the library saved them there or as a generator
 * of the caller's wrote them, on the handle's stream for instance, so that a replay of a CUDA graph has masks of its
 * own. The function of cuDNN v7. seed: cuDNN's parameter; states have it, and it is not looked at. */
PRNN_API prnnStatus_t prnnRestoreDropoutDescriptor(prnnDropoutDescriptor_t dropoutDesc, prnnHandle_t handle,
                                                   float dropout, void* states, size_t stateSizeInBytes,
                                                   unsigned long long seed);

#ifdef __cplusplus
}
#endif

#endif /* PRNN_TYPES_H_ */
