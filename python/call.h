// A prepared call of prnn_call.h: that of an LSTM on the input of its gates, normalised or not.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "handle.h"
#include "prnn_call.h"

namespace prnn_python {

// The options of one call, contiguous arrays: {whether hx and cx hold, behind the states that sequences begin with,
// those that they start anew with; reset; the masks of zoneout and of the recurrence}; of an LSTM on the input of its
// gates also {lengths; if it is normalised, the members of prnnRNNNorm_t}.
using Options = std::vector<uintptr_t>;
enum OptionsPlace { kHxAtReset, kCxAtReset, kReset, kZoneout, kRecurrent, kLengths, kNorm };

// For inference or for a training step of `steps` timesteps of `batch` sequences.
class GatesCall {
 public:
  // zoneout: the expectation that a run without its mask takes.
  GatesCall(const Handle& handle, prnnRNNDescriptor_t rnn, bool training, int input, int steps, int batch,
            double zoneout);

  const prnnRNNCallInfo_t& info() const { return info_; }

  // Each takes arguments without what the options have.
  void forward(const Handle& handle, prnnRNNForwardArgs_t args, const Options& options) const;
  // args.dw: where the gradients of all weights go, one after the other; NULL: not wanted.
  void backward(const Handle& handle, prnnRNNBackwardArgs_t args, const Options& options, int hidden,
                size_t element_size) const;

 private:
  double zoneout_;
  std::unique_ptr<prnnRNNCallStruct, decltype(&prnnDestroyRNNCall)> call_{nullptr, prnnDestroyRNNCall};
  prnnRNNCallInfo_t info_{};
};

}  // namespace prnn_python
