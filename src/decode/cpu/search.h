// The search on the CPU: each thread has kLanes utterances at a time in hand, and takes the next one of the batch when
// one of its own has ended. T: float or double.
#pragma once

#include "decode/cpu/predictor.h"

namespace prnn {

template <class T>
WorkspaceSize transducer_search_workspace_cpu(const TransducerModel& model,
                                              const prnnTransducerSearchOptions_t& options);
template <class T>
void transducer_search_cpu(const TransducerModel& model, const TransducerSearchArgs& args);

}  // namespace prnn
