// Where each matrix and bias lies in the packed weights: all matrices, then all biases; within each, direction after
// direction (layer * D + direction); within a direction, input matrices, recurrent ones, the projection; within each of
// these, head after head.
#include "rnn/problem.h"

namespace prnn {
namespace {

int64_t gate_rows(const RnnProblem& problem) { return problem.gates() * problem.hidden; }

int64_t input_matrices(const RnnProblem& problem, int64_t layer) {
  return problem.has_input_matrices(layer) ? gate_rows(problem) * problem.layer_input(layer) : 0;
}

// Elements of all matrices of one direction of a layer.
int64_t matrices(const RnnProblem& problem, int64_t layer) {
  const int64_t of_head = input_matrices(problem, layer) + gate_rows(problem) * problem.state();
  return problem.heads * of_head + problem.projection * problem.hidden;
}

// Elements of all matrices before those of this layer. Layers above the first are alike.
int64_t matrices_before(const RnnProblem& problem, int64_t layer) {
  if (layer == 0) return 0;
  return problem.directions * (matrices(problem, 0) + (layer - 1) * matrices(problem, 1));
}

}  // namespace

RnnLayerOffsets rnn_layer_offsets(const RnnProblem& problem, int64_t layer, int64_t recurrence) {
  const int64_t direction = problem.direction_of(recurrence), head = recurrence % problem.heads;
  const int64_t rows = gate_rows(problem), inputs = input_matrices(problem, layer), matrix = rows * problem.state();
  const int64_t start = matrices_before(problem, layer) + direction * matrices(problem, layer);
  const int64_t recurrent = start + problem.heads * inputs;
  const int64_t biases = matrices_before(problem, problem.layers);
  RnnLayerOffsets offsets;
  offsets.input = problem.has_input_matrices(layer) ? start + head * inputs : -1;
  offsets.recurrent = recurrent + head * matrix;
  offsets.projection = problem.projection > 0 ? recurrent + problem.heads * matrix : -1;
  offsets.input_bias = biases + (layer * problem.directions + direction) * 2 * problem.heads * rows + head * rows;
  offsets.recurrent_bias = offsets.input_bias + problem.heads * rows;
  return offsets;
}

WeightBlock rnn_matrix(const RnnProblem& problem, int64_t layer, int64_t recurrence, int id) {
  const RnnLayerOffsets offsets = rnn_layer_offsets(problem, layer, recurrence);
  if (id == kProjectionId) return {offsets.projection, problem.projection * problem.hidden};
  const bool is_recurrent = id >= problem.gates();  // acts on the state, not on the input
  if (!is_recurrent && offsets.input < 0) return {};
  const int64_t elements = problem.hidden * (is_recurrent ? problem.state() : problem.layer_input(layer));
  return {(is_recurrent ? offsets.recurrent : offsets.input) + id % problem.gates() * elements, elements};
}

WeightBlock rnn_bias(const RnnProblem& problem, int64_t layer, int64_t recurrence, int id) {
  if (id == kProjectionId || problem.takes_gates()) return {};
  const RnnLayerOffsets offsets = rnn_layer_offsets(problem, layer, recurrence);
  return {(id >= problem.gates() ? offsets.recurrent_bias : offsets.input_bias) + id % problem.gates() * problem.hidden,
          problem.hidden};
}

int64_t rnn_params_count(const RnnProblem& problem) {
  const int64_t biases = problem.takes_gates() ? 0 : 2 * gate_rows(problem);  // which x has
  return matrices_before(problem, problem.layers) + problem.layers * problem.recurrences() * biases;
}

}  // namespace prnn
