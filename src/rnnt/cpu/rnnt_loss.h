// RNN-T loss on the CPU. Parameters have been validated; see rnnt/rnnt.h.
#pragma once

#include "rnnt/rnnt.h"

namespace prnn {

size_t rnnt_lattices_size_cpu(const prnnRNNTLossOptions_t& options);  // workspace of a loss or an alignment
size_t rnnt_loss_reserve_size_cpu(const prnnRNNTLossOptions_t& options);
void run_rnnt_loss_cpu(const RnntParams& params, void* costs, void* gradients, void* reserve);
void run_rnnt_loss_backward_cpu(const RnntParams& params, const void* cost_gradients, void* gradients,
                                const void* reserve);
void run_rnnt_align_cpu(const RnntParams& params, void* scores, int* frames);

}  // namespace prnn
