// The gradients of the data: per layer, from the last, the timesteps in reverse. A timestep's gate gradients times R^T
// (packed like R in the forward pass) is what the timestep before receives; the gradients of the layer's input are one
// matrix product at the end.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <type_traits>

#include "core/cpu/gemm/gemm.h"
#include "core/cpu/threads.h"
#include "rnn/cpu/buffers.h"
#include "rnn/cpu/cells.h"
#include "rnn/cpu/dropout.h"
#include "rnn/cpu/passes.h"
#include "rnn/cpu/steps.h"

namespace prnn {
namespace {

constexpr int64_t kMaxPanelBytes = 2 * 64;
constexpr int64_t kFewVectors = 6;  // whose products take several panels at a time

// S: the type of the weights; all else is of the type that is computed in, T.
template <class S>
class BackwardDataPass {
  using T = Compute<S>;

 public:
  BackwardDataPass(const RnnProblem& problem, const RnnBackwardDataArgs& args)
      : p_(problem), args_(args), reserve_(problem, args.keeps_gates, args.reserve), ws_(problem, args.workspace) {}

  void run() {
    std::memset(ws_.zeros, 0, std::max<int64_t>(p_.cell_states(), 1) * NH * sizeof(T));
    const T* dy = static_cast<const T*>(args_.dy);
    for (int64_t layer = p_.layers - 1; layer >= p_.frozen; --layer) {
      T* dx = layer == p_.frozen ? static_cast<T*>(args_.dx) : ws_.dy;  // which is written when dy has been read
      run_layer(layer, dy, dx);
      dy = dx;
    }
  }

 private:
  struct Direction {
    int64_t layer, index;
    const Step* steps;
    const S *input_weights, *recurrent_weights, *projection_weights;
    const T *hx, *cx, *dhy;        // [N][P], [N][H] (sLSTM: [3][N][H]), [N][P] or NULL
    T* dhx;                        // [N][P] or NULL
    const T *reset_hx, *reset_cx;  // as hx and cx
    T *dreset_hx, *dreset_cx;      // the same, or NULL
    const T* mask;                 // [N][H] or NULL: prnnRNNMasks_t::recurrent
    const T *dy, *output;          // [rows][D P], at this direction's first column
    DirectionReserve<T> reserve;
  };

  Direction make_direction(int64_t layer, int64_t index, const T* dy) const {
    const int64_t pseudo_layer = layer * p_.recurrences() + index;
    const RnnLayerOffsets offsets = rnn_layer_offsets(p_, layer, index);
    const S* w = static_cast<const S*>(args_.w);
    const auto* hx = static_cast<const T*>(args_.hx);
    const auto* cx = static_cast<const T*>(args_.cx);
    const auto* dhy = static_cast<const T*>(args_.dhy);
    auto* dhx = static_cast<T*>(args_.dhx);
    const T* output = layer == p_.layers - 1 ? static_cast<const T*>(args_.y) : reserve_.outputs[layer];
    Direction d;
    d.layer = layer;
    d.index = index;
    d.steps = steps_[p_.direction_of(index)].data();
    d.input_weights = offsets.input < 0 ? nullptr : w + offsets.input;
    d.recurrent_weights = w + offsets.recurrent;
    d.projection_weights = offsets.projection < 0 ? nullptr : w + offsets.projection;
    const int64_t state = pseudo_layer * p_.max_batch() * P, cells = pseudo_layer * p_.cell_states() * NH;
    d.hx = hx == nullptr ? ws_.zeros : hx + state;
    d.cx = cx == nullptr ? ws_.zeros : cx + cells;
    d.dhy = dhy == nullptr ? nullptr : dhy + state;
    d.dhx = dhx == nullptr ? nullptr : dhx + state;
    const prnnRNNExtras_t& e = p_.extras;
    d.reset_hx = e.resetHx == nullptr ? ws_.zeros : static_cast<const T*>(e.resetHx) + state;
    d.reset_cx = e.resetCx == nullptr ? ws_.zeros : static_cast<const T*>(e.resetCx) + cells;
    d.dreset_hx = e.dresetHx == nullptr ? nullptr : static_cast<T*>(e.dresetHx) + state;
    d.dreset_cx = e.dresetCx == nullptr ? nullptr : static_cast<T*>(e.dresetCx) + cells;
    const auto* mask = static_cast<const T*>(p_.masks.recurrent);
    d.mask = mask == nullptr ? nullptr : mask + state;
    d.dy = dy + index * P;
    d.output = output + index * P;
    d.reserve = reserve_.directions[pseudo_layer];
    return d;
  }

  // For a layer with inputs of this width.
  int threads_for(int64_t width) const {
    return team_size(flops_per_step(p_, static_cast<double>(G * H) * static_cast<double>(P + width)));
  }

  void run_layer(int64_t layer, const T* dy, T* dx) const {
    const int threads = threads_for(dx == nullptr ? 0 : p_.layer_input(layer));
    for (int64_t index = 0; index < p_.recurrences(); ++index) {
      const Direction d = make_direction(layer, index, dy);
      start_carry(d);
      if (d.dreset_hx != nullptr) std::fill_n(d.dreset_hx, p_.max_batch() * P, T(0));
      if (d.dreset_cx != nullptr) std::fill_n(d.dreset_cx, p_.cell_states() * NH, T(0));
      run_team(threads, [&](const Team& team) { run_direction(team, d); });
      finish_carry(d);
    }
    if (dx == nullptr) return;
    const bool drops = layer > 0 && p_.dropout.probability > 0;
    run_team(threads, [&](const Team& team) {
      for (int64_t index = 0; index < p_.recurrences(); ++index) {
        input_gradient(team, make_direction(layer, index, dy), dx);
      }
      if (!drops) return;
      team.sync();
      apply_dropout(team, p_.dropout.probability, p_.rows * p_.layer_input(layer), dx, reserve_.masks[layer - 1], dx);
    });
  }

  // The LSTM's dc starts from dcy and ends as dcx.
  void start_carry(const Direction& d) const {
    if (p_.cell_states() == 0) return;
    const int64_t count = p_.cell_states() * NH;
    const auto* dcy = static_cast<const T*>(args_.dcy);
    if (dcy == nullptr) {
      std::fill_n(ws_.carry, count, T(0));
    } else {
      std::copy_n(dcy + (d.layer * p_.recurrences() + d.index) * count, count, ws_.carry);
    }
    if (!p_.is_slstm()) return;
    for (const Step& step : steps_[p_.direction_of(d.index)]) {
      for (int64_t n = step.kept; dcy != nullptr && n < step.batch; ++n) {
        for (int64_t i = n * H; i < (n + 1) * H; ++i) {
          T* const carry = ws_.carry + i;
          const T last = d.reserve.last_n[i], ndc = last * carry[0];
          const T both = ndc * d.reserve.cells[step.row * H + i] + last * carry[NH];
          carry[2 * NH] -= both;
          carry[NH] = both;
          carry[0] = ndc;
        }
      }
    }
    set_ratios(d.cx, ws_.ratio);
    set_ratios(d.reset_cx, ws_.reset_ratio);
  }

  void finish_carry(const Direction& d) const {
    if (p_.cell_states() == 0) return;
    const int64_t count = p_.cell_states() * NH;
    if (d.dreset_cx != nullptr && p_.is_slstm()) to_state_gradients(d.reset_cx, ws_.reset_ratio, d.dreset_cx);
    if (args_.dcx == nullptr) return;
    if (p_.is_slstm()) to_state_gradients(d.cx, ws_.ratio, ws_.carry);
    std::copy_n(ws_.carry, count, static_cast<T*>(args_.dcx) + (d.layer * p_.recurrences() + d.index) * count);
  }

  // An sLSTM's c / n, 0 where n is.
  void set_ratios(const T* states, T* ratios) const {
    for (int64_t i = 0; i < NH; ++i) ratios[i] = states[NH + i] == 0 ? T(0) : states[i] / states[NH + i];
  }

  // From what an sLSTM's cells carry (BackwardCell::carry) before these states to the gradients of c, n and m.
  void to_state_gradients(const T* states, const T* ratios, T* carry) const {
    for (int64_t i = 0; i < NH; ++i) {
      const T n = states[NH + i], ndc = carry[i], both = carry[NH + i];
      if (n == 0) continue;
      carry[i] = ndc / n;
      carry[NH + i] = (both - ndc * ratios[i]) / n;
      carry[2 * NH + i] += both;
    }
  }

  void run_direction(const Team& team, const Direction& d) const {
    const StepGrid grid(p_, team, panels(P), G * H * P * static_cast<int64_t>(sizeof(T)), packs_);
    pack_shares(d, team.share_of(panels(P)), team.share_of(panels(H)));
    if (grid.cuts_sequences()) team.sync();  // threads read one another's panels
    const Range states = grid.panels(panels(P)), units = grid.panels(panels(H));
    // One for all that is called, since stacks may be small.
    alignas(64) char scratch[kMostPanels * kTileVectors * kMaxPanelBytes];
    T* const products = reinterpret_cast<T*>(scratch);
    const int64_t count = p_.steps();
    bool downwards = false;
    for (int64_t s = count - 1; s >= 0; --s) {
      const Step& step = d.steps[s];
      for (int64_t b = 0; b < states.size(); b += kernels_.most_panels) {
        const int64_t size = std::min(kernels_.most_panels, states.size() - b);
        const int64_t first = downwards ? states.end - b - size : states.begin + b;
        const int64_t next = downwards ? first - kernels_.most_panels : first + size;
        run_states(grid, d, step, s + 1 < count ? &d.steps[s + 1] : nullptr, {first, first + size},
                   std::clamp(next, states.begin, states.end - 1), products);
      }
      downwards = !downwards;
      if (p_.projection > 0) {
        grid.sync();
        unproject(d, step, units, grid.sequences(0, step.batch), products);
      }
      grid.sync();
    }
    if (d.dhx == nullptr && d.dreset_hx == nullptr) return;
    for (int64_t b = states.begin; b < states.end; b += kernels_.most_panels) {
      const Range group = {b, std::min(b + kernels_.most_panels, states.end)};
      initial_gradient(d, d.steps[0], grid.sequences(0, d.steps[0].batch), group, products);
    }
  }

  // A matrix [rows][columns] whose transpose is multiplied with: packed, or as it lies, but for a last panel that has
  // not W columns.
  struct Transposed {
    const S* matrix;
    int64_t rows, columns;
    T* packed;
  };
  Transposed recurrent(const Direction& d) const { return {d.recurrent_weights, G * H, P, ws_.recurrent}; }
  Transposed projection(const Direction& d) const { return {d.projection_weights, P, H, ws_.projection}; }

  T* packed_panel(const Transposed& m, int64_t panel) const {
    return m.packed + (packs_ ? panel : panel - m.columns / W) * W * m.rows;
  }

  void pack_shares(const Direction& d, Range states, Range units) const {
    if (p_.steps() > 1 || d.dhx != nullptr || d.dreset_hx != nullptr) pack(recurrent(d), states);
    if (p_.projection > 0) pack(projection(d), units);
  }

  void pack(const Transposed& m, Range panels) const {
    const int64_t first = packs_ ? panels.begin : std::max(panels.begin, m.columns / W);
    const int64_t begin = first * W, end = std::min(panels.end * W, m.columns);
    if (begin < end) kernels_.pack_columns(m.matrix + begin, m.columns, end - begin, m.rows, packed_panel(m, first));
  }

  // A group of the matrix's panels times n vectors, ld apart. next: the first panel of the group that follows.
  void multiply(const Transposed& m, Range group, int64_t next, const T* vectors, int64_t ld, int64_t n,
                T* products) const {
    const int64_t whole = packs_ ? group.begin : std::min(group.end, std::max(group.begin, m.columns / W));
    if (group.begin < whole) {
      kernels_.product_from_columns(m.matrix + group.begin * W, m.columns, whole - group.begin, m.rows, vectors, ld, n,
                                    products);
    }
    // A last panel that is a vector at most is half the work, but not together with others.
    const int64_t rest = m.columns - (group.end - 1) * W;
    const int64_t end =
        std::is_same_v<S, T> && n > kFewVectors && group.end - whole > 1 && rest <= W / 2 ? group.end - 1 : group.end;
    const auto multiply_packed = [&](int64_t begin, int64_t last, int64_t after) {
      kernels_.product(packed_panel(m, begin), last - begin, std::min(W, m.columns - begin * W), m.rows, vectors, ld, n,
                       products + (begin - group.begin) * n * W, packs_ ? packed_panel(m, after) : nullptr);
    };
    if (whole < end) multiply_packed(whole, end, end < group.end ? end : next);
    if (end < group.end) multiply_packed(end, group.end, next);
  }

  // dh of the step's panels of state: from dy, and from the step after or dhy. Without a projection the cells follow.
  void run_states(const StepGrid& grid, const Direction& d, const Step& step, const Step* after, Range group,
                  int64_t next, T* products) const {
    const Range sequences = grid.sequences(0, step.batch);
    const auto run_kept = [&](Range part, StateBefore before) {
      const bool is_lost = before == StateBefore::kReset;  // this step's states
      for (int64_t begin = part.begin; begin < part.end; begin += kTileVectors) {
        const int64_t n = std::min(kTileVectors, part.end - begin);
        if (!is_lost || d.dreset_hx != nullptr) {
          multiply(recurrent(d), group, next, d.reserve.dgates + (after->row + begin) * G * H, G * H, n, products);
          if (d.mask != nullptr) mask_products(d, group, begin, n, products);
        }
        for (int64_t b = group.begin; b < group.end; ++b) {
          const T* const product = products + (b - group.begin) * n * W;
          const T* const dh = is_lost ? nullptr : product;
          if (is_lost && d.dreset_hx != nullptr) add_reset_gradient(d, b, begin, n, product);
          if (p_.projection > 0) {
            add_state_gradient(d, step, b, begin, n, dh, W);
          } else {
            run_cell(d, step, b, begin, n, d.dy + (step.row + begin) * ldy + b * W, ldy, dh, W, true);
          }
        }
      }
    };
    const Range kept = {sequences.begin, std::min(sequences.end, step.kept)};
    if (kept.size() > 0) for_each_state_before(p_, p_.direction_of(d.index), *after, kept, run_kept);
    const int64_t begin = std::max(sequences.begin, step.kept), n = sequences.end - begin;
    if (n > 0) {
      for (int64_t b = group.begin; b < group.end; ++b) {
        const T* dhy = d.dhy == nullptr ? nullptr : d.dhy + begin * P + b * W;
        if (p_.projection > 0) {
          add_state_gradient(d, step, b, begin, n, dhy, P);
        } else {
          run_cell(d, step, b, begin, n, d.dy + (step.row + begin) * ldy + b * W, ldy, dhy, P, false);
        }
      }
    }
    // The sequences of the step after that started there.
    if (after != nullptr && d.dhx != nullptr)
      initial_gradient(d, *after, grid.sequences(after->carried, after->batch), group, products);
  }

  // From gradients of what R reads to those of h: sequences [begin, begin + n), `group` of panels.
  void mask_products(const Direction& d, Range group, int64_t begin, int64_t n, T* products) const {
    for (int64_t b = group.begin; b < group.end; ++b) {
      for (int64_t j = 0; j < n; ++j) {
        const T* const mask = d.mask + (begin + j) * H + b * W;
        T* const product = products + ((b - group.begin) * n + j) * W;
        for (int64_t i = 0; i < std::min(W, H - b * W); ++i) product[i] *= mask[i];
      }
    }
  }

  // Adds the products of sequences [begin, begin + n), a panel of which is a block, to the gradient of resetHx.
  void add_reset_gradient(const Direction& d, int64_t block, int64_t begin, int64_t n, const T* products) const {
    for (int64_t j = 0; j < n; ++j) {
      T* const to = d.dreset_hx + (begin + j) * P + block * W;
      for (int64_t i = 0; i < std::min(W, P - block * W); ++i) to[i] += products[j * W + i];
    }
  }

  void run_cell(const Direction& d, const Step& step, int64_t block, int64_t begin, int64_t n, const T* dy,
                int64_t ld_dy, const T* dh, int64_t ld_dh, bool has_carry) const {
    for_each_state_before(p_, p_.direction_of(d.index), step, {begin, begin + n}, [&](Range part, StateBefore before) {
      const int64_t unit = block * W, row = step.row + part.begin, skipped = part.begin - begin;
      const bool carried = before == StateBefore::kPrevious, is_reset = before == StateBefore::kReset;
      BackwardCell<T> cell;
      cell.n = part.size();
      cell.units = std::min(W, H - unit);
      cell.hidden = H;
      cell.dy = dy + skipped * ld_dy;
      cell.ld_dy = ld_dy;
      cell.dh = dh == nullptr ? nullptr : dh + skipped * ld_dh;
      cell.ld_dh = ld_dh;
      cell.dgates = d.reserve.dgates + row * G * H + unit;
      if (G > 1) {
        cell.gates = d.reserve.gates + row * G * H + unit;
        cell.carry = ws_.carry + part.begin * H + unit;
        cell.has_carry = has_carry;
      } else {
        cell.h = d.output + row * ldy + unit;
        cell.ld_h = ldy;
      }
      if (p_.mode == PRNN_LSTM) {
        cell.c = d.reserve.cells + row * H + unit;
        cell.c_prev = carried ? d.reserve.cells + (step.prev_row + part.begin) * H + unit
                              : (is_reset ? d.reset_cx : d.cx) + part.begin * H + unit;
        if (p_.extras.dcells != nullptr && d.layer == p_.layers - 1) add_cell_gradient(d, row, unit, cell);
      }
      if (p_.is_slstm()) {
        cell.c = d.reserve.cells + row * H + unit;
        cell.c_prev = carried ? d.reserve.cells + (step.prev_row + part.begin) * H + unit
                              : (is_reset ? ws_.reset_ratio : ws_.ratio) + part.begin * H + unit;
        cell.state_stride = NH;
      }
      if (p_.mode == PRNN_GRU) {
        cell.h_prev = carried ? d.output + (step.prev_row + part.begin) * ldy + unit
                              : (is_reset ? d.reset_hx : d.hx) + part.begin * P + unit;
        cell.ld_h_prev = carried ? ldy : P;
        cell.candidate = d.reserve.cells + row * H + unit;
        cell.dcandidate = d.reserve.dcandidate + row * H + unit;
        cell.zoneout = static_cast<T>(p_.masks.zoneoutExpectation);
      }
      const int64_t at = part.begin * H + unit;
      if (ws_.carried_h != nullptr) split_gradient(at, cell);
      cells_.backward[p_.mode](cell);
      if (!is_reset) return;
      if (p_.mode == PRNN_GRU) give_to_reset(cell, cell.carry, d.dreset_hx, at);
      for (int64_t state = 0; state < p_.cell_states(); ++state) {
        T* const to = d.dreset_cx == nullptr ? nullptr : d.dreset_cx + state * NH;
        give_to_reset(cell, cell.carry + state * NH, to, at);
      }
      if (ws_.carried_h != nullptr) give_to_reset(cell, ws_.carried_h + at, d.dreset_hx, at);
    });
  }

  // An LSTM's zoneout: of the gradients of h, a part belongs to the h before; the cells get the others. `at`: the first
  // element of [N][H].
  void split_gradient(int64_t at, BackwardCell<T>& cell) const {
    const T expectation = static_cast<T>(p_.masks.zoneoutExpectation);
    const bool is_marked = p_.masks.zoneout != nullptr;
    for (int64_t j = 0; j < cell.n; ++j) {
      const T* const dy = cell.dy + j * cell.ld_dy;
      const T* const dh = cell.dh == nullptr ? nullptr : cell.dh + j * cell.ld_dh;
      T* const past = ws_.carried_h + at + j * H;
      const T* const o = cell.gates + (j * G + 3) * H;
      for (int64_t i = 0; i < cell.units; ++i) {
        const T sum = dy[i] + (dh == nullptr ? T(0) : dh[i]) + (cell.has_carry ? past[i] : T(0));
        const bool stays = is_marked && o[i] == 0 && std::signbit(o[i]);
        past[i] = stays ? sum : expectation * sum;
        ws_.dh_of_cells[at + j * H + i] = stays ? T(0) : sum - past[i];
      }
    }
    cell.dy = ws_.dh_of_cells + at;
    cell.ld_dy = H;
    cell.dh = nullptr;
  }

  // Moves the gradient that a cell sends past the matrix to the states given where its sequences start anew, away from
  // the step before. `at`: the element of [N][H].
  void give_to_reset(const BackwardCell<T>& cell, T* carry, T* to, int64_t at) const {
    for (int64_t j = 0; j < cell.n; ++j) {
      for (int64_t i = 0; i < cell.units && to != nullptr; ++i) to[at + j * H + i] += carry[j * H + i];
      std::fill_n(carry + j * H, cell.units, T(0));
    }
  }

  // Adds the gradient of the c that the caller was given to dc, of sequences whose first has this row.
  void add_cell_gradient(const Direction& d, int64_t row, int64_t unit, const BackwardCell<T>& cell) const {
    const int64_t width = p_.recurrences() * H;
    const T* const dcells = static_cast<const T*>(p_.extras.dcells) + row * width + d.index * H + unit;
    for (int64_t j = 0; j < cell.n; ++j) {
      for (int64_t u = 0; u < cell.units; ++u) cell.carry[j * H + u] += dcells[j * width + u];
    }
  }

  // With a projection: reserve.dh = dy + what comes from the step after.
  void add_state_gradient(const Direction& d, const Step& step, int64_t block, int64_t begin, int64_t n, const T* dh,
                          int64_t ld_dh) const {
    const int64_t width = std::min(W, P - block * W);
    for (int64_t j = 0; j < n; ++j) {
      const int64_t row = step.row + begin + j;
      const T* dy = d.dy + row * ldy + block * W;
      T* sum = d.reserve.dh + row * P + block * W;
      for (int64_t i = 0; i < width; ++i) sum[i] = dh == nullptr ? dy[i] : dy[i] + dh[j * ld_dh + i];
    }
  }

  // With a projection: the gradient of o * tanh(c), Wp^T dh, and then the cells.
  void unproject(const Direction& d, const Step& step, Range units, Range sequences, T* products) const {
    for (int64_t b = units.begin; b < units.end; ++b) {
      for (int64_t begin = sequences.begin; begin < sequences.end; begin += kTileVectors) {
        const int64_t n = std::min(kTileVectors, sequences.end - begin);
        multiply(projection(d), {b, b + 1}, std::min(b + 1, units.end - 1), d.reserve.dh + (step.row + begin) * P, P, n,
                 products);
        run_cell(d, step, b, begin, n, products, W, nullptr, 0, false);
      }
    }
  }

  // dhx, or dresetHx, of sequences that started at `step`.
  void initial_gradient(const Direction& d, const Step& step, Range sequences, Range group, T* products) const {
    for (int64_t begin = sequences.begin; begin < sequences.end; begin += kTileVectors) {
      const int64_t n = std::min(kTileVectors, sequences.end - begin);
      multiply(recurrent(d), group, group.begin, d.reserve.dgates + (step.row + begin) * G * H, G * H, n, products);
      if (d.mask != nullptr) mask_products(d, group, begin, n, products);
      for (int64_t b = group.begin; b < group.end; ++b) {
        for (int64_t j = 0; j < n; ++j) {
          const T* product = products + ((b - group.begin) * n + j) * W;
          const bool is_reset = state_before(p_, p_.direction_of(d.index), step, begin + j) == StateBefore::kReset;
          if (is_reset && d.dreset_hx != nullptr) add_reset_gradient(d, b, begin + j, 1, product);
          if (d.dhx == nullptr) continue;
          const T* const past = p_.mode == PRNN_GRU ? ws_.carry : ws_.carried_h;
          for (int64_t i = 0; i < std::min(W, P - b * W); ++i) {
            const int64_t at = (begin + j) * P + b * W + i;
            d.dhx[at] = is_reset ? T(0) : past != nullptr ? product[i] + past[at] : product[i];
          }
        }
      }
    }
  }

  // dx, of the first recurrence, or dx += of the others.
  void input_gradient(const Team& team, const Direction& d, T* dx) const {
    const T* dgates = d.reserve.dgates;
    const int64_t width = p_.layer_input(d.layer);
    const int64_t direct = p_.mode == PRNN_GRU ? 2 : G;  // gates whose gradient is the same for input and recurrence
    if (d.input_weights == nullptr) {
      const Range share = team.share_of(p_.rows);
      for (int64_t row = share.begin; row < share.end; ++row) {
        for (int64_t g = 0; p_.gates_input && g < G; ++g) {
          std::copy_n(dgates + (row * G + g) * H, H, dx + row * p_.input + p_.first_input(d.index, g));
        }
        for (int64_t u = 0; p_.skip_input && u < H; ++u) {
          T sum = d.index == 0 ? T(0) : dx[row * H + u];
          for (int64_t g = 0; g < direct; ++g) sum += dgates[(row * G + g) * H + u];
          dx[row * H + u] = direct < G ? sum + d.reserve.dcandidate[row * H + u] : sum;
        }
      }
      return;
    }
    Gemm<S> gemm;
    gemm.m = p_.rows;
    gemm.n = gemm.ldb = gemm.ldc = width;
    gemm.k = direct * H;
    gemm.a = dgates;
    gemm.lda = G * H;
    gemm.b = d.input_weights;
    gemm.c = dx;
    gemm.accumulate = d.index > 0;
    gemm.scratch = scratch_;
    team_gemm(team, gemm);
    if (direct == G) return;
    gemm.k = gemm.lda = H;
    gemm.a = d.reserve.dcandidate;
    gemm.b = d.input_weights + direct * H * width;
    gemm.accumulate = true;
    team_gemm(team, gemm);
  }

  int64_t panels(int64_t n) const { return (n + W - 1) / W; }

  const RnnProblem& p_;
  const RnnBackwardDataArgs& args_;
  const Reserve<T> reserve_;
  const BackwardDataWorkspace<T> ws_;
  const std::array<std::vector<Step>, 2> steps_ = all_direction_steps(p_);
  const GemmKernels<S>& kernels_ = gemm_kernels<S>();
  const CellKernels<T>& cells_ = cell_kernels<T>();
  const bool packs_ = packs_recurrent(p_);
  const int64_t G = p_.gates(), H = p_.hidden, P = p_.state(), ldy = p_.recurrences() * P, W = kernels_.width;
  const int64_t NH = p_.max_batch() * H;
  char* const scratch_ = gemm_scratch<S>(threads_for(widest_input(p_)));
};

}  // namespace

template <class S>
void cpu_rnn_backward_data(const RnnProblem& problem, const RnnBackwardDataArgs& args) {
  BackwardDataPass<S>(problem, args).run();
}

template void cpu_rnn_backward_data<float>(const RnnProblem&, const RnnBackwardDataArgs&);
template void cpu_rnn_backward_data<double>(const RnnProblem&, const RnnBackwardDataArgs&);
template void cpu_rnn_backward_data<Half>(const RnnProblem&, const RnnBackwardDataArgs&);
template void cpu_rnn_backward_data<Bfloat16>(const RnnProblem&, const RnnBackwardDataArgs&);

}  // namespace prnn
