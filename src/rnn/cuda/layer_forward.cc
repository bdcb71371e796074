#include <algorithm>

#include "rnn/cuda/layer_run.h"

namespace prnn {
namespace {

class Forward : LayerRun {
 public:
  Forward(prnnHandle_t handle, const RnnProblem& problem, const RnnForwardArgs& args)
      : LayerRun(handle, problem, args.workspace, args.reserve), args_(args), training_(args.reserve != nullptr) {}

  void run() {
    store_table();
    if (training_ && drops()) {
      require_launch(run_begin_dropout(p.dropout.states, kept.draw, stream), "the dropout kernel");
    }
    const void* input = args_.x;
    for (int64_t layer = 0; layer < p.layers; ++layer) {
      const bool is_last = layer + 1 == p.layers;
      void* const output = is_last ? args_.y : training_ ? kept.outputs[layer] : work.between[layer % 2];
      run_layer(layer, input, output);
      input = output;
      if (!is_last && training_ && drops()) {
        require_launch(run_dropout(p.type, p.dropout.probability, kept.draw, layer, p.rows * p.directions * p.hidden,
                                   output, kept.inputs[layer], stream),
                       "the dropout kernel");
        input = kept.inputs[layer];
      }
    }
  }

 private:
  void run_layer(int64_t layer, const void* input, void* output) {
    const int64_t gate_rows = p.gates() * p.hidden, width = p.layer_input(layer);
    ForwardParams params{};
    std::vector<ForwardDirection> directions;
    const bool has_matrices = p.has_input_matrices(layer);
    params.xw_row = static_cast<int>(has_matrices ? gate_rows : p.hidden);
    params.xw_gate = static_cast<int>(has_matrices ? p.hidden : 0);
    params.y_row = static_cast<int>(p.directions * p.hidden);
    // Wide kernels exchange rows; those of y, as long as the exchange buffer's and aligned, can be that buffer.
    const bool is_wide = plan.forward.wide_columns > 0;
    const bool exchanges_in_y =
        is_wide && p.directions == 1 && padded == p.hidden && reinterpret_cast<uintptr_t>(output) % 16 == 0;
    for (int64_t d = 0; d < p.directions; ++d) {
      const RnnLayerOffsets offsets = rnn_layer_offsets(p, layer, d);
      if (has_matrices) {
        multiply(p.rows, gate_rows, width, 1, view(input, width), view(at(args_.w, offsets.input), width, true), 0,
                 work.xw[d], p.type, gate_rows);
      }
      ForwardDirection dir{};
      dir.weights = at(args_.w, offsets.recurrent);
      dir.input_bias = at(args_.w, offsets.input_bias);
      dir.recurrent_bias = at(args_.w, offsets.recurrent_bias);
      dir.xw = has_matrices ? work.xw[d] : input;
      dir.initial = work.initial[d];
      dir.hx = state(args_.hx, layer, d);
      dir.cx = state(args_.cx, layer, d);
      dir.exchange = exchanges_in_y ? output : work.exchange[d];
      dir.y = exchanges_in_y ? nullptr : at(output, d * p.hidden);
      dir.hy = state(args_.hy, layer, d);
      dir.cy = state(args_.cy, layer, d);
      if (training_) {
        dir.gates = kept.directions[layer * p.directions + d].gates;
        dir.cells = kept.directions[layer * p.directions + d].cells;
      }
      dir.reverse = static_cast<int>(d);
      if (is_wide) {
        fill_empty(dir.exchange, p.rows * padded);
        require_launch(run_pad_states(p.type, dir.hx, work.initial[d], p.max_batch(), static_cast<int>(p.hidden),
                                      static_cast<int>(padded), stream),
                       "the kernel that pads the initial states");
      }
      directions.push_back(dir);
    }
    for_each_launch(plan.forward, [&](const ResidentSizes& sizes, int64_t first, int64_t) {
      params.sizes = sizes;
      std::copy_n(directions.begin() + first, sizes.directions, params.direction);
      for (int d = 0; d < sizes.directions && !is_wide; ++d) {
        fill_empty(params.direction[d].exchange, p.steps() * sizes.exchange_columns() * padded);
      }
      require_launch(run_resident_forward(p.mode, p.type, plan.forward, params, stream), "the resident forward kernel");
    });
  }

  const RnnForwardArgs& args_;
  const bool training_;
};

}  // namespace

void run_layers_forward(prnnHandle_t handle, const RnnProblem& problem, const RnnForwardArgs& args) {
  Forward(handle, problem, args).run();
}

}  // namespace prnn
