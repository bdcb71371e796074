// device.h in a build without CUDA: every call is forwarded, so that the functions that end the process are not
// reached.
#include <cstdlib>

#include "cudnn_standin/device.h"

namespace prnn_cudnn {
namespace device {

std::string why_unavailable() { return "this build of prnn has no CUDA"; }

int current() { std::abort(); }
const char* gpu_row() { std::abort(); }
bool is_capturing(void*) { std::abort(); }
prnnStatus_t create_handle(const Prnn&, prnnHandle_t*) { std::abort(); }
void copy(void*, const void*, size_t, void*) { std::abort(); }
void fill(void*, unsigned char, size_t, void*) { std::abort(); }
void store(int*, const std::vector<int>&, void*) { std::abort(); }
void pack(const PaddedShape&, const void*, void*, void*) { std::abort(); }
void unpack(const PaddedShape&, const void*, void*, const void*, size_t, void*) { std::abort(); }
void sort_states(const void*, void*, int, int, size_t, const int*, void*) { std::abort(); }
void unsort_states(const void*, void*, int, int, size_t, const int*, void*) { std::abort(); }
void store_seed(const float*, int, void*, void*) { std::abort(); }
Stopwatch* start(void*) { return nullptr; }
void stop(Stopwatch*, void*) { std::abort(); }
bool read(Stopwatch*, double*) { std::abort(); }

}  // namespace device
}  // namespace prnn_cudnn
