// The C functions that multiply the input of layers with PRNN_GATES_INPUT.
#include <climits>

#include "core/enums.h"
#include "rnn/gates_input.h"
#include "rnn/rnn_descriptor.h"

namespace prnn {
namespace {

// Runs body(gate rows, multiply), multiply(product) on the handle's device, once the arguments of both functions are
// checked; `others`: arrays that they do not share.
template <class Body>
prnnStatus_t with_gates_input(prnnHandle_t handle, prnnRNNDescriptor_t rnnDesc, int64_t rows, int64_t inputSize,
                              const void* input, const void* weight, std::initializer_list<NamedArray> others,
                              const Body& body) {
  return with_layer(handle, rnnDesc, [&](const prnnRNNStruct& rnn) {
    const RnnProblem& layer = rnn.layer;
    if (!layer.gates_input) fail(PRNN_STATUS_BAD_PARAM, "rnnDesc has input matrices; it must have PRNN_GATES_INPUT");
    if (handle->is_cpu() && layer.type != PRNN_DATA_FLOAT && layer.type != PRNN_DATA_DOUBLE) {
      fail(PRNN_STATUS_NOT_SUPPORTED, "dataType is %s; on the CPU this takes PRNN_DATA_FLOAT and PRNN_DATA_DOUBLE",
           name_of(layer.type));
    }
    const int64_t gates = layer.recurrences() * layer.gates() * layer.hidden;
    if (rows < 1) fail(PRNN_STATUS_BAD_PARAM, "rows is %lld; it must be at least 1", static_cast<long long>(rows));
    if (inputSize < 1 || inputSize > INT_MAX) {
      fail(PRNN_STATUS_BAD_PARAM, "inputSize is %lld; it must be 1 to %d", static_cast<long long>(inputSize), INT_MAX);
    }
    if ((static_cast<double>(inputSize) + gates) * (static_cast<double>(rows) + inputSize + gates) > 1e17) {
      fail(PRNN_STATUS_BAD_PARAM, "rows is %lld with inputSize %lld: more memory than can be addressed",
           static_cast<long long>(rows), static_cast<long long>(inputSize));
    }
    require_not_null(input, "input");
    require_not_null(weight, "weight");
    require_not_null(others.begin()->data, others.begin()->name);
    require_aligned(type_size(layer.type), {{input, "input"}, {weight, "weight"}});
    require_aligned(type_size(layer.type), others);
    body(gates, [&](const GatesProduct& product) {
      if (handle->is_cpu()) return multiply_gates_cpu(layer.type, product);
      multiply_gates_cuda(*handle, layer.type, layer.tf32, product);
    });
  });
}

}  // namespace
}  // namespace prnn

using namespace prnn;

extern "C" prnnStatus_t prnnRNNGatesInputForward(prnnHandle_t handle, const prnnRNNDescriptor_t rnnDesc, int64_t rows,
                                                 int64_t inputSize, const void* input, const void* weight, void* x) {
  return with_gates_input(
      handle, rnnDesc, rows, inputSize, input, weight, {{x, "x"}},
      [&](int64_t gates, const auto& multiply) { multiply({rows, gates, inputSize, input, false, weight, true, x}); });
}

extern "C" prnnStatus_t prnnRNNGatesInputBackward(prnnHandle_t handle, const prnnRNNDescriptor_t rnnDesc, int64_t rows,
                                                  int64_t inputSize, const void* input, const void* weight,
                                                  const void* dx, void* dInput, void* dWeight) {
  return with_gates_input(handle, rnnDesc, rows, inputSize, input, weight,
                          {{dx, "dx"}, {dInput, "dInput"}, {dWeight, "dWeight"}},
                          [&](int64_t gates, const auto& multiply) {
                            if (dInput != nullptr) multiply({rows, inputSize, gates, dx, false, weight, false, dInput});
                            if (dWeight != nullptr) multiply({gates, inputSize, rows, dx, true, input, false, dWeight});
                          });
}
