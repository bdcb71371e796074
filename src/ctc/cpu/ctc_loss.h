// CTC loss on the CPU. Parameters have been validated; see ctc/ctc.h.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "ctc/ctc.h"

namespace prnn {

size_t ctc_loss_workspace_size_cpu(const prnnCTCLossOptions_t& options);
size_t ctc_loss_reserve_size_cpu(const prnnCTCLossOptions_t& options);
size_t ctc_align_workspace_size_cpu(const prnnCTCLossOptions_t& options);
void run_ctc_loss_cpu(const CtcParams& params, void* costs, void* gradients, void* reserve);
void run_ctc_loss_backward_cpu(const CtcParams& params, const void* cost_gradients, void* gradients,
                               const void* reserve);
void run_ctc_align_cpu(const CtcParams& params, void* scores, int* begins, int* ends);

// Elements that a call reads, and states that it computes, as elements.
inline int64_t ctc_work(const prnnCTCLossOptions_t& o) {
  return o.batch * o.maxFrames * (o.classes + 32 * (o.maxTargets + 1));
}

// Where each sequence's symbols begin in the targets.
std::vector<int64_t> ctc_target_offsets(const CtcParams& params);

// Writes the log-probabilities of frame t of sequence n: of the blank, and of each of its `symbols` targets. norm
// receives the frame's log-normaliser in two parts if the activations are logits; may be NULL.
template <class T>
double ctc_frame(const CtcParams& params, int64_t n, int64_t t, const int* targets, int64_t symbols, double* labels,
                 T* norm);

extern template double ctc_frame<float>(const CtcParams&, int64_t, int64_t, const int*, int64_t, double*, float*);
extern template double ctc_frame<double>(const CtcParams&, int64_t, int64_t, const int*, int64_t, double*, double*);

}  // namespace prnn
