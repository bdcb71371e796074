#include "rnn/rnn_descriptor.h"

#include <cfloat>
#include <cmath>

#include "core/enums.h"

using namespace prnn;

namespace prnn {

const prnnRNNStruct& require_rnn(prnnRNNDescriptor_t rnnDesc) {
  require_alive(rnnDesc, "rnnDesc");
  if (!rnnDesc->set) fail(PRNN_STATUS_BAD_PARAM, "rnnDesc has not been set; call prnnSetRNNDescriptor");
  return *rnnDesc;
}

void require_extras(prnnRNNMode_t mode, const prnnRNNExtras_t& extras, const char* name) {
  struct Field {
    const char* name;
    const void* value;
    bool is_of_cells, wants_reset;
  };
  for (const Field& field :
       {Field{"cells", extras.cells, true, false}, Field{"dcells", extras.dcells, true, false},
        Field{"resetHx", extras.resetHx, false, true}, Field{"resetCx", extras.resetCx, true, true},
        Field{"dresetHx", extras.dresetHx, false, true}, Field{"dresetCx", extras.dresetCx, true, true}}) {
    if (field.value == nullptr) continue;
    if (field.is_of_cells && mode != PRNN_LSTM && !(is_slstm(mode) && field.wants_reset)) {
      fail(PRNN_STATUS_BAD_PARAM, "%s->%s is given with %s; only PRNN_LSTM has %s", name, field.name, name_of(mode),
           is_slstm(mode) ? "c of every timestep" : "cells");
    }
    if (field.wants_reset && extras.reset == nullptr) {
      fail(PRNN_STATUS_BAD_PARAM, "%s->%s is given, but %s->reset is NULL: no sequence starts anew", name, field.name,
           name);
    }
  }
}

namespace {

// Runs body(prnnRNNStruct&), which sets a property of a layer, as a C function.
template <class Body>
prnnStatus_t set_layer(prnnRNNDescriptor_t rnnDesc, Body&& body) noexcept {
  return guarded(nullptr, [&] {
    require_rnn(rnnDesc);
    body(*rnnDesc);
  });
}

// Throws NOT_SUPPORTED where an LSTM on the input of its gates is given what it does not have.
void refuse_with_gates(const RnnProblem& layer, bool is_given, const char* what) {
  if (layer.takes_gates() && is_given) {
    fail(PRNN_STATUS_NOT_SUPPORTED, "%s given; an LSTM with PRNN_GATES_INPUT has none", what);
  }
}

void require_at_least_one(int value, const char* name) {
  if (value < 1) fail(PRNN_STATUS_BAD_PARAM, "%s is %d; it must be at least 1", name, value);
}

void require_plan(const prnnRNNPlan_t* plan, const char* name) {
  if (plan == nullptr) return;
  const std::string field_name = std::string(name) + "->engine";
  require_enumerator(plan->engine,
                     {PRNN_ENGINE_MMA, PRNN_ENGINE_WGMMA, PRNN_ENGINE_WGMMA_SPLIT_K, PRNN_ENGINE_WGMMA_MULTICAST},
                     field_name.c_str());
  const auto require_at_least = [&](int value, int least, const char* field) {
    if (value < least) fail(PRNN_STATUS_BAD_PARAM, "%s->%s is %d; it must be at least %d", name, field, value, least);
  };
  const auto require_zero = [&](int value, const char* field) {
    if (value == 0) return;
    fail(PRNN_STATUS_BAD_PARAM, "%s->%s is %d; it must be 0, since the engine is not PRNN_ENGINE_MMA", name, field,
         value);
  };
  if (plan->engine != PRNN_ENGINE_MMA) {
    require_zero(plan->unitsPerBlock, "unitsPerBlock");
    require_zero(plan->clusterBlocks, "clusterBlocks");
  } else if (plan->unitsPerBlock < 8 || plan->unitsPerBlock % 8 != 0) {
    fail(PRNN_STATUS_BAD_PARAM, "%s->unitsPerBlock is %d; it must be a positive multiple of 8", name,
         plan->unitsPerBlock);
  } else {
    require_at_least(plan->clusterBlocks, 1, "clusterBlocks");
  }
  require_at_least(plan->replicas, 1, "replicas");
  require_at_least(plan->pollDelayCycles, 0, "pollDelayCycles");
}

}  // namespace
}  // namespace prnn

extern "C" prnnStatus_t prnnCreateRNNDescriptor(prnnRNNDescriptor_t* rnnDesc) {
  return create_object(rnnDesc, "rnnDesc");
}

extern "C" prnnStatus_t prnnDestroyRNNDescriptor(prnnRNNDescriptor_t rnnDesc) {
  return destroy_object(rnnDesc, "rnnDesc");
}

extern "C" prnnStatus_t prnnSetRNNDescriptor(prnnRNNDescriptor_t rnnDesc, int hiddenSize, int numLayers,
                                             prnnDropoutDescriptor_t dropoutDesc, prnnRNNInputMode_t inputMode,
                                             prnnDirectionMode_t direction, prnnRNNMode_t mode,
                                             prnnDataType_t dataType) {
  return guarded(nullptr, [&] {
    require_alive(rnnDesc, "rnnDesc");
    require_at_least_one(hiddenSize, "hiddenSize");
    require_at_least_one(numLayers, "numLayers");
    if (dropoutDesc != nullptr) {
      require_alive(dropoutDesc, "dropoutDesc");
      if (!dropoutDesc->set) fail(PRNN_STATUS_BAD_PARAM, "dropoutDesc has not been set; call prnnSetDropoutDescriptor");
    }
    require_enumerator(inputMode, {PRNN_LINEAR_INPUT, PRNN_SKIP_INPUT, PRNN_GATES_INPUT}, "inputMode");
    require_enumerator(direction, {PRNN_UNIDIRECTIONAL, PRNN_BIDIRECTIONAL, PRNN_REVERSE}, "direction");
    require_enumerator(mode, {PRNN_RNN_RELU, PRNN_RNN_TANH, PRNN_LSTM, PRNN_GRU, PRNN_SLSTM, PRNN_SLSTM_EXP}, "mode");
    const bool is_lstm_of_gates = inputMode == PRNN_GATES_INPUT && mode == PRNN_LSTM;
    if (inputMode == PRNN_GATES_INPUT && !is_slstm(mode) && mode != PRNN_LSTM) {
      fail(PRNN_STATUS_NOT_SUPPORTED,
           "inputMode is PRNN_GATES_INPUT with %s; only an sLSTM and PRNN_LSTM take their gates' input", name_of(mode));
    }
    if (is_lstm_of_gates && numLayers > 1) {
      fail(PRNN_STATUS_NOT_SUPPORTED, "numLayers is %d; an LSTM with PRNN_GATES_INPUT has 1", numLayers);
    }
    if (is_lstm_of_gates ? direction == PRNN_BIDIRECTIONAL : direction == PRNN_REVERSE) {
      fail(PRNN_STATUS_NOT_SUPPORTED, "direction is %s; %s", name_of(direction),
           is_lstm_of_gates ? "an LSTM with PRNN_GATES_INPUT has one" : "only an LSTM with PRNN_GATES_INPUT has it");
    }
    require_known_type(dataType, "dataType");
    *rnnDesc = prnnRNNStruct();
    rnnDesc->set = true;
    rnnDesc->dropout = dropoutDesc;
    RnnProblem& layer = rnnDesc->layer;
    layer.mode = mode;
    layer.type = dataType;
    layer.hidden = hiddenSize;
    layer.layers = numLayers;
    layer.directions = direction == PRNN_BIDIRECTIONAL ? 2 : 1;
    layer.skip_input = inputMode == PRNN_SKIP_INPUT;
    layer.gates_input = inputMode == PRNN_GATES_INPUT;
    layer.reverse = direction == PRNN_REVERSE;
  });
}

extern "C" prnnStatus_t prnnSetRNNBackend(prnnRNNDescriptor_t rnnDesc, prnnRNNBackend_t backend) {
  return set_layer(rnnDesc, [&](prnnRNNStruct& rnn) {
    require_enumerator(backend, {PRNN_PERSISTENT_BACKEND, PRNN_CUDNN_BACKEND, PRNN_BEST_BACKEND}, "backend");
    rnn.backend = backend;
  });
}

extern "C" prnnStatus_t prnnSetRNNMatrixMathType(prnnRNNDescriptor_t rnnDesc, prnnMathType_t mType) {
  return set_layer(rnnDesc, [&](prnnRNNStruct& rnn) {
    require_enumerator(
        mType, {PRNN_DEFAULT_MATH, PRNN_TENSOR_OP_MATH, PRNN_TENSOR_OP_MATH_ALLOW_CONVERSION, PRNN_FMA_MATH}, "mType");
    rnn.layer.tf32 = mType == PRNN_TENSOR_OP_MATH_ALLOW_CONVERSION;
  });
}

extern "C" prnnStatus_t prnnSetRNNWgradMode(prnnRNNDescriptor_t rnnDesc, prnnWgradMode_t wgradMode) {
  return set_layer(rnnDesc, [&](prnnRNNStruct& rnn) {
    require_enumerator(wgradMode, {PRNN_WGRAD_MODE_ADD, PRNN_WGRAD_MODE_SET}, "wgradMode");
    rnn.wgrad_mode = wgradMode;
  });
}

extern "C" prnnStatus_t prnnSetRNNFrozenLayers(prnnRNNDescriptor_t rnnDesc, int frozenLayers) {
  return set_layer(rnnDesc, [&](prnnRNNStruct& rnn) {
    RnnProblem& layer = rnn.layer;
    if (frozenLayers < 0 || frozenLayers > layer.layers) {
      fail(PRNN_STATUS_BAD_PARAM, "frozenLayers is %d; it must be 0 to numLayers, %d", frozenLayers,
           static_cast<int>(layer.layers));
    }
    refuse_with_gates(layer, frozenLayers > 0, "frozen layers are");
    layer.frozen = frozenLayers;
  });
}

extern "C" prnnStatus_t prnnSetRNNPlan(prnnRNNDescriptor_t rnnDesc, const prnnRNNPlan_t* forward,
                                       const prnnRNNPlan_t* backward) {
  return set_layer(rnnDesc, [&](prnnRNNStruct& rnn) {
    require_plan(forward, "forward");
    require_plan(backward, "backward");
    refuse_with_gates(rnn.layer, forward != nullptr || backward != nullptr, "a plan is");
    rnn.layer.forward_plan = forward == nullptr ? prnnRNNPlan_t{} : *forward;
    rnn.layer.backward_plan = backward == nullptr ? prnnRNNPlan_t{} : *backward;
  });
}

extern "C" prnnStatus_t prnnSetRNNExtras(prnnRNNDescriptor_t rnnDesc, const prnnRNNExtras_t* extras) {
  return set_layer(rnnDesc, [&](prnnRNNStruct& rnn) {
    const prnnRNNExtras_t wanted = extras == nullptr ? prnnRNNExtras_t{} : *extras;
    require_extras(rnn.layer.mode, wanted, "extras");
    refuse_with_gates(rnn.layer, wanted.reset != nullptr || wanted.cells != nullptr || wanted.dcells != nullptr,
                      "extras are");
    rnn.layer.extras = wanted;
  });
}

extern "C" prnnStatus_t prnnSetRNNMasks(prnnRNNDescriptor_t rnnDesc, const prnnRNNMasks_t* masks) {
  return set_layer(rnnDesc, [&](prnnRNNStruct& rnn) {
    const prnnRNNMode_t mode = rnn.layer.mode;
    const prnnRNNMasks_t wanted = masks == nullptr ? prnnRNNMasks_t{} : *masks;
    const double expectation = wanted.zoneoutExpectation;
    if (!(expectation >= 0 && expectation <= 1)) {
      fail(PRNN_STATUS_BAD_PARAM, "masks->zoneoutExpectation is %g; it must be 0 to 1", expectation);
    }
    if (wanted.zoneout != nullptr && expectation > 0) {
      fail(PRNN_STATUS_BAD_PARAM,
           "masks->zoneout is given and masks->zoneoutExpectation is %g; one stands for the other", expectation);
    }
    const bool zones_out = wanted.zoneout != nullptr || expectation > 0;
    if (mode != PRNN_GRU && mode != PRNN_LSTM && zones_out) {
      fail(PRNN_STATUS_NOT_SUPPORTED, "masks->%s is given with %s; only PRNN_GRU and PRNN_LSTM have zoneout",
           expectation > 0 ? "zoneoutExpectation" : "zoneout", name_of(mode));
    }
    rnn.layer.masks = wanted;
  });
}

extern "C" prnnStatus_t prnnSetRNNNormalization(prnnRNNDescriptor_t rnnDesc, prnnNormalization_t kind, double epsilon) {
  return set_layer(rnnDesc, [&](prnnRNNStruct& rnn) {
    require_enumerator(kind, {PRNN_NORMALIZE_GATES, PRNN_NORMALIZE_PRODUCTS, PRNN_NORMALIZE_NONE}, "kind");
    const bool normalizes = kind != PRNN_NORMALIZE_NONE;
    if (normalizes && !rnn.layer.takes_gates()) {
      fail(PRNN_STATUS_NOT_SUPPORTED, "kind is %s; only an LSTM with PRNN_GATES_INPUT is normalised", name_of(kind));
    }
    if (normalizes && !(std::isfinite(epsilon) && epsilon >= FLT_MIN)) {
      fail(PRNN_STATUS_BAD_PARAM, "epsilon is %g; it must be at least %g and finite", epsilon,
           static_cast<double>(FLT_MIN));
    }
    rnn.layer.normalize = kind;
    rnn.layer.epsilon = normalizes ? epsilon : 0;
  });
}

extern "C" prnnStatus_t prnnSetRNNProjectionSize(prnnRNNDescriptor_t rnnDesc, int projSize) {
  return set_layer(rnnDesc, [&](prnnRNNStruct& rnn) {
    RnnProblem& layer = rnn.layer;
    const int hidden = static_cast<int>(layer.hidden_of_heads());
    if (projSize < 0 || projSize >= hidden) {
      fail(PRNN_STATUS_BAD_PARAM,
           "projSize is %d; it must be 0 (no projection) or lie between 1 and hiddenSize - 1 = %d", projSize,
           hidden - 1);
    }
    if (projSize > 0 && layer.mode != PRNN_LSTM) {
      fail(PRNN_STATUS_BAD_PARAM, "projSize is %d with %s; only PRNN_LSTM has a projection", projSize,
           name_of(layer.mode));
    }
    if (projSize > 0 && layer.heads > 1) {
      fail(PRNN_STATUS_NOT_SUPPORTED, "projSize is %d with %d heads; layers with heads have no projection", projSize,
           static_cast<int>(layer.heads));
    }
    refuse_with_gates(layer, projSize > 0, "a projection is");
    layer.projection = projSize;
  });
}

extern "C" prnnStatus_t prnnSetRNNHeads(prnnRNNDescriptor_t rnnDesc, int heads) {
  return set_layer(rnnDesc, [&](prnnRNNStruct& rnn) {
    RnnProblem& layer = rnn.layer;
    const int hidden = static_cast<int>(layer.hidden_of_heads());
    if (heads < 1 || hidden % heads != 0) {
      fail(PRNN_STATUS_BAD_PARAM, "heads is %d; it must be at least 1 and divide hiddenSize, %d", heads, hidden);
    }
    if (heads > 1 && layer.projection > 0) {
      fail(PRNN_STATUS_NOT_SUPPORTED, "heads is %d with projSize %d; layers with a projection have no heads", heads,
           static_cast<int>(layer.projection));
    }
    if (heads > 1 && layer.skip_input) {
      fail(PRNN_STATUS_NOT_SUPPORTED, "heads is %d with PRNN_SKIP_INPUT; layers with heads have input matrices", heads);
    }
    refuse_with_gates(layer, heads > 1, "heads are");
    layer.heads = heads;
    layer.hidden = hidden / heads;
  });
}
