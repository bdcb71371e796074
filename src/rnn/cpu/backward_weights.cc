// The gradients of the weights: a few matrix products over all rows of the batch, added to dw or written there.
#include <algorithm>
#include <cstring>

#include "core/cpu/gemm/gemm.h"
#include "core/cpu/threads.h"
#include "rnn/cpu/buffers.h"
#include "rnn/cpu/dropout.h"
#include "rnn/cpu/passes.h"
#include "rnn/cpu/steps.h"

namespace prnn {
namespace {

// S: the type of dw; all else is of the type that is computed in, T.
template <class S>
class BackwardWeightsPass {
  using T = Compute<S>;

 public:
  BackwardWeightsPass(const RnnProblem& problem, const RnnBackwardWeightsArgs& args)
      : p_(problem), args_(args), reserve_(problem, args.reserve), ws_(problem, args.workspace) {}

  void run() const {
    for (int64_t layer = 0; layer < p_.layers; ++layer) {
      const T* input = layer == 0 ? static_cast<const T*>(args_.x) : reserve_.outputs[layer - 1];
      const bool drops = layer > 0 && p_.dropout.probability > 0;
      run_team(threads_for(p_.layer_input(layer)), [&](const Team& team) {
        if (drops) {
          apply_dropout(team, p_.dropout.probability, p_.rows * p_.layer_input(layer), input, reserve_.masks[layer - 1],
                        ws_.dropped);
        }
        for (int64_t index = 0; index < p_.recurrences(); ++index) {
          run_direction(team, layer, index, drops ? ws_.dropped : input);
        }
      });
    }
  }

 private:
  // For a layer with inputs of this width.
  int threads_for(int64_t width) const {
    return team_size(2 * static_cast<double>(G * H) * static_cast<double>(P + width) * static_cast<double>(p_.rows));
  }

  void run_direction(const Team& team, int64_t layer, int64_t index, const T* input) const {
    const DirectionReserve<T>& d = reserve_.directions[layer * p_.recurrences() + index];
    const RnnLayerOffsets offsets = rnn_layer_offsets(p_, layer, index);
    S* dw = static_cast<S*>(args_.dw);
    gather_h_prev(team, layer, index);
    team.sync();

    const int64_t direct = p_.mode == PRNN_GRU ? 2 : G;  // gates whose gradient is the same for input and recurrence
    const int64_t width = p_.layer_input(layer);
    if (offsets.input >= 0) {
      add_product(team, direct * H, width, d.dgates, G * H, input, width, dw + offsets.input);
      if (direct < G)
        add_product(team, H, width, d.dcandidate, H, input, width, dw + offsets.input + direct * H * width);
    }
    add_product(team, G * H, P, d.dgates, G * H, ws_.h_prev, P, dw + offsets.recurrent);
    if (p_.projection > 0) add_product(team, P, H, d.dh, P, d.unprojected, H, dw + offsets.projection);
    add_columns(team, direct * H, d.dgates, G * H, dw + offsets.input_bias);
    if (direct < G) add_columns(team, H, d.dcandidate, H, dw + offsets.input_bias + direct * H);
    add_columns(team, G * H, d.dgates, G * H, dw + offsets.recurrent_bias);
    team.sync();  // h_prev is written again
  }

  // The state that every row's timestep started from, as R read it, row by row.
  void gather_h_prev(const Team& team, int64_t layer, int64_t index) const {
    const T* output = layer == p_.layers - 1 ? static_cast<const T*>(args_.y) : reserve_.outputs[layer];
    const auto* hx = static_cast<const T*>(args_.hx);
    const auto* reset_hx = static_cast<const T*>(p_.extras.resetHx);
    const int64_t states = (layer * p_.recurrences() + index) * p_.max_batch() * P;
    if (hx != nullptr) hx += states;
    if (reset_hx != nullptr) reset_hx += states;
    const auto* mask = static_cast<const T*>(p_.masks.recurrent);
    if (mask != nullptr) mask += states;
    const std::vector<Step>& steps = steps_[p_.direction_of(index)];
    const Range share = team.share_of(p_.steps());
    for (int64_t s = share.begin; s < share.end; ++s) {
      const Step& step = steps[s];
      for (int64_t n = 0; n < step.batch; ++n) {
        T* to = ws_.h_prev + (step.row + n) * P;
        const StateBefore before = state_before(p_, p_.direction_of(index), step, n);
        const T* const initial = before == StateBefore::kReset ? reset_hx : hx;
        if (before == StateBefore::kPrevious) {
          std::copy_n(output + ((step.prev_row + n) * p_.recurrences() + index) * P, P, to);
        } else if (initial != nullptr) {
          std::copy_n(initial + n * P, P, to);
        } else {
          std::fill_n(to, P, T(0));
        }
        for (int64_t u = 0; mask != nullptr && u < P; ++u) to[u] *= mask[n * P + u];
      }
    }
  }

  // c[m][n] = sum over rows of a[row][m] * b[row][n], added to what c was or not, as in all that follows.
  void add_product(const Team& team, int64_t m, int64_t n, const T* a, int64_t lda, const T* b, int64_t ldb,
                   S* c) const {
    Gemm<T> gemm;
    gemm.m = m;
    gemm.n = gemm.ldc = n;
    gemm.k = p_.rows;
    gemm.a = a;
    gemm.lda = lda;
    gemm.a_transposed = true;
    gemm.b = b;
    gemm.ldb = ldb;
    gemm.accumulate = args_.adds;
    gemm.scratch = scratch_;
    team_gemm_narrow<S>(team, gemm, c);
  }

  // sums[i] = sum over rows of a[row][i], a cache line's columns at a time or more.
  void add_columns(const Team& team, int64_t columns, const T* a, int64_t lda, S* sums) const {
    constexpr int64_t kColumns = 64;
    const Range share = team.share_of((columns + kColumns - 1) / kColumns);
    for (int64_t i = share.begin; i < share.end; ++i) {
      const int64_t begin = i * kColumns, width = std::min(kColumns, columns - begin);
      T totals[kColumns] = {};
      if (width == kColumns) {
        for (int64_t row = 0; row < p_.rows; ++row) {
          for (int64_t j = 0; j < kColumns; ++j) totals[j] += a[row * lda + begin + j];
        }
      } else {
        for (int64_t row = 0; row < p_.rows; ++row) {
          for (int64_t j = 0; j < width; ++j) totals[j] += a[row * lda + begin + j];
        }
      }
      if (args_.adds) {
        T before[kColumns];
        kernels_.widen(sums + begin, width, before);
        for (int64_t j = 0; j < width; ++j) totals[j] += before[j];
      }
      kernels_.narrow(totals, width, sums + begin);
    }
  }

  const RnnProblem& p_;
  const RnnBackwardWeightsArgs& args_;
  const Reserve<T> reserve_;
  const BackwardWeightsWorkspace<T> ws_;
  const std::array<std::vector<Step>, 2> steps_ = all_direction_steps(p_);
  const GemmKernels<S>& kernels_ = gemm_kernels<S>();
  const int64_t G = p_.gates(), H = p_.hidden, P = p_.state();
  char* const scratch_ = gemm_scratch<S>(threads_for(widest_input(p_)));
};

}  // namespace

template <class S>
void cpu_rnn_backward_weights(const RnnProblem& problem, const RnnBackwardWeightsArgs& args) {
  BackwardWeightsPass<S>(problem, args).run();
}

template void cpu_rnn_backward_weights<float>(const RnnProblem&, const RnnBackwardWeightsArgs&);
template void cpu_rnn_backward_weights<double>(const RnnProblem&, const RnnBackwardWeightsArgs&);
template void cpu_rnn_backward_weights<Half>(const RnnProblem&, const RnnBackwardWeightsArgs&);
template void cpu_rnn_backward_weights<Bfloat16>(const RnnProblem&, const RnnBackwardWeightsArgs&);

}  // namespace prnn
