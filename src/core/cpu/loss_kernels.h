// The inner loops of the losses on the CPU: exponentials and logarithms over arrays, compiled for several instruction
// sets and picked at run time. None needs aligned arrays; outputs may be the inputs themselves, element on element.
#pragma once

#include <cstdint>

namespace prnn {

struct LossKernels {
  // The log-normaliser of x[0 .. n), split so that x - *maximum - *log_sum is accurate for any x: the largest element
  // and the logarithm of the sum of exp(x - *maximum). n >= 1. NaN if any element is, or if the largest is infinite.
  void (*log_normaliser_float)(const float* x, int64_t n, float* maximum, double* log_sum);
  void (*log_normaliser_double)(const double* x, int64_t n, double* maximum, double* log_sum);

  // out[i] = scale * exp(x[i] - maximum - log_sum)
  void (*scaled_softmax_float)(const float* x, int64_t n, float maximum, float log_sum, float scale, float* out);
  void (*scaled_softmax_double)(const double* x, int64_t n, double maximum, double log_sum, double scale, double* out);

  // out[i] = log(exp(a[i] + b[i]) + exp(c[i] + d[i]))
  void (*add_paths)(const double* a, const double* b, const double* c, const double* d, int64_t n, double* out);

  // out[i] = gain + log(exp(a[i]) + exp(b[i]))
  void (*add_two)(const double* a, const double* b, double gain, int64_t n, double* out);

  // out[i] = gain[i] + log(exp(a[i]) + exp(b[i]) + exp(c[i] + d[i]))
  void (*add_three)(const double* a, const double* b, const double* c, const double* d, const double* gain, int64_t n,
                    double* out);

  // out[i] = exp(a[i] + b[i] + c[i] - total), the share of a path's arc in the total
  void (*path_share)(const double* a, const double* b, const double* c, double total, int64_t n, double* out);
};

// The fastest set that this machine runs.
const LossKernels& loss_kernels();

// The sets themselves.
extern const LossKernels loss_kernels_baseline;
#if defined(__x86_64__)
extern const LossKernels loss_kernels_avx2;
#endif

inline void log_normaliser(const LossKernels& k, const float* x, int64_t n, float* maximum, double* log_sum) {
  k.log_normaliser_float(x, n, maximum, log_sum);
}
inline void log_normaliser(const LossKernels& k, const double* x, int64_t n, double* maximum, double* log_sum) {
  k.log_normaliser_double(x, n, maximum, log_sum);
}
inline void scaled_softmax(const LossKernels& k, const float* x, int64_t n, float maximum, float log_sum, float scale,
                           float* out) {
  k.scaled_softmax_float(x, n, maximum, log_sum, scale, out);
}
inline void scaled_softmax(const LossKernels& k, const double* x, int64_t n, double maximum, double log_sum,
                           double scale, double* out) {
  k.scaled_softmax_double(x, n, maximum, log_sum, scale, out);
}

}  // namespace prnn
