#include "rnn/plan/cudnn_algorithm.h"

namespace prnn {
namespace {

bool is_gated(const RnnProblem& p) { return p.gates() > 1; }

// cuDNN has these kernels for float and half. They are faster than the others that it has for small layers, up to a
// batch: measured on an H200 (prnn/bench/rnn_backends.py --algorithms). Forward it has them up to 192 hidden units,
// without gates 384, where they take up to ten times as long as the standard ones.
bool has_faster_small_kernels(const CudnnDevice& device, const RnnProblem& p) {
  if (device.arch < 60 || p.hidden > (is_gated(p) ? 128 : 256)) return false;
  return p.max_batch() * p.hidden * p.hidden < (is_gated(p) ? 8'000'000 : 24'000'000);
}

// Where cuDNN's persistent kernels were faster than its standard ones replayed from a graph: on an H200, T = 256, the
// sizes of prnn bench rnn --targets. They need more workspace, which a stack has for all layers at once, so that
// stacks are left to the standard ones. GPUs: those that torch takes them on.
bool has_faster_persistent_kernels(const CudnnDevice& device, const RnnProblem& p) {
  if (device.arch < 80 || device.arch == 86 || device.multiprocessors < 98) return false;
  if (p.layers > 1 || p.directions > 1 || p.hidden % 64 != 0 || p.input % 64 != 0) return false;
  const int64_t n = p.max_batch();
  if (p.type == PRNN_DATA_FLOAT) return n == 1 && p.hidden <= 512;
  return p.hidden <= 1024 && (n <= 8 || (n <= 128 && n % 8 == 0 && p.mode != PRNN_GRU));
}

}  // namespace

CudnnAlgorithm choose_algorithm(const CudnnDevice& device, const RnnProblem& p) {
  const bool same_lengths = p.batch.front() == p.batch.back();
  const bool has_type = p.type == PRNN_DATA_FLOAT || p.type == PRNN_DATA_HALF;
  if (!same_lengths || !has_type || p.projection > 0) return kStandard;
  if (has_faster_small_kernels(device, p)) return kPersistentSmallH;
  return has_faster_persistent_kernels(device, p) ? kPersistentStatic : kStandard;
}

}  // namespace prnn
