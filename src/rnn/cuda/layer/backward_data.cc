#include <algorithm>

#include "rnn/cuda/backend.h"
#include "rnn/cuda/layer/run.h"
#include "rnn/plan/wgmma.h"

namespace prnn {
namespace {

class BackwardData : LayerRun {
 public:
  BackwardData(prnnHandle_t handle, const RnnProblem& problem, const RnnPlan& plan_of_call,
               const RnnBackwardDataArgs& args)
      : LayerRun(handle, problem, plan_of_call, args), args_(args) {}

  void run() {
    store_table();
    // Kernels by chunks copy 16 bytes of the input matrices, of dy and of a GRU's y at once; with a projection the
    // former are in the workspace. Layers alone leave gradients where these do, and as many sums for the biases.
    const void* const states = p.mode == PRNN_GRU ? args_.y : nullptr;
    const auto bits = reinterpret_cast<uintptr_t>(args_.w) | reinterpret_cast<uintptr_t>(args_.dy) |
                      reinterpret_cast<uintptr_t>(states);
    partials_.assign(static_cast<size_t>(p.layers), 0);
    if (replaces_gates) take_lone_gradients();
    const void* dy = args_.dy;
    for (const StackLaunch& launch : stack_launches(p, plan, Pass::kBackward, merges() || bits % 16 == 0)) {
      const int64_t layer = launch.first;
      switch (launch.schedule) {
        case Schedule::kSideBySide: run_halves(launch.halves); continue;
        case Schedule::kWavefront: run_together(layer, launch.count, dy); break;
        default: run_layer(layer, dy);
      }
      void* const dx = layer <= p.frozen ? args_.dx : work.between_of(layer - 1);  // NULL if there are frozen layers
      if (dx == nullptr) continue;
      for (int64_t d = 0; d < p.recurrences(); ++d) add_input_gradient(layer, d, 0, p.rows, dx);
      if (layer > 0 && drops()) drop(layer, 0, p.rows, dx, dx);
      dy = dx;
    }
    const bool side_by_side = plan.together.backward.are(Schedule::kSideBySide);
    if (side_by_side && args_.dx != nullptr) add_input_gradient(0, 0, 0, p.rows, args_.dx);
    for (size_t d = 0; d < work.lone.size() && replaces_gates; ++d) {
      copy(saved.directions[d].gates, work.lone[d], gradient_bytes(p));
    }
  }

 private:
  // The gates' gradients lie in the workspace while the gates are read.
  void take_lone_gradients() {
    for (size_t d = 0; d < saved.directions.size(); ++d) {
      Reserve::PerDirection& own = saved.directions[d];
      if (own.dcandidate != nullptr) own.dcandidate = work.lone[d] + (own.dcandidate - own.dgates);
      own.dgates = work.lone[d];
    }
  }

  const void* output_of(int64_t layer) const { return layer + 1 == p.layers ? args_.y : saved.outputs[layer]; }

  // Layers [first, first + count) as a wavefront; dy is of the highest.
  void run_together(int64_t first, int64_t count, const void* dy) {
    const int64_t highest = first + count - 1;
    WavefrontBackwardParams params{};
    params.sizes = sizes_of(plan.together.backward.shape, 0, p.max_batch(), count);
    params.dy = merges() ? of_cell_outputs(highest, 0, dy) : dy;
    params.dropout_scale = dropout_scale();
    const bool by_chunks = is_chunked(plan.together.backward.shape);
    std::vector<Span> gradients;
    for (int64_t i = 0; i < count; ++i) {
      const int64_t layer = first + i;
      const Reserve::PerDirection& saved_here = saved.directions[layer];
      WavefrontBackwardLayer& own = params.layer[i];
      own.recurrent = recurrent_weights(args_.w, layer, 0);
      if (i + 1 < count) {
        own.input_above = input_matrices(args_.w, layer + 1);
        own.above = saved.directions[layer + 1].dgates;
        own.candidate_above = saved.directions[layer + 1].dcandidate;
        if (drops_projected()) {
          own.projection = chunked_projection(args_.w, layer, i, saved_here.dstates, nullptr);
        } else if (drops()) {
          params.kept[i] = dropout_mask(first, i);
        }
      }
      own.y = merges() ? saved_here.cell_outputs : output_of(layer);
      own.hx = resident_state(args_.hx, layer, 0);
      own.cx = c_state(args_.cx, layer, 0);
      own.dhy = merges() ? of_last_cell_outputs(layer, 0) : h_state(args_.dhy, layer, 0);
      own.dcy = c_state(args_.dcy, layer, 0);
      own.gates = saved_here.gates;
      own.cells = saved_here.cells;
      own.dgates = saved_here.dgates;
      own.dcandidate = saved_here.dcandidate;
      own.dhx = resident_state(args_.dhx, layer, 0);
      own.dcx = c_state(args_.dcx, layer, 0);
      own.bias_sums = saved_here.bias_sums;
      if (by_chunks) {
        own.above_progress = i + 1 < count ? work.progress + i + 1 : nullptr;
        own.progress = work.progress + i;
      }
      gradients.push_back(span(own.dgates, p.rows * p.gates() * p.hidden));
      if (i > 0 && p.mode == PRNN_GRU) gradients.push_back(span(own.dcandidate, p.rows * p.hidden));
    }
    if (by_chunks) {
      set_chunks(Pass::kBackward, first, count, &params);
    } else {
      fill_all_empty(gradients);
    }
    require_launch(launch_kernel(plan.together.backward.shape, params, stream), "the backward wavefront kernel");
    // Within the launch there was no gradient of h but where what layers above have for it is dropped.
    for (int64_t layer = highest; layer >= first && merges(); --layer) {
      add_up_states(layer, 0, dy);
      if (layer == first) break;
      if (drops_projected()) {
        dy = saved.directions[layer - 1].dstates;
        continue;
      }
      void* const below = work.between_of(layer - 1);
      add_input_gradient(layer, 0, 0, p.rows, below);
      dy = below;
    }
  }

  // One layer's half of the timesteps, or two layers'.
  void run_halves(const SideBySideLaunch& launch) {
    const ResidentShape& shape = shape_of(plan, launch, Pass::kBackward);
    BackwardParams params{};
    set_sizes(launch, shape, &params);
    params.y_row = static_cast<int>(p.hidden);
    for (int i = 0; i < launch.count; ++i) {
      const int64_t layer = launch.half[i].layer;
      params.direction[i] = direction_of(launch.half[i], 0, gradients_of(launch.half[i]));
      params.direction[i].bias_sums += partials_[layer] * (p.gates() > 1 ? 4 : 1) * p.hidden;
      partials_[layer] += params.sizes.replicas;
    }
    fill_sums(shape, &params);
    require_launch(launch_kernel(shape, params, stream), "the resident backward kernel");
  }

  // A recurrence of a layer, or one half of its timesteps, as a direction of a launch.
  BackwardDirection direction_of(const LayerHalf& half, int64_t d, const void* dy) {
    const int64_t layer = half.layer, row = p.gates() * padded;
    const Rows rows = rows_of(half);
    const Reserve::PerDirection& own = saved.directions[layer * p.recurrences() + d];
    BackwardDirection dir{};
    dir.weights = recurrent_weights(args_.w, layer, d);
    dir.y = projects() ? own.cell_outputs : at(output_of(layer), rows.base * p.hidden + d * p.hidden);
    dir.dy = merges() ? of_cell_outputs(layer, d, dy) : at(dy, rows.base * p.hidden + d * p.state());
    dir.gates = at(own.gates, rows.base * p.hidden * 4);
    dir.cells = at(own.cells, rows.base * p.hidden);
    dir.last = own.last;
    dir.dgates = at(own.dgates, rows.base * row);
    dir.dcandidate = at(own.dcandidate, rows.base * p.hidden);
    dir.bias_sums = own.bias_sums;
    dir.hx = resident_state(args_.hx, layer, d);
    dir.cx = c_state(args_.cx, layer, d);
    dir.dhy = merges() ? of_last_cell_outputs(layer, d) : h_state(args_.dhy, layer, d);
    dir.dcy = c_state(args_.dcy, layer, d);
    dir.cell_stride = p.max_batch() * p.hidden;
    dir.dhx = resident_state(args_.dhx, layer, d);
    dir.dcx = c_state(args_.dcx, layer, d);
    if (layer + 1 == p.layers && p.extras.dcells != nullptr) dir.dcells = of_cells(d);
    dir.reset = p.extras.reset;
    dir.reset_hx = resident_state(p.extras.resetHx, layer, d);
    dir.reset_cx = c_state(p.extras.resetCx, layer, d);
    if (p.extras.dresetHx != nullptr && !projects()) dir.dreset_hx = reset_sums(d, 0, 1);
    if (p.extras.dresetCx != nullptr) dir.dreset_cx = reset_sums(d, 1, p.cell_states());
    dir.reverse = static_cast<int>(p.direction_of(d));
    const bool exchanges_gradients = !plan.shape.backward.exchanges_in_cluster() && !plan.keeps_projection_apart() &&
                                     !plan.shape.backward.kernel.is(Engine::kWgmmaMulticast);
    if (exchanges_gradients) fill_empty(at(own.dgates, rows.first * row), rows.count * row);
    if (half.steps < p.steps()) set_edges(half, rows, own, &dir);
    return dir;
  }

  // The states between the halves of a layer's timesteps, and their gradients.
  void set_edges(const LayerHalf& half, const Rows& rows, const Reserve::PerDirection& own, BackwardDirection* dir) {
    char *const carried_h = work.carried_h[half.layer], *const carried_c = work.carried_c[half.layer];
    if (half.is_first()) {
      dir->dhy = carried_h;
      dir->dcy = carried_c;
      return;
    }
    // The states before are those of the first half's last timestep; what their gradients do not overwrite are those of
    // the states of sequences that end in the first half.
    const int64_t before = (rows.first - p.batch[half.first - 1]) * p.hidden;
    dir->hx = at(output_of(half.layer), before);
    dir->cx = at(own.cells, before);
    dir->dhx = carried_h;
    dir->dcx = carried_c;
    if (!varies) return;
    copy_or_clear(dir->dhy, carried_h);
    if (p.mode == PRNN_LSTM) copy_or_clear(dir->dcy, carried_c);
  }

  // The gradients of a layer's outputs; makes those of this half of the timesteps.
  const void* gradients_of(const LayerHalf& half) {
    if (half.layer + 1 == p.layers) return args_.dy;
    const Rows rows = rows_of(half);
    void* const between = work.between_of(half.layer);
    add_input_gradient(half.layer + 1, 0, rows.first, rows.count, between);
    if (drops()) drop(half.layer + 1, rows.first, rows.count, between, between);
    return between;
  }

  // [N, H]; zeros where `from` is NULL.
  void copy_or_clear(const void* from, void* to) {
    if (from != nullptr) return copy_states(from, to);
    clear(to, p.max_batch() * p.hidden * element);
  }

  // BackwardParams::sums of a launch.
  void fill_sums(const ResidentShape& shape, BackwardParams* params) {
    const int64_t bytes = wgmma_sums_bytes(p, shape, params->sizes.replicas, params->sizes.directions);
    if (bytes == 0) return;
    params->sums = work.sums;
    clear(work.sums, bytes);
  }

  void run_layer(int64_t layer, const void* dy) {
    ResidentShape shape = plan.shape.backward;
    if (is_chunked(plan.together.backward.shape)) shape.replicas = 1;  // one sum for a bias, as kernels by chunks leave
    BackwardParams params{};
    std::vector<BackwardDirection> directions;
    params.y_row = static_cast<int>(projects() ? padded : p.recurrences() * p.hidden);
    for (int64_t d = 0; d < p.recurrences(); ++d) {
      directions.push_back(direction_of(whole(layer), d, dy));
      char* const dgates = saved.directions[layer * p.recurrences() + d].dgates;
      if (shares_rows()) directions[d].dcandidate = at(dgates, p.rows * p.gates() * p.hidden);
    }
    // The sums for the biases: a partial sum for each replica of each pass.
    for_each_launch(shape, [&](const ResidentSizes& sizes, int64_t first, int64_t pass) {
      set_sizes(sizes, layer, first, &params);
      fill_sums(shape, &params);
      const int64_t biases = p.gates() > 1 ? 4 : 1;
      for (int i = 0; i < sizes.directions; ++i) {
        params.direction[i] = directions[first + i];
        params.direction[i].bias_sums += pass * shape.replicas * biases * p.hidden;
      }
      if (plan.keeps_projection_apart()) {
        params.projection = projection_of(args_.w, layer, first, sizes);
        params.projection.dh = saved.directions[layer * p.recurrences() + first].dstates;
        params.projection.exchange = work.row_exchange;
        fill_empty(work.row_exchange, fragment_bytes(p, shape, sizes) / element);
      }
      require_launch(launch_kernel(shape, params, stream), "the resident backward kernel");
    });
    for (int64_t d = 0; d < p.recurrences(); ++d) {
      round_sums(directions[d].dreset_hx, 1, h_state(p.extras.dresetHx, layer, d));
      round_sums(directions[d].dreset_cx, p.cell_states(), c_state(p.extras.dresetCx, layer, d));
      if (merges()) add_up_states(layer, d, dy);
    }
    if (shares_rows()) spread_gradients(saved.directions[layer].dgates);
  }

  // Whether a row of the reserve space has all gradients of a GRU's gates, as kernels by chunks leave them.
  bool shares_rows() const { return p.mode == PRNN_GRU && is_chunked(plan.together.backward.shape); }

  // [rows, 4 H] <- what a layer alone leaves, [rows, 3 H] and behind these the candidate's [rows, H]: from the last row
  // on, as many at once as do not go where these or earlier ones are.
  void spread_gradients(char* dgates) {
    const int64_t unit = p.hidden, row = 4 * unit, gates = 3 * unit;
    char* const candidates = work.between[0];
    copy_rows(candidates, unit, at(dgates, p.rows * gates), unit, unit, p.rows);
    for (int64_t end = p.rows; end > 1;) {
      const int64_t first = ceil_div(3 * end, 4);
      if (first < end) {
        copy_rows(at(dgates, first * row), row, at(dgates, first * gates), gates, gates, end - first);
        end = first;
        continue;
      }
      --end;  // the first rows, a gate at a time
      for (int64_t gate = 3; gate-- > 0;) {
        copy_rows(at(dgates, end * row + gate * unit), unit, at(dgates, end * gates + gate * unit), unit, unit, 1);
      }
    }
    copy_rows(at(dgates, gates), row, candidates, unit, unit, p.rows);
  }

  // Zeros, [N, H] `states` times, for the gradients of resetHx (first: 0) or resetCx (1).
  float* reset_sums(int64_t recurrence, int64_t first, int64_t states) {
    const int64_t count = p.max_batch() * p.hidden;
    float* const sums = reinterpret_cast<float*>(work.reset_sums[recurrence]) + first * count;
    clear(sums, states * count * int64_t{sizeof(float)});
    return sums;
  }

  // NULL: none.
  void round_sums(const float* sums, int64_t states, void* to) {
    if (sums == nullptr) return;
    require_launch(run_round(p.type, sums, to, states * p.max_batch() * p.hidden, stream),
                   "the kernel that rounds the gradients of states that sequences start anew with");
  }

  // prnnRNNExtras_t::dcells in rows like those of dy.
  const void* of_cells(int64_t direction) {
    const void* const dcells = at(p.extras.dcells, direction * p.hidden);
    if (!projects()) return dcells;
    void* const out = work.dcells[direction];
    copy_rows(out, padded, dcells, p.directions * p.hidden, p.hidden, p.rows);
    return out;
  }

  // ---- with a projection ----

  // The gradients that y has for the cell's outputs, [rows, padded].
  const void* of_cell_outputs(int64_t layer, int64_t direction, const void* dy) {
    void* const out = work.dcell_outputs[direction];
    project_back(layer, direction, p.rows, at(dy, direction * p.projection), p.recurrences() * p.projection, out,
                 padded);
    return out;
  }

  // The gradients that dhy has for the cell's outputs at the sequences' last timesteps, [N, H].
  const void* of_last_cell_outputs(int64_t layer, int64_t direction) {
    const void* const dhy = h_state(args_.dhy, layer, direction);
    if (dhy == nullptr) return nullptr;
    void* const out = work.of_recurrence(work.dlast, layer, direction);
    project_back(layer, direction, p.max_batch(), dhy, p.projection, out, p.hidden);
    return out;
  }

  void project_back(int64_t layer, int64_t direction, int64_t rows, const void* dh, int64_t stride, void* out,
                    int64_t out_stride) {
    const void* const matrix = at(args_.w, rnn_layer_offsets(p, layer, direction).projection);
    multiply(rows, p.hidden, p.projection, 1, view(dh, stride), view(matrix, p.hidden), 0, out, p.type, out_stride);
  }

  // The whole gradients of h, for those of the projection, and of hx: what the gates of a timestep have for h of the
  // timestep before, added to dy or, at a sequence's end, dhy.
  void add_up_states(int64_t layer, int64_t direction, const void* dy) {
    const Reserve::PerDirection& own = saved.directions[layer * p.recurrences() + direction];
    multiply_gates(own, 0, p.rows, at(args_.w, rnn_layer_offsets(p, layer, direction).recurrent), p.projection, 0,
                   work.dprevious);
    void* const dhx = h_state(args_.dhx, layer, direction);
    if (dhx != nullptr) {
      require_launch(
          run_copy_edge_rows(p.type, first_edge(work.dprevious, p.projection, p.projection, direction), dhx, stream),
          "the kernel that copies the initial states' gradients");
    }
    if (void* const sums = h_state(p.extras.dresetHx, layer, direction)) {
      require_launch(
          run_sum_reset_rows(p.type, reset_rows(work.dprevious, p.projection, p.projection, direction), sums, stream),
          "the kernel that sums the gradients of states that sequences start anew with");
    }
    PreviousStates after = previous_states(layer, direction, work.dprevious, p.projection, direction == 0, own.dstates);
    after.hx = h_state(args_.dhy, layer, direction);
    after.add = at(dy, direction * p.projection);
    after.add_row = p.recurrences() * p.projection;
    after.are_gradients = true;
    require_launch(run_previous_states(p.type, after, stream), "the kernel that adds up the states' gradients");
  }

  // The gates' gradients of a recurrence, to where x has its input (RnnProblem::gates_input).
  void copy_gradients(const Reserve::PerDirection& own, int64_t recurrence, void* dx) {
    const GateCopy copy{own.dgates,
                        saved.gradient_row,
                        padded,
                        at(dx, p.first_input(recurrence, 0)),
                        p.input,
                        p.first_input(0, 1),
                        p.rows,
                        static_cast<int>(p.gates()),
                        static_cast<int>(p.hidden)};
    require_launch(run_copy_gates(p.type, copy, stream), "the kernel that copies the gates' gradients");
  }

  // Rows [first, first + rows) of dx (+)= the gates' gradients times the input matrices of one direction.
  void add_input_gradient(int64_t layer, int64_t direction, int64_t first, int64_t rows, void* dx) {
    const Reserve::PerDirection& own = saved.directions[layer * p.recurrences() + direction];
    const int64_t gates = p.gates(), width = p.layer_input(layer);
    if (!p.has_input_matrices(layer) && p.gates_input) return copy_gradients(own, direction, dx);
    if (!p.has_input_matrices(layer)) {
      const auto both = static_cast<int>(gates_of_both_products(p));
      const GateSum sum{
          own.dgates, saved.gradient_row,         padded,       both, own.dcandidate, saved.candidate_row, dx,
          p.rows,     static_cast<int>(p.hidden), direction > 0};
      require_launch(run_sum_gates(p.type, sum, stream), "the kernel that sums the gates' gradients");
      return;
    }
    const void* const weights = at(args_.w, rnn_layer_offsets(p, layer, direction).input);
    void* const out = at(dx, first * width);
    multiply_gates(own, first, rows, weights, width, direction > 0 ? 1 : 0, out);
    const int64_t both = gates_of_both_products(p);
    if (both < gates) {
      const MatrixView matrix = gate_matrices(at(weights, both * p.hidden * width), 1, p.hidden, width, rows,
                                              at(work.input_weights, both * gate_pitch(p) * width));
      multiply(rows, width, p.hidden, 1, view(at(own.dcandidate, first * saved.candidate_row), saved.candidate_row),
               matrix, 1, out, p.type, width);
    }
  }

  // out = beta out + the gradients of the gates that both products share, of so many rows, times their matrices of
  // `width` columns.
  void multiply_gates(const Reserve::PerDirection& own, int64_t first, int64_t rows, const void* weights, int64_t width,
                      double beta, void* out) {
    const int64_t both = gates_of_both_products(p), row = saved.gradient_row, pitch = gate_pitch(p);
    multiply(rows, width, both * pitch, 1, view(at(own.dgates, first * row), row),
             gate_matrices(weights, both, pitch, width, rows, work.input_weights), beta, out, p.type, width);
  }

  // The gates' matrices `pitch` rows apart, for a product of so many rows; at `copy` where they do not lie so.
  MatrixView gate_matrices(const void* weights, int64_t gates, int64_t pitch, int64_t width, int64_t rows, char* copy) {
    if (transposes_weights(p, rows)) {
      require_launch(run_transpose_gates(static_cast<const float*>(weights), reinterpret_cast<float*>(copy),
                                         static_cast<int>(gates), static_cast<int>(p.hidden), static_cast<int>(pitch),
                                         static_cast<int>(width), stream),
                     "the kernel that transposes the gates' matrices");
      return view(copy, gates * pitch, true);
    }
    if (pitch == p.hidden) return view(weights, width);
    // With zeros between the gates, one product adds up all of them, in float.
    const int64_t used = p.hidden * width, row = pitch * width;
    copy_rows(copy, row, weights, used, used, gates);
    require_launch(cudaMemset2DAsync(at(copy, used), static_cast<size_t>(row * element), 0,
                                     static_cast<size_t>((row - used) * element), static_cast<size_t>(gates), stream),
                   "a memset");
    return view(copy, width);
  }

  const RnnBackwardDataArgs& args_;
  std::vector<int64_t> partials_;  // of the biases' sums, of each layer: those that its first half has left
};

}  // namespace

void ResidentBackend::backward_data(prnnHandle_t handle, const RnnProblem& problem,
                                    const RnnBackwardDataArgs& args) const {
  BackwardData(handle, problem, plan_, args).run();
}

}  // namespace prnn
