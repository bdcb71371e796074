// The forward pass: per layer one parallel region, in which the input products of many timesteps are one matrix product
// and the recurrent weights, packed by the thread that owns their units, are walked through once a timestep.
#include <algorithm>
#include <cstring>
#include <limits>

#include "core/cpu/gemm/gemm.h"
#include "core/cpu/threads.h"
#include "core/descriptors.h"
#include "rnn/cpu/buffers.h"
#include "rnn/cpu/cells.h"
#include "rnn/cpu/direction.h"
#include "rnn/cpu/dropout.h"
#include "rnn/cpu/passes.h"
#include "rnn/cpu/steps.h"

namespace prnn {
namespace {

constexpr int64_t kMaxPanelBytes = 2 * 64;  // a panel's width

// S: the type of the weights; all else is of the type that is computed in, T.
template <class S>
class ForwardPass {
  using T = Compute<S>;

 public:
  ForwardPass(const RnnProblem& problem, const RnnForwardArgs& args)
      : p_(problem),
        args_(args),
        training_(args.reserve != nullptr),
        reserve_(problem, args.keeps_gates, args.reserve),
        ws_(problem, training_, args.workspace) {}

  void run() {
    std::memset(ws_.zeros, 0, std::max<int64_t>(p_.cell_states(), 1) * NH * sizeof(T));
    DropoutMask mask;
    const bool drops = training_ && p_.dropout.probability > 0 && p_.layers > 1;
    if (drops) {
      auto* states = static_cast<DropoutStates*>(p_.dropout.states);
      mask = {states->seed, states->calls++, 0, p_.dropout.probability};
    }
    const T* input = static_cast<const T*>(args_.x);
    for (int64_t layer = 0; layer < p_.layers; ++layer) {
      T* output = layer_output(layer);
      mask.layer = layer - 1;
      run_layer(layer, input, output, drops && layer > 0 ? &mask : nullptr);
      input = output;
    }
  }

 private:
  struct Direction : DirectionData<S> {
    using DirectionData<S>::DirectionData;

    T* output;       // [rows][D P], at this direction's first column
    bool keeps;      // for the backward passes
    T* gates;        // [rows][G H] if it does; else of the chunk at hand
    T* cells;        // [rows][H], else [N][H]; sLSTM: [3][N][H]
    T* ratios;       // sLSTM, if it keeps: [rows][H]
    T* unprojected;  // the same
  };

  // A part of a timestep's sequences whose states lie in one place.
  struct Segment {
    int64_t begin, n;
    const T* h_prev;
    int64_t ld_h_prev;
    const T* c_prev;
    const T* read = nullptr;  // h_prev as R reads it: with the mask
    int64_t ld_read = 0;
  };

  T* layer_output(int64_t layer) const {
    if (layer == p_.layers - 1) return static_cast<T*>(args_.y);
    if (training_ && reserve_.outputs[layer] != nullptr) return reserve_.outputs[layer];
    return (p_.layers - 1 - layer) % 2 == 0 ? static_cast<T*>(args_.y) : ws_.between;
  }

  Direction make_direction(int64_t layer, int64_t index, T* output) const {
    Direction d(p_, steps_, layer, index, args_.w, args_.hx, args_.cx, ws_.zeros);
    d.output = output + index * P;
    const DirectionReserve<T>& reserve = reserve_.directions[layer * p_.recurrences() + index];
    d.keeps = training_ && layer >= p_.frozen;
    d.gates = d.keeps ? reserve.gates : ws_.gates;
    d.cells = keeps_rows(d) ? reserve.cells : ws_.cells;
    d.ratios = reserve.cells;
    d.unprojected = d.keeps ? reserve.unprojected : ws_.unprojected;
    return d;
  }

  // Whether `cells` has a row for every row of the data.
  bool keeps_rows(const Direction& d) const { return d.keeps && !p_.is_slstm(); }

  // For a layer with inputs of this width.
  int threads_for(int64_t width) const {
    return team_size(flops_per_step(p_, static_cast<double>(G * H) * static_cast<double>(P + width)));
  }

  void run_layer(int64_t layer, const T* input, T* output, const DropoutMask* mask) {
    const int threads = threads_for(p_.layer_input(layer));
    const T* layer_input = mask == nullptr ? input : ws_.dropped;
    if (mask != nullptr) {
      run_team(threads, [&](const Team& team) {
        draw_dropout(team, *mask, p_.rows * p_.recurrences() * P, input, reserve_.masks[layer - 1], ws_.dropped);
      });
    }
    for (int64_t index = 0; index < p_.recurrences(); ++index) {
      const Direction d = make_direction(layer, index, output);
      add_biases(d);
      if (!keeps_rows(d)) std::copy_n(d.cx, p_.cell_states() * NH, ws_.cells);
      for (int64_t i = 0; d.mask != nullptr && i < p_.max_batch() * H; ++i) {
        ws_.masked_initial[i] = d.hx[i] * d.mask[i];
        if (p_.extras.reset != nullptr) ws_.masked_reset[i] = d.reset_hx[i] * d.mask[i];
      }
      run_team(threads, [&](const Team& team) { run_direction(team, d, layer_input); });
      copy_last_states(d);
      if (p_.is_slstm() && d.keeps)
        std::copy_n(d.cells + NH, NH, reserve_.directions[layer * p_.recurrences() + index].last_n);
      if (layer == p_.layers - 1 && p_.extras.cells != nullptr) copy_cells(d);
    }
  }

  // Sets what the input product is added to: both biases, but for the GRU's gate n, whose recurrent bias is scaled by
  // r.
  void add_biases(const Direction& d) const {
    const RnnLayerOffsets offsets = rnn_layer_offsets(p_, d.layer, d.index);
    const S* const w = static_cast<const S*>(args_.w);
    kernels_.widen(w + offsets.input_bias, G * H, ws_.bias);
    kernels_.widen(w + offsets.recurrent_bias, G * H, ws_.recurrent_bias);
    const int64_t both = p_.mode == PRNN_GRU ? 2 * H : G * H;
    for (int64_t i = 0; i < both; ++i) ws_.bias[i] += ws_.recurrent_bias[i];
  }

  void run_direction(const Team& team, const Direction& d, const T* input) const {
    const bool packs = packs_recurrent(p_);
    const StepGrid grid(p_, team, panels(H), G * H * P * static_cast<int64_t>(sizeof(T)), packs);
    const bool packs_late = packs && p_.steps() == 1 && !grid.cuts_sequences();
    if (packs && !packs_late) pack_recurrent(team.share_of(panels(H)), d, ws_.recurrent);
    if (input_rows_ < p_.rows) pack_input(team, d);
    const Range packed = team.share_of(panels(p_.projection));
    for (int64_t b = packed.begin; packs && b < packed.end; ++b) {
      kernels_.pack_rows(d.projection_weights + b * W * H, H, std::min(W, P - b * W), H, ws_.projection + b * W * H);
    }

    if (input_rows_ < p_.rows) team.sync();  // threads read one another's panels
    const Range blocks = grid.panels(panels(H)), projected = grid.panels(panels(p_.projection));
    const int64_t steps = p_.steps();
    bool downwards = false;
    for (int64_t begin = 0, end; begin < steps; begin = end) {
      end = chunk_end(d.steps, begin);
      const int64_t first_row = std::min(d.steps[begin].row, d.steps[end - 1].row);
      const int64_t last_row =
          std::max(d.steps[begin].row + d.steps[begin].batch, d.steps[end - 1].row + d.steps[end - 1].batch);
      T* gates = d.keeps ? d.gates + first_row * G * H : d.gates;
      input_products(team, d, input + first_row * p_.layer_input(d.layer), last_row - first_row, gates);
      team.sync();
      if (p_.masks.zoneout != nullptr && p_.mode == PRNN_GRU) {
        zone_out(team, d, first_row, last_row - first_row, gates);
        team.sync();
      }
      for (int64_t s = begin; s < end; ++s) {
        const Step& step = d.steps[s];
        // Every other step goes through the weights backwards: what the cache still holds is used first.
        const Range sequences = grid.sequences(0, step.batch);
        run_step(d, step, blocks, sequences, gates + (step.row - first_row) * G * H, packs, packs_late, downwards);
        downwards = !downwards;
        grid.sync();
        if (p_.projection > 0) {
          project(d, step, projected, sequences, packs);
          grid.sync();
        }
      }
      if (end < steps) team.sync();  // before the gates are written again
    }
  }

  int64_t chunk_end(const Step* steps, int64_t begin) const {
    int64_t rows = 0, end = begin;
    while (end < p_.steps() && rows < input_rows_) rows += steps[end++].batch;
    return end;
  }

  void input_products(const Team& team, const Direction& d, const T* input, int64_t rows, T* gates) const {
    if (d.input_weights == nullptr) {
      const Range share = team.share_of(rows);
      for (int64_t row = share.begin; row < share.end; ++row) {
        for (int64_t g = 0; g < G; ++g) {
          const T* const of_gate = input + row * p_.input + p_.first_input(d.index, g);
          for (int64_t u = 0; u < H; ++u) gates[(row * G + g) * H + u] = of_gate[u] + ws_.bias[g * H + u];
        }
      }
      return;
    }
    Gemm<S> gemm;
    gemm.m = rows;
    gemm.n = G * H;
    gemm.k = gemm.lda = gemm.ldb = p_.layer_input(d.layer);
    gemm.a = input;
    gemm.b = d.input_weights;
    gemm.b_transposed = true;
    gemm.panels = input_rows_ < p_.rows ? ws_.input : nullptr;
    gemm.c = gates;
    gemm.ldc = G * H;
    gemm.bias = ws_.bias;
    gemm.scratch = scratch_;
    team_gemm(team, gemm);
  }

  // prnnRNNMasks_t::zoneout of a row: [H].
  const unsigned char* zoneout_of(const Direction& d, int64_t row) const {
    return static_cast<const unsigned char*>(p_.masks.zoneout) +
           ((row * p_.layers + d.layer) * p_.recurrences() + d.index) * H;
  }

  // An LSTM's cell, of sequences whose first has this row. Where h stays, o becomes -0, which it is nowhere else: the
  // backward pass knows it by that.
  void zone_out(const Direction& d, int64_t row, int64_t unit, const ForwardCell<T>& cell) const {
    const T expectation = static_cast<T>(p_.masks.zoneoutExpectation);
    for (int64_t j = 0; j < cell.n; ++j) {
      const T* const before = cell.h_prev + j * cell.ld_h_prev;
      T* const h = cell.h + j * cell.ld_h;
      T* const o = cell.gates + (j * G + 3) * H;
      const unsigned char* const stays = p_.masks.zoneout == nullptr ? nullptr : zoneout_of(d, row + j) + unit;
      for (int64_t u = 0; u < cell.units; ++u) {
        if (stays == nullptr) {
          h[u] += expectation * (before[u] - h[u]);
        } else if (stays[u] != 0) {
          h[u] = before[u];
          o[u] = T(-0.0);
        }
      }
    }
  }

  // Where h is to stay, the GRU's update gate is 1: its input product becomes infinite.
  void zone_out(const Team& team, const Direction& d, int64_t first_row, int64_t rows, T* gates) const {
    const Range share = team.share_of(rows);
    for (int64_t row = share.begin; row < share.end; ++row) {
      const unsigned char* const mask = zoneout_of(d, first_row + row);
      for (int64_t u = 0; u < H; ++u) {
        if (mask[u] != 0) gates[(row * G + 1) * H + u] = std::numeric_limits<T>::infinity();
      }
    }
  }

  void pack_input(const Team& team, const Direction& d) const {
    const int64_t k = p_.layer_input(d.layer);
    const Range share = team.share_of(d.input_weights == nullptr ? 0 : panels(G * H));
    for (int64_t i = share.begin; i < share.end; ++i) {
      kernels_.pack_rows(d.input_weights + i * W * k, k, std::min(W, G * H - i * W), k, ws_.input + i * W * k);
    }
  }

  // first: of all blocks' panels.
  void pack_recurrent(Range blocks, const Direction& d, T* first) const {
    for (int64_t b = blocks.begin; b < blocks.end; ++b) {
      for (int64_t g = 0; g < G; ++g) {
        kernels_.pack_rows(d.recurrent_weights + (g * H + b * W) * P, P, std::min(W, H - b * W), P,
                           first + (b * G + g) * W * P);
      }
    }
  }

  // packs_late: what a single timestep reads once is packed group by group, in one place, which stays in the cache.
  void run_step(const Direction& d, const Step& step, Range blocks, Range sequences, T* gates, bool packs,
                bool packs_late, bool downwards) const {
    const int64_t together = std::max<int64_t>(kernels_.most_panels / G, 1);  // blocks a product
    const int64_t groups = (blocks.size() + together - 1) / together;
    const int64_t whole = H / W;
    const auto first_of = [&](int64_t i) { return blocks.begin + (downwards ? groups - 1 - i : i) * together; };
    for (int64_t i = 0; i < groups; ++i) {
      const int64_t first = first_of(i), next = i + 1 < groups ? first_of(i + 1) : first;
      const Range group = {first, std::min(first + together, blocks.end)};
      // A block that has not all its units is, where the matrix is used as it lies, a product of its own.
      const int64_t cut = packs || group.size() == 1 ? group.end : std::min(group.end, whole);
      T* const packed = ws_.recurrent + (packs_late ? blocks.begin - group.begin : 0) * G * W * P;
      if (packs_late) pack_recurrent(group, d, packed);
      const T* const coming = packs_late ? nullptr : packed + next * G * W * P;
      for_each_state_before(p_, p_.direction_of(d.index), step, sequences, [&](Range part, StateBefore before) {
        const Segment segment = segment_of(d, step, part, before);
        run_segment(d, step, {group.begin, cut}, segment, gates, packs ? packed : nullptr, coming);
        if (cut < group.end) run_segment(d, step, {cut, group.end}, segment, gates, nullptr, nullptr);
        if (d.mask != nullptr) mask_states(d, step, group, part);
      });
    }
  }

  Segment segment_of(const Direction& d, const Step& step, Range part, StateBefore before) const {
    const int64_t n = part.begin;
    Segment segment;
    switch (before) {
      case StateBefore::kPrevious:
        segment = {n, part.size(), d.output + (step.prev_row + n) * ldy, ldy,
                   keeps_rows(d) ? d.cells + (step.prev_row + n) * H : d.cells + n * H};
        break;
      case StateBefore::kInitial:
        segment = {n, part.size(), d.hx + n * P, P, (keeps_rows(d) ? d.cx : d.cells) + n * H};
        break;
      default: segment = {n, part.size(), d.reset_hx + n * P, P, d.reset_cx + n * H};
    }
    segment.read = segment.h_prev;
    segment.ld_read = segment.ld_h_prev;
    if (d.mask != nullptr) {
      const T* const states = before == StateBefore::kPrevious ? ws_.masked[(&step - d.steps) % 2]
                              : before == StateBefore::kReset  ? ws_.masked_reset
                                                               : ws_.masked_initial;
      segment.read = states + n * H;
      segment.ld_read = H;
    }
    return segment;
  }

  // packed: all blocks' panels, or NULL for rows as they lie; next: those of the group that follows, or NULL.
  void run_segment(const Direction& d, const Step& step, Range group, Segment segment, T* gates, const T* packed,
                   const T* next) const {
    alignas(64) char scratch[kMostPanels * kTileVectors * kMaxPanelBytes];
    T* products = reinterpret_cast<T*>(scratch);
    const int64_t rows = std::min(W, H - group.begin * W);
    for (int64_t begin = 0; begin < segment.n; begin += kTileVectors) {
      const int64_t n = std::min(kTileVectors, segment.n - begin);
      const int64_t sequence = segment.begin + begin;
      const T* h_prev = segment.h_prev + begin * segment.ld_h_prev;
      const T* read = segment.read + begin * segment.ld_read;
      if (packed != nullptr) {
        kernels_.product(packed + group.begin * G * W * P, group.size() * G, rows, P, read, segment.ld_read, n,
                         products, next);
      } else {
        const S* sources[kMostPanels];
        for (int64_t i = 0; i < group.size() * G; ++i) {
          sources[i] = d.recurrent_weights + (i % G * H + (group.begin + i / G) * W) * P;
        }
        kernels_.product_from_rows(sources, P, rows, group.size() * G, P, read, segment.ld_read, n, products);
      }
      for (int64_t b = group.begin; b < group.end; ++b) {
        const int64_t unit = b * W;
        const int64_t row = step.row + sequence;
        const int64_t state = d.keeps ? row : sequence;  // row of cells and unprojected
        ForwardCell<T> cell;
        cell.n = n;
        cell.units = std::min(W, H - unit);
        cell.hidden = H;
        cell.product = products + (b - group.begin) * G * n * W;
        cell.product_stride = n * W;
        cell.gates = gates + sequence * G * H + unit;
        cell.keep = d.keeps;
        cell.recurrent_bias = ws_.recurrent_bias + (G - 1) * H + unit;
        cell.h_prev = h_prev + unit;
        cell.ld_h_prev = segment.ld_h_prev;
        cell.h = p_.projection > 0 ? d.unprojected + state * H + unit : d.output + row * ldy + unit;
        cell.ld_h = p_.projection > 0 ? H : ldy;
        if (p_.mode == PRNN_LSTM) {
          cell.c_prev = segment.c_prev + begin * H + unit;
          cell.c = d.cells + state * H + unit;
        }
        if (p_.is_slstm()) {
          cell.c_prev = segment.c_prev + begin * H + unit;
          cell.c = d.cells + sequence * H + unit;
          cell.state_stride = NH;
          cell.ratio = d.ratios + row * H + unit;
        }
        if (p_.mode == PRNN_GRU && d.keeps) cell.candidate = d.cells + row * H + unit;
        cell.zoneout = static_cast<T>(p_.masks.zoneoutExpectation);
        cells_.forward[p_.mode](cell);
        if (p_.mode == PRNN_LSTM && p_.zones_out()) zone_out(d, row, unit, cell);
      }
    }
  }

  // Masks the states that the next step's product reads.
  void mask_states(const Direction& d, const Step& step, Range group, Range sequences) const {
    T* const states = ws_.masked[(&step - d.steps + 1) % 2];
    for (int64_t n = sequences.begin; n < sequences.end; ++n) {
      const T* const h = d.output + (step.row + n) * ldy;
      for (int64_t u = group.begin * W; u < std::min(group.end * W, H); ++u) {
        states[n * H + u] = h[u] * d.mask[n * H + u];
      }
    }
  }

  void project(const Direction& d, const Step& step, Range projected, Range sequences, bool packs) const {
    alignas(64) char scratch[kTileVectors * kMaxPanelBytes];
    T* products = reinterpret_cast<T*>(scratch);
    const T* unprojected = d.unprojected + (d.keeps ? step.row * H : 0);
    for (int64_t b = projected.begin; b < projected.end; ++b) {
      for (int64_t begin = sequences.begin; begin < sequences.end; begin += kTileVectors) {
        const int64_t n = std::min(kTileVectors, sequences.end - begin);
        if (packs) {
          kernels_.product(ws_.projection + b * W * H, 1, W, H, unprojected + begin * H, H, n, products,
                           ws_.projection + std::min(b + 1, projected.end - 1) * W * H);
        } else {
          const S* const rows = d.projection_weights + b * W * H;
          kernels_.product_from_rows(&rows, H, std::min(W, P - b * W), 1, H, unprojected + begin * H, H, n, products);
        }
        T* out = d.output + (step.row + begin) * ldy + b * W;
        for (int64_t j = 0; j < n; ++j) std::copy_n(products + j * W, std::min(W, P - b * W), out + j * ldy);
      }
    }
  }

  void copy_last_states(const Direction& d) const {
    const int64_t pseudo_layer = d.layer * p_.recurrences() + d.index;
    auto* hy = static_cast<T*>(args_.hy);
    auto* cy = static_cast<T*>(args_.cy);
    if (hy != nullptr) hy += pseudo_layer * p_.max_batch() * P;
    if (cy != nullptr) cy += pseudo_layer * p_.cell_states() * NH;
    if (cy != nullptr && !keeps_rows(d)) {  // sequences that are over keep their states
      std::copy_n(d.cells, p_.cell_states() * NH, cy);
      cy = nullptr;
    }
    for (const Step& step : steps_[p_.direction_of(d.index)]) {
      for (int64_t n = step.kept; n < step.batch; ++n) {
        if (hy != nullptr) std::copy_n(d.output + (step.row + n) * ldy, P, hy + n * P);
        if (cy != nullptr) std::copy_n(d.cells + (step.row + n) * H, H, cy + n * H);
      }
    }
  }

  // c of every timestep, of this direction, for the caller.
  void copy_cells(const Direction& d) const {
    T* const to = static_cast<T*>(p_.extras.cells) + d.index * H;
    for (int64_t row = 0; row < p_.rows; ++row) std::copy_n(d.cells + row * H, H, to + row * p_.recurrences() * H);
  }

  int64_t panels(int64_t n) const { return (n + W - 1) / W; }

  const RnnProblem& p_;
  const RnnForwardArgs& args_;
  const bool training_;
  const int64_t input_rows_ = input_rows<T>(p_);
  const Reserve<T> reserve_;
  const ForwardWorkspace<T> ws_;
  const std::array<std::vector<Step>, 2> steps_ = all_direction_steps(p_);
  const GemmKernels<S>& kernels_ = gemm_kernels<S>();
  const CellKernels<T>& cells_ = cell_kernels<T>();
  const int64_t G = p_.gates(), H = p_.hidden, P = p_.state(), ldy = p_.recurrences() * P, W = kernels_.width;
  const int64_t NH = p_.max_batch() * H;
  char* const scratch_ = gemm_scratch<S>(threads_for(widest_input(p_)));
};

}  // namespace

template <class S>
void cpu_rnn_forward(const RnnProblem& problem, const RnnForwardArgs& args) {
  ForwardPass<S>(problem, args).run();
}

template void cpu_rnn_forward<float>(const RnnProblem&, const RnnForwardArgs&);
template void cpu_rnn_forward<double>(const RnnProblem&, const RnnForwardArgs&);
template void cpu_rnn_forward<Half>(const RnnProblem&, const RnnForwardArgs&);
template void cpu_rnn_forward<Bfloat16>(const RnnProblem&, const RnnForwardArgs&);

}  // namespace prnn
