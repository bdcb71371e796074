#include "rnn/cudnn/stack.h"

#include <algorithm>
#include <climits>

#include "core/descriptors.h"
#include "rnn/cudnn/device.h"

namespace prnn {
namespace {

// Values of cuDNN's enumerations. Cell, direction, input mode and data type have prnn's values.
constexpr int kTwoBiases = 2, kPackedSequences = 1;
constexpr int kDefaultMath = 0, kTensorOperations = 1, kTrueFloat32 = 3;
constexpr int kInference = 0, kTraining = 1;

// Stacks that a handle keeps: a model's layers, and some batches of different lengths.
constexpr size_t kStacksKept = 32;

int narrow(int64_t value, const char* what) {
  if (value > INT_MAX) {
    fail(PRNN_STATUS_NOT_SUPPORTED, "%s is %lld; cuDNN takes at most %d", what, static_cast<long long>(value), INT_MAX);
  }
  return static_cast<int>(value);
}

// cuDNN's default for float is tf32.
int math_type(const RnnProblem& p) {
  switch (p.type) {
    case PRNN_DATA_FLOAT: return p.tf32 ? kDefaultMath : kTrueFloat32;
    case PRNN_DATA_DOUBLE: return kDefaultMath;
    default: return kTensorOperations;
  }
}

// The type of the arithmetic: float for the 16-bit types.
int math_precision(const RnnProblem& p) { return p.type == PRNN_DATA_DOUBLE ? PRNN_DATA_DOUBLE : PRNN_DATA_FLOAT; }

// Sequence n is as long as there are timesteps with more than n sequences.
std::vector<int> lengths_of(const RnnProblem& p) {
  std::vector<int> lengths(p.max_batch());
  for (int64_t t = p.steps() - 1, n = 0; t >= 0; --t) {
    for (; n < p.batch[t]; ++n) lengths[n] = static_cast<int>(t + 1);
  }
  return lengths;
}

void set_states(void* descriptor, const RnnProblem& p, int64_t layers, int64_t width) {
  const int cells = narrow(layers * p.directions, "the number of layers"), n = narrow(p.max_batch(), "the batch");
  const int w = static_cast<int>(width);
  const int dims[] = {cells, n, w}, strides[] = {narrow(int64_t{n} * w, "a state"), w, 1};
  require_cudnn(require_cudnn_library().set_tensor(descriptor, p.type, 3, dims, strides), "a state's descriptor");
}

bool same_layers(const RnnProblem& a, const RnnProblem& b) {
  return a.mode == b.mode && a.type == b.type && a.hidden == b.hidden && a.projection == b.projection &&
         a.input == b.input && a.layers == b.layers && a.directions == b.directions && a.skip_input == b.skip_input &&
         a.tf32 == b.tf32 && a.dropout.probability == b.dropout.probability;
}

// cuDNN's random states as it makes them, or NULL where they are not of the format that prnn can write.
std::unique_ptr<DeviceMemory> known_dropout_states(prnnContext& context) {
  const CudnnLibrary& cudnn = require_cudnn_library();
  void* const handle = cudnn_handle(context);
  size_t size = 0;
  require_cudnn(cudnn.get_dropout_states_size(handle, &size), "to say the size of dropout's states");
  const CudnnObject descriptor(cudnn.create_dropout, cudnn.destroy_dropout);
  auto states = std::make_unique<DeviceMemory>(size);
  constexpr unsigned long long kSeed = 0x0123456789abcdef;
  require_cudnn(cudnn.set_dropout(descriptor.get(), handle, 0.5f, states->get(), size, kSeed), "dropout of 0.5");
  if (!has_known_dropout_states(states->get(), size, kSeed, context.stream)) states = nullptr;
  return states;
}

class StackCache : public CudnnCache {
 public:
  CudnnStack& find(prnnContext& context, const RnnProblem& problem) {
    const auto is_this = [&](const auto& stack) {
      return stack->problem.batch == problem.batch && same_layers(stack->problem, problem);
    };
    const auto found = std::find_if(stacks_.begin(), stacks_.end(), is_this);
    if (found != stacks_.end()) {
      std::rotate(stacks_.begin(), found, found + 1);  // the first is the one used last
    } else {
      stacks_.insert(stacks_.begin(), make(context, problem));
      if (stacks_.size() > kStacksKept) stacks_.pop_back();
    }
    return *stacks_.front();
  }

 private:
  std::unique_ptr<CudnnStack> make(prnnContext& context, const RnnProblem& problem) {
    if (device_.arch == 0) device_ = describe_device(context.device);
    const CudnnAlgorithm algorithm = choose_algorithm(device_, problem);
    try {
      return make(context, problem, algorithm);
    } catch (const Failure& failure) {
      // Versions and GPUs differ in what the persistent kernels serve; the standard ones serve everything.
      if (failure.status() != PRNN_STATUS_NOT_SUPPORTED || algorithm == kStandard) throw;
      return make(context, problem, kStandard);
    }
  }

  std::unique_ptr<CudnnStack> make(prnnContext& context, const RnnProblem& problem, CudnnAlgorithm algorithm) {
    auto made = std::make_unique<CudnnStack>();
    made->problem = problem;
    const bool drops = problem.dropout.probability > 0;
    const DeviceMemory* const states = drops ? dropout_states(context, problem) : nullptr;
    if (states != nullptr) made->dropout_states_size = states->size();
    const auto alike = std::find_if(stacks_.begin(), stacks_.end(), [&](const auto& stack) {
      return same_layers(stack->problem, problem) && stack->parts[0].layers->algorithm() == algorithm;
    });
    const int64_t count = drops && states == nullptr ? 1 : problem.layers;
    for (int64_t first = 0; first < problem.layers; first += count) {
      auto layers = alike != stacks_.end()
                        ? (*alike)->parts[first / count].layers
                        : std::make_shared<CudnnLayers>(context, problem, first, count, algorithm, states);
      CudnnSequences sequences(context, problem, *layers);
      made->parts.push_back({std::move(layers), std::move(sequences)});
    }
    return made;
  }

  const DeviceMemory* dropout_states(prnnContext& context, const RnnProblem& problem) {
    if (!dropout_states_) dropout_states_ = known_dropout_states(context);
    if (*dropout_states_ == nullptr && problem.type == PRNN_DATA_DOUBLE) {
      fail(PRNN_STATUS_NOT_SUPPORTED,
           "dropout between layers of type double: prnn does not know the random states of this cuDNN");
    }
    return dropout_states_->get();
  }

  // The states that dropout descriptors name until a call draws from states of its own.
  std::optional<std::unique_ptr<DeviceMemory>> dropout_states_;
  CudnnDevice device_;
  std::vector<std::unique_ptr<CudnnStack>> stacks_;
};

// cuDNN's sizes overflow for some of very many sequences.
void require_possible(size_t size, const char* name, const RnnProblem& p) {
  constexpr size_t kMost = size_t{1} << 60;
  if (size <= kMost) return;
  fail(PRNN_STATUS_NOT_SUPPORTED, "cuDNN wants a %s of %zu bytes for %lld rows (batches summed over timesteps)", name,
       size, static_cast<long long>(p.rows));
}

}  // namespace

CudnnLayers::CudnnLayers(prnnContext& context, const RnnProblem& p, int64_t first, int64_t count,
                         CudnnAlgorithm algorithm, const DeviceMemory* dropout_states)
    : problem_(p),
      first_(first),
      count_(count),
      algorithm_(algorithm),
      rnn_(require_cudnn_library().create_rnn, require_cudnn_library().destroy_rnn) {
  const CudnnLibrary& cudnn = require_cudnn_library();
  void* const handle = cudnn_handle(context);
  if (dropout_states != nullptr) {
    dropout_.emplace(cudnn.create_dropout, cudnn.destroy_dropout);
    draw_from(context, dropout_states->get(), dropout_states->size());
  } else {
    set(cudnn_without_dropout(context));
  }
  weights_ = std::make_unique<CudnnWeights>(handle, rnn_.get(), p, first, count);
}

void CudnnLayers::draw_from(prnnContext& context, void* states, size_t size) {
  require_cudnn(require_cudnn_library().restore_dropout(dropout_->get(), cudnn_handle(context),
                                                        problem_.dropout.probability, states, size, 0),
                "dropout's states");
  set(dropout_->get());  // which may have copied what the dropout descriptor said before
}

void CudnnLayers::set(void* dropout) const {
  const RnnProblem& p = problem_;
  require_cudnn(require_cudnn_library().set_rnn(rnn_.get(), algorithm_, p.mode, kTwoBiases, p.directions == 2,
                                                !p.has_input_matrices(first_), p.type, math_precision(p), math_type(p),
                                                narrow(p.layer_input(first_), "the input size"),
                                                narrow(p.hidden, "the hidden size"), static_cast<int32_t>(p.state()),
                                                narrow(count_, "the number of layers"), dropout, 0),
                "the layer");
}

CudnnSequences::CudnnSequences(prnnContext& context, const RnnProblem& p, const CudnnLayers& layers)
    : x_(require_cudnn_library().create_data, require_cudnn_library().destroy_data),
      y_(require_cudnn_library().create_data, require_cudnn_library().destroy_data),
      h_(require_cudnn_library().create_tensor, require_cudnn_library().destroy_tensor),
      c_(require_cudnn_library().create_tensor, require_cudnn_library().destroy_tensor) {
  const CudnnLibrary& cudnn = require_cudnn_library();
  void* const handle = cudnn_handle(context);
  const int steps = narrow(p.steps(), "seqLength"), batch = narrow(p.max_batch(), "the batch");
  const int input = narrow(p.layer_input(layers.first()), "the input size");
  const int output = narrow(p.directions * p.state(), "the output size");
  const std::vector<int> lengths = lengths_of(p);
  double padding = 0;  // the bits of zero in every type
  for (const auto& [data, width] : {std::pair{x_.get(), input}, {y_.get(), output}}) {
    require_cudnn(cudnn.set_data(data, p.type, kPackedSequences, steps, batch, width, lengths.data(), &padding),
                  "the sequences");
  }
  set_states(h_.get(), p, layers.count(), p.state());
  set_states(c_.get(), p, layers.count(), p.hidden);
  for (const int mode : {kInference, kTraining}) {
    size_t workspace = 0, reserve = 0;
    require_cudnn(cudnn.get_temporary_sizes(handle, layers.rnn(), mode, x_.get(), &workspace, &reserve),
                  "to say the size of the workspace");
    require_possible(workspace, "workspace", p);
    require_possible(reserve, "reserve space", p);
    workspace_size_ = std::max(workspace_size_, workspace);
    reserve_size_ = std::max(reserve_size_, reserve);
  }
}

CudnnStack& cudnn_stack(prnnContext& context, const RnnProblem& problem) {
  std::unique_ptr<CudnnCache>& cache = cudnn_cache(context);
  if (cache == nullptr) cache = std::make_unique<StackCache>();
  return static_cast<StackCache&>(*cache).find(context, problem);
}

}  // namespace prnn
