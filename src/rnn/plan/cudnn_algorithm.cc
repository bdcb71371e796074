#include "rnn/plan/cudnn_algorithm.h"

namespace prnn {
namespace {

bool is_gated(const RnnProblem& p) { return p.gates() > 1; }

// cuDNN has these kernels for float and half. They are faster than the others that it has for small layers, up to a
// batch and from some timesteps on, since they load the weights first: measured on an H200
// (prnn/bench/rnn_backends.py --algorithms). Forward it has them up to 192 hidden units, without gates 384, where they
// take up to ten times as long as the standard ones.
bool has_faster_small_kernels(const CudnnDevice& device, const RnnProblem& p) {
  if (device.arch < 60 || p.hidden > (is_gated(p) ? 128 : 256)) return false;
  const auto hidden = static_cast<double>(p.hidden);
  const double share = static_cast<double>(p.max_batch()) * hidden * hidden / (is_gated(p) ? 8e6 : 24e6);
  return share < 1 && static_cast<double>(p.steps()) * (is_gated(p) ? 25 : 40) >= hidden * (1 + 2 * share) &&
         p.steps() > 1;
}

// Where cuDNN's persistent kernels were faster than its standard ones replayed from a graph: on an H200, T = 256, the
// sizes of prnn bench rnn --targets. They need more workspace, which a stack has for all layers at once, so that
// stacks are left to the standard ones. With fewer timesteps they take up to twice as long. GPUs: those that torch
// takes them on.
constexpr int64_t kLeastSteps = 4;

bool has_faster_persistent_kernels(const CudnnDevice& device, const RnnProblem& p) {
  if (p.steps() < kLeastSteps) return false;
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
