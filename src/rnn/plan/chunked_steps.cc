#include "rnn/plan/chunked_steps.h"

#include <algorithm>
#include <limits>

#include "rnn/plan/wavefront_chunked.h"

namespace prnn {
namespace {

// Timesteps from which chunks are faster, for stacks of 3 to 9 and of 10 and more layers, with up to 4 and with up to 8
// sequences; 0: never. Without chunks two layers run together, or three of up to 704 units; with a projection, one.
struct LeastSteps {
  int16_t half_tile[8], tile[8];
};

// For up to 704, 832 and 1024 units. Measured on an H100 (docs/resident_kernels_measured.md).
struct Sizes {
  LeastSteps training[3], inference[3];
};

constexpr Sizes kLstm = {
    {{{0, 96, 128, 128, 96, 96, 0, 128}, {0, 96, 96, 128, 96, 96, 0, 128}},
     {{96, 96, 48, 64, 96, 96, 64, 64}, {96, 64, 48, 64, 64, 64, 64, 64}},
     {{96, 96, 64, 256, 96, 96, 96, 96}, {96, 96, 64, 256, 96, 96, 64, 64}}},
    {{{0, 96, 128, 128, 128, 128, 0, 128}, {0, 96, 96, 96, 96, 96, 0, 96}},
     {{64, 48, 48, 96, 64, 48, 64, 96}, {64, 48, 48, 64, 64, 48, 64, 64}},
     {{64, 96, 96, 128, 96, 96, 96, 96}, {96, 64, 96, 96, 64, 64, 96, 96}}},
};

constexpr Sizes kProjected = {
    {{{48, 48, 48, 48, 48, 48, 48, 48}, {48, 48, 48, 48, 48, 48, 48, 48}},
     {{64, 48, 48, 64, 48, 48, 48, 48}, {64, 48, 48, 64, 48, 48, 48, 48}},
     {{64, 64, 64, 64, 64, 64, 64, 64}, {96, 64, 64, 96, 64, 64, 64, 64}}},
    {{{48, 48, 48, 48, 48, 48, 48, 48}, {48, 48, 48, 48, 48, 48, 48, 48}},
     {{64, 64, 48, 64, 64, 64, 64, 64}, {96, 64, 48, 96, 64, 64, 64, 64}},
     {{96, 96, 96, 96, 96, 96, 96, 96}, {96, 96, 96, 96, 96, 96, 96, 96}}},
};

constexpr Sizes kGru = {
    {{{96, 64, 64, 64, 64, 64, 64, 64}, {192, 64, 64, 64, 64, 64, 64, 64}},
     {{64, 64, 64, 64, 64, 64, 64, 64}, {64, 64, 64, 64, 64, 64, 64, 64}},
     {{64, 64, 64, 64, 64, 64, 64, 64}, {64, 64, 64, 64, 64, 64, 64, 64}}},
    {{{0, 192, 128, 256, 128, 256, 0, 256}, {0, 0, 192, 256, 256, 256, 0, 256}},
     {{96, 96, 64, 96, 96, 96, 64, 96}, {0, 128, 64, 128, 96, 96, 64, 128}},
     {{96, 96, 96, 128, 96, 96, 96, 96}, {256, 96, 128, 256, 128, 128, 256, 256}}},
};

constexpr bool is_known(int16_t steps) {
  bool known = steps == 0;
  for (const int64_t least : kChunkedSteps) known |= steps == least;
  return known;
}

constexpr bool are_known(const Sizes& sizes) {
  bool known = true;
  for (int size = 0; size < 3; ++size) {
    for (int place = 0; place < 8; ++place) {
      known &= is_known(sizes.training[size].half_tile[place]) && is_known(sizes.training[size].tile[place]) &&
               is_known(sizes.inference[size].half_tile[place]) && is_known(sizes.inference[size].tile[place]);
    }
  }
  return known;
}
static_assert(are_known(kLstm) && are_known(kProjected) && are_known(kGru), "kChunkedSteps lacks a number");

}  // namespace

int64_t chunked_least_steps(const RnnProblem& problem, bool training) {
  const Sizes& sizes = problem.mode == PRNN_GRU ? kGru : problem.projection > 0 ? kProjected : kLstm;
  const int size = problem.hidden <= 704 ? 0 : problem.hidden <= 832 ? 1 : 2;
  const LeastSteps& of_size = (training ? sizes.training : sizes.inference)[size];
  const bool half_tile = problem.max_batch() <= kChunkedHalfTile;
  const auto place = std::clamp<int64_t>(problem.layers, kChunkedLeastLayers, 10) - kChunkedLeastLayers;
  const int16_t steps = (half_tile ? of_size.half_tile : of_size.tile)[place];
  return steps > 0 ? steps : std::numeric_limits<int64_t>::max();
}

}  // namespace prnn
