// The resident kernels as a backend: one object for a plan, which serves all calls with that plan. Its members are in
// layer/.
#pragma once

#include "rnn/plan/plan.h"

namespace prnn {

class ResidentBackend : public RnnBackend {
 public:
  explicit ResidentBackend(RnnPlan plan) : plan_(std::move(plan)) {}

  // Calls are for plans that are runnable.
  const RnnPlan& plan() const { return plan_; }

  size_t workspace_size(prnnHandle_t, const RnnProblem&) const override;
  size_t reserve_size(prnnHandle_t, const RnnProblem&, bool keeps_gates) const override;
  void forward(prnnHandle_t, const RnnProblem&, const RnnForwardArgs&) const override;
  void backward_data(prnnHandle_t, const RnnProblem&, const RnnBackwardDataArgs&) const override;
  void backward_weights(prnnHandle_t, const RnnProblem&, const RnnBackwardWeightsArgs&) const override;
  void backward(prnnHandle_t, const RnnProblem&, const RnnBackwardArgs&) const override;

 private:
  void forward_gates(prnnHandle_t, const RnnProblem&, const RnnForwardArgs&) const;  // where it takes_gates()

  RnnPlan plan_;
};

// The problem's plan on the handle's row of the GPU table, which there must be. The handle keeps the plans of its last
// canonical problems.
std::shared_ptr<const ResidentBackend> resident_backend(prnnContext& context, const RnnProblem& problem);

}  // namespace prnn
