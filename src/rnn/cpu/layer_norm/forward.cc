#include <algorithm>
#include <cstring>

#include "rnn/cpu/layer_norm/passes.h"

namespace prnn {

template <class T>
void panel_product(const Team& team, const T* packed, int64_t rows, int64_t k, const T* b, int64_t n, T* out,
                   bool downwards) {
  constexpr int64_t kPanels = 4, kVectors = 16, kMostWidth = 128 / sizeof(T);
  const GemmKernels<T>& kernels = gemm_kernels<T>();
  const int64_t width = kernels.width;
  const Range panels = team.share_of((rows + width - 1) / width);
  alignas(64) T products[kPanels * kVectors * kMostWidth];
  const int64_t groups = (panels.size() + kPanels - 1) / kPanels;
  for (int64_t i = 0; i < groups; ++i) {
    const auto panels_of = [&](int64_t group) {
      return packed + (panels.begin + (downwards ? groups - 1 - group : group) * kPanels) * width * k;
    };
    const int64_t first = panels.begin + (downwards ? groups - 1 - i : i) * kPanels;
    const int64_t count = std::min(kPanels, panels.end - first);
    for (int64_t begin = 0; begin < n; begin += kVectors) {
      const int64_t vectors = std::min(kVectors, n - begin);
      kernels.product(panels_of(i), count, width, k, b + begin * k, k, vectors, products,
                      i + 1 < groups ? panels_of(i + 1) : nullptr);
      for (int64_t p = 0; p < count; ++p) {
        const int64_t row = (first + p) * width, size = std::min(width, rows - row);
        for (int64_t j = 0; j < vectors; ++j) {
          std::copy_n(products + (p * vectors + j) * width, size, out + (begin + j) * rows + row);
        }
      }
    }
  }
}

template void panel_product(const Team&, const float*, int64_t, int64_t, const float*, int64_t, float*, bool);
template void panel_product(const Team&, const double*, int64_t, int64_t, const double*, int64_t, double*, bool);

namespace {

template <class T>
class ForwardPass {
 public:
  ForwardPass(const RnnProblem& problem, const RnnForwardArgs& args)
      : p_(problem), args_(args), ws_(problem, args.workspace), kept_(reserve_arena_, problem.rows, H) {}

  void run() const {
    std::fill_n(ws_.zeros, H, T(0));
    run_team(layer_norm_lstm_threads(p_), [&](const Team& team) { run(team); });
  }

 private:
  void run(const Team& team) const {
    const GemmKernels<T>& kernels = gemm_kernels<T>();
    const int64_t width = kernels.width;
    const Range panels = team.share_of((4 * H + width - 1) / width);
    for (int64_t b = panels.begin; b < panels.end; ++b) {
      kernels.pack_rows(static_cast<const T*>(args_.w) + b * width * H, H, std::min(width, 4 * H - b * width), H,
                        ws_.recurrent + b * width * H);
    }
    const Range sequences = team.share_of(N);
    for (int64_t n = sequences.begin; n < sequences.end; ++n) mask(n, h_prev(0, n));
    team.sync();
    for (int64_t s = 0; s < p_.steps(); ++s) {
      panel_product(team, ws_.recurrent, 4 * H, H, ws_.masked, N, ws_.products, s % 2 != 0);
      team.sync();
      for (int64_t n = sequences.begin; n < sequences.end; ++n) run_sequence(s, n);
      team.sync();
    }
  }

  void run_sequence(int64_t s, int64_t n) const {
    const LayerNormLstmStep step(p_, s);
    const int64_t row = step.row + n;
    LayerNormLstmForwardStep<T> cell{};
    fill_cell(p_, args_, row, cell);
    const auto* c0 = static_cast<const T*>(args_.cx);
    cell.kept = kept(row, n);
    cell.c_prev = s > 0 ? kept(step.before + n, n).c : c0 != nullptr ? c0 + n * H : ws_.zeros;
    cell.product = ws_.products + n * 4 * H;
    cell.h_prev = h_prev(s, n);
    cell.h = static_cast<T*>(args_.y) + row * H;
    if (runs_at(p_, args_.lengths, step.row, n)) {
      kernels_.forward(cell);
    } else {
      std::copy_n(cell.h_prev, H, cell.h);
      if (cell.kept.c != cell.c_prev) std::copy_n(cell.c_prev, H, cell.kept.c);
    }
    mask(n, cell.h);
    if (s + 1 < p_.steps()) return;
    if (args_.hy != nullptr) std::copy_n(cell.h, H, static_cast<T*>(args_.hy) + n * H);
    if (args_.cy != nullptr) std::copy_n(cell.kept.c, H, static_cast<T*>(args_.cy) + n * H);
  }

  const T* h_prev(int64_t s, int64_t n) const {
    if (s > 0) return static_cast<const T*>(args_.y) + (LayerNormLstmStep(p_, s).before + n) * H;
    return args_.hx != nullptr ? static_cast<const T*>(args_.hx) + n * H : ws_.zeros;
  }

  // Masks the states that the next product multiplies.
  void mask(int64_t n, const T* h) const {
    T* const to = ws_.masked + n * H;
    if (p_.masks.recurrent == nullptr) {
      std::copy_n(h, H, to);
      return;
    }
    const T* const m = static_cast<const T*>(p_.masks.recurrent) + n * H;
    for (int64_t u = 0; u < H; ++u) to[u] = m[u] * h[u];
  }

  LayerNormLstmKept<T> kept(int64_t row, int64_t n) const {
    return args_.reserve != nullptr ? kept_.row(row) : ws_.rows.row(n);
  }

  const RnnProblem& p_;
  const RnnForwardArgs& args_;
  const int64_t N = p_.max_batch(), H = p_.hidden;
  Arena reserve_arena_ = aligned_arena(args_.reserve);
  const LayerNormLstmForwardWorkspace<T> ws_;
  const LayerNormLstmRows<T> kept_;
  const LayerNormLstmKernels<T>& kernels_ = layer_norm_lstm_kernels<T>();
};

}  // namespace

template <class T>
void layer_norm_lstm_forward_cpu(const RnnProblem& problem, const RnnForwardArgs& args) {
  ForwardPass<T>(problem, args).run();
}

template void layer_norm_lstm_forward_cpu<float>(const RnnProblem&, const RnnForwardArgs&);
template void layer_norm_lstm_forward_cpu<double>(const RnnProblem&, const RnnForwardArgs&);

}  // namespace prnn
