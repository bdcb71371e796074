// cuDNN v5's functions: each checks its descriptors, and a call (call.h) does the rest.
#include "core/handle.h"
#include "rnn/call.h"
#include "rnn/validate.h"

using namespace prnn;

namespace prnn {
namespace {

struct ForwardDescriptors {
  const prnnTensorDescriptor_t* x;
  prnnTensorDescriptor_t hx, cx;
  prnnFilterDescriptor_t w;
  const prnnTensorDescriptor_t* y;
  prnnTensorDescriptor_t hy, cy;
};

// Runs either forward function, whose arguments are in two structs.
prnnStatus_t forward(prnnHandle_t handle, prnnRNNDescriptor_t rnnDesc, bool is_training, int seqLength,
                     const ForwardDescriptors& descriptors, const prnnRNNForwardArgs_t& args) {
  return with_layer(handle, rnnDesc, [&](const prnnRNNStruct& rnn) {
    RnnProblem problem = problem_from_sequence(rnn, seqLength, descriptors.x);
    require_h_state(problem, descriptors.hx, args.hx, "hxDesc");
    require_cell_states(problem, descriptors.cx, args.cx, "cxDesc");
    require_weights(problem, descriptors.w, "wDesc");
    require_sequence(problem, descriptors.y, problem.recurrences() * problem.state(), "yDesc");
    require_h_state(problem, descriptors.hy, args.hy, "hyDesc");
    require_cell_states(problem, descriptors.cy, args.cy, "cyDesc");
    if (!is_training) problem = inference_of(std::move(problem));
    run_forward(handle, rnn, problem, args, nullptr);
  });
}

}  // namespace
}  // namespace prnn

extern "C" prnnStatus_t prnnRNNForwardInference(
    prnnHandle_t handle, const prnnRNNDescriptor_t rnnDesc, const int seqLength, const prnnTensorDescriptor_t* xDesc,
    const void* x, const prnnTensorDescriptor_t hxDesc, const void* hx, const prnnTensorDescriptor_t cxDesc,
    const void* cx, const prnnFilterDescriptor_t wDesc, const void* w, const prnnTensorDescriptor_t* yDesc, void* y,
    const prnnTensorDescriptor_t hyDesc, void* hy, const prnnTensorDescriptor_t cyDesc, void* cy, void* workspace,
    size_t workSpaceSizeInBytes) {
  return forward(
      handle, rnnDesc, false, seqLength, {xDesc, hxDesc, cxDesc, wDesc, yDesc, hyDesc, cyDesc},
      {x, hx, cx, w, y, hy, cy, workspace, workSpaceSizeInBytes, nullptr, 0, nullptr, nullptr, nullptr, nullptr});
}

extern "C" prnnStatus_t prnnRNNForwardTraining(
    prnnHandle_t handle, const prnnRNNDescriptor_t rnnDesc, const int seqLength, const prnnTensorDescriptor_t* xDesc,
    const void* x, const prnnTensorDescriptor_t hxDesc, const void* hx, const prnnTensorDescriptor_t cxDesc,
    const void* cx, const prnnFilterDescriptor_t wDesc, const void* w, const prnnTensorDescriptor_t* yDesc, void* y,
    const prnnTensorDescriptor_t hyDesc, void* hy, const prnnTensorDescriptor_t cyDesc, void* cy, void* workspace,
    size_t workSpaceSizeInBytes, void* reserveSpace, size_t reserveSpaceSizeInBytes) {
  return forward(handle, rnnDesc, true, seqLength, {xDesc, hxDesc, cxDesc, wDesc, yDesc, hyDesc, cyDesc},
                 {x, hx, cx, w, y, hy, cy, workspace, workSpaceSizeInBytes, reserveSpace, reserveSpaceSizeInBytes,
                  nullptr, nullptr, nullptr, nullptr});
}

extern "C" prnnStatus_t prnnRNNBackwardData(
    prnnHandle_t handle, const prnnRNNDescriptor_t rnnDesc, const int seqLength, const prnnTensorDescriptor_t* yDesc,
    const void* y, const prnnTensorDescriptor_t* dyDesc, const void* dy, const prnnTensorDescriptor_t dhyDesc,
    const void* dhy, const prnnTensorDescriptor_t dcyDesc, const void* dcy, const prnnFilterDescriptor_t wDesc,
    const void* w, const prnnTensorDescriptor_t hxDesc, const void* hx, const prnnTensorDescriptor_t cxDesc,
    const void* cx, const prnnTensorDescriptor_t* dxDesc, void* dx, const prnnTensorDescriptor_t dhxDesc, void* dhx,
    const prnnTensorDescriptor_t dcxDesc, void* dcx, void* workspace, size_t workSpaceSizeInBytes,
    const void* reserveSpace, size_t reserveSpaceSizeInBytes) {
  return with_layer(handle, rnnDesc, [&](const prnnRNNStruct& rnn) {
    RnnProblem problem = problem_from_output(rnn, seqLength, yDesc, dx != nullptr, dxDesc, wDesc);
    const int64_t width = problem.recurrences() * problem.state();
    require_sequence(problem, yDesc, width, "yDesc");
    require_sequence(problem, dyDesc, width, "dyDesc");
    require_h_state(problem, dhyDesc, dhy, "dhyDesc");
    require_cell_states(problem, dcyDesc, dcy, "dcyDesc");
    require_weights(problem, wDesc, "wDesc");
    require_h_state(problem, hxDesc, hx, "hxDesc");
    require_cell_states(problem, cxDesc, cx, "cxDesc");
    if (dx != nullptr) require_sequence(problem, dxDesc, problem.input, "dxDesc");
    require_h_state(problem, dhxDesc, dhx, "dhxDesc");
    require_cell_states(problem, dcxDesc, dcx, "dcxDesc");
    run_backward_data(handle, rnn, problem,
                      {y, dy, dhy, dcy, w, hx, cx, dx, dhx, dcx, workspace, workSpaceSizeInBytes,
                       const_cast<void*>(reserveSpace), reserveSpaceSizeInBytes, nullptr, nullptr},
                      nullptr);
  });
}

extern "C" prnnStatus_t prnnRNNBackwardWeights(prnnHandle_t handle, const prnnRNNDescriptor_t rnnDesc,
                                               const int seqLength, const prnnTensorDescriptor_t* xDesc, const void* x,
                                               const prnnTensorDescriptor_t hxDesc, const void* hx,
                                               const prnnTensorDescriptor_t* yDesc, const void* y,
                                               const void* workspace, size_t workSpaceSizeInBytes,
                                               const prnnFilterDescriptor_t dwDesc, void* dw, const void* reserveSpace,
                                               size_t reserveSpaceSizeInBytes) {
  return with_layer(handle, rnnDesc, [&](const prnnRNNStruct& rnn) {
    RnnProblem problem = problem_from_sequence(rnn, seqLength, xDesc);
    require_h_state(problem, hxDesc, hx, "hxDesc");
    require_sequence(problem, yDesc, problem.recurrences() * problem.state(), "yDesc");
    require_weights(problem, dwDesc, "dwDesc");
    run_backward_weights(handle, rnn, problem,
                         {x, hx, y, dw, const_cast<void*>(workspace), workSpaceSizeInBytes,
                          const_cast<void*>(reserveSpace), reserveSpaceSizeInBytes, nullptr, nullptr},
                         nullptr);
  });
}
