// Work that the stand-in itself does on the device: copies between cuDNN's layouts and prnn's. All of it is enqueued on
// the stream and can be captured into a graph. cuda/device.cu has it for a GPU; cuda/no_cuda.cc refuses, and so every
// call is forwarded.
#pragma once

#include <vector>

#include "cudnn_standin/prnn_library.h"

namespace prnn_cudnn {
namespace device {

std::string why_unavailable();  // empty: all of the following works
int current();
const char* gpu_row();            // of libprnn's GPU table, whose plans count; NULL: those of the current device
bool is_capturing(void* stream);  // into a graph
prnnStatus_t create_handle(const Prnn& prnn, prnnHandle_t* handle);  // also while a stream is being captured

void copy(void* to, const void* from, size_t bytes, void* stream);
void fill(void* to, unsigned char byte, size_t bytes, void* stream);
void store(int* to, const std::vector<int>& values, void* stream);  // as kernel arguments

// Padded sequences. `order`: the sequences from the longest to the shortest; `lengths`: theirs, in that order; both in
// device memory.
struct PaddedShape {
  bool batch_major;  // [N, T, width], else [T, N, width]
  int steps, batch;
  size_t row_bytes;  // of a sequence's timestep
  const int *order, *lengths;
};
// The rows that the lengths say are there, timestep after timestep, in `order`.
void pack(const PaddedShape& shape, const void* padded, void* packed, void* stream);
// The reverse. `element`: what is put where there is no row, of row_bytes / width bytes, in host memory.
void unpack(const PaddedShape& shape, const void* packed, void* padded, const void* element, size_t element_bytes,
            void* stream);

// States [count, batch, row]: to[i, r] = from[i, order[r]], or the reverse.
void sort_states(const void* from, void* to, int count, int batch, size_t row_bytes, const int* order, void* stream);
void unsort_states(const void* from, void* to, int count, int batch, size_t row_bytes, const int* order, void* stream);

// Makes a 64-bit seed of `count` floats, each zero or not with equal probability, and puts it into prnn's dropout
// states.
void store_seed(const float* draw, int count, void* states, void* stream);

// The time on the stream between two points.
class Stopwatch;
Stopwatch* start(void* stream);  // NULL while the stream is being captured: the work runs later, and maybe often
void stop(Stopwatch* stopwatch, void* stream);
// Whether the second point has been reached; then `milliseconds` is set and the stopwatch is gone.
bool read(Stopwatch* stopwatch, double* milliseconds);

}  // namespace device
}  // namespace prnn_cudnn
