#include "rnn/cudnn/device.h"

#include <cuda_runtime_api.h>

#include <algorithm>

#include "core/cuda/philox.cuh"
#include "core/status.h"
#include "rnn/cuda/layer/kernels.h"
#include "rnn/cuda/layer/run.h"

namespace prnn {
namespace {

// curand's state of the XORWOW generator (Marsaglia: "Xorshift RNGs", 2003): a counter and five words; the rest, which
// belongs to normal deviates, is zero.
struct XorwowState {
  uint32_t counter, words[5], unused[6];
};
static_assert(sizeof(XorwowState) == 48, "as curandStateXORWOW_t");

// The first state that curand_init() makes of a seed.
XorwowState first_state(unsigned long long seed) {
  const uint32_t low = static_cast<uint32_t>(seed) ^ 0xaad26b49u,
                 high = static_cast<uint32_t>(seed >> 32) ^ 0xf7dcefddu;
  const uint32_t t0 = 1099087573u * low, t1 = 2591861531u * high;
  return {6615241u + t1 + t0,
          {123456789u + t0, 362436069u ^ t0, 521288629u + t1, 88675123u ^ t1, 5783321u + t0},
          {0, 0, 0, 0, 0, 0}};
}

constexpr int kSeedThreads = 256;
constexpr int kStateParts = sizeof(XorwowState) / sizeof(uint4);

// States go through shared memory: a warp that stores its own, of 48 bytes each, takes five times as long.
__global__ void __launch_bounds__(kSeedThreads) seed_states(const uint64_t* draw, uint4* states, size_t count) {
  __shared__ uint4 made[kSeedThreads * kStateParts];
  const uint64_t seed = draw[0], call = draw[1];
  const size_t i = size_t{blockIdx.x} * kSeedThreads + threadIdx.x;
  uint32_t random[2][4];
  for (uint32_t k = 0; k < 2; ++k) {
    // Masks of prnn's own have other second words: those of layers.
    const uint32_t counter[] = {static_cast<uint32_t>(i), 0xFFFFFFF0u + k, static_cast<uint32_t>(call),
                                static_cast<uint32_t>(call >> 32)};
    for (int j = 0; j < 4; ++j) random[k][j] = counter[j];
    philox(random[k], static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32));
  }
  uint4* const own = made + threadIdx.x * kStateParts;
  own[0] = make_uint4(random[0][0], random[0][1], random[0][2], random[0][3]);
  own[1] = make_uint4(random[1][0], random[1][1] | 1, 0, 0);  // words that are not all zero
  own[2] = make_uint4(0, 0, 0, 0);
  __syncthreads();
  const size_t first = size_t{blockIdx.x} * kSeedThreads * kStateParts;
#pragma unroll
  for (int part = 0; part < kStateParts; ++part) {
    const int at = part * kSeedThreads + threadIdx.x;
    if (first + at < count * kStateParts) states[first + at] = made[at];
  }
}

}  // namespace

CudnnDevice describe_device(int device) {
  const auto attribute = [device](cudaDeviceAttr name) {
    int value = 0;
    require_launch(cudaDeviceGetAttribute(&value, name, device), "a query of the device");
    return value;
  };
  return {10 * attribute(cudaDevAttrComputeCapabilityMajor) + attribute(cudaDevAttrComputeCapabilityMinor),
          attribute(cudaDevAttrMultiProcessorCount)};
}

DeviceMemory::DeviceMemory(size_t bytes) : size_(bytes) {
  if (cudaMalloc(&memory_, bytes) == cudaSuccess) return;
  cudaGetLastError();  // not to be taken for a later call's
  fail(PRNN_STATUS_ALLOC_FAILED, "%zu bytes of GPU memory for cuDNN's random states could not be had", bytes);
}

DeviceMemory::~DeviceMemory() { cudaFree(memory_); }

void copy_on_device(void* to, const void* from, size_t bytes, prnnStream_t stream) {
  require_launch(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, stream), "a copy of weights");
}

bool has_known_dropout_states(const void* states, size_t bytes, unsigned long long seed, prnnStream_t stream) {
  if (bytes == 0 || bytes % sizeof(XorwowState) != 0) return false;
  XorwowState found;
  require_launch(cudaMemcpyAsync(&found, states, sizeof found, cudaMemcpyDeviceToHost, stream), "a copy");
  require_launch(cudaStreamSynchronize(stream), "what cuDNN initialises dropout with");
  const XorwowState expected = first_state(seed);
  return found.counter == expected.counter && std::equal(found.words, found.words + 5, expected.words);
}

void begin_dropout(void* states, uint64_t* draw, prnnStream_t stream) {
  require_launch(run_begin_dropout(states, draw, stream), "the dropout kernel");
}

void seed_cudnn_dropout(const uint64_t* draw, void* states, size_t bytes, prnnStream_t stream) {
  const size_t count = bytes / sizeof(XorwowState);
  const unsigned blocks = static_cast<unsigned>((count + kSeedThreads - 1) / kSeedThreads);
  seed_states<<<blocks, kSeedThreads, 0, stream>>>(draw, static_cast<uint4*>(states), count);
  require_launch(cudaGetLastError(), "the kernel that seeds dropout");
}

void drop(prnnDataType_t type, float probability, const uint64_t* draw, int64_t layer, int64_t count, const void* in,
          void* out, prnnStream_t stream) {
  require_launch(run_dropout(type, probability, draw, layer, 0, count, in, out, stream), "the dropout kernel");
}

}  // namespace prnn
