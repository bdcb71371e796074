// The gradients of the weights: a few matrix products over all rows of the batch, added to dw or written there.
#include <algorithm>
#include <type_traits>

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
      : p_(problem), args_(args), reserve_(problem, args.keeps_gates, args.reserve), ws_(problem, args.workspace) {}

  void run() const {
    for (int64_t layer = p_.frozen; layer < p_.layers; ++layer) {
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
    const int64_t direct = p_.mode == PRNN_GRU ? 2 : G;  // gates whose gradient is the same for input and recurrence
    gather_h_prev(team, layer, index);
    const Range sums = column_share(team, G * H), candidate_sums = column_share(team, direct < G ? H : 0);
    double* const candidate = ws_.sums + G * H;
    std::fill_n(ws_.sums + sums.begin, sums.size(), 0.0);
    std::fill_n(candidate + candidate_sums.begin, candidate_sums.size(), 0.0);
    team.sync();

    const int64_t width = p_.layer_input(layer), most = rows_at_once();
    for (int64_t begin = 0; begin < p_.rows; begin += most) {
      const Range rows = {begin, std::min(begin + most, p_.rows)};
      add_columns(rows, sums, d.dgates, G * H, ws_.sums);
      if (direct < G) add_columns(rows, candidate_sums, d.dcandidate, H, candidate);
      if (offsets.input >= 0) {
        add_product(team, rows, direct * H, width, d.dgates, G * H, input, width, dw + offsets.input);
        if (direct < G) {
          add_product(team, rows, H, width, d.dcandidate, H, input, width, dw + offsets.input + direct * H * width);
        }
      }
      add_product(team, rows, G * H, P, d.dgates, G * H, ws_.h_prev, P, dw + offsets.recurrent);
      if (p_.projection > 0) add_product(team, rows, P, H, d.dh, P, d.unprojected, H, dw + offsets.projection);
    }
    store_sums(sums, ws_.sums, dw + offsets.recurrent_bias);
    store_sums({sums.begin, std::min(sums.end, direct * H)}, ws_.sums, dw + offsets.input_bias);
    store_sums(candidate_sums, candidate, dw + offsets.input_bias + direct * H);
    team.sync();  // h_prev is written again
  }

  // Rows that all products take before they go on to the next ones: as many as have half a megabyte of gate gradients,
  // which stay in the L2 cache, and all where these are few. What is rounded once takes all rows.
  int64_t rows_at_once() const {
    constexpr int64_t kBytes = 512 * 1024, kBlock = 256;
    const int64_t rows = kBytes / (G * H * static_cast<int64_t>(sizeof(T))) / kBlock * kBlock;
    return std::is_same_v<S, T> && rows > 0 ? rows : p_.rows;
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
  void add_product(const Team& team, Range rows, int64_t m, int64_t n, const T* a, int64_t lda, const T* b, int64_t ldb,
                   S* c) const {
    Gemm<T> gemm;
    gemm.m = m;
    gemm.n = gemm.ldc = n;
    gemm.k = rows.size();
    gemm.a = a + rows.begin * lda;
    gemm.lda = lda;
    gemm.a_transposed = true;
    gemm.b = b + rows.begin * ldb;
    gemm.ldb = ldb;
    gemm.accumulate = args_.adds || rows.begin > 0;
    gemm.scratch = scratch_;
    team_gemm_narrow<S>(team, gemm, c);
  }

  // The calling thread's of so many sums: whole cache lines.
  static Range column_share(const Team& team, int64_t columns) {
    constexpr int64_t kColumns = 64;
    const Range share = team.share_of((columns + kColumns - 1) / kColumns);
    return {share.begin * kColumns, std::min(share.end * kColumns, columns)};
  }

  // sums[i] += sum over rows of a[row][i].
  void add_columns(Range rows, Range columns, const T* a, int64_t lda, double* sums) const {
    kernels_.add_rows(a + rows.begin * lda + columns.begin, lda, rows.size(), columns.size(), sums + columns.begin);
  }

  void store_sums(Range columns, const double* sums, S* to) const {
    constexpr int64_t kColumns = 64;
    for (int64_t begin = columns.begin; begin < columns.end; begin += kColumns) {
      const int64_t width = std::min(kColumns, columns.end - begin);
      T totals[kColumns], before[kColumns] = {};
      if (args_.adds) kernels_.widen(to + begin, width, before);
      for (int64_t j = 0; j < width; ++j) totals[j] = static_cast<T>(before[j] + sums[begin + j]);
      kernels_.narrow(totals, width, to + begin);
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
