// Where each matrix and bias lies in the packed weights: all matrices, then all biases; within each, pseudo-layer after
// pseudo-layer (layer * D + direction); within a pseudo-layer, input matrices, recurrent ones, the projection.
#include "rnn/problem.h"

namespace prnn {
namespace {

int64_t gate_rows(const RnnProblem& problem) { return problem.gates() * problem.hidden; }

int64_t input_matrices(const RnnProblem& problem, int64_t layer) {
  return problem.has_input_matrices(layer) ? gate_rows(problem) * problem.layer_input(layer) : 0;
}

// Elements of all matrices of one direction of a layer.
int64_t matrices(const RnnProblem& problem, int64_t layer) {
  return input_matrices(problem, layer) + gate_rows(problem) * problem.state() + problem.projection * problem.hidden;
}

// Elements of all matrices before those of this layer. Layers above the first are alike.
int64_t matrices_before(const RnnProblem& problem, int64_t layer) {
  if (layer == 0) return 0;
  return problem.directions * (matrices(problem, 0) + (layer - 1) * matrices(problem, 1));
}

}  // namespace

RnnLayerOffsets rnn_layer_offsets(const RnnProblem& problem, int64_t layer, int64_t direction) {
  const int64_t start = matrices_before(problem, layer) + direction * matrices(problem, layer);
  const int64_t biases = matrices_before(problem, problem.layers);
  RnnLayerOffsets offsets;
  offsets.input = problem.has_input_matrices(layer) ? start : -1;
  offsets.recurrent = start + input_matrices(problem, layer);
  offsets.projection = problem.projection > 0 ? offsets.recurrent + gate_rows(problem) * problem.state() : -1;
  offsets.input_bias = biases + (layer * problem.directions + direction) * 2 * gate_rows(problem);
  offsets.recurrent_bias = offsets.input_bias + gate_rows(problem);
  return offsets;
}

int64_t rnn_params_count(const RnnProblem& problem) {
  return matrices_before(problem, problem.layers) + problem.layers * problem.directions * 2 * gate_rows(problem);
}

}  // namespace prnn
