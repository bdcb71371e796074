// A prepared call of prnn_call.h as Python runs it: that of an LSTM on the input of its gates, normalised or not.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "handle.h"
#include "prnn_call.h"

namespace prnn_python {

// For inference or for a training step of `steps` timesteps of `batch` sequences.
class GatesCall {
 public:
  using Address = uintptr_t;  // of an array; 0 is NULL
  // x, hx, cx, w, the members of prnnRNNNorm_t, the masks of zoneout and of the recurrence, and lengths.
  using Arrays = std::array<Address, 11>;
  // dx, dhx, dcx, dw and the members of prnnRNNNormGradients_t.
  using Gradients = std::array<Address, 8>;

  // zoneout: the expectation that a run without its mask takes.
  GatesCall(const Handle& handle, prnnRNNDescriptor_t rnn, bool training, int input, int steps, int batch,
            bool normalizes, double zoneout);

  size_t workspace_size() const { return info_.workspaceSize; }
  size_t reserve_size() const { return info_.reserveSize; }

  void forward(const Arrays& arrays, Address y, Address cy, Address workspace, Address reserve,
               size_t reserve_size) const;
  void backward(const Arrays& arrays, Address y, Address dy, Address dcy, const Gradients& gradients, Address workspace,
                Address reserve, size_t reserve_size) const;

 private:
  struct Given;

  template <class Args>
  void set_spaces(Address workspace, Address reserve, size_t reserve_size, Args* args) const;

  const Handle& handle_;
  bool normalizes_;
  double zoneout_;
  std::unique_ptr<prnnRNNCallStruct, decltype(&prnnDestroyRNNCall)> call_{nullptr, prnnDestroyRNNCall};
  prnnRNNCallInfo_t info_{};
};

}  // namespace prnn_python
