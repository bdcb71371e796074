#include "cudnn_standin/decision.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <mutex>
#include <tuple>
#include <utility>
#include <vector>

#include "cudnn_standin/device.h"

namespace prnn_cudnn {
namespace {

constexpr int kLeastHidden = 8;  // of a tile

// The times that libprnn's plan compares are the GPU's. Of fewer timesteps than these, one by one and in inference, the
// host's time counts, which prnn takes less of. docs/cudnn_standin.md has the measurements.
constexpr int kStepsOfHost = 4;

// cuDNN's default for float is tf32, and what it documents of TENSOR_OP_MATH allows no conversion.
bool may_round(const Configuration& c) { return c.math_type == kDefaultMath || c.math_type == kConvertingMath; }

// The two libraries' answers for a configuration.
struct Known {
  std::string reason;                     // why the resident kernels do not serve it
  std::string in_inference, in_training;  // why cuDNN is faster
  WeightLayout weights;
};

// vary: some sequences are shorter than others.
Known ask(const Cudnn& cudnn, const Prnn& prnn, prnnHandle_t prnn_handle, void* cudnn_handle, void* cudnn_rnn,
          const Configuration& c, bool vary) {
  Known known;
  const RnnDesc rnn(prnn);
  const DropoutDesc dropout(prnn);  // without states: whether there is any counts
  prnn.require(prnn.SetDropoutDescriptor(dropout.get(), prnn_handle, c.dropout, nullptr, 0, 0), prnn_handle);
  describe(prnn, c, dropout.get(), rnn.get());
  const TensorDesc input(prnn), last(prnn);
  for (const auto& [descriptor, batch] : {std::pair{input.get(), c.batch}, {last.get(), c.batch - vary}}) {
    const int dims[] = {batch, c.input, 1}, strides[] = {c.input, 1, 1};
    prnn.require(prnn.SetTensorNdDescriptor(descriptor, static_cast<prnnDataType_t>(c.type), 3, dims, strides));
  }
  std::vector<prnnTensorDescriptor_t> inputs(c.steps, input.get());
  inputs.back() = last.get();
  prnnRNNInfo_t info{};
  prnn.require(prnn.SetRNNBackend(rnn.get(), PRNN_BEST_BACKEND));
  prnn.require(prnn.QueryRNNSequence(prnn_handle, device::gpu_row(), rnn.get(), c.steps, inputs.data(), &info),
               prnn_handle);
  if (info.supported == 0) {
    known.reason = info.reason;
    return known;
  }
  const auto reason = [&](prnnRNNBackend_t backend) { return backend == PRNN_PERSISTENT_BACKEND ? "" : info.reason; };
  known.in_inference = reason(info.inferenceBackend);
  known.in_training = reason(info.backend);
  try {
    known.weights = read_weight_layout(cudnn, prnn, prnn_handle, cudnn_handle, cudnn_rnn, rnn.get(), c);
  } catch (const Failure& failure) {
    known.reason = failure.what();
  }
  return known;
}

// Kept by configuration and device, and never freed.
const Known& known_of(const Cudnn& cudnn, const Prnn& prnn, prnnHandle_t prnn_handle, int device, void* cudnn_handle,
                      void* cudnn_rnn, const Configuration& c, bool vary, int steps) {
  using Key = std::tuple<int, bool, Configuration>;
  static std::mutex& mutex = *new std::mutex;
  static std::map<Key, Known>& all = *new std::map<Key, Known>;
  Configuration asked = c;
  // The layout of the sequences does not matter; how much their length does, libprnn knows.
  asked.layout = 0;
  asked.padded_io = false;
  asked.steps = prnn.GetRNNCanonicalLength(steps);
  const Key key{device, vary, asked};
  {
    std::lock_guard<std::mutex> lock(mutex);
    const auto found = all.find(key);
    if (found != all.end()) return found->second;
  }
  Known made = ask(cudnn, prnn, prnn_handle, cudnn_handle, cudnn_rnn, asked, vary);
  std::lock_guard<std::mutex> lock(mutex);
  return all.emplace(key, std::move(made)).first->second;
}

}  // namespace

std::string why_forwarded(const Configuration& c) {
  if (c.mode < PRNN_RNN_RELU || c.mode > PRNN_GRU) return "a cell of an unknown kind";
  if (c.type == PRNN_DATA_DOUBLE) return "float64";
  if (c.element() == 0) return "a data type other than float32, float16 and bfloat16";
  if (c.is_projected() && (c.mode != PRNN_LSTM || c.projection < 1 || c.projection > c.hidden)) {
    return "a projection of a cell other than LSTM";
  }
  if (c.hidden < kLeastHidden) return "fewer than " + std::to_string(kLeastHidden) + " hidden units";
  if (c.clips) return "clipping of the cell state";
  if (c.bias < kNoBias || c.bias > kRecurrentBias) return "a bias mode that is unknown";
  if (c.dropout >= 1) return "a dropout of 1";
  if (c.layout < kSequenceMajor || c.layout > kBatchMajor) return "a data layout that is unknown";
  if (c.width != c.input) return "an input of another size than the layer's";
  if (c.input_mode != PRNN_LINEAR_INPUT && c.input != c.hidden) return "an input that is not of the hidden size";
  if (int64_t{c.steps} * c.batch > INT32_MAX) return "more than 2^31 - 1 rows of data";
  return "";
}

std::string why_forwarded(const Configuration& c, const Sequences& sequences) {
  if (!sequences.have_rows()) return "a sequence without timesteps";
  if (c.layout == kPacked && !sequences.are_sorted()) return "packed sequences that are not sorted by length";
  const bool vary = sequences.sorted_lengths().back() != c.steps;
  if (c.layout != kPacked && vary && !c.padded_io) return "padding without CUDNN_RNN_PADDED_IO_ENABLED";
  return "";
}

void describe(const Prnn& prnn, const Configuration& c, prnnDropoutDescriptor_t dropout, prnnRNNDescriptor_t rnn) {
  prnn.require(prnn.SetRNNDescriptor(rnn, c.hidden, c.layers, dropout, static_cast<prnnRNNInputMode_t>(c.input_mode),
                                     static_cast<prnnDirectionMode_t>(c.direction), static_cast<prnnRNNMode_t>(c.mode),
                                     static_cast<prnnDataType_t>(c.type)));
  if (c.is_projected()) prnn.require(prnn.SetRNNProjectionSize(rnn, c.projection));
  prnn.require(prnn.SetRNNBackend(rnn, PRNN_PERSISTENT_BACKEND));  // nothing comes back through cuDNN
  const prnnMathType_t math = may_round(c) ? PRNN_TENSOR_OP_MATH_ALLOW_CONVERSION : PRNN_DEFAULT_MATH;
  prnn.require(prnn.SetRNNMatrixMathType(rnn, math));
}

Decision decide(const Cudnn& cudnn, const Prnn& prnn, prnnHandle_t prnn_handle, int device, void* cudnn_handle,
                void* cudnn_rnn, const Configuration& c, bool vary, Use use) {
  const int steps = use == Use::kInference ? std::max(c.steps, kStepsOfHost) : c.steps;
  const Known& known = known_of(cudnn, prnn, prnn_handle, device, cudnn_handle, cudnn_rnn, c, vary, steps);
  if (!known.reason.empty()) return {known.reason, nullptr};
  return {use == Use::kTraining ? known.in_training : known.in_inference, &known.weights};
}

}  // namespace prnn_cudnn
