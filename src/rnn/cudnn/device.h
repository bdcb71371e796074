// GPU work that the cuDNN backend does by itself. Everything goes to `stream`.
#pragma once

#include <cstddef>
#include <cstdint>

#include "prnn_types.h"
#include "rnn/plan/cudnn_algorithm.h"

namespace prnn {

CudnnDevice describe_device(int device);

// Memory of the current device, for what a handle keeps.
class DeviceMemory {
 public:
  explicit DeviceMemory(size_t bytes);
  DeviceMemory(const DeviceMemory&) = delete;
  DeviceMemory& operator=(const DeviceMemory&) = delete;
  ~DeviceMemory();
  void* get() const { return memory_; }
  size_t size() const { return size_; }

 private:
  void* memory_ = nullptr;
  size_t size_;
};

void copy_on_device(void* to, const void* from, size_t bytes, prnnStream_t stream);

// Random states of cuDNN's dropout as prnn knows them: of curand's XORWOW generator, 48 bytes each.
// Whether `bytes` bytes at `states`, which cuDNN initialised with `seed`, are such. Waits for the stream.
bool has_known_dropout_states(const void* states, size_t bytes, unsigned long long seed, prnnStream_t stream);

// Dropout's draw for one call: draw <- {seed, call} of the DropoutStates at `states`, and counts the call.
void begin_dropout(void* states, uint64_t* draw, prnnStream_t stream);

// Fills cuDNN's random states from the draw, so that the masks of a call follow from it alone.
void seed_cudnn_dropout(const uint64_t* draw, void* states, size_t bytes, prnnStream_t stream);

// Dropout of one layer's output with prnn's own masks; out may be in.
void drop(prnnDataType_t type, float probability, const uint64_t* draw, int64_t layer, int64_t count, const void* in,
          void* out, prnnStream_t stream);

}  // namespace prnn
