// The seam between the API of the transducer search and what computes it: the API layer validates a call; a backend
// (cpu/, cuda/) answers sizes and runs. Backends do not validate sizes or options.
#pragma once

#include <cstddef>

#include "core/handle.h"
#include "core/workspace_size.h"
#include "prnn_decode.h"

namespace prnn {

using TransducerModel = prnnTransducerModel_t;

// Pointers as prnn_decode.h describes them.
template <class Options, class State, class Outputs>
struct SearchArgs {
  Options options;
  const void* prepared;
  prnnTransducerInputs_t inputs;
  const State* state;  // NULL: whole utterances
  Outputs outputs;
  void* workspace;
  size_t workspace_size;
};
using TransducerSearchArgs = SearchArgs<prnnTransducerSearchOptions_t, prnnTransducerState_t, prnnTransducerOutputs_t>;
using TransducerBeamArgs =
    SearchArgs<prnnTransducerBeamOptions_t, prnnTransducerBeamState_t, prnnTransducerBeamOutputs_t>;

class DecodeBackend {
 public:
  virtual ~DecodeBackend() = default;
  virtual void require_supported(prnnHandle_t, const TransducerModel&) const = 0;  // or throws NOT_SUPPORTED
  virtual size_t prepared_size(prnnHandle_t, const TransducerModel&) const = 0;
  virtual void prepare(prnnHandle_t, const TransducerModel&, const prnnTransducerWeights_t&, void* prepared) const = 0;
  virtual WorkspaceSize workspace_size(prnnHandle_t, const TransducerModel&,
                                       const prnnTransducerSearchOptions_t&) const = 0;  // or throws NOT_SUPPORTED
  virtual void search(prnnHandle_t, const TransducerModel&, const TransducerSearchArgs&) const = 0;
  virtual WorkspaceSize beam_workspace_size(prnnHandle_t, const TransducerModel&,
                                            const prnnTransducerBeamOptions_t&) const = 0;  // or throws NOT_SUPPORTED
  virtual void beam_search(prnnHandle_t, const TransducerModel&, const TransducerBeamArgs&) const = 0;
};

const DecodeBackend& cpu_decode_backend();   // cpu/
const DecodeBackend& cuda_decode_backend();  // cuda/

inline bool is_recurrent(const TransducerModel& model) { return model.predictor != PRNN_PREDICTOR_STATELESS; }

// Gates of the predictor's layers.
inline int64_t gate_count(const TransducerModel& model) { return model.predictor == PRNN_PREDICTOR_LSTM ? 4 : 3; }

// Rows of the output layer: V + D.
inline int64_t output_rows(const TransducerModel& model) { return model.classes + model.durationCount; }

// L: symbols that an utterance can have.
template <class Options>
int64_t most_symbols(const Options& options) {
  return options.maxFrames * options.maxSymbols;
}

}  // namespace prnn
