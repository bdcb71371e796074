// device.h on a GPU.
#include "cudnn_standin/device.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstring>

namespace prnn_cudnn {
namespace device {
namespace {

constexpr int kThreads = 256;
constexpr int kStored = 960;  // integers that fit a kernel's arguments

void require(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return;
  cudaGetLastError();  // not to be taken for a later call's
  throw Failure(kExecutionFailed, std::string(what) + ": " + cudaGetErrorString(error));
}

cudaStream_t as_stream(void* stream) { return static_cast<cudaStream_t>(stream); }

struct Stored {
  int values[kStored];
};

__global__ void store_kernel(int* to, Stored stored, int count) {
  for (int i = static_cast<int>(threadIdx.x); i < count; i += kThreads) to[i] = stored.values[i];
}

template <class Word>
struct Conversion {
  Word *padded, *packed;
  bool batch_major;
  int steps, batch;
  int64_t words;  // of a row
  const int *order, *lengths;
  Word filling;
};

// A block for each timestep: threadIdx.y and blockIdx.y go over the sequences, threadIdx.x over a row's words.
template <class Word, bool kPacks>
__global__ void convert_kernel(Conversion<Word> p) {
  const int t = static_cast<int>(blockIdx.x), thread = static_cast<int>(threadIdx.y * blockDim.x + threadIdx.x);
  // Packed rows of the timesteps before.
  __shared__ unsigned long long before;
  if (thread == 0) before = 0;
  __syncthreads();
  unsigned long long own = 0;
  for (int r = thread; r < p.batch; r += kThreads) own += static_cast<unsigned>(min(p.lengths[r], t));
  if (own > 0) atomicAdd(&before, own);  // whole numbers: the order does not matter
  __syncthreads();
  for (int r = static_cast<int>(blockIdx.y * blockDim.y + threadIdx.y); r < p.batch;
       r += static_cast<int>(gridDim.y * blockDim.y)) {
    const int64_t n = p.order[r];
    Word* const padded = p.padded + (p.batch_major ? n * p.steps + t : static_cast<int64_t>(t) * p.batch + n) * p.words;
    if (t < p.lengths[r]) {
      Word* const packed = p.packed + (static_cast<int64_t>(before) + r) * p.words;
      for (int64_t i = threadIdx.x; i < p.words; i += blockDim.x) {
        if (kPacks) {
          packed[i] = padded[i];
        } else {
          padded[i] = packed[i];
        }
      }
    } else if (!kPacks) {
      for (int64_t i = threadIdx.x; i < p.words; i += blockDim.x) padded[i] = p.filling;
    }
  }
}

// A row of the states for each blockIdx.x; kSorts: to[i, r] = from[i, order[r]], else the reverse.
template <class Word, bool kSorts>
__global__ void sort_kernel(const Word* from, Word* to, int batch, int64_t words, const int* order) {
  const int64_t row = blockIdx.x, first = row / batch * batch, other = first + order[row - first];
  const int64_t source = kSorts ? other : row, target = kSorts ? row : other;
  for (int64_t i = threadIdx.x; i < words; i += blockDim.x) to[target * words + i] = from[source * words + i];
}

// SplitMix64's finalizer.
__device__ unsigned long long mix(unsigned long long x) {
  x += 0x9E3779B97F4A7C15ull;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ull;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBull;
  return x ^ (x >> 31);
}

__global__ void seed_kernel(const float* draw, int count, unsigned long long* seed) {
  __shared__ unsigned long long sum;
  if (threadIdx.x == 0) sum = 0;
  __syncthreads();
  unsigned long long own = 0;
  for (int i = static_cast<int>(threadIdx.x); i < count; i += kThreads) {
    if (draw[i] != 0) own ^= mix(i);
  }
  atomicXor(&sum, own);
  __syncthreads();
  if (threadIdx.x == 0) *seed = sum;
}

// Calls launch(Word()) with the widest word of which a row and all addresses are multiples.
template <class Launch>
void with_word(size_t row_bytes, const void* a, const void* b, const Launch& launch) {
  const uintptr_t bits = row_bytes | reinterpret_cast<uintptr_t>(a) | reinterpret_cast<uintptr_t>(b);
  if (bits % 16 == 0) {
    launch(uint4());
  } else if (bits % 4 == 0) {
    launch(uint32_t());
  } else {
    launch(uint16_t());
  }
}

template <bool kPacks>
void convert(const PaddedShape& shape, void* padded, void* packed, const void* element, size_t element_bytes,
             void* stream) {
  with_word(shape.row_bytes, padded, packed, [&](auto word) {
    using Word = decltype(word);
    Conversion<Word> p{};
    p.padded = static_cast<Word*>(padded);
    p.packed = static_cast<Word*>(packed);
    p.batch_major = shape.batch_major;
    p.steps = shape.steps;
    p.batch = shape.batch;
    p.words = static_cast<int64_t>(shape.row_bytes / sizeof(Word));
    p.order = shape.order;
    p.lengths = shape.lengths;
    if (!kPacks) {
      for (size_t at = 0; at < sizeof(Word); at += element_bytes) {
        std::memcpy(reinterpret_cast<char*>(&p.filling) + at, element, std::min(element_bytes, sizeof(Word) - at));
      }
    }
    const dim3 threads(32, kThreads / 32), blocks(shape.steps, std::min((shape.batch + 7) / 8, 64));
    convert_kernel<Word, kPacks><<<blocks, threads, 0, as_stream(stream)>>>(p);
  });
  require(cudaGetLastError(), "the kernel that packs sequences could not be launched");
}

template <bool kSorts>
void sort(const void* from, void* to, int count, int batch, size_t row_bytes, const int* order, void* stream) {
  with_word(row_bytes, from, to, [&](auto word) {
    using Word = decltype(word);
    sort_kernel<Word, kSorts>
        <<<count * batch, 128, 0, as_stream(stream)>>>(static_cast<const Word*>(from), static_cast<Word*>(to), batch,
                                                       static_cast<int64_t>(row_bytes / sizeof(Word)), order);
  });
  require(cudaGetLastError(), "the kernel that sorts states could not be launched");
}

}  // namespace

std::string why_unavailable() { return ""; }

int current() {
  int device = 0;
  require(cudaGetDevice(&device), "there is no usable CUDA device");
  return device;
}

const char* gpu_row() { return nullptr; }

bool is_capturing(void* stream) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  if (cudaStreamIsCapturing(as_stream(stream), &status) != cudaSuccess) {
    cudaGetLastError();
    return true;  // of a capture that is invalid
  }
  return status != cudaStreamCaptureStatusNone;
}

prnnStatus_t create_handle(const Prnn& prnn, prnnHandle_t* handle) {
  // A thread that captures a stream may not allocate, except in this mode. What is allocated stays.
  cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
  require(cudaThreadExchangeStreamCaptureMode(&mode), "the capture mode could not be changed");
  const prnnStatus_t status = prnn.Create(handle);
  cudaThreadExchangeStreamCaptureMode(&mode);
  return status;
}

void copy(void* to, const void* from, size_t bytes, void* stream) {
  require(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, as_stream(stream)), "a copy failed");
}

void fill(void* to, unsigned char byte, size_t bytes, void* stream) {
  require(cudaMemsetAsync(to, byte, bytes, as_stream(stream)), "a memset failed");
}

void store(int* to, const std::vector<int>& values, void* stream) {
  for (size_t at = 0; at < values.size(); at += kStored) {
    Stored stored;
    const int count = static_cast<int>(std::min<size_t>(kStored, values.size() - at));
    std::copy_n(values.data() + at, count, stored.values);
    store_kernel<<<1, kThreads, 0, as_stream(stream)>>>(to + at, stored, count);
  }
  require(cudaGetLastError(), "the kernel that stores lengths could not be launched");
}

void pack(const PaddedShape& shape, const void* padded, void* packed, void* stream) {
  convert<true>(shape, const_cast<void*>(padded), packed, nullptr, 0, stream);
}

void unpack(const PaddedShape& shape, const void* packed, void* padded, const void* element, size_t element_bytes,
            void* stream) {
  convert<false>(shape, padded, const_cast<void*>(packed), element, element_bytes, stream);
}

void sort_states(const void* from, void* to, int count, int batch, size_t row_bytes, const int* order, void* stream) {
  sort<true>(from, to, count, batch, row_bytes, order, stream);
}

void unsort_states(const void* from, void* to, int count, int batch, size_t row_bytes, const int* order, void* stream) {
  sort<false>(from, to, count, batch, row_bytes, order, stream);
}

void store_seed(const float* draw, int count, void* states, void* stream) {
  seed_kernel<<<1, kThreads, 0, as_stream(stream)>>>(draw, count, static_cast<unsigned long long*>(states));
  require(cudaGetLastError(), "the kernel that makes a seed could not be launched");
}

class Stopwatch {
 public:
  cudaEvent_t from = nullptr, to = nullptr;
  ~Stopwatch() {
    if (from != nullptr) cudaEventDestroy(from);
    if (to != nullptr) cudaEventDestroy(to);
  }
};

Stopwatch* start(void* stream) {
  if (is_capturing(stream)) return nullptr;
  Stopwatch* const stopwatch = new Stopwatch;
  if (cudaEventCreate(&stopwatch->from) != cudaSuccess || cudaEventCreate(&stopwatch->to) != cudaSuccess ||
      cudaEventRecord(stopwatch->from, as_stream(stream)) != cudaSuccess) {
    cudaGetLastError();
    delete stopwatch;
    return nullptr;
  }
  return stopwatch;
}

void stop(Stopwatch* stopwatch, void* stream) {
  if (cudaEventRecord(stopwatch->to, as_stream(stream)) != cudaSuccess) cudaGetLastError();
}

bool read(Stopwatch* stopwatch, double* milliseconds) {
  float time = 0;
  if (cudaEventElapsedTime(&time, stopwatch->from, stopwatch->to) != cudaSuccess) {
    cudaGetLastError();
    return false;
  }
  *milliseconds = time;
  delete stopwatch;
  return true;
}

}  // namespace device
}  // namespace prnn_cudnn
