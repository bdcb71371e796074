#include "rnn/cuda/layer/run.h"

#include <algorithm>

namespace prnn {
namespace {

int64_t padded_hidden(const RnnProblem& p) {
  const int64_t unit = k_tile_elements(p.type == PRNN_DATA_FLOAT);
  return (p.hidden + unit - 1) / unit * unit;
}

// Bounds BackwardParams::sums, whatever the plan: replicas serve at most 2 N + 192 columns, their last gate set is not
// full.
int64_t sums_bytes(const RnnProblem& p) {
  if (p.gates() == 1 || type_bytes(p.type) != 2) return 0;
  const int64_t units = padded_hidden(p) + kWgmmaUnits * split_k_blocks(p, true), columns = 2 * p.max_batch() + 192;
  return p.directions * 2 * p.gates() * units * columns * 4;
}

// Of BackwardData's padded_input_weights(), where one is wanted.
int64_t input_weights_bytes(const RnnProblem& p) {
  const int64_t gates = gates_of_both_products(p), padded = padded_hidden(p);
  int64_t widest = 0;
  for (int64_t layer = 0; layer < p.layers; ++layer) {
    if (p.has_input_matrices(layer)) widest = std::max(widest, p.layer_input(layer));
  }
  return gates > 1 && padded > p.hidden ? gates * padded * widest * type_bytes(p.type) : 0;
}

bool batch_varies(const RnnProblem& p) { return p.batch.front() != p.batch.back(); }

}  // namespace

void require_launch(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return;
  cudaGetLastError();  // not to be taken for a later call's
  const bool no_code = error == cudaErrorNoKernelImageForDevice || error == cudaErrorInvalidDeviceFunction;
  fail(no_code ? PRNN_STATUS_ARCH_MISMATCH : PRNN_STATUS_EXECUTION_FAILED, "%s could not be launched: %s", what,
       cudaGetErrorString(error));
}

Reserve::Reserve(const RnnProblem& p, void* base) {
  Arena arena(base);
  const int64_t element = type_bytes(p.type), gates = p.gates();
  for (int64_t i = 0; i < p.layers * p.directions; ++i) {
    PerDirection d{};
    if (gates > 1) d.gates = arena.take<char>(p.rows * p.hidden * 4 * element);
    if (p.mode == PRNN_LSTM) d.cells = arena.take<char>(p.rows * p.hidden * element);
    d.bias_sums = arena.take<float>(p.max_batch() * (gates > 1 ? 4 : 1) * p.hidden);
    directions.push_back(d);
  }
  for (PerDirection& d : directions) d.dgates = arena.take<char>(p.rows * gates * padded_hidden(p) * element);
  if (p.mode == PRNN_GRU) {
    for (PerDirection& d : directions) d.dcandidate = arena.take<char>(p.rows * p.hidden * element);
  }
  const bool drops = p.dropout.probability > 0;
  for (int64_t layer = 0; layer + 1 < p.layers; ++layer) {
    const int64_t bytes = p.rows * p.directions * p.hidden * element;
    outputs.push_back(arena.take<char>(bytes));
    inputs.push_back(drops ? arena.take<char>(bytes) : outputs.back());
  }
  draw = arena.take<uint64_t>(2);
  size = arena.size();
}

Workspace::Workspace(const RnnProblem& p, void* base) {
  Arena arena(base);
  const int64_t element = type_bytes(p.type), padded = padded_hidden(p);
  table = arena.take<StepSizes>(batch_varies(p) ? p.steps() : 0);
  for (int64_t d = 0; d < p.directions; ++d) {
    const int64_t products = p.rows * p.gates() * p.hidden * element;
    xw.push_back(arena.take<char>(d == 0 ? std::max(products, input_weights_bytes(p)) : products));
    // ResidentSizes::exchange_columns() is below 2 N.
    const int64_t bytes = p.steps() * 2 * p.max_batch() * padded * element;
    exchange.push_back(arena.take<char>(d == 0 ? std::max(bytes, sums_bytes(p)) : bytes));
  }
  input_weights = xw[0];
  sums = reinterpret_cast<float*>(exchange[0]);
  for (int64_t i = 0; i < p.layers * p.directions; ++i) {
    initial.push_back(arena.take<char>(p.max_batch() * padded * element));
  }
  // Layers one after the other need what one reads and what it writes; together, they all write.
  const int64_t arrays = may_run_together(p) ? p.layers - 1 : std::min<int64_t>(p.layers - 1, 2);
  for (int64_t i = 0; i < arrays; ++i) between.push_back(arena.take<char>(p.rows * p.directions * p.hidden * element));
  previous = arena.take<char>(p.rows * p.hidden * element);
  size = arena.size();
}

LayerRun::LayerRun(prnnHandle_t handle, const RnnProblem& problem, void* workspace, void* reserve)
    : p(problem),
      context(*handle),
      stream(handle->stream),
      plan(plan_rnn(cuda_gpu_row(*handle), problem)),
      wavefront(plan_wavefront(cuda_gpu_row(*handle), problem)),
      work(problem, workspace),
      saved(problem, reserve),
      element(type_bytes(problem.type)),
      padded(padded_hidden(problem)),
      varies(batch_varies(problem)) {
  if (reserve != nullptr && drops()) wavefront = WavefrontPlan();  // masks come between the layers
  check_earlier_calls(context);
}

ResidentSizes LayerRun::wavefront_sizes(const ResidentShape& shape, int64_t layers) const {
  ResidentSizes sizes{};
  sizes.hidden = static_cast<int>(p.hidden);
  sizes.padded = static_cast<int>(padded);
  sizes.steps = static_cast<int>(p.steps());
  sizes.batch = sizes.columns = static_cast<int>(p.max_batch());
  sizes.columns_per_replica = (sizes.columns + shape.replicas - 1) / shape.replicas;
  sizes.replicas = shape.replicas;
  sizes.blocks = shape.blocks;
  sizes.directions = static_cast<int>(layers);
  sizes.poll_delay_cycles = shape.poll_delay_cycles;
  sizes.relu = p.mode == PRNN_RNN_RELU;
  sizes.timed_out = cuda_state(context).gave_up_on_device;
  return sizes;
}

void LayerRun::store_table() const {
  if (varies) require_launch(run_store_steps(p.batch, work.table, stream), "the kernel that stores the batch sizes");
}

void LayerRun::fill_empty(void* exchange, int64_t elements) const {
  require_launch(cudaMemsetAsync(exchange, 0xFF, static_cast<size_t>(elements * element), stream), "a memset");
}

void LayerRun::fill_all_empty(const std::vector<void*>& arrays, int64_t elements) const {
  for (size_t i = 0, count = 1; i < arrays.size(); i += count) {
    count = 1;
    while (i + count < arrays.size() && arrays[i + count] == at(arrays[i], static_cast<int64_t>(count) * elements)) {
      ++count;
    }
    fill_empty(arrays[i], static_cast<int64_t>(count) * elements);
  }
}

}  // namespace prnn
