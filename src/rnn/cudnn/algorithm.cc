#include "rnn/cudnn/algorithm.h"

namespace prnn {
namespace {

bool is_gated(const RnnProblem& p) { return p.gates() > 1; }

// cuDNN has these kernels for float and half, up to a size that is smaller in the data gradient. They are faster than
// the others that it has there; torch takes them at the same sizes.
bool has_small_kernels(const CudnnDevice& device, const RnnProblem& p, bool is_forward) {
  const int64_t largest = is_forward ? (is_gated(p) ? 192 : 384) : (is_gated(p) ? 128 : 256);
  return device.arch >= 60 && p.hidden <= largest;
}

// Where cuDNN's persistent kernels were faster than its standard ones replayed from a graph: on an H200, T = 256, the
// sizes of bench/rnn_gpu.py --targets. They need more workspace, which a stack has for all layers at once, so that
// stacks are left to the standard ones. GPUs: those that torch takes them on.
bool has_faster_persistent_kernels(const CudnnDevice& device, const RnnProblem& p) {
  if (device.arch < 80 || device.arch == 86 || device.multiprocessors < 98) return false;
  if (p.layers > 1 || p.directions > 1 || p.hidden % 64 != 0 || p.input % 64 != 0) return false;
  const int64_t n = p.max_batch();
  if (p.type == PRNN_DATA_FLOAT) return n == 1 && p.hidden <= 512;
  return p.hidden <= 1024 && (n <= 8 || (n <= 128 && n % 8 == 0 && p.mode != PRNN_GRU));
}

CudnnAlgorithm choose(const CudnnDevice& device, const RnnProblem& p, bool is_forward) {
  const bool same_lengths = p.batch.front() == p.batch.back();
  const bool has_type = p.type == PRNN_DATA_FLOAT || p.type == PRNN_DATA_HALF;
  if (!same_lengths || !has_type || p.projection > 0) return kStandard;
  if (has_small_kernels(device, p, is_forward)) return kPersistentSmallH;
  return has_faster_persistent_kernels(device, p) ? kPersistentStatic : kStandard;
}

}  // namespace

CudnnAlgorithms choose_algorithms(const CudnnDevice& device, const RnnProblem& problem) {
  return {choose(device, problem, true), choose(device, problem, false)};
}

}  // namespace prnn
