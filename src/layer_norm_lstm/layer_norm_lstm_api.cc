// prnnLayerNormLSTMForward and its kin: checks every argument, then calls the backend of the handle's device.
#include <cmath>
#include <limits>

#include "core/loss_checks.h"
#include "layer_norm_lstm/layer_norm_lstm.h"
#include "layer_norm_lstm/plan.h"

namespace prnn {
namespace {

const LayerNormLstmBackend& backend_of(prnnHandle_t handle) {
  require_handle(handle);
  return handle->is_cpu() ? cpu_layer_norm_lstm_backend() : cuda_layer_norm_lstm_backend();
}

void check_options(const LayerNormLstmOptions* options) {
  require_not_null(options, "options");
  const LayerNormLstmOptions& o = *options;
  require_known_type(o.dataType, "dataType");
  require_enumerator(o.normalize, {PRNN_NORMALIZE_GATES, PRNN_NORMALIZE_PRODUCTS, PRNN_NORMALIZE_NONE}, "normalize");
  const int64_t most = std::numeric_limits<int>::max();
  require_in_range(o.steps, 1, most, "steps");
  require_in_range(o.batch, 1, most, "batch");
  require_in_range(o.hiddenSize, 1, most, "hiddenSize");
  product_of_sizes({o.steps, o.batch, 10, o.hiddenSize});
  product_of_sizes({4, o.hiddenSize, o.hiddenSize});
  const double least = o.normalize == PRNN_NORMALIZE_NONE ? 0 : std::numeric_limits<float>::min();
  if (!std::isfinite(o.epsilon) || o.epsilon < least)
    fail(PRNN_STATUS_BAD_PARAM, "epsilon is %g; it must be at least %g and finite", o.epsilon, least);
  if (!(o.zoneout >= 0 && o.zoneout <= 1)) fail(PRNN_STATUS_BAD_PARAM, "zoneout is %g; it must be 0 to 1", o.zoneout);
  require_in_range(o.allowTf32, 0, 1, "allowTf32");
}

// The backend for a call with these options.
const LayerNormLstmBackend& checked_backend(prnnHandle_t handle, const LayerNormLstmOptions* options) {
  const LayerNormLstmBackend& backend = backend_of(handle);
  check_options(options);
  backend.require_supported(handle, *options);
  return backend;
}

prnnLayerNormLSTMInfo_t plan_for_gpu(const char* gpu, const LayerNormLstmOptions& options) {
  const GpuRow* const row = find_gpu_row(gpu);
  if (row == nullptr)
    fail(PRNN_STATUS_BAD_PARAM, "gpu is \"%.64s\"; the GPU table has %s", gpu, gpu_row_names().c_str());
  return layer_norm_lstm_info(plan_layer_norm_lstm(*row, options));
}

// Refuses a gain, a bias or its gradient for a layer that normalises nothing, which has none.
void require_no_parameter(const LayerNormLstmOptions& options, const void* array, const char* name) {
  if (options.normalize == PRNN_NORMALIZE_NONE && array != nullptr)
    fail(PRNN_STATUS_BAD_PARAM, "%s is given, but normalize is PRNN_NORMALIZE_NONE, which has none", name);
}

void require_parameter(const LayerNormLstmOptions& options, const void* array, const char* name) {
  if (options.normalize != PRNN_NORMALIZE_NONE) return require_not_null(array, name);
  require_no_parameter(options, array, name);
}

void check_inputs(prnnHandle_t handle, const LayerNormLstmOptions& options, const LayerNormLstmInputs* inputs) {
  require_not_null(inputs, "inputs");
  require_not_null(inputs->x, "inputs->x");
  require_not_null(inputs->recurrent, "inputs->recurrent");
  require_parameter(options, inputs->gateGain, "inputs->gateGain");
  require_parameter(options, inputs->gateBias, "inputs->gateBias");
  require_parameter(options, inputs->cellGain, "inputs->cellGain");
  require_parameter(options, inputs->cellBias, "inputs->cellBias");
  require_aligned(type_size(options.dataType), {{inputs->x, "inputs->x"},
                                                {inputs->h0, "inputs->h0"},
                                                {inputs->c0, "inputs->c0"},
                                                {inputs->recurrent, "inputs->recurrent"},
                                                {inputs->gateGain, "inputs->gateGain"},
                                                {inputs->gateBias, "inputs->gateBias"},
                                                {inputs->cellGain, "inputs->cellGain"},
                                                {inputs->cellBias, "inputs->cellBias"},
                                                {inputs->zoneoutMask, "inputs->zoneoutMask"},
                                                {inputs->recurrentMask, "inputs->recurrentMask"}});
  require_aligned(sizeof(int), {{inputs->lengths, "inputs->lengths"}});
  if (handle->is_cpu() && inputs->lengths != nullptr)
    require_lengths(inputs->lengths, options.batch, 0, options.steps, "inputs->lengths");
}

void check_input_products(const LayerNormLstmOptions& options, int64_t input_size, const void* input,
                          const void* weight) {
  require_in_range(input_size, 1, std::numeric_limits<int>::max(), "inputSize");
  product_of_sizes({options.steps, options.batch, input_size});
  product_of_sizes({4, options.hiddenSize, input_size});
  require_not_null(input, "input");
  require_not_null(weight, "weight");
  require_aligned(type_size(options.dataType), {{input, "input"}, {weight, "weight"}});
}

}  // namespace
}  // namespace prnn

using namespace prnn;

extern "C" prnnStatus_t prnnInitLayerNormLSTMOptions(prnnLayerNormLSTMOptions_t* options) {
  return guarded(nullptr, [&] {
    require_not_null(options, "options");
    *options = prnnLayerNormLSTMOptions_t{};
    options->epsilon = 1e-5;
  });
}

extern "C" prnnStatus_t prnnGetLayerNormLSTMWorkspaceSize(prnnHandle_t handle,
                                                          const prnnLayerNormLSTMOptions_t* options,
                                                          size_t* sizeInBytes) {
  return guarded(handle, [&] {
    const LayerNormLstmBackend& backend = checked_backend(handle, options);
    write_size(backend.workspace_size(handle, *options), sizeInBytes);
  });
}

extern "C" prnnStatus_t prnnGetLayerNormLSTMReserveSize(prnnHandle_t handle, const prnnLayerNormLSTMOptions_t* options,
                                                        size_t* sizeInBytes) {
  return guarded(handle, [&] {
    const LayerNormLstmBackend& backend = checked_backend(handle, options);
    write_size(backend.reserve_size(handle, *options), sizeInBytes);
  });
}

extern "C" prnnStatus_t prnnLayerNormLSTMForward(prnnHandle_t handle, const prnnLayerNormLSTMOptions_t* options,
                                                 const prnnLayerNormLSTMInputs_t* inputs, void* y, void* cy,
                                                 void* workspace, size_t workspaceSizeInBytes, void* reserveSpace,
                                                 size_t reserveSizeInBytes) {
  return guarded(handle, [&] {
    const LayerNormLstmBackend& backend = checked_backend(handle, options);
    check_inputs(handle, *options, inputs);
    require_not_null(y, "y");
    require_aligned(type_size(options->dataType), {{y, "y"}, {cy, "cy"}});
    require_space(workspace, workspaceSizeInBytes, backend.workspace_size(handle, *options), "workspace");
    if (reserveSpace != nullptr)
      require_space(reserveSpace, reserveSizeInBytes, backend.reserve_size(handle, *options), "reserveSpace");
    backend.forward(handle, *options, *inputs, {y, cy, workspace, reserveSpace});
  });
}

extern "C" prnnStatus_t prnnLayerNormLSTMBackward(prnnHandle_t handle, const prnnLayerNormLSTMOptions_t* options,
                                                  const prnnLayerNormLSTMInputs_t* inputs, const void* y,
                                                  const void* dy, const void* dcy,
                                                  const prnnLayerNormLSTMGradients_t* gradients, void* workspace,
                                                  size_t workspaceSizeInBytes, const void* reserveSpace,
                                                  size_t reserveSizeInBytes) {
  return guarded(handle, [&] {
    const LayerNormLstmBackend& backend = checked_backend(handle, options);
    check_inputs(handle, *options, inputs);
    require_not_null(y, "y");
    require_not_null(dy, "dy");
    require_not_null(gradients, "gradients");
    require_not_null(gradients->dx, "gradients->dx");
    require_no_parameter(*options, gradients->dGateGain, "gradients->dGateGain");
    require_no_parameter(*options, gradients->dGateBias, "gradients->dGateBias");
    require_no_parameter(*options, gradients->dCellGain, "gradients->dCellGain");
    require_no_parameter(*options, gradients->dCellBias, "gradients->dCellBias");
    require_aligned(type_size(options->dataType), {{y, "y"},
                                                   {dy, "dy"},
                                                   {dcy, "dcy"},
                                                   {gradients->dx, "gradients->dx"},
                                                   {gradients->dh0, "gradients->dh0"},
                                                   {gradients->dc0, "gradients->dc0"},
                                                   {gradients->dRecurrent, "gradients->dRecurrent"},
                                                   {gradients->dGateGain, "gradients->dGateGain"},
                                                   {gradients->dGateBias, "gradients->dGateBias"},
                                                   {gradients->dCellGain, "gradients->dCellGain"},
                                                   {gradients->dCellBias, "gradients->dCellBias"}});
    require_space(workspace, workspaceSizeInBytes, backend.workspace_size(handle, *options), "workspace");
    require_space(reserveSpace, reserveSizeInBytes, backend.reserve_size(handle, *options), "reserveSpace");
    backend.backward(handle, *options, *inputs, {y, dy, dcy, *gradients, workspace, reserveSpace});
  });
}

extern "C" prnnStatus_t prnnLayerNormLSTMInputForward(prnnHandle_t handle, const prnnLayerNormLSTMOptions_t* options,
                                                      int64_t inputSize, const void* input, const void* weight,
                                                      void* x) {
  return guarded(handle, [&] {
    const LayerNormLstmBackend& backend = checked_backend(handle, options);
    check_input_products(*options, inputSize, input, weight);
    require_not_null(x, "x");
    require_aligned(type_size(options->dataType), {{x, "x"}});
    const int64_t rows = options->steps * options->batch;
    backend.multiply(handle, *options, {rows, 4 * options->hiddenSize, inputSize, input, false, weight, true, x});
  });
}

extern "C" prnnStatus_t prnnLayerNormLSTMInputBackward(prnnHandle_t handle, const prnnLayerNormLSTMOptions_t* options,
                                                       int64_t inputSize, const void* input, const void* weight,
                                                       const void* dx, void* dInput, void* dWeight) {
  return guarded(handle, [&] {
    const LayerNormLstmBackend& backend = checked_backend(handle, options);
    check_input_products(*options, inputSize, input, weight);
    require_not_null(dx, "dx");
    require_aligned(type_size(options->dataType), {{dx, "dx"}, {dInput, "dInput"}, {dWeight, "dWeight"}});
    const int64_t rows = options->steps * options->batch, gates = 4 * options->hiddenSize;
    if (dInput != nullptr)
      backend.multiply(handle, *options, {rows, inputSize, gates, dx, false, weight, false, dInput});
    if (dWeight != nullptr)
      backend.multiply(handle, *options, {gates, inputSize, rows, dx, true, input, false, dWeight});
  });
}

extern "C" prnnStatus_t prnnQueryLayerNormLSTM(prnnHandle_t handle, const char* gpu,
                                               const prnnLayerNormLSTMOptions_t* options,
                                               prnnLayerNormLSTMInfo_t* info) {
  return guarded(gpu == nullptr ? handle : nullptr, [&] {
    prnnLayerNormLSTMInfo_t plan{};
    if (gpu == nullptr) {
      plan = checked_backend(handle, options).plan(handle, *options);
    } else {
      check_options(options);
      plan = plan_for_gpu(gpu, *options);
    }
    require_not_null(info, "info");
    *info = plan;
  });
}
