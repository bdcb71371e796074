// One layer by the kernels, forward and backward, beside the same in double:
//
//     run_layer type=bfloat16 cell=lstm hidden=64 engine=mma ... seed=1 batches=8,5,5
//
// prints the relative error of each result. Exit status 2: blocks wait for what never comes; 3: no such kernel.
#include "launch.h"
#include "layer.h"
#include "rnn/plan/cluster.h"
#include "rnn/plan/mma.h"
#include "rnn/plan/simt.h"
#include "rnn/plan/wgmma.h"

namespace prnn {
namespace {

RnnProblem problem_of(const Layer& layer) {
  const Options& options = layer.options;
  RnnProblem problem = layer.problem();
  if (options.resets) problem.extras.reset = layer.reset.data();
  if (options.masks && layer.is_lstm) problem.extras.dcells = &layer;
  if (options.masks) problem.masks.recurrent = &layer;
  return problem;
}

bool find_shape(const Options& options, const RnnProblem& problem, Pass pass, ResidentShape* shape) {
  const GpuRow& row = *find_gpu_row("H200");
  const int units = pass == Pass::kBackward ? options.backward_units : options.forward_units;
  if (options.engine == "mma") {
    return any_kernel(row, problem, mma_engine(problem, pass), pass, [&](KernelId kernel) {
      return kernel.shape(0) == units && (pass == Pass::kForward || kernel.shape(1) == options.backward_cluster) &&
             mma_shape_for(row, problem, kernel, options.replicas, shape);
    });
  }
  if (options.engine == "wgmma") return wgmma_shape_for(row, problem, pass, options.replicas, shape);
  if (options.engine == "split-k") return split_k_shape_for(row, problem, pass, options.replicas, shape);
  if (options.engine == "multicast") return multicast_shape_for(row, problem, pass, options.replicas, shape);
  const bool found = options.engine == "mma-large" ? choose_mma_large_shape(row, problem, pass, 1, shape)
                     : options.engine == "cluster" ? choose_cluster_shape(row, problem, pass, 1, shape)
                                                   : choose_simt_shape(row, problem, pass, 1, shape);
  shape->replicas = options.replicas;
  return found;
}

class Run {
 public:
  explicit Run(const Options& options) : layer_(options), problem_(problem_of(layer_)) {}

  bool forward() {
    ResidentShape shape;
    if (!find_shape(layer_.options, problem_, Pass::kForward, &shape)) return false;
    ForwardParams params{};
    params.sizes = layer_.sizes_of(shape, 1, &timed_out_);
    params.xw_row = layer_.gates * params.sizes.hidden;
    params.xw_gate = params.y_row = params.sizes.hidden;
    params.masks = masks();
    const int element = bytes_of(layer_.options.type);
    const int64_t rows = shape.exchanges_rows() ? layer_.rows : params.sizes.steps * params.sizes.exchange_columns(),
                  bytes = shape.exchanges_in_cluster() ? 0
                          : shape.kernel.is(Engine::kWgmmaMulticast)
                              ? multicast_exchange_bytes(problem_, shape, params.sizes.replicas)
                              : rows * layer_.padded * element;
    Array exchange = Array::of_bytes(bytes, 0xFF);
    order::follow(exchange.data(), bytes);
    Array initial = Array::of_bytes(size_t(layer_.batch) * layer_.padded * element, 0);
    for (int n = 0; n < layer_.batch; ++n)
      std::memcpy(initial.data() + size_t(n) * layer_.padded * element,
                  layer_.hx.data() + size_t(n) * params.sizes.hidden * element, params.sizes.hidden * element);
    params.timesteps[0] = {params.sizes.table, params.sizes.steps, params.sizes.batch};
    params.direction[0] = layer_.forward();
    params.direction[0].exchange = exchange.data();
    params.direction[0].initial = initial.data();
    if (!launch(kForwardLaunchers, shape, params)) return false;
    layer_.compare_forward();
    return true;
  }

  bool backward() {
    ResidentShape shape;
    if (!find_shape(layer_.options, problem_, Pass::kBackward, &shape)) return false;
    BackwardParams params{};
    params.sizes = layer_.sizes_of(shape, 1, &timed_out_);
    params.y_row = params.sizes.hidden;
    params.masks = masks();
    const int64_t sums_bytes = wgmma_sums_bytes(problem_, shape, params.sizes.replicas, 1);
    Array sums = Array::of_bytes(sums_bytes, 0);
    order::follow(sums.data(), sums_bytes);
    params.sums = sums.floats();
    layer_.dgates.fill(0xFF);
    params.timesteps[0] = {params.sizes.table, params.sizes.steps, params.sizes.batch};
    params.direction[0] = layer_.backward();
    if (!launch(kBackwardLaunchers, shape, params)) return false;
    layer_.compare_backward();
    return true;
  }

 private:
  StateMasks masks() {
    StateMasks masks{};
    if (!layer_.options.masks) return masks;
    masks.recurrent[0] = layer_.mask.data();
    masks.zoneout = static_cast<float>(layer_.zoneout);
    masks.marked = !layer_.stays.empty();
    return masks;
  }

  Layer layer_;
  RnnProblem problem_;
  int timed_out_ = 0;
};

}  // namespace
}  // namespace prnn

int main(int count, char** words) {
  const Options options = parse_options(count, words);
  gpu::seed = options.seed;
  prnn::Run run(options);
  return run.forward() && (!options.has_backward || run.backward()) ? 0 : 3;
}
