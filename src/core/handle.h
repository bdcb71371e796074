// The library handle: which device serves its calls, on which stream, and the last error's message.
#pragma once

#include <cstdint>

#include "core/object_pool.h"
#include "core/status.h"

// The struct behind prnnHandle_t.
struct prnnContext {
  static constexpr uint32_t kAlive = 0x70726e6e;  // "prnn": tells a handle from a stray or destroyed pointer

  uint32_t tag = kAlive;
  int device = -1;  // CUDA device ordinal; -1 is the CPU
  prnnStream_t stream = nullptr;
  char message[prnn::kMessageSize] = "";
  void* cuda = nullptr;  // CudaState of core/cuda/, NULL on a CPU handle

  bool is_cpu() const { return device < 0; }
};

namespace prnn {

inline bool is_valid(prnnHandle_t handle) { return is_alive(handle); }

// Throws NOT_INITIALIZED unless the handle is one that prnnCreate or prnnCreateCPU made and nobody has destroyed.
inline void require_handle(prnnHandle_t handle) {
  if (handle == nullptr)
    fail(PRNN_STATUS_NOT_INITIALIZED, "the handle is NULL; make one with prnnCreate or prnnCreateCPU");
  if (!is_valid(handle))
    fail(PRNN_STATUS_NOT_INITIALIZED, "the handle is not one that prnnCreate or prnnCreateCPU made");
}

}  // namespace prnn
