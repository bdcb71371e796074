#include "rnn/cuda/backend.h"
#include "rnn/cuda/layer/run.h"

namespace prnn {
namespace {

class BackwardWeights : LayerRun {
 public:
  BackwardWeights(prnnHandle_t handle, const RnnProblem& problem, const RnnPlan& plan_of_call,
                  const RnnBackwardWeightsArgs& args)
      : LayerRun(handle, problem, plan_of_call, args), args_(args) {}

  void run() {
    store_table();
    const std::vector<int64_t> partials = bias_partials(p, plan);
    for (int64_t layer = p.frozen; layer < p.layers; ++layer) {
      const void* const input = layer == 0 ? args_.x : saved.inputs[layer - 1];
      const void* const output = layer + 1 == p.layers ? args_.y : saved.outputs[layer];
      for (int64_t d = 0; d < p.recurrences(); ++d) {
        const RnnLayerOffsets offsets = rnn_layer_offsets(p, layer, d);
        const Reserve::PerDirection& own = saved.directions[layer * p.recurrences() + d];
        if (offsets.input >= 0) {
          const int64_t width = p.layer_input(layer);
          add_products(own, true, {input, 0, 0, p.rows, width}, at(args_.dw, offsets.input), width);
        }
        add_recurrent(layer, d, at(output, d * p.state()), at(args_.dw, offsets.recurrent));
        if (projects()) {
          multiply(p.projection, p.hidden, p.rows, 1, view(own.dstates, p.projection, true),
                   view(own.cell_outputs, padded), 1, at(args_.dw, offsets.projection), p.type, p.hidden);
        }
        require_launch(run_add_bias_gradients(p.type, p.mode, own.bias_sums, static_cast<int>(partials[layer]),
                                              static_cast<int>(p.hidden), at(args_.dw, offsets.input_bias),
                                              at(args_.dw, offsets.recurrent_bias), stream),
                       "the kernel that adds the biases' gradients");
      }
    }
  }

 private:
  // Rows [gate_row, gate_row + count) of the gates' gradients belong to rows [row, row + count) of `data`.
  struct Operand {
    const void* data;
    int64_t row, gate_row, count, stride;
  };

  // dmatrix += gradients' operand, for all gates; `of_input`: with the gradients of W x rather than of R h.
  void add_products(const Reserve::PerDirection& own, bool of_input, const Operand& operand, char* dmatrix,
                    int64_t columns) {
    const int64_t gates = p.gates(), row = saved.gradient_row;
    const MatrixView other = view(at(operand.data, operand.row * operand.stride), operand.stride);
    const auto add = [&](const char* gradients, int64_t stride, int64_t gate, int64_t count) {
      multiply(count * p.hidden, columns, operand.count, 1,
               view(at(static_cast<const void*>(gradients), operand.gate_row * stride), stride, true), other, 1,
               at(static_cast<void*>(dmatrix), gate * p.hidden * columns), p.type, columns);
    };
    const bool apart = of_input && p.mode == PRNN_GRU;  // the candidate has another gradient
    const int64_t shared = apart ? gates - 1 : gates;
    if (padded == p.hidden) {
      add(own.dgates, row, 0, shared);
    } else {
      for (int64_t g = 0; g < shared; ++g) add(own.dgates + g * padded * element, row, g, 1);
    }
    if (apart) add(own.dcandidate, saved.candidate_row, gates - 1, 1);
  }

  void add_recurrent(int64_t layer, int64_t d, const void* y, char* dmatrix) {
    const Reserve::PerDirection& own = saved.directions[layer * p.recurrences() + d];
    const void* const hx = h_state(args_.hx, layer, d);
    const int64_t width = p.state(), y_row = p.recurrences() * width, batch = p.max_batch();
    const bool reverse = p.direction_of(d) > 0;
    if (shifts_states(p)) {
      PreviousStates previous = previous_states(layer, d, y, y_row, reverse, work.previous);
      previous.hx = hx;
      previous.reset_hx = h_state(p.extras.resetHx, layer, d);
      require_launch(run_previous_states(p.type, previous, stream), "the kernel that shifts the states");
      add_products(own, false, {work.previous, 0, 0, p.rows, width}, dmatrix, width);
      return;
    }
    // A uniform batch: the states of a timestep are y one timestep on, without a copy.
    const int64_t later = p.rows - batch;
    if (later > 0) {
      add_products(own, false, {y, reverse ? batch : 0, reverse ? 0 : batch, later, y_row}, dmatrix, width);
    }
    if (hx != nullptr) add_products(own, false, {hx, 0, reverse ? later : 0, batch, width}, dmatrix, width);
  }

  const RnnBackwardWeightsArgs& args_;
};

}  // namespace

void ResidentBackend::backward_weights(prnnHandle_t handle, const RnnProblem& problem,
                                       const RnnBackwardWeightsArgs& args) const {
  BackwardWeights(handle, problem, plan_, args).run();
}

}  // namespace prnn
