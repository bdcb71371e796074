#include "rnn/cuda/layer/run.h"

#include <algorithm>
#include <numeric>

#include "rnn/cuda/backend.h"
#include "rnn/plan/layer_norm.h"
#include "rnn/plan/projected.h"
#include "rnn/plan/wgmma.h"

namespace prnn {
namespace {

// Bytes of BackwardData's gate_matrices(), where they are copies.
int64_t input_weights_bytes(const RnnProblem& p) {
  const int64_t gates = gates_of_both_products(p), pitch = gate_pitch(p);
  int64_t widest = 0;
  for (int64_t layer = 0; layer < p.layers; ++layer) {
    if (p.has_input_matrices(layer)) widest = std::max(widest, p.layer_input(layer));
  }
  widest = std::max(widest, p.projection);
  int64_t rows = pitch > p.hidden ? gates * pitch : 0;
  if (transposes_weights(p, p.rows)) rows = gates * pitch + (p.gates() - gates) * p.hidden;
  return rows * widest * type_bytes(p.type);
}

// Bytes of ForwardDirection::exchange, or, backward, Projection::exchange. The first pass is the largest.
int64_t exchange_bytes(const RnnProblem& p, const ResidentShape& shape) {
  if (shape.exchanges_in_cluster()) return 0;
  // With a projection, m has such rows too.
  if (shape.exchanges_rows()) return p.projection > 0 ? 0 : p.rows * padded_hidden(p) * type_bytes(p.type);
  const ReplicaShares shares(shape, std::min(shape.batch_per_pass(), p.max_batch()));
  ResidentSizes sizes{};
  sizes.replicas = static_cast<int>(shares.replicas);
  sizes.columns_per_replica = static_cast<int>(shares.columns_per_replica);
  return fragment_bytes(p, shape, sizes);
}

// Memory that a launch with this highest layer has to itself. `between`: Workspace's, which holds gradients in a
// training step: forward none, backward those of this layer's outputs, which of the stack's last are the caller's.
std::vector<Span> spare_in(Pass pass, const RnnProblem& p, const Reserve& saved, char* between, int64_t last) {
  if (!p.training) return {};
  const Span gradients{between, p.rows * p.state() * type_bytes(p.type)};
  if (pass == Pass::kForward) return {saved.spare(last), gradients};
  return last + 1 == p.layers ? std::vector<Span>{gradients} : std::vector<Span>{};
}

// Bytes of ChunkedArrays in the workspace.
int64_t chunked_rest_bytes(const RnnProblem& p, const RnnPlan& plan, Pass pass) {
  const bool is_forward = pass == Pass::kForward;
  if (!is_chunked(plan.together[pass].shape) || (!is_forward && !p.training)) return 0;
  const Reserve saved(p, plan, false, nullptr);
  size_t most = 0;
  for (const StackLaunch& launch : stack_launches(p, plan, pass)) {
    Arena rest(nullptr);
    ChunkedArrays(p, pass, launch.count, spare_in(pass, p, saved, nullptr, launch.first + launch.count - 1), &rest);
    most = std::max(most, rest.size());
  }
  return static_cast<int64_t>(most);
}

// Bytes that layers alone, side by side and by chunks exchange forward.
int64_t forward_exchange_bytes(const RnnProblem& p, const RnnPlan& plan) {
  const LayersTogether& together = plan.together.forward;
  const int64_t side_by_side = together.are(Schedule::kSideBySide) ? exchange_bytes(p, together.shape) : 0;
  return std::max({exchange_bytes(p, plan.shape.forward), chunked_rest_bytes(p, plan, Pass::kForward), side_by_side});
}

// Bytes of BackwardParams::sums.
int64_t sums_bytes(const RnnProblem& p, const RnnPlan& plan) {
  const auto of = [&](const ResidentShape& shape, int64_t directions) {
    const ReplicaShares shares(shape, std::min(shape.batch_per_pass(), p.max_batch()));
    return wgmma_sums_bytes(p, shape, shares.replicas, directions);
  };
  const LayersTogether& together = plan.together.backward;
  return std::max(of(plan.shape.backward, plan.recurrences_at_once),
                  together.are(Schedule::kSideBySide) ? of(together.shape, 2) : 0);
}

// Floats of Projection::sums.
int64_t row_sums_count(const RnnProblem& p, const ResidentShape& shape) {
  if (!shape.kernel.is(Engine::kProjected)) return 0;
  return int64_t{shape.tiles} * padded_projection(p) * kTileColumns * shape.blocks;
}

bool batch_varies(const RnnProblem& p) { return p.batch.front() != p.batch.back(); }

std::vector<char*> take_each(Arena* arena, int64_t arrays, int64_t bytes) {
  std::vector<char*> taken;
  for (int64_t i = 0; i < arrays; ++i) taken.push_back(arena->take<char>(bytes));
  return taken;
}

// Bytes of a number that sums are made in.
int64_t real_bytes(const RnnProblem& p) { return p.type == PRNN_DATA_DOUBLE ? 8 : 4; }

}  // namespace

void require_launch(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return;
  cudaGetLastError();  // not to be taken for a later call's
  const bool no_code = error == cudaErrorNoKernelImageForDevice || error == cudaErrorInvalidDeviceFunction;
  fail(no_code ? PRNN_STATUS_ARCH_MISMATCH : PRNN_STATUS_EXECUTION_FAILED, "%s could not be launched: %s", what,
       cudaGetErrorString(error));
}

bool shifts_states(const RnnProblem& p) {
  return batch_varies(p) || p.extras.reset != nullptr || p.masks.recurrent != nullptr;
}

int64_t fragment_bytes(const RnnProblem& p, const ResidentShape& shape, const ResidentSizes& sizes) {
  if (shape.kernel.is(Engine::kWgmmaMulticast)) return multicast_exchange_bytes(p, shape, sizes.replicas);
  const int64_t row = shape.kernel.is(Engine::kProjected) ? padded_projection(p) : padded_hidden(p);
  return p.steps() * sizes.exchange_columns() * row * type_bytes(p.type);
}

int64_t gradient_bytes(const RnnProblem& p) {
  const int64_t candidates = p.mode == PRNN_GRU ? p.hidden : 0;
  return p.rows * (p.gates() * padded_hidden(p) + candidates) * type_bytes(p.type);
}

Reserve::Reserve(const RnnProblem& p, const RnnPlan& plan, bool keeps_gates, void* base) {
  Arena arena(base);
  const int64_t element = type_bytes(p.type), gates = p.gates();
  if (p.takes_gates()) {
    PerDirection d{};
    d.gates = arena.take<char>(p.rows * gates * p.hidden * element);
    d.cells = arena.take<char>(p.rows * p.hidden * element);
    d.stats = arena.take<char>(p.rows * 4 * real_bytes(p));
    directions.push_back(d);
    size = arena.size();
    return;
  }
  for (int64_t i = 0; i < p.layers * p.recurrences(); ++i) {
    PerDirection d{};
    if (p.cell_states() > 0) d.cells = arena.take<char>(p.rows * p.hidden * element);
    if (p.is_slstm()) d.last = arena.take<char>(2 * p.max_batch() * p.hidden * element);
    d.bias_sums = arena.take<float>(p.max_batch() * (gates > 1 ? 4 : 1) * p.hidden);
    if (p.projection > 0) {
      d.cell_outputs = arena.take<char>(p.rows * padded_hidden(p) * element);
      d.dstates = arena.take<char>(p.rows * p.projection * element);
    }
    directions.push_back(d);
  }
  const bool is_gated = gates > 1, is_gru = p.mode == PRNN_GRU;
  const LayersTogether& together = plan.together.backward;
  const bool by_chunks = is_chunked(together.shape), shares_rows = is_gru && by_chunks;
  gradient_row = shares_rows ? 4 * p.hidden : gates * padded_hidden(p);
  candidate_row = shares_rows ? 4 * p.hidden : p.hidden;
  // Side by side, timesteps of an LSTM's gradients do not lie where gates of other timesteps are; nor by chunks, where
  // the layer above is through with the timestep.
  const bool one_by_one = by_chunks || (together.are(Schedule::kSideBySide) && !is_gru);
  const int64_t at_once = one_by_one ? 1 : together.layers;
  // Layer l's gates are in place l, their gradients in place l + above. An RNN has no gates to be kept.
  const int64_t least_above = is_gated && !is_lone(p) ? std::min(at_once, p.layers) : 0,
                above = keeps_gates && is_gated ? p.layers : least_above;
  const int64_t candidates = (shares_rows ? p.hidden : p.rows * padded_hidden(p)) * gates * element,
                of_gradients = gradient_bytes(p), of_gates = is_gated ? p.rows * p.hidden * 4 * element : 0,
                products = p.rows * p.hidden * gates * element;
  std::vector<char*> starts;  // of places, each with room for all recurrences of a layer
  for (int64_t i = 0; i < (p.layers + above) * p.recurrences(); ++i) {
    const int64_t place = i / p.recurrences();
    const int64_t bytes = std::max(place < p.layers ? of_gates : 0, place >= above ? of_gradients : 0);
    starts.push_back(arena.take<char>(bytes));
    if (place < p.layers + least_above) places_.push_back({starts.back(), bytes});
  }
  // Layer l + 1 writes its gates later, unless it runs together with this one. Side by side, it is writing those of
  // earlier timesteps, which for a GRU are longer than the products: they lie at the place's end.
  const bool at_end = plan.together.forward.are(Schedule::kSideBySide) && is_gru;
  const auto behind = [](char* start, int64_t bytes) { return start == nullptr ? nullptr : start + bytes; };
  for (size_t i = 0; i < directions.size(); ++i) {
    const size_t gradients = i + static_cast<size_t>(above * p.recurrences()),
                 later = i + static_cast<size_t>(is_gated ? p.recurrences() : 0);
    if (is_gated) directions[i].gates = starts[i];
    directions[i].dgates = starts[gradients];
    if (is_gru) directions[i].dcandidate = behind(starts[gradients], candidates);
    if (later < starts.size()) directions[i].products = behind(starts[later], at_end ? of_gates - products : 0);
  }
  const bool drops = p.dropout.probability > 0;
  for (int64_t layer = 0; layer + 1 < p.layers; ++layer) {
    const int64_t bytes = p.rows * p.recurrences() * p.state() * element;
    outputs.push_back(arena.take<char>(bytes));
    inputs.push_back(drops ? arena.take<char>(bytes) : outputs.back());
  }
  draw = arena.take<uint64_t>(2);
  size = arena.size();
}

Span Reserve::spare(int64_t last) const {
  const auto first = places_.begin() + std::min<int64_t>(last + 2, static_cast<int64_t>(places_.size()));
  Span span{first == places_.end() ? nullptr : first->first, 0};
  for (auto place = first; place != places_.end(); ++place) span.bytes += place->bytes;
  return span;
}

ChunkedArrays::ChunkedArrays(const RnnProblem& p, Pass pass, int64_t layers, std::vector<Span> spare, Arena* rest) {
  const auto take = [&](int64_t bytes) {
    for (Span& span : spare) {
      if (span.bytes < bytes) continue;
      char* const first = span.first;
      if (first != nullptr) span.first += bytes;
      span.bytes -= bytes;
      return first;
    }
    return rest->take<char>(bytes);
  };
  for (int64_t i = 0; i < layers; ++i) exchange.push_back(take(chunked_exchange_bytes(p, pass)));
  for (int64_t i = 0; i < layers; ++i) {
    const bool is_fed = pass == Pass::kForward ? i > 0 : i + 1 < layers;
    products.push_back(is_fed ? take(chunked_products_bytes(p, pass)) : nullptr);
  }
}

GridExchange::GridExchange(const RnnProblem& p, const RnnPlan& plan, Pass pass) : states(0), moments(0) {
  if (plan.engine(pass) != Engine::kNormGrid) return;
  const ResidentShape& shape = plan.shape[pass];
  const int64_t columns = shape.columns();
  const int64_t exchanged = pass == Pass::kBackward ? 4 * columns : layer_norm_lstm_state_columns(columns);
  states = p.steps() * shape.replicas * exchanged * padded_hidden(p) * type_bytes(p.type);
  moments = p.normalizes() ? p.steps() * shape.batch_per_pass() * shape.blocks * 4 : 0;
}

void Workspace::take_gates(const RnnProblem& p, const RnnPlan& plan, void* base) {
  Arena arena(base);
  const int64_t state = p.max_batch() * p.hidden, element = type_bytes(p.type), real = real_bytes(p);
  const auto backward_alone = [&](int64_t count) { return p.training ? count : 0; };
  gates.products = arena.take<char>(4 * state * real);
  gates.carried = arena.take<char>(state * real);
  gates.direct = arena.take<char>(backward_alone(state * real));
  gates.masked = arena.take<char>(state * element);
  gates.sums = arena.take<char>(backward_alone(kLayerNormLstmParameterRows * state * real));
  gates.h_prev = arena.take<char>(backward_alone(p.steps() * state * element));
  const bool has_da = p.normalize == PRNN_NORMALIZE_PRODUCTS;
  gates.da = arena.take<char>(backward_alone(has_da ? 4 * p.steps() * state * element : 0));
  const GridExchange forward(p, plan, Pass::kForward), backward(p, plan, Pass::kBackward);
  gates.states = arena.take<char>(std::max(forward.states, backward_alone(backward.states)));
  gates.moments = arena.take<float>(std::max(forward.moments, backward_alone(backward.moments)));
  const bool keeps_sums = plan.engine(Pass::kBackward) == Engine::kNormGrid;
  gates.kept_sums = arena.take<float>(backward_alone(keeps_sums ? 4 * p.steps() * p.max_batch() : 0));
  size = arena.size();
}

Workspace::Workspace(const RnnProblem& p, const RnnPlan& plan, void* base) {
  if (p.takes_gates()) {
    take_gates(p, plan, base);
    return;
  }
  Arena shared(base);
  const LayersTogether &of_forward = plan.together.forward, &of_backward = plan.together.backward;
  const bool projects = p.projection > 0, merges = projects && !plan.keeps_projection_apart();
  const int64_t recurrences = p.recurrences(), of_states = p.max_batch() * p.hidden;
  const int64_t element = type_bytes(p.type), state = of_states * element, column = p.rows * element,
                padded = column * padded_hidden(p);  // bytes
  const auto in_launch = [](const LayersTogether& of) { return of.are(Schedule::kWavefront) ? of.layers : 1; };
  const int64_t forward_layers = in_launch(of_forward), backward_layers = p.training ? in_launch(of_backward) : 1;
  table = shared.take<StepSizes>(batch_varies(p) ? p.steps() : 0);
  // Layers one after the other need one: when a layer's output is written, its input has been read; of a layer that
  // runs step by step, not yet. Together, they all write, but what kernels by chunks write of layers with a projection
  // is not that. In training the outputs are in the reserve space.
  const int64_t at_once = runs_step_by_step(p) ? 2 : projects ? 1 : forward_layers;
  between = take_each(&shared, std::min(p.layers - 1, p.training ? 1 : at_once), column * recurrences * p.state());
  const int64_t in_launches = std::max(forward_layers, backward_layers);
  kept = take_each(&shared, p.dropout.probability > 0 ? in_launches - 1 : 0, p.rows * p.state() / 8);
  const bool by_chunks = is_chunked(of_forward.shape) || is_chunked(of_backward.shape);
  progress = shared.take<unsigned>(by_chunks ? 2 * kWavefrontLayers : 0);
  const bool in_halves = of_forward.are(Schedule::kSideBySide) || of_backward.are(Schedule::kSideBySide);
  carried_h = take_each(&shared, in_halves ? p.layers : 0, state);
  carried_c = take_each(&shared, in_halves ? p.layers : 0, state);
  layers_at_once = merges ? in_launches : 1;
  const auto recurrences_of = [&](int64_t layers) { return merges && layers > 1 ? layers : recurrences; };
  const int64_t merged_bytes = merges ? p.gates() * p.hidden * p.hidden * element : 0;
  merged = take_each(&shared, recurrences_of(layers_at_once), merged_bytes);
  const int64_t input_bytes =
      chunked_drops_projected(p) ? (p.gates() + 1) * p.hidden * p.projection * element : merged_bytes;
  merged_inputs = take_each(&shared, layers_at_once - 1, input_bytes);
  row_sums =
      shared.take<float>(std::max(row_sums_count(p, plan.shape.forward), row_sums_count(p, plan.shape.backward)));
  lone = take_each(&shared, p.training && is_lone(p) ? recurrences : 0, gradient_bytes(p));

  Arena forward = shared, backward = shared, weights = shared;
  // The first layer alone may have no input matrices; with a projection, hx is added to a copy of its input.
  const bool has_products = !p.training && (p.has_input_matrices(p.layers - 1) || merges);
  xw = take_each(&forward, p.directions, has_products ? column * p.heads * p.gates() * p.hidden : 0);
  exchange = take_each(&forward, recurrences, forward_exchange_bytes(p, plan));
  cell_outputs = take_each(&forward, recurrences_of(forward_layers), projects && !p.training ? padded : 0);
  last_outputs = take_each(&forward, layers_at_once > 1 ? recurrences_of(forward_layers) - 1 : 0, state);
  initial_products = forward.take<float>(merges ? forward_layers * of_states * p.gates() : 0);
  const bool reads_initial =
      plan.shape.forward.exchanges_rows() || (of_forward.exist() && !is_chunked(of_forward.shape));
  initial = take_each(&forward, p.layers * recurrences, reads_initial ? p.max_batch() * padded_hidden(p) * element : 0);

  input_weights = backward.take<char>(input_weights_bytes(p));
  sums = backward.take<float>(sums_bytes(p, plan) / static_cast<int64_t>(sizeof(float)));
  chunked = backward.take<char>(chunked_rest_bytes(p, plan, Pass::kBackward));
  dcell_outputs = take_each(&backward, recurrences, merges ? padded : 0);
  dcells = take_each(&backward, recurrences, merges && p.extras.dcells != nullptr ? padded : 0);
  reset_sums = take_each(&backward, recurrences,
                         p.extras.reset != nullptr ? (1 + p.cell_states()) * of_states * int64_t{sizeof(float)} : 0);
  dlast = take_each(&backward, recurrences_of(backward_layers), merges ? state : 0);
  dprevious = backward.take<char>(merges ? column * p.projection : 0);
  row_exchange = backward.take<char>(plan.keeps_projection_apart() ? exchange_bytes(p, plan.shape.backward) : 0);

  previous = weights.take<char>(shifts_states(p) ? column * p.state() : 0);
  size = p.training ? std::max({forward.size(), backward.size(), weights.size()}) : forward.size();
}

size_t ResidentBackend::workspace_size(prnnHandle_t, const RnnProblem& problem) const {
  return Workspace(problem, plan_, nullptr).size;
}

size_t ResidentBackend::reserve_size(prnnHandle_t, const RnnProblem& problem, bool keeps_gates) const {
  return Reserve(problem, plan_, keeps_gates, nullptr).size;
}

LayerRun::LayerRun(prnnHandle_t handle, const RnnProblem& problem, const RnnPlan& plan_of_call, void* workspace,
                   void* reserve, bool keeps_gates)
    : p(problem),
      context(*handle),
      stream(handle->stream),
      plan(plan_of_call),
      work(problem, plan, workspace),
      saved(problem, plan, keeps_gates, reserve),
      element(type_bytes(problem.type)),
      padded(padded_hidden(problem)),
      steps(static_cast<int>(problem.steps())),
      batch(static_cast<int>(problem.max_batch())),
      varies(batch_varies(problem)),
      replaces_gates(problem.training && !keeps_gates && is_lone(problem)) {
  check_earlier_calls(context);
  for (size_t d = 0; replaces_gates && d < work.lone.size(); ++d) saved.directions[d].products = work.lone[d];
}

const void* LayerRun::recurrent_weights(const void* w, int64_t layer, int64_t direction) const {
  const void* const recurrent = at(w, rnn_layer_offsets(p, layer, direction).recurrent);
  return merges() ? merge(recurrent, w, layer, direction, work.of_recurrence(work.merged, layer, direction))
                  : recurrent;
}

const void* LayerRun::input_matrices(const void* w, int64_t layer) const {
  const void* const input = at(w, rnn_layer_offsets(p, layer, 0).input);
  if (!merges()) return input;
  char* const place = work.of_recurrence(work.merged_inputs, layer, 0);
  return drops_projected() ? aligned_matrix(input, p.gates() * p.hidden * p.projection, place)
                           : merge(input, w, layer - 1, 0, place);
}

const void* LayerRun::aligned_matrix(const void* matrix, int64_t count, void* place) const {
  if (reinterpret_cast<uintptr_t>(matrix) % 16 == 0) return matrix;
  copy(place, matrix, count * element);
  return place;
}

ChunkedProjection LayerRun::chunked_projection(const void* w, int64_t layer, int64_t i, void* states,
                                               void* dropped) const {
  char* const copies = work.of_recurrence(work.merged_inputs, layer + 1, 0);
  const void* const matrix = aligned_matrix(at(w, rnn_layer_offsets(p, layer, 0).projection), p.projection * p.hidden,
                                            at(copies, p.gates() * p.hidden * p.projection));
  return {matrix, dropout_mask(layer - i, i), states, dropped, nullptr};
}

const void* LayerRun::merge(const void* matrix, const void* w, int64_t layer, int64_t direction, char* merged) const {
  const void* const projection = at(w, rnn_layer_offsets(p, layer, direction).projection);
  multiply(p.gates() * p.hidden, p.hidden, p.projection, 1, view(matrix, p.projection), view(projection, p.hidden), 0,
           merged, p.type, p.hidden);
  return merged;
}

Projection LayerRun::projection_of(const void* w, int64_t layer, int64_t direction, const ResidentSizes& sizes) const {
  Projection projection{};
  projection.weights = at(w, rnn_layer_offsets(p, layer, direction).projection);
  projection.states = static_cast<int>(p.projection);
  projection.padded = static_cast<int>(padded_projection(p));
  projection.row = static_cast<int>(p.recurrences() * p.projection);
  projection.sums = work.row_sums;
  const int64_t sums = int64_t{sizes.replica_tiles()} * projection.padded * kTileColumns * sizes.blocks;
  clear(work.row_sums, sums * int64_t{sizeof(float)});
  return projection;
}

StateMasks LayerRun::masks(int64_t layer, int64_t first, int directions) const {
  StateMasks masks{};
  for (int i = 0; i < directions; ++i) masks.recurrent[i] = h_state(p.masks.recurrent, layer, first + i);
  masks.zoneout = static_cast<float>(p.masks.zoneoutExpectation);
  masks.marked = p.mode == PRNN_LSTM && p.masks.zoneout != nullptr;
  return masks;
}

EdgeRows LayerRun::edge(const void* rows, int64_t stride, int64_t width, bool is_last) const {
  return {const_cast<void*>(rows), stride, static_cast<int>(width), table(), steps, batch, is_last, nullptr};
}

EdgeRows LayerRun::first_edge(const void* rows, int64_t stride, int64_t width, int64_t direction) const {
  EdgeRows first = edge(rows, stride, width, direction > 0);
  if (direction == 0) first.reset = p.extras.reset;
  return first;
}

ResetRows LayerRun::reset_rows(const void* rows, int64_t stride, int64_t width, int64_t direction) const {
  const bool reverse = direction > 0;
  return {const_cast<void*>(rows), stride, static_cast<int>(width), p.extras.reset, table(), steps, batch, reverse};
}

PreviousStates LayerRun::previous_states(int64_t layer, int64_t direction, const void* y, int64_t y_row, bool reverse,
                                         void* out) const {
  PreviousStates previous{};
  previous.mask = h_state(p.masks.recurrent, layer, direction);
  previous.y = y;
  previous.y_row = y_row;
  previous.reset = p.extras.reset;
  previous.out = out;
  previous.table = table();
  previous.steps = steps;
  previous.batch = batch;
  previous.width = static_cast<int>(p.state());
  previous.reverse = reverse;
  return previous;
}

ResidentSizes LayerRun::sizes_of(const ResidentShape& shape, int64_t first, int64_t columns, int64_t directions) const {
  ResidentSizes sizes{};
  sizes.hidden = static_cast<int>(p.hidden);
  sizes.padded = static_cast<int>(padded);
  sizes.steps = steps;
  sizes.batch = batch;
  sizes.table = table();
  sizes.first_column = static_cast<int>(first);
  sizes.columns = static_cast<int>(columns);
  const ReplicaShares shares(shape, columns);
  sizes.columns_per_replica = static_cast<int>(shares.columns_per_replica);
  sizes.replicas = static_cast<int>(shares.replicas);
  sizes.blocks = shape.blocks;
  sizes.directions = static_cast<int>(directions);
  sizes.poll_delay_cycles = shape.poll_delay_cycles;
  sizes.relu = p.mode == PRNN_RNN_RELU;
  sizes.exponential = p.mode == PRNN_SLSTM_EXP;
  sizes.timed_out = cuda_state(context).timed_out_on_device;
  return sizes;
}

ChunkedArrays LayerRun::chunked_arrays(Pass pass, int64_t first, int64_t count) const {
  Arena rest(pass == Pass::kForward ? work.exchange[0] : work.chunked);
  char* const between = work.between.empty() ? nullptr : work.between[0];
  ChunkedArrays arrays(p, pass, count, spare_in(pass, p, saved, between, first + count - 1), &rest);
  std::vector<Span> exchanged;
  for (char* const exchange : arrays.exchange) exchanged.push_back({exchange, chunked_exchange_bytes(p, pass)});
  fill_all_empty(exchanged);
  clear(work.progress, 2 * kWavefrontLayers * int64_t{sizeof(unsigned)});
  return arrays;
}

const uint8_t* LayerRun::dropout_mask(int64_t first, int64_t i) const {
  uint8_t* const kept = reinterpret_cast<uint8_t*>(work.kept[i]);
  require_launch(run_dropout_mask(p.dropout.probability, saved.draw, first + i, p.rows * p.state(), kept, stream),
                 "the kernel that makes a dropout mask");
  return kept;
}

LayerRun::Rows LayerRun::rows_of(const LayerHalf& half) const {
  const auto first = p.batch.begin() + half.first;
  const int64_t before = std::accumulate(p.batch.begin(), first, int64_t{0});
  return {before, std::accumulate(first, first + half.steps, int64_t{0}), varies ? 0 : before};
}

void LayerRun::drop(int64_t layer, int64_t first, int64_t rows, const void* in, void* out) const {
  const int64_t width = p.layer_input(layer);
  require_launch(run_dropout(p.type, p.dropout.probability, saved.draw, layer - 1, first * width, rows * width,
                             at(in, first * width), at(out, first * width), stream),
                 "the dropout kernel");
}

void LayerRun::copy(void* to, const void* from, int64_t bytes) const {
  require_launch(cudaMemcpyAsync(to, from, static_cast<size_t>(bytes), cudaMemcpyDeviceToDevice, stream), "a copy");
}

void LayerRun::copy_rows(void* to, int64_t to_row, const void* from, int64_t from_row, int64_t width,
                         int64_t rows) const {
  const auto bytes = [&](int64_t elements) { return static_cast<size_t>(elements * element); };
  require_launch(cudaMemcpy2DAsync(to, bytes(to_row), from, bytes(from_row), bytes(width), static_cast<size_t>(rows),
                                   cudaMemcpyDeviceToDevice, stream),
                 "a copy");
}

void LayerRun::copy_states(const void* from, void* to) const {
  if (to != nullptr) copy(to, from, p.max_batch() * p.hidden * element);
}

void LayerRun::clear(void* first, int64_t bytes) const {
  require_launch(cudaMemsetAsync(first, 0, static_cast<size_t>(bytes), stream), "a memset");
}

void LayerRun::store_table() const {
  if (varies) require_launch(run_store_steps(p.batch, work.table, stream), "the kernel that stores the batch sizes");
}

void LayerRun::fill_empty(void* exchange, int64_t elements) const {
  require_launch(cudaMemsetAsync(exchange, 0xFF, static_cast<size_t>(elements * element), stream), "a memset");
}

void LayerRun::fill_all_empty(std::vector<Span> arrays) const {
  std::sort(arrays.begin(), arrays.end(), [](const Span& a, const Span& b) { return a.first < b.first; });
  for (size_t i = 0; i < arrays.size();) {
    Span all{arrays[i].first, 0};
    while (i < arrays.size() && arrays[i].first == all.first + all.bytes) all.bytes += arrays[i++].bytes;
    fill_empty(all.first, all.bytes / element);
  }
}

}  // namespace prnn
