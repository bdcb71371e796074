// One layer by the kernels, forward and backward, beside the same in double:
//
//     run_layer type=bfloat16 cell=lstm hidden=64 engine=mma ... seed=1 batches=8,5,5
//
// prints the relative error of each result. Exit status 2: blocks wait for what never comes; 3: no such kernel.
#include <sstream>

#include "gpu.h"
#include "layer.h"
#include "rnn/cuda/launch.h"
#include "rnn/plan/cluster.h"
#include "rnn/plan/mma.h"
#include "rnn/plan/simt.h"
#include "rnn/plan/wgmma.h"

namespace prnn {

struct Tf32;  // rnn/cuda/common/tf32.cuh

namespace {

template <class Params>
struct Launcher {
  KernelId kernel;
  cudaError_t (*function)(const ResidentShape&, const Params&, cudaStream_t);
};

}  // namespace

#include "launchers.inc"

namespace {

template <class Params, size_t COUNT>
bool launch(const Launcher<Params> (&launchers)[COUNT], const ResidentShape& shape, const Params& params) {
  for (const Launcher<Params>& l : launchers) {
    const KernelId &own = l.kernel, &wanted = shape.kernel;
    if (own.row != wanted.row || own.cell != wanted.cell || own.type != wanted.type) continue;
    if (l.function(shape, params, nullptr) == cudaSuccess && *params.sizes.timed_out == 0) return true;
    std::printf("the kernel does not end\n");
    std::exit(2);
  }
  return false;
}

RnnProblem problem_of(const Layer& layer) {
  const Options& options = layer.options;
  RnnProblem problem;
  problem.mode = options.mode;
  problem.type = options.type == Type::kHalf       ? PRNN_DATA_HALF
                 : options.type == Type::kBfloat16 ? PRNN_DATA_BFLOAT16
                                                   : PRNN_DATA_FLOAT;
  problem.tf32 = options.type == Type::kTf32;
  problem.hidden = problem.input = options.hidden;
  problem.batch.assign(options.batches.begin(), options.batches.end());
  problem.rows = layer.rows;
  if (options.resets) problem.extras.reset = layer.reset.data();
  if (options.masks && layer.is_lstm) problem.extras.dcells = &layer;
  if (options.masks && !layer.is_lstm) problem.masks.recurrent = &layer;
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
    params.sizes = sizes_of(shape);
    params.xw_row = layer_.gates * params.sizes.hidden;
    params.xw_gate = params.y_row = params.sizes.hidden;
    params.masks = masks();
    const int element = bytes_of(layer_.options.type);
    const int64_t rows = shape.exchanges_rows() ? layer_.rows : params.sizes.steps * params.sizes.exchange_columns(),
                  bytes = shape.kernel.is(Engine::kWgmmaMulticast)
                              ? multicast_exchange_bytes(problem_, shape, params.sizes.replicas)
                              : rows * layer_.padded * element;
    Array exchange = Array::of_bytes(shape.exchanges_in_cluster() ? 0 : bytes, 0xFF);
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
    params.sizes = sizes_of(shape);
    params.y_row = params.sizes.hidden;
    params.masks = masks();
    Array sums = Array::of_bytes(wgmma_sums_bytes(problem_, shape, params.sizes.replicas, 1), 0);
    params.sums = sums.floats();
    layer_.dgates.fill(0xFF);
    params.timesteps[0] = {params.sizes.table, params.sizes.steps, params.sizes.batch};
    params.direction[0] = layer_.backward();
    if (!launch(kBackwardLaunchers, shape, params)) return false;
    layer_.compare_backward();
    return true;
  }

 private:
  ResidentSizes sizes_of(const ResidentShape& shape) {
    const ReplicaShares shares(shape, layer_.batch);
    ResidentSizes sizes{};
    sizes.hidden = layer_.options.hidden;
    sizes.padded = layer_.padded;
    sizes.steps = static_cast<int>(layer_.steps.size());
    sizes.batch = sizes.columns = layer_.batch;
    if (layer_.steps.back().batch < layer_.batch) sizes.table = layer_.steps.data();
    sizes.columns_per_replica = static_cast<int>(shares.columns_per_replica);
    sizes.replicas = static_cast<int>(shares.replicas);
    sizes.blocks = shape.blocks;
    sizes.directions = 1;
    sizes.poll_delay_cycles = shape.poll_delay_cycles;
    sizes.relu = layer_.options.mode == PRNN_RNN_RELU;
    sizes.timed_out = &timed_out_;
    return sizes;
  }
  StateMasks masks() {
    StateMasks masks{};
    if (!layer_.options.masks || layer_.is_lstm) return masks;
    masks.recurrent[0] = layer_.mask.data();
    masks.zoneout = static_cast<float>(layer_.zoneout);
    return masks;
  }

  Layer layer_;
  RnnProblem problem_;
  int timed_out_ = 0;
};

Options parse(int count, char** words) {
  Options options;
  for (int i = 1; i < count; ++i) {
    const std::string word = words[i], name = word.substr(0, word.find('=')), value = word.substr(name.size() + 1);
    const auto number = [&] { return std::stoi(value); };
    const auto index_in = [&](std::vector<std::string> names) {
      return std::find(names.begin(), names.end(), value) - names.begin();
    };
    if (name == "type") options.type = static_cast<Type>(index_in({"float", "tf32", "half", "bfloat16"}));
    if (name == "cell") {
      const prnnRNNMode_t modes[] = {PRNN_RNN_RELU, PRNN_RNN_TANH, PRNN_LSTM, PRNN_GRU};
      options.mode = modes[index_in({"relu", "tanh", "lstm", "gru"})];
    }
    if (name == "hidden") options.hidden = number();
    if (name == "engine") options.engine = value;
    if (name == "forward_units") options.forward_units = number();
    if (name == "backward_units") options.backward_units = number();
    if (name == "backward_cluster") options.backward_cluster = number();
    if (name == "replicas") options.replicas = number();
    if (name == "resets") options.resets = number() != 0;
    if (name == "masks") options.masks = number() != 0;
    if (name == "reverse") options.reverse = number() != 0;
    if (name == "seed") options.seed = static_cast<unsigned>(number());
    if (name != "batches") continue;
    options.batches.clear();
    std::istringstream list(value);
    for (std::string size; std::getline(list, size, ',');) options.batches.push_back(std::stoi(size));
  }
  return options;
}

}  // namespace
}  // namespace prnn

int main(int count, char** words) {
  const Options options = prnn::parse(count, words);
  gpu::seed = options.seed;
  prnn::Run run(options);
  return run.forward() && run.backward() ? 0 : 3;
}
