/* prnn: a handle and copies for clients that do not call CUDA themselves, such as the headers in compat/. */
#ifndef PRNN_TRANSFER_H_
#define PRNN_TRANSFER_H_

#include "prnn_types.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The calling thread's own handle on the current CUDA device, made at the first call and kept until the thread ends,
 * with `stream` as its stream from now on. It is the library's: not to be destroyed, nor used by another thread. Fails
 * as prnnCreate does. */
PRNN_API prnnStatus_t prnnBorrowHandle(prnnStream_t stream, prnnHandle_t* handle);

/* Copies between host and device memory, in any direction, when all that was enqueued on the handle's stream is done,
 * and returns when the copy is. Not to be captured into a graph. On a CPU handle both are host memory. */
PRNN_API prnnStatus_t prnnCopy(prnnHandle_t handle, void* to, const void* from, size_t sizeInBytes);

#ifdef __cplusplus
}
#endif

#endif /* PRNN_TRANSFER_H_ */
