#include <algorithm>

#include "layer_norm_lstm/cpu/passes.h"

namespace prnn {
namespace {

constexpr int64_t kSummed = 256;  // timesteps that are summed in T

template <class T>
class BackwardPass {
 public:
  BackwardPass(const LayerNormLstmOptions& options, const LayerNormLstmInputs& inputs,
               const LayerNormLstmBackwardArgs& args)
      : o_(options), in_(inputs), args_(args), ws_(options, args.workspace), kept_(reserve_arena_, rows(), H) {}

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
      kernels.pack_columns(static_cast<const T*>(in_.recurrent) + first, H, columns, 4 * H,
                           ws_.recurrent + first * 4 * H);
    }
    const Range sequences = team.share_of(N);
    for (int64_t s = o_.steps - 1; s >= 0; --s) {
      const LayerNormLstmStep step(o_, s);
      for (int64_t n = sequences.begin; n < sequences.end; ++n) run_sequence(s, n);
      if (s % kSummed == 0) add_sums(sequences);
      team.sync();
      if (s == 0 && args_.gradients.dh0 == nullptr) break;
      panel_product(team, ws_.recurrent, H, 4 * H, da(step.row), N, ws_.products, s % 2 != 0);
      team.sync();
    }
    for (int64_t n = sequences.begin; n < sequences.end; ++n) store_initial(n);
    if (args_.gradients.dRecurrent != nullptr) multiply_weights(team);
  }

  void run_sequence(int64_t s, int64_t n) const {
    const LayerNormLstmStep step(o_, s);
    const int64_t row = step.row + n;
    LayerNormLstmBackwardStep<T> cell{};
    fill_cell(o_, in_, row, cell);
    const auto* c0 = static_cast<const T*>(in_.c0);
    cell.kept = kept_.row(row);
    cell.c_prev = s > 0 ? kept_.row(step.before + n).c : c0 != nullptr ? c0 + n * H : ws_.zeros;
    cell.dy = static_cast<const T*>(args_.dy) + row * H;
    cell.product = s + 1 < o_.steps ? ws_.products + n * H : nullptr;
    if (in_.recurrentMask != nullptr) cell.recurrent_mask = static_cast<const T*>(in_.recurrentMask) + n * H;
    cell.direct = ws_.direct + n * H;
    cell.dc = ws_.dc + n * H;
    cell.dx = static_cast<T*>(args_.gradients.dx) + row * 4 * H;
    cell.da = da(row);
    cell.scratch = ws_.scratch + n * 2 * H;
    cell.sums = ws_.sums + n * kLayerNormLstmParameterRows * H;
    if (runs_at(o_, in_, step.row, n)) {
      kernels_.backward(cell);
    } else {
      pass_by(cell);
    }
    if (args_.gradients.dRecurrent != nullptr) gather_h_prev(s, n);
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
    const bool products = o_.normalize == PRNN_NORMALIZE_PRODUCTS;
    return (products ? ws_.da : static_cast<T*>(args_.gradients.dx)) + row * 4 * H;
  }

  void gather_h_prev(int64_t s, int64_t n) const {
    const LayerNormLstmStep step(o_, s);
    const auto* h0 = static_cast<const T*>(in_.h0);
    const T* const from = s > 0           ? static_cast<const T*>(args_.y) + (step.before + n) * H
                          : h0 != nullptr ? h0 + n * H
                                          : ws_.zeros;
    T* const to = ws_.h_prev + (step.row + n) * H;
    if (in_.recurrentMask == nullptr) {
      std::copy_n(from, H, to);
      return;
    }
    const T* const m = static_cast<const T*>(in_.recurrentMask) + n * H;
    for (int64_t u = 0; u < H; ++u) to[u] = m[u] * from[u];
  }

  void store_initial(int64_t n) const {
    if (args_.gradients.dc0 != nullptr) {
      std::copy_n(ws_.dc + n * H, H, static_cast<T*>(args_.gradients.dc0) + n * H);
    }
    if (args_.gradients.dh0 == nullptr) return;
    const auto* m = static_cast<const T*>(in_.recurrentMask);
    T* const to = static_cast<T*>(args_.gradients.dh0) + n * H;
    for (int64_t u = n * H; u < (n + 1) * H; ++u) {
      to[u - n * H] = ws_.direct[u] + (m != nullptr ? m[u] * ws_.products[u] : ws_.products[u]);
    }
  }

  void multiply_weights(const Team& team) const {
    Gemm<T> gemm;
    gemm.m = gemm.lda = 4 * H;
    gemm.n = gemm.ldb = gemm.ldc = H;
    gemm.k = rows();
    gemm.a = da(0);
    gemm.a_transposed = true;
    gemm.b = ws_.h_prev;
    gemm.c = static_cast<T*>(args_.gradients.dRecurrent);
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
    const LayerNormLstmGradients& g = args_.gradients;
    store_rows(g.dGateGain, 0, 4);
    store_rows(g.dGateBias, 4, 4);
    store_rows(g.dCellGain, 8, 1);
    store_rows(g.dCellBias, 9, 1);
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

  int64_t rows() const { return o_.steps * o_.batch; }

  const LayerNormLstmOptions& o_;
  const LayerNormLstmInputs& in_;
  const LayerNormLstmBackwardArgs& args_;
  const int64_t N = o_.batch, H = o_.hiddenSize;
  Arena reserve_arena_{const_cast<void*>(args_.reserve)};
  const LayerNormLstmBackwardWorkspace<T> ws_;
  const LayerNormLstmRows<T> kept_;
  const LayerNormLstmKernels<T>& kernels_ = layer_norm_lstm_kernels<T>();
  const int threads_ = layer_norm_lstm_threads(o_);
  char* const scratch_ = gemm_scratch<T>(threads_);
};

}  // namespace

template <class T>
void layer_norm_lstm_backward_cpu(const LayerNormLstmOptions& options, const LayerNormLstmInputs& inputs,
                                  const LayerNormLstmBackwardArgs& args) {
  BackwardPass<T>(options, inputs, args).run();
}

template void layer_norm_lstm_backward_cpu<float>(const LayerNormLstmOptions&, const LayerNormLstmInputs&,
                                                  const LayerNormLstmBackwardArgs&);
template void layer_norm_lstm_backward_cpu<double>(const LayerNormLstmOptions&, const LayerNormLstmInputs&,
                                                   const LayerNormLstmBackwardArgs&);

}  // namespace prnn
