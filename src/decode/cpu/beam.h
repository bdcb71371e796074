// Beam search on the CPU: each thread has a few utterances at a time in hand, as many as make kLanes hypotheses, and
// takes the next one of the batch when one of its own has ended. T: float or double.
#pragma once

#include "decode/decode.h"

namespace prnn {

template <class T>
WorkspaceSize transducer_beam_workspace_cpu(const TransducerModel& model, const prnnTransducerBeamOptions_t& options);
template <class T>
void transducer_beam_search_cpu(const TransducerModel& model, const TransducerBeamArgs& args);

}  // namespace prnn
