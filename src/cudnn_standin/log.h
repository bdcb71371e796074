// The table that `prnn run --log` prints when the process ends: the calls by configuration, who served them and why,
// and the time.
#pragma once

#include "cudnn_standin/configuration.h"

namespace prnn_cudnn {

enum class Call { kForwardInference, kForwardTraining, kBackwardData, kBackwardWeights };

// Counts a call and measures it from construction to destruction, if PRNN_CUDNN_LOG is 1, which is_wanted(): between
// its first and its last piece of work on the stream. Calls that are captured into a graph are counted once and not
// measured.
class LoggedCall {
 public:
  static bool is_wanted();
  // `reason`: why cuDNN serves the call; empty: prnn does.
  LoggedCall(const Configuration& configuration, const std::string& reason, Call call, void* stream);
  LoggedCall(const LoggedCall&) = delete;
  LoggedCall& operator=(const LoggedCall&) = delete;
  ~LoggedCall();

 private:
  struct Entry;
  Entry* entry_ = nullptr;
};

}  // namespace prnn_cudnn
