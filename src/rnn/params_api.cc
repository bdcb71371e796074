// The C functions that tell sizes and find one matrix or bias in the packed weights.
#include <algorithm>
#include <climits>
#include <utility>

#include "core/enums.h"
#include "core/handle.h"
#include "rnn/call.h"
#include "rnn/validate.h"

using namespace prnn;

namespace prnn {
namespace {

// Throws BAD_PARAM unless the layer has such a matrix; returns the layer and the recurrence.
std::pair<int64_t, int64_t> require_lin_layer(const RnnProblem& problem, int layer, int linLayerID) {
  const int64_t pseudo_layers = problem.layers * problem.recurrences();
  if (layer < 0 || layer >= pseudo_layers) {
    fail(PRNN_STATUS_BAD_PARAM, "layer is %d; it must lie between 0 and numLayers * directions%s - 1 = %lld", layer,
         problem.heads > 1 ? " * heads" : "", static_cast<long long>(pseudo_layers - 1));
  }
  const int gates = static_cast<int>(problem.gates());
  const bool is_projection = linLayerID == kProjectionId && problem.projection > 0;
  if (!is_projection && (linLayerID < 0 || linLayerID >= 2 * gates)) {
    fail(PRNN_STATUS_BAD_PARAM, "linLayerID is %d; with %s it must lie between 0 and %d%s", linLayerID,
         name_of(problem.mode), 2 * gates - 1, problem.projection > 0 ? ", or be 8 for the projection" : "");
  }
  return {layer / problem.recurrences(), layer % problem.recurrences()};
}

// The body of prnnGetRNNLinLayer{Matrix,Bias}Params. `dimension` is where the descriptor has the number of elements.
prnnStatus_t get_lin_layer(prnnHandle_t handle, prnnRNNDescriptor_t rnnDesc, int layer, prnnTensorDescriptor_t xDesc,
                           prnnFilterDescriptor_t wDesc, const void* w, int linLayerID, decltype(rnn_matrix) find,
                           int dimension, prnnFilterDescriptor_t descriptor, const char* descriptor_name,
                           void** pointer, const char* pointer_name) {
  return with_layer(handle, rnnDesc, [&](const prnnRNNStruct& rnn) {
    const RnnProblem problem = problem_of_steps(rnn, xDesc, 1);
    require_filter(wDesc, "wDesc", rnn.layer.type, rnn_params_count(problem));
    const auto [of_layer, recurrence] = require_lin_layer(problem, layer, linLayerID);
    require_alive(descriptor, descriptor_name);
    require_not_null(pointer, pointer_name);
    const WeightBlock block = find(problem, of_layer, recurrence, linLayerID);
    if (block.elements > INT_MAX) {
      fail(PRNN_STATUS_NOT_SUPPORTED, "the matrix has %lld elements; a descriptor holds at most %d",
           static_cast<long long>(block.elements), INT_MAX);
    }
    descriptor->type = rnn.layer.type;
    descriptor->format = PRNN_TENSOR_NCHW;
    descriptor->set = true;
    descriptor->rank = block.offset < 0 ? 0 : 3;
    descriptor->dims = {1, 1, 1};
    descriptor->dims[dimension] = static_cast<int>(block.elements);
    // Through an integer, for w may be NULL.
    const uintptr_t address =
        reinterpret_cast<uintptr_t>(w) + static_cast<uintptr_t>(block.offset) * type_size(rnn.layer.type);
    *pointer = block.offset < 0 ? nullptr : reinterpret_cast<void*>(address);
  });
}

}  // namespace
}  // namespace prnn

extern "C" prnnStatus_t prnnGetRNNWorkspaceSize(prnnHandle_t handle, const prnnRNNDescriptor_t rnnDesc,
                                                const int seqLength, const prnnTensorDescriptor_t* xDesc,
                                                size_t* sizeInBytes) {
  return with_layer(handle, rnnDesc, [&](const prnnRNNStruct& rnn) {
    RnnProblem problem = problem_from_sequence(rnn, seqLength, xDesc);
    require_not_null(sizeInBytes, "sizeInBytes");
    problem.gives_dx = false;
    *sizeInBytes =
        std::max(plan_call(handle, rnn, problem).workspace, plan_call(handle, rnn, inference_of(problem)).workspace);
  });
}

extern "C" prnnStatus_t prnnGetRNNTrainingReserveSize(prnnHandle_t handle, const prnnRNNDescriptor_t rnnDesc,
                                                      const int seqLength, const prnnTensorDescriptor_t* xDesc,
                                                      size_t* sizeInBytes) {
  return with_layer(handle, rnnDesc, [&](const prnnRNNStruct& rnn) {
    const RnnProblem problem = problem_from_sequence(rnn, seqLength, xDesc);
    require_not_null(sizeInBytes, "sizeInBytes");
    *sizeInBytes = plan_call(handle, rnn, problem).retained_reserve;
  });
}

extern "C" prnnStatus_t prnnGetRNNTempSpaceSizes(prnnHandle_t handle, const prnnRNNDescriptor_t rnnDesc,
                                                 prnnForwardMode_t fwdMode, const int seqLength,
                                                 const prnnTensorDescriptor_t* xDesc, size_t* workSpaceSize,
                                                 size_t* reserveSpaceSize) {
  return with_layer(handle, rnnDesc, [&](const prnnRNNStruct& rnn) {
    require_enumerator(fwdMode, {PRNN_FWD_MODE_INFERENCE, PRNN_FWD_MODE_TRAINING}, "fwdMode");
    RnnProblem problem = problem_from_sequence(rnn, seqLength, xDesc);
    if (fwdMode == PRNN_FWD_MODE_INFERENCE) problem = inference_of(std::move(problem));
    require_not_null(workSpaceSize, "workSpaceSize");
    require_not_null(reserveSpaceSize, "reserveSpaceSize");
    const CallPlan plan = plan_call(handle, rnn, problem);
    *workSpaceSize = plan.workspace;
    *reserveSpaceSize = plan.reserve;
  });
}

extern "C" prnnStatus_t prnnGetRNNParamsSize(prnnHandle_t handle, const prnnRNNDescriptor_t rnnDesc,
                                             const prnnTensorDescriptor_t xDesc, size_t* sizeInBytes,
                                             prnnDataType_t dataType) {
  return with_layer(handle, rnnDesc, [&](const prnnRNNStruct& rnn) {
    const RnnProblem problem = problem_of_steps(rnn, xDesc, 1);
    require_not_null(sizeInBytes, "sizeInBytes");
    require_known_type(dataType, "dataType");
    if (dataType != rnn.layer.type) {
      fail(PRNN_STATUS_BAD_PARAM, "dataType is %s; that of rnnDesc is %s", name_of(dataType), name_of(rnn.layer.type));
    }
    *sizeInBytes = static_cast<size_t>(rnn_params_count(problem)) * type_size(rnn.layer.type);
  });
}

extern "C" prnnStatus_t prnnGetRNNLinLayerMatrixParams(prnnHandle_t handle, const prnnRNNDescriptor_t rnnDesc,
                                                       const int layer, const prnnTensorDescriptor_t xDesc,
                                                       const prnnFilterDescriptor_t wDesc, const void* w,
                                                       const int linLayerID, prnnFilterDescriptor_t linLayerMatDesc,
                                                       void** linLayerMat) {
  return get_lin_layer(handle, rnnDesc, layer, xDesc, wDesc, w, linLayerID, rnn_matrix, 0, linLayerMatDesc,
                       "linLayerMatDesc", linLayerMat, "linLayerMat");
}

extern "C" prnnStatus_t prnnGetRNNLinLayerBiasParams(prnnHandle_t handle, const prnnRNNDescriptor_t rnnDesc,
                                                     const int layer, const prnnTensorDescriptor_t xDesc,
                                                     const prnnFilterDescriptor_t wDesc, const void* w,
                                                     const int linLayerID, prnnFilterDescriptor_t linLayerBiasDesc,
                                                     void** linLayerBias) {
  return get_lin_layer(handle, rnnDesc, layer, xDesc, wDesc, w, linLayerID, rnn_bias, 1, linLayerBiasDesc,
                       "linLayerBiasDesc", linLayerBias, "linLayerBias");
}
