#include "rnn/cuda/layer_run.h"

#include <algorithm>

namespace prnn {
namespace {

int64_t padded_hidden(const RnnProblem& p) {
  const int64_t unit = pair_units(p.type == PRNN_DATA_FLOAT);
  return (p.hidden + unit - 1) / unit * unit;
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
    d.dgates = arena.take<char>(p.rows * gates * padded_hidden(p) * element);
    if (p.mode == PRNN_GRU) d.dcandidate = arena.take<char>(p.rows * p.hidden * element);
    d.bias_sums = arena.take<float>(p.max_batch() * (gates > 1 ? 4 : 1) * p.hidden);
    directions.push_back(d);
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
    xw.push_back(arena.take<char>(p.rows * p.gates() * p.hidden * element));
    // ResidentSizes::exchange_columns() is below 2 N.
    exchange.push_back(arena.take<char>(p.steps() * 2 * p.max_batch() * padded * element));
    initial.push_back(arena.take<char>(p.max_batch() * padded * element));
  }
  for (char*& array : between) array = arena.take<char>(p.layers > 1 ? p.rows * p.directions * p.hidden * element : 0);
  previous = arena.take<char>(p.rows * p.hidden * element);
  size = arena.size();
}

LayerRun::LayerRun(prnnHandle_t handle, const RnnProblem& problem, void* workspace, void* reserve)
    : p(problem),
      context(*handle),
      stream(handle->stream),
      plan(plan_rnn(cuda_gpu_row(*handle), problem)),
      work(problem, workspace),
      kept(problem, reserve),
      element(type_bytes(problem.type)),
      padded(padded_hidden(problem)),
      varies(batch_varies(problem)) {
  check_earlier_calls(context);
}

void LayerRun::store_table() const {
  if (varies) require_launch(run_store_steps(p.batch, work.table, stream), "the kernel that stores the batch sizes");
}

void LayerRun::fill_empty(void* exchange, int64_t elements) const {
  require_launch(cudaMemsetAsync(exchange, 0xFF, static_cast<size_t>(elements * element), stream), "a memset");
}

}  // namespace prnn
