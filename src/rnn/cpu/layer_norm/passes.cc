// Both passes walk through the timesteps with a team of threads: each multiplies its share of the matrix's panels with
// the states, or gradients, of all sequences, and after a barrier computes the cells of its share of the sequences.
#include "rnn/cpu/layer_norm/passes.h"

#include <algorithm>

#include "core/cpu/gemm/gemm.h"
#include "core/with_real.h"
#include "rnn/cpu/buffers.h"
#include "rnn/cpu/cells.h"
#include "rnn/plan/layer_norm.h"

namespace prnn {
namespace {

constexpr int64_t kSummed = 256;  // timesteps whose gradients of gains and biases are summed in T

// The arrays of `rows` rows that forward keeps.
template <class T>
class KeptRows {
 public:
  KeptRows(Carver&& carver, int64_t rows, int64_t hidden) : KeptRows(carver, rows, hidden) {}
  KeptRows(Carver& carver, int64_t rows, int64_t hidden)
      : hidden_(hidden),
        gates_(carver.take<T>(rows * 4 * hidden)),
        cell_(carver.take<T>(rows * hidden)),
        c_(carver.take<T>(rows * hidden)),
        deviations_(carver.take<T>(rows * 2)) {}
  LayerNormLstmKept<T> row(int64_t row) const {
    return {gates_ + row * 4 * hidden_, cell_ + row * hidden_, c_ + row * hidden_, deviations_ + row * 2};
  }

 private:
  int64_t hidden_;
  T *gates_, *cell_, *c_, *deviations_;
};

// `rows` of a matrix packed for GemmKernels::product.
template <class T>
T* take_panels(Carver& carver, int64_t rows, int64_t k) {
  const int64_t width = gemm_kernels<T>().width;
  return carver.take<T>((rows + width - 1) / width * width * k);
}

template <class T>
struct ForwardArrays {
  ForwardArrays(const RnnProblem& p, void* base)
      : carver(base),
        recurrent(take_panels<T>(carver, 4 * p.hidden, p.hidden)),
        products(carver.take<T>(p.max_batch() * 4 * p.hidden)),
        masked(carver.take<T>(p.max_batch() * p.hidden)),
        zeros(carver.take<T>(p.hidden)),
        rows(carver, p.max_batch(), p.hidden) {}

  Carver carver;
  T* recurrent;      // R
  T* products;       // [N][4 H]: R (m * h_{t-1})
  T* masked;         // [N][H]: m * h_{t-1}
  T* zeros;          // [H]
  KeptRows<T> rows;  // in inference, of the current timestep
};

template <class T>
struct BackwardArrays {
  BackwardArrays(const RnnProblem& p, void* base)
      : carver(base),
        recurrent(take_panels<T>(carver, p.hidden, 4 * p.hidden)),
        products(carver.take<T>(p.max_batch() * p.hidden)),
        direct(carver.take<T>(p.max_batch() * p.hidden)),
        dc(carver.take<T>(p.max_batch() * p.hidden)),
        zeros(carver.take<T>(p.hidden)),
        scratch(carver.take<T>(p.max_batch() * 2 * p.hidden)),
        sums(carver.take<T>(p.max_batch() * kLayerNormLstmParameterRows * p.hidden)),
        totals(carver.take<double>(p.max_batch() * kLayerNormLstmParameterRows * p.hidden)),
        h_prev(carver.take<T>(p.rows * p.hidden)),
        da(carver.take<T>(p.normalize == PRNN_NORMALIZE_PRODUCTS ? p.rows * 4 * p.hidden : 0)) {}

  Carver carver;
  T* recurrent;    // R'
  T* products;     // [N][H]: R' da
  T* direct;       // [N][H]
  T* dc;           // [N][H]
  T* zeros;        // [H]
  T* scratch;      // [N][2 H]
  T* sums;         // [N][kLayerNormLstmParameterRows][H]: of a run of timesteps
  double* totals;  // the same, of the runs before
  T* h_prev;       // [T][N][H]: m * h_{t-1}
  T* da;           // [T][N][4 H]; PRODUCTS alone: else dx is the same
};

// Multiplies a packed matrix of `rows` rows with the vectors b [n][k]: out [n][rows]. The calling thread's share of the
// rows, from the last one on where `downwards`: what the cache still holds of the step before is used first.
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

// The arguments of a call that both passes read, by timestep and sequence.
template <class T>
struct NormCall {
  // zeros: [H]. rows: of the timestep at hand, where no row is kept.
  template <class Args>
  NormCall(const RnnProblem& problem, const Args& args, const T* zero_state, const KeptRows<T>* rows)
      : p(problem),
        x(static_cast<const T*>(args.x)),
        h0(static_cast<const T*>(args.hx)),
        c0(static_cast<const T*>(args.cx)),
        y(static_cast<const T*>(args.y)),
        zoneout_mask(static_cast<const T*>(problem.masks.zoneout)),
        recurrent_mask(static_cast<const T*>(problem.masks.recurrent)),
        lengths(args.lengths),
        norm(args.norm),
        zeros(zero_state),
        current(args.reserve == nullptr ? rows : nullptr),
        reserve(Carver(args.reserve), problem.rows, problem.hidden) {}

  // A timestep: its place in the recurrence, and the rows of sequence 0 there and in the timestep before.
  struct Step {
    int64_t s, row, before;
  };
  Step step(int64_t s) const {
    const int64_t row = (p.reverse ? p.steps() - 1 - s : s) * N;
    return {s, row, p.reverse ? row + N : row - N};
  }
  LayerNormLstmKept<T> kept(int64_t row, int64_t n) const {
    return current != nullptr ? current->row(n) : reserve.row(row);
  }
  const T* h_before(const Step& step, int64_t n) const {
    return step.s > 0 ? y + (step.before + n) * H : h0 != nullptr ? h0 + n * H : zeros;
  }
  const T* c_before(const Step& step, int64_t n) const {
    return step.s > 0 ? kept(step.before + n, n).c : c0 != nullptr ? c0 + n * H : zeros;
  }
  // Whether sequence n has the timestep.
  bool has(const Step& step, int64_t n) const { return lengths == nullptr || step.row / N < lengths[n]; }

  // to <- what the matrix multiplies of a state of sequence n.
  void mask(const T* h, int64_t n, T* to) const {
    if (recurrent_mask == nullptr) {
      std::copy_n(h, H, to);
      return;
    }
    for (int64_t u = 0; u < H; ++u) to[u] = recurrent_mask[n * H + u] * h[u];
  }

  // Sets a cell's arrays that both passes read.
  void set_cell(const Step& step, int64_t n, LayerNormLstmCell<T>* cell) const {
    cell->hidden = H;
    cell->products = p.normalize == PRNN_NORMALIZE_PRODUCTS;
    cell->normalizes = p.normalizes();
    cell->epsilon = static_cast<T>(p.epsilon);
    cell->zoneout = static_cast<T>(p.masks.zoneoutExpectation);
    if (p.normalizes()) {
      cell->gate_gain = static_cast<const T*>(norm->gateGain);
      cell->gate_bias = static_cast<const T*>(norm->gateBias);
      cell->cell_gain = static_cast<const T*>(norm->cellGain);
      cell->cell_bias = static_cast<const T*>(norm->cellBias);
    }
    cell->x = x + (step.row + n) * 4 * H;
    cell->zoneout_mask = zoneout_mask != nullptr ? zoneout_mask + (step.row + n) * H : nullptr;
    cell->c_prev = c_before(step, n);
  }

  // Threads for a pass, from the work between two barriers.
  int threads() const {
    const double hidden = static_cast<double>(H);
    return team_size(static_cast<double>(N) * (8 * hidden * hidden + 200 * hidden));
  }

  const RnnProblem& p;
  const T *x, *h0, *c0, *y, *zoneout_mask, *recurrent_mask;
  const int* lengths;
  const prnnRNNNorm_t* norm;
  const T* zeros;
  const KeptRows<T>* current;
  const KeptRows<T> reserve;
  const int64_t N = p.max_batch(), H = p.hidden;
};

template <class T>
class ForwardPass {
 public:
  ForwardPass(const RnnProblem& problem, const RnnForwardArgs& args)
      : args_(args), ws_(problem, args.workspace), call_(problem, args, ws_.zeros, &ws_.rows) {}

  void run() const {
    std::fill_n(ws_.zeros, H, T(0));
    run_team(call_.threads(), [&](const Team& team) { run(team); });
  }

 private:
  using Step = typename NormCall<T>::Step;

  void run(const Team& team) const {
    const GemmKernels<T>& kernels = gemm_kernels<T>();
    const int64_t width = kernels.width;
    const Range panels = team.share_of((4 * H + width - 1) / width);
    for (int64_t b = panels.begin; b < panels.end; ++b) {
      kernels.pack_rows(static_cast<const T*>(args_.w) + b * width * H, H, std::min(width, 4 * H - b * width), H,
                        ws_.recurrent + b * width * H);
    }
    const Range sequences = team.share_of(N);
    for (int64_t n = sequences.begin; n < sequences.end; ++n) {
      call_.mask(call_.h_before(call_.step(0), n), n, ws_.masked + n * H);
    }
    team.sync();
    for (int64_t s = 0; s < call_.p.steps(); ++s) {
      panel_product(team, ws_.recurrent, 4 * H, H, ws_.masked, N, ws_.products, s % 2 != 0);
      team.sync();
      for (int64_t n = sequences.begin; n < sequences.end; ++n) run_sequence(call_.step(s), n);
      team.sync();
    }
  }

  void run_sequence(const Step& step, int64_t n) const {
    LayerNormLstmForwardStep<T> cell{};
    call_.set_cell(step, n, &cell);
    cell.kept = call_.kept(step.row + n, n);
    cell.product = ws_.products + n * 4 * H;
    cell.h_prev = call_.h_before(step, n);
    cell.h = static_cast<T*>(args_.y) + (step.row + n) * H;
    if (call_.has(step, n)) {
      cells_.forward_gates(cell);
    } else {
      std::copy_n(cell.h_prev, H, cell.h);
      if (cell.kept.c != cell.c_prev) std::copy_n(cell.c_prev, H, cell.kept.c);
    }
    call_.mask(cell.h, n, ws_.masked + n * H);
    if (step.s + 1 < call_.p.steps()) return;
    if (args_.hy != nullptr) std::copy_n(cell.h, H, static_cast<T*>(args_.hy) + n * H);
    if (args_.cy != nullptr) std::copy_n(cell.kept.c, H, static_cast<T*>(args_.cy) + n * H);
  }

  const RnnForwardArgs& args_;
  const ForwardArrays<T> ws_;
  const NormCall<T> call_;
  const int64_t N = call_.N, H = call_.H;
  const CellKernels<T>& cells_ = cell_kernels<T>();
};

template <class T>
class BackwardPass {
 public:
  BackwardPass(const RnnProblem& problem, const RnnBackwardArgs& args)
      : args_(args), ws_(problem, args.workspace), call_(problem, args, ws_.zeros, nullptr) {}

  void run() const {
    std::fill_n(ws_.zeros, H, T(0));
    std::fill_n(ws_.direct, N * H, T(0));
    std::fill_n(ws_.sums, N * kSums, T(0));
    std::fill_n(ws_.totals, N * kSums, 0.0);
    if (args_.dcy != nullptr) {
      std::copy_n(static_cast<const T*>(args_.dcy), N * H, ws_.dc);
    } else {
      std::fill_n(ws_.dc, N * H, T(0));
    }
    run_team(threads_, [&](const Team& team) { run(team); });
    const prnnRNNNormGradients_t& norm = *args_.normGradients;
    store_sums(norm.gateGain, 0, 4);
    store_sums(norm.gateBias, 4, 4);
    store_sums(norm.cellGain, 8, 1);
    store_sums(norm.cellBias, 9, 1);
  }

 private:
  using Step = typename NormCall<T>::Step;

  void run(const Team& team) const {
    const GemmKernels<T>& kernels = gemm_kernels<T>();
    const int64_t width = kernels.width;
    const Range panels = team.share_of((H + width - 1) / width);
    const int64_t first = panels.begin * width, columns = std::min(panels.end * width, H) - first;
    if (columns > 0) {
      kernels.pack_columns(static_cast<const T*>(args_.w) + first, H, columns, 4 * H, ws_.recurrent + first * 4 * H);
    }
    const Range sequences = team.share_of(N);
    for (int64_t s = call_.p.steps() - 1; s >= 0; --s) {
      const Step step = call_.step(s);
      for (int64_t n = sequences.begin; n < sequences.end; ++n) run_sequence(step, n);
      if (s % kSummed == 0) add_sums(sequences);
      team.sync();
      if (s == 0 && args_.dhx == nullptr) break;
      panel_product(team, ws_.recurrent, H, 4 * H, da(step.row), N, ws_.products, s % 2 != 0);
      team.sync();
    }
    for (int64_t n = sequences.begin; n < sequences.end; ++n) store_initial(n);
    if (args_.dw != nullptr) multiply_weights(team);
  }

  void run_sequence(const Step& step, int64_t n) const {
    const int64_t row = step.row + n;
    LayerNormLstmBackwardStep<T> cell{};
    call_.set_cell(step, n, &cell);
    cell.kept = call_.kept(row, n);
    cell.dy = static_cast<const T*>(args_.dy) + row * H;
    cell.product = step.s + 1 < call_.p.steps() ? ws_.products + n * H : nullptr;
    cell.recurrent_mask = mask_of(n);
    cell.direct = ws_.direct + n * H;
    cell.dc = ws_.dc + n * H;
    cell.dx = static_cast<T*>(args_.dx) + row * 4 * H;
    cell.da = da(row);
    cell.scratch = ws_.scratch + n * 2 * H;
    cell.sums = ws_.sums + n * kSums;
    if (call_.has(step, n)) {
      cells_.backward_gates(cell);
    } else {
      pass_by(cell);
    }
    if (args_.dw != nullptr) call_.mask(call_.h_before(step, n), n, ws_.h_prev + row * H);
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

  const T* mask_of(int64_t n) const { return call_.recurrent_mask != nullptr ? call_.recurrent_mask + n * H : nullptr; }
  T* da(int64_t row) const {
    const bool products = call_.p.normalize == PRNN_NORMALIZE_PRODUCTS;
    return (products ? ws_.da : static_cast<T*>(args_.dx)) + row * 4 * H;
  }

  void store_initial(int64_t n) const {
    if (args_.dcx != nullptr) std::copy_n(ws_.dc + n * H, H, static_cast<T*>(args_.dcx) + n * H);
    if (args_.dhx == nullptr) return;
    T* const to = static_cast<T*>(args_.dhx) + n * H;
    call_.mask(ws_.products + n * H, n, to);
    for (int64_t u = 0; u < H; ++u) to[u] = ws_.direct[n * H + u] + to[u];
  }

  void multiply_weights(const Team& team) const {
    Gemm<T> gemm;
    gemm.m = gemm.lda = 4 * H;
    gemm.n = gemm.ldb = gemm.ldc = H;
    gemm.k = call_.p.rows;
    gemm.a = da(0);
    gemm.a_transposed = true;
    gemm.b = ws_.h_prev;
    gemm.c = static_cast<T*>(args_.dw);
    gemm.scratch = scratch_;
    team_gemm(team, gemm);
  }

  void add_sums(Range sequences) const {
    for (int64_t i = sequences.begin * kSums; i < sequences.end * kSums; ++i) {
      ws_.totals[i] += ws_.sums[i];
      ws_.sums[i] = 0;
    }
  }

  // Stores rows [first, first + count) of the sums, those of the sequences added in their order.
  void store_sums(void* out, int64_t first, int64_t count) const {
    if (out == nullptr) return;
    T* const to = static_cast<T*>(out);
    for (int64_t i = 0; i < count * H; ++i) {
      double sum = 0;
      for (int64_t n = 0; n < N; ++n) sum += ws_.totals[n * kSums + first * H + i];
      to[i] = static_cast<T>(sum);
    }
  }

  const RnnBackwardArgs& args_;
  const BackwardArrays<T> ws_;
  const NormCall<T> call_;
  const int64_t N = call_.N, H = call_.H, kSums = kLayerNormLstmParameterRows * H;
  const CellKernels<T>& cells_ = cell_kernels<T>();
  const int threads_ = call_.threads();
  char* const scratch_ = gemm_scratch<T>(threads_);
};

}  // namespace

size_t layer_norm_lstm_workspace_cpu(const RnnProblem& problem) {
  return with_real(problem.type, [&](auto real) {
    using T = decltype(real);
    const size_t forward = ForwardArrays<T>(problem, nullptr).carver.size();
    if (!problem.training) return forward;
    return std::max(forward, BackwardArrays<T>(problem, nullptr).carver.size());
  });
}

size_t layer_norm_lstm_reserve_cpu(const RnnProblem& problem) {
  return with_real(problem.type, [&](auto real) {
    Carver carver(nullptr);
    KeptRows<decltype(real)>(carver, problem.rows, problem.hidden);
    return carver.size();
  });
}

void layer_norm_lstm_forward_cpu(const RnnProblem& problem, const RnnForwardArgs& args) {
  with_real(problem.type, [&](auto real) { ForwardPass<decltype(real)>(problem, args).run(); });
}

void layer_norm_lstm_backward_cpu(const RnnProblem& problem, const RnnBackwardArgs& args) {
  with_real(problem.type, [&](auto real) { BackwardPass<decltype(real)>(problem, args).run(); });
}

}  // namespace prnn
