// cuDNN v5's functions: each checks its descriptors, and a call (call.h) does the rest.
#include "core/handle.h"
#include "rnn/call.h"
#include "rnn/validate.h"

using namespace prnn;

namespace prnn {
namespace {

// Throws BAD_PARAM unless these describe x, y, dx or dy: one a timestep, {B_t, width, 1}.
void require_sequence(const RnnProblem& problem, const prnnTensorDescriptor_t* descriptors, int64_t width,
                      const char* descriptors_name) {
  require_not_null(descriptors, descriptors_name);
  for (int64_t t = 0; t < problem.steps(); ++t) {
    if (t > 0 && descriptors[t] == descriptors[t - 1] && problem.batch[t] == problem.batch[t - 1]) continue;
    require_tensor(descriptors[t], {descriptors_name, t}, problem.type, {problem.batch[t], width});
  }
}

// A descriptor of states, looked at only where there is data.
struct States {
  prnnTensorDescriptor_t descriptor;
  const void* data;
  const char* name;
};

// Throws BAD_PARAM unless these describe hx, hy, ..., and cx, cy, ... of a cell that has such states.
void require_states(const RnnProblem& problem, std::initializer_list<States> of_h,
                    std::initializer_list<States> of_cells) {
  const int64_t recurrences = problem.layers * problem.recurrences(), batch = problem.max_batch();
  for (const States& h : of_h) {
    if (h.data != nullptr) require_tensor(h.descriptor, h.name, problem.type, {recurrences, batch, problem.state()});
  }
  for (const States& c : of_cells) {
    if (c.data == nullptr || problem.cell_states() == 0) continue;
    require_tensor(c.descriptor, c.name, problem.type, {recurrences * problem.cell_states(), batch, problem.hidden});
  }
}

void require_weights(const RnnProblem& problem, prnnFilterDescriptor_t descriptor, const char* name) {
  require_filter(descriptor, name, problem.type, rnn_params_count(problem));
}

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
    require_states(problem, {{descriptors.hx, args.hx, "hxDesc"}}, {{descriptors.cx, args.cx, "cxDesc"}});
    require_weights(problem, descriptors.w, "wDesc");
    require_sequence(problem, descriptors.y, problem.recurrences() * problem.state(), "yDesc");
    require_states(problem, {{descriptors.hy, args.hy, "hyDesc"}}, {{descriptors.cy, args.cy, "cyDesc"}});
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
    require_states(problem, {{dhyDesc, dhy, "dhyDesc"}}, {{dcyDesc, dcy, "dcyDesc"}});
    require_weights(problem, wDesc, "wDesc");
    require_states(problem, {{hxDesc, hx, "hxDesc"}}, {{cxDesc, cx, "cxDesc"}});
    if (dx != nullptr) require_sequence(problem, dxDesc, problem.input, "dxDesc");
    require_states(problem, {{dhxDesc, dhx, "dhxDesc"}}, {{dcxDesc, dcx, "dcxDesc"}});
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
    require_states(problem, {{hxDesc, hx, "hxDesc"}}, {});
    require_sequence(problem, yDesc, problem.recurrences() * problem.state(), "yDesc");
    require_weights(problem, dwDesc, "dwDesc");
    run_backward_weights(handle, rnn, problem,
                         {x, hx, y, dw, const_cast<void*>(workspace), workSpaceSizeInBytes,
                          const_cast<void*>(reserveSpace), reserveSpaceSizeInBytes, nullptr, nullptr},
                         nullptr);
  });
}
