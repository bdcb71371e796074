#include <algorithm>

#include "rnn/cpu/layer_norm/passes.h"

namespace prnn {
namespace {

constexpr int64_t kSummed = 256;  // timesteps that are summed in T

template <class T>
class BackwardPass {
 public:
  BackwardPass(const RnnProblem& problem, const RnnBackwardArgs& args)
      : p_(problem), args_(args), ws_(problem, args.workspace), kept_(reserve_arena_, problem.rows, H) {}

  void run() const {
    std::fill_n(ws_.zeros, H, T(0));
    std::fill_n(ws_.direct, N * H, T(0));
    std::fill_n(ws_.sums, N * kLayerNormLstmParameterRows * H, T(0));
    std::fill_n(ws_.totals, N * kLayerNormLstmParameterRows * H, 0.0);
    if (args_.dcy != nullptr) {
      std::copy_n(static_cast<const T*>(args_.dcy), N * H, ws_.dc);
    } else {
      std::fill_n(ws_.dc, N * H, T(0));
    }
    run_team(threads_, [&](const Team& team) { run(team); });
    store_sums();
  }

 private:
  void run(const Team& team) const {
    const GemmKernels<T>& kernels = gemm_kernels<T>();
    const int64_t width = kernels.width;
    const Range panels = team.share_of((H + width - 1) / width);
    const int64_t first = panels.begin * width, columns = std::min(panels.end * width, H) - first;
    if (columns > 0) {
      kernels.pack_columns(static_cast<const T*>(args_.w) + first, H, columns, 4 * H, ws_.recurrent + first * 4 * H);
    }
    const Range sequences = team.share_of(N);
    for (int64_t s = p_.steps() - 1; s >= 0; --s) {
      const LayerNormLstmStep step(p_, s);
      for (int64_t n = sequences.begin; n < sequences.end; ++n) run_sequence(s, n);
      if (s % kSummed == 0) add_sums(sequences);
      team.sync();
      if (s == 0 && args_.dhx == nullptr) break;
      panel_product(team, ws_.recurrent, H, 4 * H, da(step.row), N, ws_.products, s % 2 != 0);
      team.sync();
    }
    for (int64_t n = sequences.begin; n < sequences.end; ++n) store_initial(n);
    if (args_.dw != nullptr) multiply_weights(team);
  }

  void run_sequence(int64_t s, int64_t n) const {
    const LayerNormLstmStep step(p_, s);
    const int64_t row = step.row + n;
    LayerNormLstmBackwardStep<T> cell{};
    fill_cell(p_, args_, row, cell);
    const auto* c0 = static_cast<const T*>(args_.cx);
    cell.kept = kept_.row(row);
    cell.c_prev = s > 0 ? kept_.row(step.before + n).c : c0 != nullptr ? c0 + n * H : ws_.zeros;
    cell.dy = static_cast<const T*>(args_.dy) + row * H;
    cell.product = s + 1 < p_.steps() ? ws_.products + n * H : nullptr;
    if (p_.masks.recurrent != nullptr) cell.recurrent_mask = static_cast<const T*>(p_.masks.recurrent) + n * H;
    cell.direct = ws_.direct + n * H;
    cell.dc = ws_.dc + n * H;
    cell.dx = static_cast<T*>(args_.dx) + row * 4 * H;
    cell.da = da(row);
    cell.scratch = ws_.scratch + n * 2 * H;
    cell.sums = ws_.sums + n * kLayerNormLstmParameterRows * H;
    if (runs_at(p_, args_.lengths, step.row, n)) {
      kernels_.backward(cell);
    } else {
      pass_by(cell);
    }
    if (args_.dw != nullptr) gather_h_prev(s, n);
  }

  // The gradients of a timestep that the sequence does not have.
  void pass_by(const LayerNormLstmBackwardStep<T>& cell) const {
    for (int64_t u = 0; u < H; ++u) {
      const T mask = cell.recurrent_mask != nullptr ? cell.recurrent_mask[u] : 1;
      cell.direct[u] += cell.dy[u] + (cell.product != nullptr ? mask * cell.product[u] : 0);
    }
    std::fill_n(cell.dx, 4 * H, T(0));
    std::fill_n(cell.da, 4 * H, T(0));
  }

  T* da(int64_t row) const {
    const bool products = p_.normalize == PRNN_NORMALIZE_PRODUCTS;
    return (products ? ws_.da : static_cast<T*>(args_.dx)) + row * 4 * H;
  }

  void gather_h_prev(int64_t s, int64_t n) const {
    const LayerNormLstmStep step(p_, s);
    const auto* h0 = static_cast<const T*>(args_.hx);
    const T* const from = s > 0           ? static_cast<const T*>(args_.y) + (step.before + n) * H
                          : h0 != nullptr ? h0 + n * H
                                          : ws_.zeros;
    T* const to = ws_.h_prev + (step.row + n) * H;
    if (p_.masks.recurrent == nullptr) {
      std::copy_n(from, H, to);
      return;
    }
    const T* const m = static_cast<const T*>(p_.masks.recurrent) + n * H;
    for (int64_t u = 0; u < H; ++u) to[u] = m[u] * from[u];
  }

  void store_initial(int64_t n) const {
    if (args_.dcx != nullptr) {
      std::copy_n(ws_.dc + n * H, H, static_cast<T*>(args_.dcx) + n * H);
    }
    if (args_.dhx == nullptr) return;
    const auto* m = static_cast<const T*>(p_.masks.recurrent);
    T* const to = static_cast<T*>(args_.dhx) + n * H;
    for (int64_t u = n * H; u < (n + 1) * H; ++u) {
      to[u - n * H] = ws_.direct[u] + (m != nullptr ? m[u] * ws_.products[u] : ws_.products[u]);
    }
  }

  void multiply_weights(const Team& team) const {
    Gemm<T> gemm;
    gemm.m = gemm.lda = 4 * H;
    gemm.n = gemm.ldb = gemm.ldc = H;
    gemm.k = p_.rows;
    gemm.a = da(0);
    gemm.a_transposed = true;
    gemm.b = ws_.h_prev;
    gemm.c = static_cast<T*>(args_.dw);
    gemm.scratch = scratch_;
    team_gemm(team, gemm);
  }

  void add_sums(Range sequences) const {
    const int64_t size = kLayerNormLstmParameterRows * H;
    for (int64_t i = sequences.begin * size; i < sequences.end * size; ++i) {
      ws_.totals[i] += ws_.sums[i];
      ws_.sums[i] = 0;
    }
  }

  // Adds the sequences' sums in their order.
  void store_sums() const {
    const prnnRNNNormGradients_t& norm = *args_.normGradients;
    store_rows(norm.gateGain, 0, 4);
    store_rows(norm.gateBias, 4, 4);
    store_rows(norm.cellGain, 8, 1);
    store_rows(norm.cellBias, 9, 1);
  }

  void store_rows(void* out, int64_t first, int64_t count) const {
    if (out == nullptr) return;
    T* const to = static_cast<T*>(out);
    for (int64_t i = 0; i < count * H; ++i) {
      double sum = 0;
      for (int64_t n = 0; n < N; ++n) sum += ws_.totals[(n * kLayerNormLstmParameterRows + first) * H + i];
      to[i] = static_cast<T>(sum);
    }
  }

  const RnnProblem& p_;
  const RnnBackwardArgs& args_;
  const int64_t N = p_.max_batch(), H = p_.hidden;
  Arena reserve_arena_ = aligned_arena(args_.reserve);
  const LayerNormLstmBackwardWorkspace<T> ws_;
  const LayerNormLstmRows<T> kept_;
  const LayerNormLstmKernels<T>& kernels_ = layer_norm_lstm_kernels<T>();
  const int threads_ = layer_norm_lstm_threads(p_);
  char* const scratch_ = gemm_scratch<T>(threads_);
};

}  // namespace

template <class T>
void layer_norm_lstm_backward_cpu(const RnnProblem& problem, const RnnBackwardArgs& args) {
  BackwardPass<T>(problem, args).run();
}

template void layer_norm_lstm_backward_cpu<float>(const RnnProblem&, const RnnBackwardArgs&);
template void layer_norm_lstm_backward_cpu<double>(const RnnProblem&, const RnnBackwardArgs&);

}  // namespace prnn
