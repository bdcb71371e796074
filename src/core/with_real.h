// The type in which sums are made: double for PRNN_DATA_DOUBLE, float for all other types.
#pragma once

#include "persistent_rnn.h"

namespace prnn {

// Calls function(Real()).
template <class Function>
auto with_real(prnnDataType_t type, Function&& function) {
  return type == PRNN_DATA_DOUBLE ? function(double()) : function(float());
}

}  // namespace prnn
