// The needs of a call beyond a plain layer, a bit each. rnn/plan/engines.h says which kernels,
// which schedules of a stack and which backends serve what.
#pragma once

#include <cstdint>

namespace prnn {

struct Needs {
  enum : uint32_t {
    kLengths = 1 << 0,      // sequences of different lengths
    kReset = 1 << 1,        // prnnRNNExtras_t::reset
    kResetStates = 1 << 2,  // resetHx, resetCx or their gradients
    kCells = 1 << 3,        // c of every timestep, for the caller
    kDcells = 1 << 4,       // the gradient of c of every timestep
    kMasks = 1 << 5,        // masks within a timestep: recurrent dropout, zoneout of an LSTM, zoneout's expectation
    kZoneout = 1 << 6,      // zoneout of a GRU, which its input products carry
    kDropout = 1 << 7,      // between layers
    kProjection = 1 << 8,
    kHeads = 1 << 9,  // block-diagonal recurrent weights
    kTwoDirections = 1 << 10,
    kFrozenLayers = 1 << 11,  // lowest layers without gradients
    kUnaligned = 1 << 12,     // y or w, which kernels read, is not aligned to 16 bytes
    kSkipInput = 1 << 13,     // a first layer without input matrices
    kChosenSplit = 1 << 14,   // prnnSetRNNPlan
    kSlstm = 1 << 15,         // a cell that only some engines and schedules know
    kAll = (1 << 16) - 1,     // but for the next
    kLstmOfGates = 1 << 16    // RnnProblem::takes_gates(), which has engines of its own
  };
};

}  // namespace prnn
