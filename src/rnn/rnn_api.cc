// The C functions that compute: each checks every argument, then hands the call to a backend.
#include "core/handle.h"
#include "rnn/backend.h"
#include "rnn/reserve.h"
#include "rnn/validate.h"

using namespace prnn;

namespace prnn {
namespace {

// Descriptors of a forward call; the data is in RnnForwardArgs.
struct ForwardDescriptors {
  const prnnTensorDescriptor_t* x;
  prnnTensorDescriptor_t hx, cx;
  prnnFilterDescriptor_t w;
  const prnnTensorDescriptor_t* y;
  prnnTensorDescriptor_t hy, cy;
};

// Of prnnSetRNNExtras and prnnSetRNNMasks, what every call reads, and `own` of this call.
void require_aligned_extras(const RnnProblem& problem, std::initializer_list<NamedArray> own) {
  const prnnRNNExtras_t& extras = problem.extras;
  require_aligned(type_size(problem.type), {{extras.resetHx, "extras->resetHx"},
                                            {extras.resetCx, "extras->resetCx"},
                                            {problem.masks.recurrent, "masks->recurrent"}});
  require_aligned(type_size(problem.type), own);
}

// Checks everything but the reserve space, and drops the cell states where the mode has none.
RnnProblem check_forward(const prnnRNNStruct& rnn, int seqLength, const ForwardDescriptors& descriptors,
                         RnnForwardArgs& args) {
  RnnProblem problem = problem_from_sequence(rnn, seqLength, descriptors.x);
  if (problem.mode != PRNN_LSTM) args.cx = args.cy = nullptr;
  require_not_null(args.x, "x");
  require_aligned(type_size(problem.type), {{args.x, "x"}});
  require_state(problem, descriptors.hx, args.hx, problem.state(), "hxDesc");
  require_state(problem, descriptors.cx, args.cx, problem.hidden, "cxDesc");
  require_weights(problem, descriptors.w, args.w, "wDesc", "w");
  require_sequence(problem, descriptors.y, args.y, problem.recurrences() * problem.state(), "yDesc", "y");
  require_state(problem, descriptors.hy, args.hy, problem.state(), "hyDesc");
  require_state(problem, descriptors.cy, args.cy, problem.hidden, "cyDesc");
  require_aligned_extras(problem, {{problem.extras.cells, "extras->cells"}});
  const auto bits = reinterpret_cast<uintptr_t>(args.y) | reinterpret_cast<uintptr_t>(args.w);
  problem.aligned = bits % 16 == 0;
  return problem;
}

// Of prnnSetRNNFrozenLayers: no gradients of data.
void require_no_data_gradients(const RnnProblem& problem, std::initializer_list<NamedArray> gradients) {
  if (problem.frozen == 0) return;
  for (const NamedArray& gradient : gradients) {
    if (gradient.data == nullptr) continue;
    fail(PRNN_STATUS_BAD_PARAM,
         "%s is given, but the lowest %lld layers are frozen (prnnSetRNNFrozenLayers); it must be "
         "NULL",
         gradient.name, static_cast<long long>(problem.frozen));
  }
}

void require_workspace(prnnHandle_t handle, const RnnBackend& backend, const RnnProblem& problem, const void* workspace,
                       size_t size) {
  require_space(workspace, size, backend.workspace_size(handle, problem), "workspace", "workSpaceSizeInBytes");
  if (!handle->is_cpu()) require_aligned(16, {{workspace, "workspace"}});
}

// Sets the reserve space of the call's arguments.
template <class Args>
void take_reserve(prnnHandle_t handle, const RnnBackend& backend, const RnnProblem& problem, const void* reserve,
                  size_t size, Args* args) {
  const size_t header = reserve_header_size(*handle);
  require_space(reserve, size, header + backend.reserve_size(handle, problem, false), "reserveSpace",
                "reserveSpaceSizeInBytes");
  if (!handle->is_cpu()) require_aligned(16, {{reserve, "reserveSpace"}});
  args->reserve = static_cast<char*>(const_cast<void*>(reserve)) + header;  // the backend's part
  args->keeps_gates = size >= header + backend.reserve_size(handle, problem, true);
}

// The same of a backward call that comes after `stage`.
template <class Args>
void take_filled_reserve(prnnHandle_t handle, const RnnBackend& backend, const RnnProblem& problem, const void* reserve,
                         size_t size, TrainingStage stage, Args* args) {
  take_reserve(handle, backend, problem, reserve, size, args);
  if (!handle->is_cpu()) return;
  require_stage(*handle, reserve, problem, stage);
  args->keeps_gates = reserve_keeps_gates(handle, backend, problem, reserve, size);
  settle_reserve(handle, backend, problem, const_cast<void*>(reserve));
}

}  // namespace
}  // namespace prnn

extern "C" prnnStatus_t prnnRNNForwardInference(
    prnnHandle_t handle, const prnnRNNDescriptor_t rnnDesc, const int seqLength, const prnnTensorDescriptor_t* xDesc,
    const void* x, const prnnTensorDescriptor_t hxDesc, const void* hx, const prnnTensorDescriptor_t cxDesc,
    const void* cx, const prnnFilterDescriptor_t wDesc, const void* w, const prnnTensorDescriptor_t* yDesc, void* y,
    const prnnTensorDescriptor_t hyDesc, void* hy, const prnnTensorDescriptor_t cyDesc, void* cy, void* workspace,
    size_t workSpaceSizeInBytes) {
  return guarded(handle, [&] {
    require_handle(handle);
    const prnnRNNStruct& rnn = require_rnn(rnnDesc);
    RnnForwardArgs args{x, hx, cx, w, y, hy, cy, workspace, nullptr};
    RnnProblem problem = check_forward(rnn, seqLength, {xDesc, hxDesc, cxDesc, wDesc, yDesc, hyDesc, cyDesc}, args);
    if (problem.extras.cells != nullptr) {
      fail(PRNN_STATUS_NOT_SUPPORTED, "extras->cells is given; only prnnRNNForwardTraining fills it");
    }
    problem = inference_of(std::move(problem));
    const RnnBackend& backend = select_backend(*handle, rnn, problem);
    require_workspace(handle, backend, problem, workspace, workSpaceSizeInBytes);
    backend.forward(handle, problem, args);
  });
}

extern "C" prnnStatus_t prnnRNNForwardTraining(
    prnnHandle_t handle, const prnnRNNDescriptor_t rnnDesc, const int seqLength, const prnnTensorDescriptor_t* xDesc,
    const void* x, const prnnTensorDescriptor_t hxDesc, const void* hx, const prnnTensorDescriptor_t cxDesc,
    const void* cx, const prnnFilterDescriptor_t wDesc, const void* w, const prnnTensorDescriptor_t* yDesc, void* y,
    const prnnTensorDescriptor_t hyDesc, void* hy, const prnnTensorDescriptor_t cyDesc, void* cy, void* workspace,
    size_t workSpaceSizeInBytes, void* reserveSpace, size_t reserveSpaceSizeInBytes) {
  return guarded(handle, [&] {
    require_handle(handle);
    const prnnRNNStruct& rnn = require_rnn(rnnDesc);
    RnnForwardArgs args{x, hx, cx, w, y, hy, cy, workspace, nullptr};
    const RnnProblem problem =
        check_forward(rnn, seqLength, {xDesc, hxDesc, cxDesc, wDesc, yDesc, hyDesc, cyDesc}, args);
    require_dropout_states(problem, rnn, *handle);
    const RnnBackend& backend = select_backend(*handle, rnn, problem);
    require_workspace(handle, backend, problem, workspace, workSpaceSizeInBytes);
    take_reserve(handle, backend, problem, reserveSpace, reserveSpaceSizeInBytes, &args);
    backend.forward(handle, problem, args);
    stamp_reserve(*handle, reserveSpace, problem, TrainingStage::kForward, args.keeps_gates);
  });
}

extern "C" prnnStatus_t prnnRNNBackwardData(
    prnnHandle_t handle, const prnnRNNDescriptor_t rnnDesc, const int seqLength, const prnnTensorDescriptor_t* yDesc,
    const void* y, const prnnTensorDescriptor_t* dyDesc, const void* dy, const prnnTensorDescriptor_t dhyDesc,
    const void* dhy, const prnnTensorDescriptor_t dcyDesc, const void* dcy, const prnnFilterDescriptor_t wDesc,
    const void* w, const prnnTensorDescriptor_t hxDesc, const void* hx, const prnnTensorDescriptor_t cxDesc,
    const void* cx, const prnnTensorDescriptor_t* dxDesc, void* dx, const prnnTensorDescriptor_t dhxDesc, void* dhx,
    const prnnTensorDescriptor_t dcxDesc, void* dcx, void* workspace, size_t workSpaceSizeInBytes,
    const void* reserveSpace, size_t reserveSpaceSizeInBytes) {
  return guarded(handle, [&] {
    require_handle(handle);
    const prnnRNNStruct& rnn = require_rnn(rnnDesc);
    RnnProblem problem = problem_from_output(rnn, seqLength, yDesc, dx != nullptr, dxDesc, wDesc);
    problem.gives_dx = dx != nullptr;
    const bool has_cells = problem.mode == PRNN_LSTM;
    RnnBackwardDataArgs args{y,
                             dy,
                             dhy,
                             has_cells ? dcy : nullptr,
                             w,
                             hx,
                             has_cells ? cx : nullptr,
                             dx,
                             dhx,
                             has_cells ? dcx : nullptr,
                             workspace,
                             nullptr};
    const int64_t width = problem.recurrences() * problem.state();
    require_sequence(problem, yDesc, y, width, "yDesc", "y");
    require_sequence(problem, dyDesc, dy, width, "dyDesc", "dy");
    require_state(problem, dhyDesc, args.dhy, problem.state(), "dhyDesc");
    require_state(problem, dcyDesc, args.dcy, problem.hidden, "dcyDesc");
    require_weights(problem, wDesc, w, "wDesc", "w");
    require_state(problem, hxDesc, args.hx, problem.state(), "hxDesc");
    require_state(problem, cxDesc, args.cx, problem.hidden, "cxDesc");
    if (dx != nullptr) require_sequence(problem, dxDesc, dx, problem.input, "dxDesc", "dx");
    require_state(problem, dhxDesc, args.dhx, problem.state(), "dhxDesc");
    require_state(problem, dcxDesc, args.dcx, problem.hidden, "dcxDesc");
    require_aligned_extras(problem, {{problem.extras.dcells, "extras->dcells"},
                                     {problem.extras.dresetHx, "extras->dresetHx"},
                                     {problem.extras.dresetCx, "extras->dresetCx"}});
    require_no_data_gradients(problem, {{dx, "dx"},
                                        {args.dhx, "dhx"},
                                        {args.dcx, "dcx"},
                                        {problem.extras.dresetHx, "extras->dresetHx"},
                                        {problem.extras.dresetCx, "extras->dresetCx"}});
    const RnnBackend& backend = select_backend(*handle, rnn, problem);
    require_workspace(handle, backend, problem, workspace, workSpaceSizeInBytes);
    take_filled_reserve(handle, backend, problem, reserveSpace, reserveSpaceSizeInBytes, TrainingStage::kForward,
                        &args);
    backend.backward_data(handle, problem, args);
    stamp_reserve(*handle, const_cast<void*>(reserveSpace), problem, TrainingStage::kBackwardData, args.keeps_gates);
  });
}

extern "C" prnnStatus_t prnnRNNBackwardWeights(prnnHandle_t handle, const prnnRNNDescriptor_t rnnDesc,
                                               const int seqLength, const prnnTensorDescriptor_t* xDesc, const void* x,
                                               const prnnTensorDescriptor_t hxDesc, const void* hx,
                                               const prnnTensorDescriptor_t* yDesc, const void* y,
                                               const void* workspace, size_t workSpaceSizeInBytes,
                                               const prnnFilterDescriptor_t dwDesc, void* dw, const void* reserveSpace,
                                               size_t reserveSpaceSizeInBytes) {
  return guarded(handle, [&] {
    require_handle(handle);
    const prnnRNNStruct& rnn = require_rnn(rnnDesc);
    const RnnProblem problem = problem_from_sequence(rnn, seqLength, xDesc);
    require_not_null(x, "x");
    require_aligned(type_size(problem.type), {{x, "x"}});
    require_state(problem, hxDesc, hx, problem.state(), "hxDesc");
    require_sequence(problem, yDesc, y, problem.recurrences() * problem.state(), "yDesc", "y");
    require_weights(problem, dwDesc, dw, "dwDesc", "dw");
    require_aligned_extras(problem, {});
    if (rnn.wgrad_mode == PRNN_WGRAD_MODE_SET && !handle->is_cpu()) {
      fail(PRNN_STATUS_NOT_SUPPORTED,
           "PRNN_WGRAD_MODE_SET (prnnSetRNNWgradMode) is of CPU handles; on a GPU gradients "
           "are added to dw, which is cleared before");
    }
    const RnnBackend& backend = select_backend(*handle, rnn, problem);
    require_workspace(handle, backend, problem, workspace, workSpaceSizeInBytes);
    RnnBackwardWeightsArgs args{x, hx, y, dw, const_cast<void*>(workspace), nullptr};
    args.adds = rnn.wgrad_mode == PRNN_WGRAD_MODE_ADD;
    take_filled_reserve(handle, backend, problem, reserveSpace, reserveSpaceSizeInBytes, TrainingStage::kBackwardData,
                        &args);
    backend.backward_weights(handle, problem, args);
  });
}
