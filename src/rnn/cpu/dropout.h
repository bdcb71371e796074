// Masks of the dropout between layers. The random numbers are Philox4x32-10 (Salmon, Moraes, Dror, Shaw: "Parallel
// random numbers: as easy as 1, 2, 3", 2011), a pure function of seed, call, layer and element: any thread can make any
// part of a mask.
#pragma once

#include <cstdint>

#include "core/cpu/threads.h"

namespace prnn {

struct PhiloxBlock {
  uint32_t word[4];
};
PhiloxBlock philox(PhiloxBlock counter, uint32_t key0, uint32_t key1);

struct DropoutMask {
  uint64_t seed = 0, call = 0;
  int64_t layer = 0;  // whose output it is, below 65536
  float probability = 0;
};

// The team's share: fills mask[0, count) with 1 (kept) and 0, and out with in * mask / (1 - probability).
template <class T>
void draw_dropout(const Team& team, const DropoutMask& mask, int64_t count, const T* in, uint8_t* bits, T* out);

// The team's share of out = in * bits / (1 - probability). out may be in.
template <class T>
void apply_dropout(const Team& team, float probability, int64_t count, const T* in, const uint8_t* bits, T* out);

}  // namespace prnn
