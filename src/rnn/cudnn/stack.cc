#include "rnn/cudnn/stack.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <climits>

#include "core/cuda/arena.h"
#include "core/descriptors.h"
#include "rnn/cuda/layer/run.h"

namespace prnn {
namespace {

// Values of cuDNN's enumerations. Cell, direction, input mode and data type have prnn's values.
constexpr int kStandardAlgorithm = 0, kTwoBiases = 2, kPackedSequences = 1, kMathInFloat32 = 0;
constexpr int kDefaultMath = 0, kTensorOperations = 1, kTrueFloat32 = 3;
constexpr int kInference = 0, kTraining = 1;
constexpr int kProjection = 8;  // linLayerID

int narrow(int64_t value, const char* what) {
  if (value > INT_MAX) {
    fail(PRNN_STATUS_NOT_SUPPORTED, "%s is %lld; cuDNN takes at most %d", what, static_cast<long long>(value), INT_MAX);
  }
  return static_cast<int>(value);
}

// cuDNN's default for float is tf32.
int math_type(const RnnProblem& p) {
  if (p.type != PRNN_DATA_FLOAT) return kTensorOperations;
  return p.tf32 ? kDefaultMath : kTrueFloat32;
}

void set_states(void* descriptor, const RnnProblem& p, int64_t width) {
  const int d = static_cast<int>(p.directions), n = narrow(p.max_batch(), "the batch"), w = static_cast<int>(width);
  const int dims[] = {d, n, w}, strides[] = {narrow(int64_t{n} * w, "a state"), w, 1};
  require_cudnn(require_cudnn_library().set_tensor(descriptor, p.type, 3, dims, strides), "a state's descriptor");
}

// Room for an array of cuDNN's, at a multiple of 256 bytes as its kernels like it.
char* take_aligned(Arena& arena, size_t bytes) {
  constexpr uintptr_t kAlignment = 256;
  const auto at = reinterpret_cast<uintptr_t>(arena.take<char>(static_cast<int64_t>(bytes + kAlignment)));
  return reinterpret_cast<char*>((at + kAlignment - 1) / kAlignment * kAlignment);
}

// Sequence n is as long as there are timesteps with more than n sequences.
std::vector<int> lengths_of(const RnnProblem& p) {
  std::vector<int> lengths(p.max_batch());
  for (int64_t t = p.steps() - 1, n = 0; t >= 0; --t) {
    for (; n < p.batch[t]; ++n) lengths[n] = static_cast<int>(t + 1);
  }
  return lengths;
}

// Copies of neighbouring blocks, made as one.
class Copies {
 public:
  Copies(bool backwards, cudaStream_t stream) : backwards_(backwards), stream_(stream) {}
  ~Copies() = default;

  void add(char* packed, char* cudnn, size_t bytes) {
    if (bytes_ > 0 && packed == packed_ + bytes_ && cudnn == cudnn_ + bytes_) {
      bytes_ += bytes;
      return;
    }
    flush();
    packed_ = packed;
    cudnn_ = cudnn;
    bytes_ = bytes;
  }

  void flush() {
    if (bytes_ == 0) return;
    const cudaError_t error = backwards_ ? cudaMemcpyAsync(packed_, cudnn_, bytes_, cudaMemcpyDeviceToDevice, stream_)
                                         : cudaMemcpyAsync(cudnn_, packed_, bytes_, cudaMemcpyDeviceToDevice, stream_);
    require_launch(error, "a copy of weights");
    bytes_ = 0;
  }

 private:
  bool backwards_;
  cudaStream_t stream_;
  char *packed_ = nullptr, *cudnn_ = nullptr;
  size_t bytes_ = 0;
};

}  // namespace

CudnnLayer::CudnnLayer(prnnContext& context, const RnnProblem& p, int64_t layer, const std::vector<int>& lengths)
    : rnn_(require_cudnn_library().create_rnn, require_cudnn_library().destroy_rnn),
      x_(require_cudnn_library().create_data, require_cudnn_library().destroy_data),
      y_(require_cudnn_library().create_data, require_cudnn_library().destroy_data),
      h_(require_cudnn_library().create_tensor, require_cudnn_library().destroy_tensor),
      c_(require_cudnn_library().create_tensor, require_cudnn_library().destroy_tensor) {
  const CudnnLibrary& cudnn = require_cudnn_library();
  void* const handle = cudnn_handle(context);
  const int input = narrow(p.layer_input(layer), "the input size");
  const int steps = narrow(p.steps(), "seqLength"), batch = narrow(p.max_batch(), "the batch");
  const int output = narrow(p.directions * p.state(), "the output size");
  require_cudnn(
      cudnn.set_rnn(rnn_.get(), kStandardAlgorithm, p.mode, kTwoBiases, p.directions == 2, !p.has_input_matrices(layer),
                    p.type, kMathInFloat32, math_type(p), input, narrow(p.hidden, "the hidden size"),
                    static_cast<int32_t>(p.state()), 1, cudnn_without_dropout(context), 0),
      "the layer");
  float padding = 0;
  for (const auto& [data, width] : {std::pair{x_.get(), input}, {y_.get(), output}}) {
    require_cudnn(cudnn.set_data(data, p.type, kPackedSequences, steps, batch, width, lengths.data(), &padding),
                  "the sequences");
  }
  set_states(h_.get(), p, p.state());
  set_states(c_.get(), p, p.hidden);
  require_cudnn(cudnn.get_weights_size(handle, rnn_.get(), &weights_size_), "to say the size of the weights");
  for (int mode : {kInference, kTraining}) {
    size_t workspace = 0;
    require_cudnn(cudnn.get_temporary_sizes(handle, rnn_.get(), mode, x_.get(), &workspace, &reserve_size_),
                  "to say the size of the workspace");
    workspace_size_ = std::max(workspace_size_, workspace);
  }
}

void CudnnLayer::copy_weights(void* handle, const RnnProblem& p, int64_t layer, void* packed, void* weights,
                              bool to_packed, prnnStream_t stream) const {
  const CudnnLibrary& cudnn = require_cudnn_library();
  const CudnnObject matrix_desc(cudnn.create_tensor, cudnn.destroy_tensor);
  const CudnnObject bias_desc(cudnn.create_tensor, cudnn.destroy_tensor);
  const size_t element = type_size(p.type);
  const int gates = static_cast<int>(p.gates());
  Copies matrices(to_packed, stream), biases(to_packed, stream);
  for (int64_t d = 0; d < p.directions; ++d) {
    const RnnLayerOffsets offsets = rnn_layer_offsets(p, layer, d);
    const auto copy = [&](int id, int64_t matrix_at, int64_t matrix_size, int64_t bias_at) {
      void *matrix = nullptr, *bias = nullptr;
      require_cudnn(cudnn.get_weights(handle, rnn_.get(), static_cast<int32_t>(d), weights_size_, weights, id,
                                      matrix_desc.get(), &matrix, bias_desc.get(), &bias),
                    "to say where the weights lie");
      char* const base = static_cast<char*>(packed);
      if (matrix_at >= 0) matrices.add(base + matrix_at * element, static_cast<char*>(matrix), matrix_size * element);
      if (bias_at >= 0) biases.add(base + bias_at * element, static_cast<char*>(bias), p.hidden * element);
    };
    for (int g = 0; g < gates; ++g) {
      const int64_t size = p.hidden * p.layer_input(layer);
      copy(g, offsets.input < 0 ? -1 : offsets.input + g * size, size, offsets.input_bias + g * p.hidden);
    }
    for (int g = 0; g < gates; ++g) {
      const int64_t size = p.hidden * p.state();
      copy(gates + g, offsets.recurrent + g * size, size, offsets.recurrent_bias + g * p.hidden);
    }
    if (p.projection > 0) copy(kProjection, offsets.projection, p.projection * p.hidden, -1);
  }
  matrices.flush();
  biases.flush();
}

CudnnStack::CudnnStack(prnnContext& context, const RnnProblem& p) {
  const std::vector<int> lengths = lengths_of(p);
  first_ = std::make_unique<CudnnLayer>(context, p, 0, lengths);
  if (p.layers > 1) above_ = std::make_unique<CudnnLayer>(context, p, 1, lengths);
}

CudnnReserve::CudnnReserve(const RnnProblem& p, const CudnnStack& stack, void* base) {
  Arena arena(base);
  for (int64_t layer = 0; layer < p.layers; ++layer) {
    layers.push_back(take_aligned(arena, stack.layer(layer).reserve_size()));
  }
  const size_t bytes = p.rows * p.directions * p.state() * type_size(p.type);
  for (int64_t layer = 0; layer + 1 < p.layers; ++layer) {
    outputs.push_back(take_aligned(arena, bytes));
    inputs.push_back(p.dropout.probability > 0 ? take_aligned(arena, bytes) : outputs.back());
  }
  draw = arena.take<uint64_t>(2);
  size = arena.size();
}

CudnnWorkspace::CudnnWorkspace(const RnnProblem& p, const CudnnStack& stack, void* base) {
  Arena arena(base);
  const CudnnLayer &first = stack.layer(0), &above = stack.layer(p.layers > 1);
  scratch = take_aligned(arena, std::max(first.workspace_size(), above.workspace_size()));
  weights = take_aligned(arena, std::max(first.weights_size(), above.weights_size()));
  const size_t element = type_size(p.type);
  for (char*& array : between) {
    array = take_aligned(arena, p.layers > 1 ? p.rows * p.directions * p.state() * element : 0);
  }
  dx = take_aligned(arena, p.rows * p.input * element);
  size = arena.size();
}

}  // namespace prnn
