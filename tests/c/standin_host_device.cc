// device.h of the stand-in on host memory, so that it can be tested without a GPU: prnn's CPU kernels in the place of
// those for a GPU.
#include <chrono>
#include <cstdlib>
#include <cstring>

#include "cudnn_standin/device.h"

namespace prnn_cudnn {
namespace device {
namespace {

// Calls visit(padded row, packed row or -1) for all timesteps of all sequences.
template <class Visit>
void for_each_row(const PaddedShape& s, const Visit& visit) {
  size_t packed = 0;
  for (int t = 0; t < s.steps; ++t) {
    for (int r = 0; r < s.batch; ++r) {
      const size_t n = s.order[r], row = s.batch_major ? n * s.steps + t : size_t(t) * s.batch + n;
      visit(row * s.row_bytes, t < s.lengths[r] ? static_cast<long>(packed++ * s.row_bytes) : -1);
    }
  }
}

}  // namespace

std::string why_unavailable() { return ""; }
int current() { return 0; }
const char* gpu_row() { return std::getenv("HOST_DEVICE_GPU"); }
prnnStatus_t create_handle(const Prnn& prnn, prnnHandle_t* handle) { return prnn.CreateCPU(handle); }

void copy(void* to, const void* from, size_t bytes, void*) { std::memcpy(to, from, bytes); }
void fill(void* to, unsigned char byte, size_t bytes, void*) { std::memset(to, byte, bytes); }
void store(int* to, const std::vector<int>& values, void*) {
  std::memcpy(to, values.data(), values.size() * sizeof(int));
}

void pack(const PaddedShape& s, const void* padded, void* packed, void*) {
  for_each_row(s, [&](size_t at, long to) {
    if (to >= 0) std::memcpy(static_cast<char*>(packed) + to, static_cast<const char*>(padded) + at, s.row_bytes);
  });
}
void unpack(const PaddedShape& s, const void* packed, void* padded, const void* element, size_t element_bytes, void*) {
  for_each_row(s, [&](size_t at, long from) {
    char* const row = static_cast<char*>(padded) + at;
    if (from >= 0) {
      std::memcpy(row, static_cast<const char*>(packed) + from, s.row_bytes);
    } else {
      for (size_t i = 0; i < s.row_bytes; i += element_bytes) std::memcpy(row + i, element, element_bytes);
    }
  });
}

void sort_states(const void* from, void* to, int count, int batch, size_t row_bytes, const int* order, void*) {
  for (int i = 0; i < count * batch; ++i) {
    const size_t other = i / batch * batch + order[i % batch];
    std::memcpy(static_cast<char*>(to) + i * row_bytes, static_cast<const char*>(from) + other * row_bytes, row_bytes);
  }
}
void unsort_states(const void* from, void* to, int count, int batch, size_t row_bytes, const int* order, void*) {
  for (int i = 0; i < count * batch; ++i) {
    const size_t other = i / batch * batch + order[i % batch];
    std::memcpy(static_cast<char*>(to) + other * row_bytes, static_cast<const char*>(from) + i * row_bytes, row_bytes);
  }
}

void store_seed(const float* draw, int count, void* states, void*) {
  uint64_t seed = 0;
  for (int i = 0; i < count; ++i) seed = seed * 3 + (draw[i] != 0);
  std::memcpy(states, &seed, sizeof seed);
}

class Stopwatch {
 public:
  std::chrono::steady_clock::time_point from = std::chrono::steady_clock::now(), to;
};
bool is_capturing(void*) { return std::getenv("HOST_DEVICE_CAPTURES") != nullptr; }
Stopwatch* start(void*) { return new Stopwatch; }
void stop(Stopwatch* stopwatch, void*) { stopwatch->to = std::chrono::steady_clock::now(); }
bool read(Stopwatch* stopwatch, double* milliseconds) {
  *milliseconds = std::chrono::duration<double, std::milli>(stopwatch->to - stopwatch->from).count();
  delete stopwatch;
  return true;
}

}  // namespace device
}  // namespace prnn_cudnn
