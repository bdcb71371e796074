// The calls that CTC and RNN-T have in common, after their arguments were checked: space is found and the backend runs.
// Params holds options and workspace; Backend answers loss_workspace_size(), loss_reserve_size(),
// loss() and loss_backward().
#pragma once

#include "core/loss_checks.h"

namespace prnn {

// The part of the workspace that follows `used` bytes.
template <class Params>
void set_workspace(Params& params, void* workspace, size_t size, size_t used, size_t needed) {
  require_space(workspace, size, used + needed, "workspace");
  params.workspace = static_cast<char*>(workspace) + used;
}

// Costs, and gradients unless NULL. The reserve space lies at the front of the workspace.
template <class Backend, class Params>
void run_loss(prnnHandle_t handle, const Backend& backend, Params params, void* costs, void* gradients, void* workspace,
              size_t workspace_size) {
  require_costs(costs, params.options.dataType, params.options.reduction);
  require_aligned(type_size(params.options.dataType), {{gradients, "gradients"}});
  const size_t reserve = gradients ? whole_blocks(backend.loss_reserve_size(params.options)) : 0;
  set_workspace(params, workspace, workspace_size, reserve, backend.loss_workspace_size(params.options));
  backend.loss(handle, params, costs, gradients, gradients ? workspace : nullptr);
}

template <class Backend, class Params>
void run_loss_forward(prnnHandle_t handle, const Backend& backend, Params params, void* costs, void* workspace,
                      size_t workspace_size, void* reserve, size_t reserve_size) {
  require_costs(costs, params.options.dataType, params.options.reduction);
  set_workspace(params, workspace, workspace_size, 0, backend.loss_workspace_size(params.options));
  if (reserve) require_space(reserve, reserve_size, backend.loss_reserve_size(params.options), "reserveSpace");
  backend.loss(handle, params, costs, nullptr, reserve);
}

template <class Backend, class Params>
void run_loss_backward(prnnHandle_t handle, const Backend& backend, const Params& params, const void* cost_gradients,
                       void* gradients, const void* reserve, size_t reserve_size) {
  require_not_null(gradients, "gradients");
  require_aligned(type_size(params.options.dataType), {{gradients, "gradients"}});
  require_aligned(cost_size(params.options.dataType), {{cost_gradients, "costGradients"}});
  require_space(reserve, reserve_size, backend.loss_reserve_size(params.options), "reserveSpace");
  backend.loss_backward(handle, params, cost_gradients, gradients, reserve);
}

}  // namespace prnn
