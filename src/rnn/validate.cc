#include "rnn/validate.h"
#include "core/handle.h"
#include "rnn/sequences.h"

#include <algorithm>
#include <climits>

namespace prnn {
namespace {

// Above this a product of sizes is a mistake, and sums of a few of them still fit 64 bits.
constexpr double kMaxBytes = 1152921504606846976.0;  // 2^60

RnnProblem problem_from_descriptor(const prnnRNNStruct& rnn) {
  RnnProblem problem = rnn.layer;
  if (problem.extras.cells != nullptr && problem.frozen == problem.layers) {
    fail(PRNN_STATUS_BAD_PARAM,
         "extras->cells is given (prnnSetRNNExtras), but all %lld layers are frozen (prnnSetRNNFrozenLayers); with the "
         "last one among those that are not, its c is kept",
         static_cast<long long>(problem.layers));
  }
  const bool has_masks = (problem.needs() & (Needs::kMasks | Needs::kZoneout)) != 0;
  if (has_masks && problem.skip_input) {
    fail(PRNN_STATUS_NOT_SUPPORTED, "a layer with masks (prnnSetRNNMasks) has no PRNN_SKIP_INPUT");
  }
  if (has_masks && problem.projection > 0) {
    fail(PRNN_STATUS_NOT_SUPPORTED, "a layer with masks (prnnSetRNNMasks) has no projection; its size is %lld",
         static_cast<long long>(problem.projection));
  }
  if (rnn.dropout != nullptr) {
    require_alive(rnn.dropout, "the dropout descriptor of rnnDesc");
    if (problem.layers > 1 && rnn.dropout->probability > 0) {
      problem.dropout = {rnn.dropout->probability, rnn.dropout->states};
    }
  }
  return problem;
}

// Throws unless the dimensions are {batch, size} followed by ones.
void require_batch_by_size(const prnnTensorStruct* tensor, const ArgumentName& name, prnnDataType_t type) {
  require_packed_tensor(tensor, name, type);
  if (tensor->rank < 2) {
    fail(PRNN_STATUS_BAD_PARAM, "%s has dimensions %s; they must be {batch, size, 1}", name.text().c_str(),
         dims_text(*tensor).c_str());
  }
  require_tensor(tensor, name, type, {tensor->dims[0], tensor->dims[1]});
}

// Reads B_t of every timestep of `descriptors` into the problem. The second dimension must be `width` in all, or with
// width 0 that of the first; returns it.
int64_t read_sequence(RnnProblem& problem, int seqLength, const prnnTensorDescriptor_t* descriptors, int64_t width,
                      const char* name) {
  if (seqLength < 1) fail(PRNN_STATUS_BAD_PARAM, "seqLength is %d; it must be at least 1", seqLength);
  require_not_null(descriptors, name);
  problem.batch.reserve(seqLength);
  for (int t = 0; t < seqLength; ++t) {
    const prnnTensorStruct* tensor = descriptors[t];
    const bool repeated = t > 0 && tensor == descriptors[t - 1];
    if (!repeated) {
      const ArgumentName element(name, t);
      require_batch_by_size(tensor, element, problem.type);
      if (width == 0) width = tensor->dims[1];
      if (tensor->dims[1] != width) {
        fail(PRNN_STATUS_BAD_PARAM, "%s has dimensions %s; the second must be %lld", element.text().c_str(),
             dims_text(*tensor).c_str(), static_cast<long long>(width));
      }
      if (t > 0 && tensor->dims[0] > problem.batch.back()) {
        fail(PRNN_STATUS_BAD_PARAM,
             "%s has batch %d, more than the %lld of the timestep before it; it must not increase",
             element.text().c_str(), tensor->dims[0], static_cast<long long>(problem.batch.back()));
      }
    }
    problem.batch.push_back(tensor->dims[0]);
    problem.rows += tensor->dims[0];
  }
  return width;
}

// The elements of a row that has the gates of all directions and heads.
int64_t gates_width(const RnnProblem& problem) { return problem.recurrences() * problem.gates() * problem.hidden; }

void set_input(RnnProblem& problem, int64_t input, const char* name) {
  if (problem.skip_input && input != problem.hidden) {
    fail(PRNN_STATUS_BAD_PARAM, "%s has input size %lld; with PRNN_SKIP_INPUT it must be the hidden size, %lld", name,
         static_cast<long long>(input), static_cast<long long>(problem.hidden));
  }
  if (problem.takes_gates() && problem.batch.back() != problem.max_batch()) {
    fail(PRNN_STATUS_NOT_SUPPORTED,
         "the last timestep has %lld sequences and the first %lld; an LSTM with PRNN_GATES_INPUT takes their lengths",
         static_cast<long long>(problem.batch.back()), static_cast<long long>(problem.max_batch()));
  }
  if (problem.gates_input && input != gates_width(problem)) {
    fail(PRNN_STATUS_BAD_PARAM, "%s has input size %lld; with PRNN_GATES_INPUT it must be that of the gates, %lld",
         name, static_cast<long long>(input), static_cast<long long>(gates_width(problem)));
  }
  problem.input = input;
}

// Whatever is sized from the problem must be countable in 64 bits.
void require_countable(const RnnProblem& problem) {
  const double stack = static_cast<double>(problem.layers) * problem.recurrences();
  const double gate_rows = static_cast<double>(problem.gates()) * problem.hidden;
  const double widest = static_cast<double>(std::max(problem.input, problem.recurrences() * problem.hidden));
  const double weights = 8.0 * stack * gate_rows * (widest + problem.hidden + 4);
  const double activations = 64.0 * static_cast<double>(problem.rows) * (stack * gate_rows + widest);
  if (weights > kMaxBytes || activations > kMaxBytes) {
    fail(PRNN_STATUS_BAD_PARAM,
         "hidden size %lld, input size %lld, %lld layers, %lld directions and %lld rows of data (batches summed over "
         "timesteps) need more memory than can be addressed",
         static_cast<long long>(problem.hidden), static_cast<long long>(problem.input),
         static_cast<long long>(problem.layers), static_cast<long long>(problem.directions),
         static_cast<long long>(problem.rows));
  }
}

// The input size that makes the packed weights as large as wDesc says.
int64_t input_from_weights(RnnProblem problem, const prnnFilterStruct* wDesc) {
  if (problem.skip_input) return problem.hidden;
  if (problem.gates_input) return gates_width(problem);
  require_alive(wDesc, "wDesc");
  int64_t elements = 1;
  for (int i = 0; i < wDesc->rank; ++i) {
    if (__builtin_mul_overflow(elements, static_cast<int64_t>(wDesc->dims[i]), &elements)) elements = 0;
  }
  problem.input = 1;
  require_countable(problem);
  const int64_t with_one = rnn_params_count(problem);
  problem.input = 2;
  const int64_t one_more = rnn_params_count(problem) - with_one;
  const int64_t input = 1 + (elements - with_one) / one_more;
  return elements < with_one || input > INT_MAX ? 1 : input;  // require_weights reports a size that cannot be
}

}  // namespace

RnnProblem problem_from_sequence(const prnnRNNStruct& rnn, int seqLength, const prnnTensorDescriptor_t* xDesc) {
  RnnProblem problem = problem_from_descriptor(rnn);
  set_input(problem, read_sequence(problem, seqLength, xDesc, 0, "xDesc"), "xDesc[0]");
  require_countable(problem);
  return problem;
}

RnnProblem problem_from_sizes(const prnnRNNStruct& rnn, int inputSize, int seqLength, const int* batchSizes) {
  RnnProblem problem = problem_from_descriptor(rnn);
  if (inputSize < 1) fail(PRNN_STATUS_BAD_PARAM, "inputSize is %d; it must be at least 1", inputSize);
  for (const int32_t batch : read_batch_sizes(seqLength, batchSizes)) {
    problem.batch.push_back(batch);
    problem.rows += batch;
  }
  set_input(problem, inputSize, "the call");
  require_countable(problem);
  return problem;
}

RnnProblem problem_of_steps(const prnnRNNStruct& rnn, prnnTensorDescriptor_t xDesc, int64_t steps) {
  RnnProblem problem = problem_from_descriptor(rnn);
  require_batch_by_size(xDesc, "xDesc", problem.type);
  const int64_t batch = xDesc->dims[0];
  problem.batch.assign(static_cast<size_t>(std::min(steps, kMostRows / batch)), batch);
  problem.rows = problem.steps() * batch;
  set_input(problem, xDesc->dims[1], "xDesc");
  require_countable(problem);
  return problem;
}

RnnProblem problem_from_output(const prnnRNNStruct& rnn, int seqLength, const prnnTensorDescriptor_t* yDesc,
                               bool wants_dx, const prnnTensorDescriptor_t* dxDesc, prnnFilterDescriptor_t wDesc) {
  RnnProblem problem = problem_from_descriptor(rnn);
  read_sequence(problem, seqLength, yDesc, problem.recurrences() * problem.state(), "yDesc");
  if (wants_dx) {
    require_not_null(dxDesc, "dxDesc");
    require_batch_by_size(dxDesc[0], {"dxDesc", 0}, problem.type);
    set_input(problem, dxDesc[0]->dims[1], "dxDesc[0]");
  } else {
    problem.input = input_from_weights(problem, wDesc);
  }
  require_countable(problem);
  return problem;
}

}  // namespace prnn
