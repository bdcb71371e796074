#include "rnn/plan/chunked_steps.h"

#include <algorithm>
#include <limits>

#include "rnn/plan/wavefront_chunked.h"

namespace prnn {
namespace {

// Timesteps from which chunks are faster, for stacks of 3 to 9 and of 10 and more layers, with up to 4 and with up to 8
// sequences; 0: never. Without chunks two layers run together, or three of up to 704 units; with a projection, one. By
// cell, training and inference, and up to 704, 832 and 1024 units, a line each. Measured on an H100
// (docs/resident_kernels_measured.md).
constexpr int16_t kLeastSteps[3 * 2 * 3][2][8] = {
    // LSTM
    {{0, 96, 128, 128, 96, 96, 0, 128}, {0, 96, 96, 128, 96, 96, 0, 128}},
    {{96, 96, 48, 64, 96, 96, 64, 64}, {96, 64, 48, 64, 64, 64, 64, 64}},
    {{96, 96, 64, 256, 96, 96, 96, 96}, {96, 96, 64, 256, 96, 96, 64, 64}},
    {{0, 96, 128, 128, 128, 128, 0, 128}, {0, 96, 96, 96, 96, 96, 0, 96}},
    {{64, 48, 48, 96, 64, 48, 64, 96}, {64, 48, 48, 64, 64, 48, 64, 64}},
    {{64, 96, 96, 128, 96, 96, 96, 96}, {96, 64, 96, 96, 64, 64, 96, 96}},
    // LSTM with a projection
    {{48, 48, 48, 48, 48, 48, 48, 48}, {48, 48, 48, 48, 48, 48, 48, 48}},
    {{64, 48, 48, 64, 48, 48, 48, 48}, {64, 48, 48, 64, 48, 48, 48, 48}},
    {{64, 64, 64, 64, 64, 64, 64, 64}, {96, 64, 64, 96, 64, 64, 64, 64}},
    {{48, 48, 48, 48, 48, 48, 48, 48}, {48, 48, 48, 48, 48, 48, 48, 48}},
    {{64, 64, 48, 64, 64, 64, 64, 64}, {96, 64, 48, 96, 64, 64, 64, 64}},
    {{96, 96, 96, 96, 96, 96, 96, 96}, {96, 96, 96, 96, 96, 96, 96, 96}},
    // GRU
    {{96, 64, 64, 64, 64, 64, 64, 64}, {192, 64, 64, 64, 64, 64, 64, 64}},
    {{64, 64, 64, 64, 64, 64, 64, 64}, {64, 64, 64, 64, 64, 64, 64, 64}},
    {{64, 64, 64, 64, 64, 64, 64, 64}, {64, 64, 64, 64, 64, 64, 64, 64}},
    {{0, 192, 128, 256, 128, 256, 0, 256}, {0, 0, 192, 256, 256, 256, 0, 256}},
    {{96, 96, 64, 96, 96, 96, 64, 96}, {0, 128, 64, 128, 96, 96, 64, 128}},
    {{96, 96, 96, 128, 96, 96, 96, 96}, {256, 96, 128, 256, 128, 128, 256, 256}},
};

constexpr bool are_known() {
  for (const auto& sizes : kLeastSteps) {
    for (const auto& layers : sizes) {
      for (const int16_t steps : layers) {
        bool known = steps == 0;
        for (const int64_t least : kChunkedSteps) known |= steps == least;
        if (!known) return false;
      }
    }
  }
  return true;
}
static_assert(are_known(), "kChunkedSteps lacks a number");

}  // namespace

int64_t chunked_least_steps(const RnnProblem& problem, bool training) {
  const int cell = problem.mode == PRNN_GRU ? 2 : problem.projection > 0 ? 1 : 0;
  const int size = problem.hidden <= 704 ? 0 : problem.hidden <= 832 ? 1 : 2;
  const auto& of_size = kLeastSteps[(cell * 2 + (training ? 0 : 1)) * 3 + size];
  const auto place = std::clamp<int64_t>(problem.layers, kChunkedLeastLayers, 10) - kChunkedLeastLayers;
  const int16_t steps = of_size[problem.max_batch() <= kChunkedHalfTile ? 0 : 1][place];
  return steps > 0 ? steps : std::numeric_limits<int64_t>::max();
}

}  // namespace prnn
