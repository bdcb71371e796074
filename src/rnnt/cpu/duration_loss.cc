// TDT and multi-blank losses on the CPU.
#include <limits>
#include <vector>

#include "core/cpu/loss_kernels.h"
#include "core/cpu/loss_schedule.h"
#include "core/reduce_costs.h"
#include "rnnt/cpu/duration_lattice.h"
#include "rnnt/rnnt.h"

namespace prnn {
namespace {

constexpr double kMinusInfinity = -std::numeric_limits<double>::infinity();

// The reserve that a forward call leaves for the backward one: per cell the log-normalisers of its token and duration
// logits, each in two parts, and the shares of DurationArcs' slots.
template <class T>
struct Reserve {
  T* norms;   // {cells, 4}, or {cells, 2} without duration logits
  T* shares;  // {cells, slots}
  int64_t norms_per_cell, slots;

  Reserve(const DurationParams& params, const DurationArcs& arcs, void* space)
      : norms(static_cast<T*>(space)), norms_per_cell(arcs.entries > 0 ? 4 : 2), slots(arcs.slots()) {
    shares = norms + norms_per_cell * params.cells();
  }
};

// A call's sequences and cells.
template <class T>
struct Batch {
  const DurationParams& params;
  const prnnDurationRNNTLossOptions_t& o = params.options;

  int64_t frames(int64_t n) const { return params.frame_lengths[n]; }
  int64_t symbols(int64_t n) const { return params.target_lengths[n]; }
  int64_t cell(int64_t n, int64_t t, int64_t u) const { return (n * o.maxFrames + t) * (o.maxTargets + 1) + u; }
  const T* tokens(int64_t cell) const { return static_cast<const T*>(params.tokens) + cell * o.tokenStride; }
  const T* durations(int64_t cell) const { return static_cast<const T*>(params.durations) + cell * o.durationStride; }
  // The symbol that (n, t, u)'s labels emit.
  int64_t symbol(int64_t n, int64_t u) const { return gathered() ? 1 : params.targets[n * o.maxTargets + u]; }
  bool gathered() const { return o.input == PRNN_LOSS_GATHERED; }
  int64_t work(const DurationArcs& arcs) const { return params.cells() * (o.classes + 32 * arcs.count()); }
};

// A log-normaliser's two parts, kept in `norm`; returns their sum. Of log-probabilities it is 0.
template <class T>
double normalise(const Batch<T>& batch, const T* x, int64_t n, T* norm) {
  if (batch.gathered()) return norm[0] = norm[1] = 0;
  double log_sum;
  log_normaliser(loss_kernels(), x, n, &norm[0], &log_sum);
  norm[1] = static_cast<T>(log_sum);
  return static_cast<double>(norm[0]) + log_sum;
}

// Fills in the arcs of frame t from the logits. norms: NULL, or of the frame's first cell on.
template <class T>
void fill_frame(DurationLattice& lattice, const DurationArcs& arcs, const Batch<T>& batch, int64_t n, int64_t t,
                T* norms) {
  const int64_t frames = batch.frames(n), symbols = batch.symbols(n);
  for (int64_t u = 0; u <= symbols; ++u) {
    const int64_t cell = batch.cell(n, t, u);
    const T* tokens = batch.tokens(cell);
    T unused[4];
    T* norm = norms ? norms + u * (arcs.entries > 0 ? 4 : 2) : unused;
    const double token_norm = normalise(batch, tokens, batch.o.classes, norm);
    const T* durations = arcs.entries > 0 ? batch.durations(cell) : nullptr;
    const double duration_norm = durations ? normalise(batch, durations, arcs.entries, norm + 2) : 0;
    for (int i = 0; i < arcs.count(); ++i) {
      const DurationArc& arc = arcs.arc[i];
      double score = kMinusInfinity;
      if (DurationArcs::leads_on(arc, t, u, frames, symbols)) {
        const int64_t token = arc.label() ? batch.symbol(n, u) : batch.o.blank - arc.blank;
        score = static_cast<double>(tokens[token]) - token_norm - arc.sigma;
        if (arc.entry >= 0) score += static_cast<double>(durations[arc.entry]) - duration_norm;
      }
      lattice.score(i, t, u) = score;
    }
  }
}

// The cost of the lattice that was filled in; replaces its scores by shares if those are wanted.
double find_cost(DurationLattice& lattice, const DurationArcs& arcs, bool shares) {
  double cost = 0;
  for (int i = 0; i < arcs.lattices; ++i) {
    const double total = lattice.sum_paths(arcs, arcs.lattice[i]);
    if (shares) lattice.share(arcs, arcs.lattice[i], total);
    cost += arcs.lattice[i].weight * (0 - total);
  }
  return cost;
}

// Adds up the shares of a frame's arcs, slot by slot. shares: of the frame's first cell on.
template <class T>
void keep_shares(DurationLattice& lattice, const DurationArcs& arcs, const prnnDurationRNNTLossOptions_t& o,
                 int64_t symbols, int64_t t, bool no_path, T* shares) {
  for (int64_t u = 0; u <= symbols; ++u) {
    double slots[DurationArcs::kMaxSlots] = {};
    for (int l = 0; l < arcs.lattices; ++l) {
      for (int i = arcs.lattice[l].begin; i < arcs.lattice[l].end; ++i) {
        const DurationArc& arc = arcs.arc[i];
        const double gain = arc.label() ? 1 + o.fastEmitLambda : 1;
        const double share = no_path ? 0 : arcs.lattice[l].weight * gain * lattice.score(i, t, u);
        slots[arcs.token_slot(arc)] += share;
        if (arc.entry >= 0) slots[arcs.entry_slot(arc)] += share;
      }
    }
    for (int i = 0; i < arcs.slots(); ++i) shares[u * arcs.slots() + i] = static_cast<T>(slots[i]);
  }
}

template <class T>
void forward(const DurationParams& params, void* costs, void* reserve_space) {
  const prnnDurationRNNTLossOptions_t& o = params.options;
  const DurationArcs arcs(o);
  const Batch<T> batch{params};
  const Reserve<T> reserve(params, arcs, reserve_space);
  const size_t slot_size = DurationLattice::scratch_size(o.maxFrames, o.maxTargets, arcs.count());
  const int64_t slots = slots_of_call(o.batch);
  std::vector<DurationLattice> lattices;
  for (int64_t slot = 0; slot < slots; ++slot) {
    lattices.emplace_back(static_cast<char*>(params.workspace) + slot * slot_size, o.maxFrames, o.maxTargets,
                          arcs.count());
  }
  for_each_sequence(
      o.batch, slots, batch.work(arcs), o.maxFrames, [&](int64_t n) { return batch.frames(n); },
      [&](int64_t n, int64_t slot) { lattices[slot].set(batch.frames(n), batch.symbols(n)); },
      [&](int64_t n, int64_t t, int64_t slot) {
        T* norms = reserve_space ? reserve.norms + reserve.norms_per_cell * batch.cell(n, t, 0) : nullptr;
        fill_frame(lattices[slot], arcs, batch, n, t, norms);
      },
      [&](int64_t n, int64_t slot) {
        const double cost = find_cost(lattices[slot], arcs, reserve_space != nullptr);
        const bool no_path = cost == -kMinusInfinity;
        static_cast<T*>(costs)[n] = no_path && o.zeroInfinity ? T(0) : static_cast<T>(cost);
        if (!reserve_space) return;
        for (int64_t t = 0; t < batch.frames(n); ++t)
          keep_shares(lattices[slot], arcs, o, batch.symbols(n), t, no_path,
                      reserve.shares + reserve.slots * batch.cell(n, t, 0));
      });
  reduce_costs(reduced_costs<T>(o, costs));
}

// g(k) = total softmax(k), from which the caller takes the shares.
template <class T>
void scale_softmax(const T* x, int64_t n, const T* norm, T total, T* g) {
  if (total == 0)
    std::fill_n(g, n, T(0));
  else
    scaled_softmax(loss_kernels(), x, n, norm[0], norm[1], total, g);
}

template <class T>
void limit(T clamp, T scale, int64_t n, T* g) {
  for (int64_t k = 0; k < n; ++k) {
    if (clamp > 0) g[k] = g[k] < -clamp ? -clamp : g[k] > clamp ? clamp : g[k];
    g[k] *= scale;
  }
}

template <class T>
void backward(const DurationParams& params, const void* given_gradients, void* token_gradients,
              void* duration_gradients, const void* reserve_space) {
  const prnnDurationRNNTLossOptions_t& o = params.options;
  const CostGradients<T> scales = cost_gradients<T>(o, given_gradients);
  const DurationArcs arcs(o);
  const Batch<T> batch{params};
  const Reserve<T> reserve(params, arcs, const_cast<void*>(reserve_space));
  const T clamp = static_cast<T>(o.clamp);

#pragma omp parallel for collapse(2) schedule(dynamic, 8) \
    num_threads(region_threads(batch.work(arcs) >= kWorkForThreads))
  for (int64_t n = 0; n < o.batch; ++n) {
    for (int64_t t = 0; t < o.maxFrames; ++t) {
      const T scale = scales(n);
      for (int64_t u = 0; u <= o.maxTargets; ++u) {
        const int64_t cell = batch.cell(n, t, u);
        T* tokens = static_cast<T*>(token_gradients) + cell * o.tokenStride;
        T* durations = static_cast<T*>(duration_gradients) + (arcs.entries > 0 ? cell * o.durationStride : 0);
        if (t >= batch.frames(n) || u > batch.symbols(n)) {
          std::fill_n(tokens, o.classes, T(0));
          std::fill_n(durations, arcs.entries, T(0));
          continue;
        }
        const T* norm = reserve.norms + reserve.norms_per_cell * cell;
        const T* share = reserve.shares + reserve.slots * cell;
        T total = 0;
        for (int i = 0; i <= arcs.blanks; ++i) total += share[i];
        scale_softmax(batch.tokens(cell), o.classes, norm, batch.gathered() ? T(0) : total, tokens);
        if (u < batch.symbols(n)) tokens[batch.symbol(n, u)] -= share[0];
        for (int i = 0; i < arcs.blanks; ++i) tokens[o.blank - i] -= share[1 + i];
        limit(clamp, scale, o.classes, tokens);
        if (arcs.entries == 0) continue;
        const T* entry_share = share + 1 + arcs.blanks;
        T entry_total = 0;
        for (int i = 0; i < arcs.entries; ++i) entry_total += entry_share[i];
        scale_softmax(batch.durations(cell), arcs.entries, norm + 2, batch.gathered() ? T(0) : entry_total, durations);
        for (int i = 0; i < arcs.entries; ++i) durations[i] -= entry_share[i];
        limit(clamp, scale, arcs.entries, durations);
      }
    }
  }
}

class CpuDurationBackend final : public DurationBackend {
 public:
  void require_supported(prnnDataType_t type) const override { cpu_rnnt_backend().require_supported(type); }
  size_t workspace_size(const prnnDurationRNNTLossOptions_t& o) const override {
    return slots_size(DurationLattice::scratch_size(o.maxFrames, o.maxTargets, DurationArcs(o).count()), o.batch);
  }
  size_t reserve_size(const prnnDurationRNNTLossOptions_t& o) const override {
    DurationParams params{};
    params.options = o;
    const Reserve<char> counted(params, DurationArcs(o), nullptr);
    const size_t element = o.dataType == PRNN_DATA_DOUBLE ? sizeof(double) : sizeof(float);
    return element * static_cast<size_t>(params.cells() * (counted.norms_per_cell + counted.slots));
  }
  void forward(prnnHandle_t, const DurationParams& params, void* costs, void* reserve) const override {
    const auto run = params.options.dataType == PRNN_DATA_DOUBLE ? prnn::forward<double> : prnn::forward<float>;
    run(params, costs, reserve);
  }
  void backward(prnnHandle_t, const DurationParams& params, const void* cost_gradients, void* token_gradients,
                void* duration_gradients, const void* reserve) const override {
    const auto run = params.options.dataType == PRNN_DATA_DOUBLE ? prnn::backward<double> : prnn::backward<float>;
    run(params, cost_gradients, token_gradients, duration_gradients, reserve);
  }
};

}  // namespace

const DurationBackend& cpu_duration_backend() {
  static const CpuDurationBackend backend;
  return backend;
}

}  // namespace prnn
