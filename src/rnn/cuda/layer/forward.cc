#include <algorithm>
#include <limits>

#include "rnn/cuda/backend.h"
#include "rnn/cuda/layer/run.h"
#include "rnn/cuda/step/forward.h"
#include "rnn/plan/wgmma.h"

namespace prnn {
namespace {

class Forward : LayerRun {
 public:
  Forward(prnnHandle_t handle, const RnnProblem& problem, const RnnPlan& plan_of_call, const RnnForwardArgs& args)
      : LayerRun(handle, problem, plan_of_call, args), args_(args) {}

  void run() {
    store_table();
    if (drops()) {
      require_launch(run_begin_dropout(p.dropout.states, saved.draw, stream), "the dropout kernel");
    }
    if (plan.together.forward.are(Schedule::kSideBySide)) pad_states(0, p.layers);
    const void* input = args_.x;
    for (const StackLaunch& launch : stack_launches(p, plan, Pass::kForward)) {
      switch (launch.schedule) {
        case Schedule::kSideBySide: run_halves(launch.halves); continue;
        case Schedule::kWavefront: run_together(launch.first, launch.count, input); break;
        case Schedule::kStepByStep: run_steps(launch.first, input, output_of(launch.first)); break;
        default: run_layer(launch.first, input, output_of(launch.first));
      }
      const int64_t above = launch.first + launch.count;
      if (above < p.layers) input = input_of(above);
    }
  }

 private:
  // The outputs of the layer below, after dropout.
  const void* input_of(int64_t layer) {
    void* const output = output_of(layer - 1);
    if (!drops()) return output;
    drop(layer, 0, p.rows, output, saved.inputs[layer - 1]);
    return saved.inputs[layer - 1];
  }
  void* output_of(int64_t layer) const {
    return layer + 1 == p.layers ? args_.y : p.training ? saved.outputs[layer] : work.between_of(layer);
  }

  // Whether the kernels read x itself: the layer has no input matrices, and no states join their products.
  bool reads_input(int64_t layer) const { return !p.has_input_matrices(layer) && !adds_states(); }
  bool adds_states() const { return merges() && (args_.hx != nullptr || p.extras.resetHx != nullptr); }
  // Rows and gates of what input_products() leaves.
  int xw_row(int64_t layer) const {
    return static_cast<int>(reads_input(layer) ? p.input : p.heads * p.gates() * p.hidden);
  }
  int xw_gate(int64_t layer) const { return static_cast<int>(reads_input(layer) ? p.first_input(0, 1) : p.hidden); }
  // The input products of all heads of a direction. `last`: the highest of the layers that run together with this one.
  const void* input_products(int64_t layer, int64_t last, int64_t direction, const void* input) {
    if (reads_input(layer)) return input;
    const int64_t gate_rows = p.heads * p.gates() * p.hidden, first = direction * p.heads;
    void* const xw = p.training ? saved.directions[last * p.recurrences() + first].products : work.xw[direction];
    if (p.has_input_matrices(layer)) {
      multiply_input(layer, first, p.rows, input, xw);
    } else {  // x for every gate
      for (int64_t g = 0; g < p.gates(); ++g) {
        copy_rows(at(xw, g * p.hidden), p.gates() * p.hidden, input, p.hidden, p.hidden, p.rows);
      }
    }
    if (adds_states()) add_states(layer, direction, xw, gate_rows);
    return xw;
  }

  // xw <- so many rows of the input times the input matrices of a direction, whose first head is `recurrence`.
  void multiply_input(int64_t layer, int64_t recurrence, int64_t rows, const void* input, void* xw) {
    const int64_t gate_rows = p.heads * p.gates() * p.hidden, width = p.layer_input(layer);
    const void* const weights = at(args_.w, rnn_layer_offsets(p, layer, recurrence).input);
    multiply(rows, gate_rows, width, 1, view(input, width), view(weights, width, true), 0, xw, p.type, gate_rows);
  }

  // With a projection: adds the recurrent products of the states that sequences begin with, of [N, P].
  void add_states(int64_t layer, int64_t direction, void* xw, int64_t gate_rows) {
    if (const void* const hx = h_state(args_.hx, layer, direction)) {
      const EdgeRows first = first_edge(xw, gate_rows, gate_rows, direction);
      require_launch(run_add_edge_rows(p.type, multiply_states(layer, direction, hx, 0), first, stream),
                     "the kernel that adds the initial states");
    }
    if (const void* const hx = h_state(p.extras.resetHx, layer, direction)) {
      const ResetRows rows = reset_rows(xw, gate_rows, gate_rows, direction);
      require_launch(run_add_reset_rows(p.type, multiply_states(layer, direction, hx, 0), rows, stream),
                     "the kernel that adds the states of sequences that start anew");
    }
  }

  // Their products, in the place of a launch's layer i.
  const float* multiply_states(int64_t layer, int64_t direction, const void* states, int64_t i) {
    const void* const recurrent = at(args_.w, rnn_layer_offsets(p, layer, direction).recurrent);
    const int64_t gate_rows = p.gates() * p.hidden;
    float* const products = work.initial_products + i * p.max_batch() * gate_rows;
    multiply(p.max_batch(), gate_rows, p.projection, 1, view(states, p.projection), view(recurrent, p.projection, true),
             0, products, PRNN_DATA_FLOAT, gate_rows);
    return products;
  }

  // Where h is to stay, the GRU's update gate is 1: its input product becomes infinite. An LSTM's kernels do it, where
  // that of o is -infinity; without a mask that product is a number of the type, or o is 0 in any case. xw: of all
  // heads.
  void zone_out(int64_t layer, int64_t recurrence, const void* xw) {
    constexpr float kInfinity = std::numeric_limits<float>::infinity(), kLeast = -60000;
    const bool is_lstm = p.mode == PRNN_LSTM;
    ZonedGates gates{};
    gates.gate = at(const_cast<void*>(xw), (recurrence % p.heads * p.gates() + (is_lstm ? 3 : 1)) * p.hidden);
    gates.mark = is_lstm ? -kInfinity : kInfinity;
    gates.instead = is_lstm ? kLeast : kInfinity;
    gates.row = p.heads * p.gates() * p.hidden;
    gates.mask = static_cast<const unsigned char*>(p.masks.zoneout) + (layer * p.recurrences() + recurrence) * p.hidden;
    gates.mask_row = p.layers * p.recurrences() * p.hidden;
    gates.rows = p.rows;
    gates.hidden = static_cast<int>(p.hidden);
    require_launch(run_zone_out(p.type, gates, stream), "the kernel of zoneout");
  }

  // The initial states of layers [first, first + count), for kernels that read them as they read those of y.
  void pad_states(int64_t first, int64_t count) {
    require_launch(run_pad_states(p.type, resident_state(args_.hx, first, 0), work.initial[first * p.recurrences()],
                                  count * p.recurrences() * p.max_batch(), static_cast<int>(p.hidden),
                                  static_cast<int>(padded), stream),
                   "the kernel that pads the initial states");
  }

  // Layers [first, first + count) as a wavefront.
  void run_together(int64_t first, int64_t count, const void* input) {
    WavefrontForwardParams params{};
    params.sizes = sizes_of(plan.together.forward.shape, 0, p.max_batch(), count);
    params.xw = input_products(first, first + count - 1, 0, input);
    params.xw_row = xw_row(first);
    params.xw_gate = xw_gate(first);
    params.dropout_scale = dropout_scale();
    const bool by_chunks = is_chunked(plan.together.forward.shape);
    std::vector<Span> published;
    const void* below = nullptr;
    for (int64_t i = 0; i < count; ++i) {
      const int64_t layer = first + i;
      const RnnLayerOffsets offsets = rnn_layer_offsets(p, layer, 0);
      WavefrontForwardLayer& own = params.layer[i];
      own.recurrent = recurrent_weights(args_.w, layer, 0);
      own.input = i > 0 ? input_matrices(args_.w, layer) : nullptr;
      own.input_bias = at(args_.w, offsets.input_bias);
      own.recurrent_bias = at(args_.w, offsets.recurrent_bias);
      own.below = below;
      if (by_chunks) {
        own.below_progress = i > 0 ? work.progress + i - 1 : nullptr;
        own.progress = i + 1 < count ? work.progress + i : nullptr;
      } else {
        own.initial = work.initial[layer];
      }
      own.hx = resident_state(args_.hx, layer, 0);
      own.cx = c_state(args_.cx, layer, 0);
      own.y = merges() ? cell_outputs(layer, 0) : output_of(layer);
      own.hy = h_state(args_.hy, layer, 0);
      own.cy = c_state(args_.cy, layer, 0);
      if (merges()) {
        own.hy = own.hy != nullptr && i + 1 < count ? last_outputs(layer) : nullptr;
        const void* const hx = i > 0 ? h_state(args_.hx, layer, 0) : nullptr;
        if (hx != nullptr) own.initial_products = multiply_states(layer, 0, hx, i);
      }
      own.gates = saved.directions[layer].gates;  // this and the next NULL in inference
      own.cells = saved.directions[layer].cells;
      published.push_back(span(own.y, p.rows * p.hidden));
      if (i > 0 && drops_projected()) {
        own.projection =
            chunked_projection(args_.w, layer - 1, i - 1, saved.outputs[layer - 1], saved.inputs[layer - 1]);
      } else if (drops() && !merges() && i + 1 < count) {
        params.dropout[i].dropped = saved.inputs[layer];
        params.dropout[i].kept = dropout_mask(first, i);
        published.push_back(span(saved.inputs[layer], p.rows * p.hidden));
      }
      below = published.back().first;
    }
    if (by_chunks) {
      set_chunks(Pass::kForward, first, count, &params);
    } else {
      fill_all_empty(published);
      pad_states(first, count);
    }
    require_launch(launch_kernel(plan.together.forward.shape, params, stream), "the forward wavefront kernel");
    for (int64_t i = 0; i < count && merges(); ++i) project_together(first + i, i + 1 < count);
  }

  // y and hy of a layer that ran together with others. `is_inner`: the layer above was one of these, and nobody reads y
  // but the backward pass.
  void project_together(int64_t layer, bool is_inner) {
    if (!is_inner) return project(layer, 0, output_of(layer));
    const bool is_made = drops_projected();  // by the kernel
    if (p.training && !is_made) project_rows(layer, 0, p.rows, cell_outputs(layer, 0), output_of(layer));
    void* const hy = h_state(args_.hy, layer, 0);
    if (hy != nullptr) project_rows(layer, 0, p.max_batch(), last_outputs(layer), hy);
  }

  // A recurrence of a layer, or one half of its timesteps, as a direction of a launch.
  ForwardDirection direction_of(const LayerHalf& half, int64_t d, const void* xw, void* y) {
    const int64_t layer = half.layer, recurrence = layer * p.recurrences() + d, row = rows_of(half).base;
    const bool begins = half.is_first(), ends = half.first + half.steps == p.steps();
    const RnnLayerOffsets offsets = rnn_layer_offsets(p, layer, d);
    ForwardDirection dir{};
    dir.weights = recurrent_weights(args_.w, layer, d);
    dir.input_bias = at(args_.w, offsets.input_bias);
    dir.recurrent_bias = at(args_.w, offsets.recurrent_bias);
    dir.xw = xw;
    dir.initial = begins ? work.initial[recurrence] : work.carried_h[layer];
    dir.hx = begins ? resident_state(args_.hx, layer, d) : work.carried_h[layer];
    dir.cx = begins ? c_state(args_.cx, layer, d) : work.carried_c[layer];
    dir.cell_stride = p.max_batch() * p.hidden;
    dir.y = y;
    dir.hy = ends ? resident_state(args_.hy, layer, d) : work.carried_h[layer];
    dir.cy = ends ? c_state(args_.cy, layer, d) : work.carried_c[layer];
    dir.reset = p.extras.reset;
    dir.reset_hx = resident_state(p.extras.resetHx, layer, d);
    dir.reset_cx = c_state(p.extras.resetCx, layer, d);
    dir.reverse = static_cast<int>(p.direction_of(d));
    if (!p.training) return dir;
    const Reserve::PerDirection& own = saved.directions[recurrence];
    dir.last = own.last;
    dir.gates = at(own.gates, row * p.hidden * 4);
    dir.cells = at(own.cells, row * p.hidden);
    return dir;
  }

  // Whether rows of y, as long as the exchange buffer's and aligned, are that buffer; m always is.
  bool exchanges_in(const ResidentShape& shape, const void* y) const {
    return shape.exchanges_rows() &&
           (projects() || (p.recurrences() == 1 && padded == p.hidden && reinterpret_cast<uintptr_t>(y) % 16 == 0));
  }

  // One layer's half of the timesteps, or two layers'.
  void run_halves(const SideBySideLaunch& launch) {
    const ResidentShape& shape = shape_of(plan, launch, Pass::kForward);
    ForwardParams params{};
    set_sizes(launch, shape, &params);
    params.xw_row = xw_row(1);
    params.xw_gate = xw_gate(1);
    params.y_row = static_cast<int>(p.hidden);
    // Before the exchange buffers are filled: in inference, the outputs lie where inputs of other layers do.
    for (int i = 0; i < launch.count; ++i) {
      const LayerHalf& half = launch.half[i];
      void* const y = at(output_of(half.layer), rows_of(half).base * p.hidden);
      params.direction[i] = direction_of(half, 0, input_products(half), y);
    }
    std::vector<Span> exchanged;
    for (int i = 0; i < launch.count; ++i) {
      ForwardDirection& dir = params.direction[i];
      const Rows rows = rows_of(launch.half[i]);
      if (!shape.exchanges_rows()) {
        dir.exchange = work.exchange[0];
        exchanged.push_back(span(dir.exchange, launch.half[i].steps * params.sizes.exchange_columns() * padded));
        continue;
      }
      const bool in_y = exchanges_in(shape, dir.y);
      dir.exchange = in_y ? dir.y : at(work.exchange[0], rows.base * padded);
      if (in_y) dir.y = nullptr;
      exchanged.push_back(span(at(dir.exchange, (rows.first - rows.base) * padded), rows.count * padded));
    }
    fill_all_empty(exchanged);
    require_launch(launch_kernel(shape, params, stream), "the resident forward kernel");
    for (int i = 0; i < launch.count && varies; ++i) {
      if (!launch.half[i].is_first()) continue;
      // The last states of sequences that end in the first half; the second half writes the others.
      const int64_t layer = launch.half[i].layer;
      copy_states(work.carried_h[layer], h_state(args_.hy, layer, 0));
      if (p.mode == PRNN_LSTM) copy_states(work.carried_c[layer], c_state(args_.cy, layer, 0));
    }
  }

  // Makes the input products of this half of a layer's timesteps; where those of the launch's first row are.
  const void* input_products(const LayerHalf& half) {
    const int64_t layer = half.layer, width = p.layer_input(layer);
    const Rows rows = rows_of(half);
    const void* input = layer == 0 ? args_.x : output_of(layer - 1);
    if (layer > 0 && drops()) {
      drop(layer, rows.first, rows.count, input, saved.inputs[layer - 1]);
      input = saved.inputs[layer - 1];
    }
    void* const xw = p.training ? saved.directions[layer].products : work.xw[0];
    multiply_input(layer, 0, rows.count, at(input, rows.first * width), at(xw, rows.first * xw_row(layer)));
    return at(xw, rows.base * xw_row(layer));
  }

  void run_layer(int64_t layer, const void* input, void* output) {
    ForwardParams params{};
    std::vector<ForwardDirection> directions;
    params.xw_row = xw_row(layer);
    params.xw_gate = xw_gate(layer);
    params.y_row = static_cast<int>(projects() ? padded : p.recurrences() * p.hidden);
    const bool exchanges_rows = plan.shape.forward.exchanges_rows();
    const void* xw = nullptr;
    for (int64_t d = 0; d < p.recurrences(); ++d) {
      const int64_t head = d % p.heads;
      if (head == 0) xw = input_products(layer, layer, p.direction_of(d), input);
      if (p.masks.zoneout != nullptr) zone_out(layer, d, xw);
      void* const y = projects() ? cell_outputs(layer, d) : at(output, d * p.hidden);
      ForwardDirection dir = direction_of(
          whole(layer), d, at(xw, reads_input(layer) ? p.first_input(d, 0) : head * p.gates() * p.hidden), y);
      const bool in_y = exchanges_in(plan.shape.forward, y);
      dir.exchange = in_y ? y : work.exchange[d];
      if (in_y) dir.y = nullptr;
      if (exchanges_rows) fill_empty(dir.exchange, p.rows * padded);
      directions.push_back(dir);
    }
    if (exchanges_rows) pad_states(layer, 1);
    const bool exchanges_fragments = !exchanges_rows && !plan.shape.forward.exchanges_in_cluster();
    for_each_launch(plan.shape.forward, [&](const ResidentSizes& sizes, int64_t first, int64_t) {
      set_sizes(sizes, layer, first, &params);
      std::copy_n(directions.begin() + first, sizes.directions, params.direction);
      for (int d = 0; d < sizes.directions && exchanges_fragments; ++d) {
        fill_empty(params.direction[d].exchange, fragment_bytes(p, plan.shape.forward, sizes) / element);
      }
      if (plan.keeps_projection_apart()) {
        params.projection = projection_of(args_.w, layer, first, sizes);
        params.projection.h = at(output, first * p.projection);
      }
      require_launch(launch_kernel(plan.shape.forward, params, stream), "the resident forward kernel");
    });
    for (int64_t d = 0; d < p.recurrences() && merges(); ++d) project(layer, d, output);
    const bool gives_cells = layer + 1 == p.layers && p.extras.cells != nullptr;
    for (int64_t d = 0; d < p.recurrences() && gives_cells; ++d) {
      copy_rows(at(p.extras.cells, d * p.hidden), p.recurrences() * p.hidden,
                saved.directions[layer * p.recurrences() + d].cells, p.hidden, p.hidden, p.rows);
    }
  }

  // A layer of one direction and a uniform batch, a launch or two for each timestep.
  void run_steps(int64_t layer, const void* input, void* output) {
    const RnnLayerOffsets offsets = rnn_layer_offsets(p, layer, 0);
    const int64_t width = p.layer_input(layer), batch = p.max_batch();
    StepParams step{};
    step.h = h_state(args_.hx, layer, 0);
    step.x_stride = width;
    step.h_stride = p.state();
    step.inputs = static_cast<int>(width);
    step.states = static_cast<int>(p.state());
    step.input = at(args_.w, offsets.input);
    step.recurrent = at(args_.w, offsets.recurrent);
    step.input_bias = at(args_.w, offsets.input_bias);
    step.recurrent_bias = at(args_.w, offsets.recurrent_bias);
    step.initial = p.mode == PRNN_LSTM ? c_state(args_.cx, layer, 0) : step.h;
    step.out_stride = p.hidden;
    step.hidden = static_cast<int>(p.hidden);
    step.batch = static_cast<int>(batch);
    float* const carried = reinterpret_cast<float*>(work.xw[0]);  // no larger than a timestep's products
    for (int64_t i = 0; i < p.steps(); ++i) {
      const bool is_last = i + 1 == p.steps();
      void* const y = at(output, i * batch * p.state());
      void* const hy = is_last ? h_state(args_.hy, layer, 0) : nullptr;
      step.x = at(input, i * batch * width);
      step.out = projects() ? work.cell_outputs[0] : y;
      step.hy = projects() ? nullptr : hy;
      step.cy = is_last ? c_state(args_.cy, layer, 0) : nullptr;
      step.carries = is_last ? nullptr : carried;
      require_launch(run_step(p.type, p.mode, step, stream), "the kernel of a timestep");
      if (projects()) {
        const void* const matrix = at(args_.w, offsets.projection);
        const ProjectionParams projection{step.out, p.hidden,    matrix,      y,         p.projection,
                                          hy,       step.hidden, step.states, step.batch};
        require_launch(run_projection(p.type, projection, stream), "the kernel of a projection");
      }
      step.h = y;
      step.carried = carried;
    }
  }

  void* cell_outputs(int64_t layer, int64_t direction) const {
    return p.training ? saved.directions[layer * p.recurrences() + direction].cell_outputs
                      : work.of_recurrence(work.cell_outputs, layer, direction);
  }
  void* last_outputs(int64_t layer) const { return work.of_recurrence(work.last_outputs, layer, 0); }

  // y and hy of one direction from the cell's outputs.
  void project(int64_t layer, int64_t direction, void* output) {
    const int64_t y_row = p.recurrences() * p.projection;
    void* const y = at(output, direction * p.projection);
    project_rows(layer, direction, p.rows, cell_outputs(layer, direction), y);
    void* const hy = h_state(args_.hy, layer, direction);
    if (hy == nullptr) return;
    require_launch(run_copy_edge_rows(p.type, edge(y, y_row, p.projection, direction == 0), hy, stream),
                   "the kernel that copies the last states");
  }

  // Rows of y, or states where there is one recurrence, from those of the cell's outputs.
  void project_rows(int64_t layer, int64_t direction, int64_t rows, const void* of_cell, void* y) {
    const void* const matrix = at(args_.w, rnn_layer_offsets(p, layer, direction).projection);
    multiply(rows, p.projection, p.hidden, 1, view(of_cell, padded), view(matrix, p.hidden, true), 0, y, p.type,
             p.recurrences() * p.projection);
  }

  const RnnForwardArgs& args_;
};

}  // namespace

void ResidentBackend::forward(prnnHandle_t handle, const RnnProblem& problem, const RnnForwardArgs& args) const {
  if (problem.takes_gates()) return forward_gates(handle, problem, args);
  Forward(handle, problem, plan_, args).run();
}

}  // namespace prnn
