// The needs of a call (Needs) that each engine, each schedule of a stack and cuDNN serve: a row each.
#pragma once

#include <initializer_list>

#include "rnn/plan/kernels.h"
#include "rnn/problem.h"

namespace prnn {

// The code around the kernels serves these for all of them: input products, projections, copies, gradients.
constexpr uint32_t kServedAround = Needs::kLengths | Needs::kCells | Needs::kZoneout | Needs::kDropout |
                                   Needs::kProjection | Needs::kHeads | Needs::kTwoDirections | Needs::kFrozenLayers |
                                   Needs::kUnaligned | Needs::kSkipInput | Needs::kChosenSplit;
constexpr uint32_t kServedReset = Needs::kReset | Needs::kResetStates;
// No forward kernel meets a gradient of c.
constexpr uint32_t kBackwardAlone = Needs::kDcells;

// The kernels of several layers serve these; stacks with a projection, those by chunks alone. (The schedule refuses
// data of a forward call that is not aligned.)
constexpr uint32_t kServedTogether =
    Needs::kLengths | Needs::kDropout | Needs::kFrozenLayers | Needs::kSkipInput | Needs::kUnaligned;

// The kernels of LSTMs on the input of their gates serve these, and other kernels no such LSTM.
constexpr uint32_t kServedOfGates = Needs::kLstmOfGates | Needs::kSkipInput | Needs::kMasks | Needs::kUnaligned;

struct EngineRow {
  Engine engine;
  const char* name;            // prnnRNNInfo_t::forwardEngine
  uint32_t forward, backward;  // needs that its kernels serve in each pass
  bool carries_h;              // LSTM: the kernels carry h, or its gradient, besides c
};

// Cluster, simt and multicast kernels have two versions of each row of the table of kernels, one of which knows resets
// and masks: their launch functions choose. mma and mma-large have rows of their own for that, which take registers.
constexpr EngineRow kEngines[] = {
    {Engine::kMma, "mma", kServedAround | kBackwardAlone | Needs::kSlstm, kServedAround | Needs::kSlstm, false},
    {Engine::kMmaExtras, "mma", Needs::kAll, Needs::kAll, true},
    {Engine::kMmaLarge, "mma-large", kServedAround | kBackwardAlone, kServedAround, false},
    {Engine::kMmaLargeExtras, "mma-large", Needs::kAll, Needs::kAll, true},
    {Engine::kWgmma, "wgmma", kServedAround | kBackwardAlone, kServedAround, false},
    {Engine::kWgmmaSplitK, "wgmma-split-k", kServedAround | kBackwardAlone, kServedAround, false},
    {Engine::kWgmmaMulticast, "wgmma-multicast", kServedAround | kServedReset | kBackwardAlone,
     kServedAround | kServedReset, false},
    {Engine::kCluster, "cluster", Needs::kAll, Needs::kAll, true},
    // Its h has no place of its own beside those that exchange it: no c for the caller.
    {Engine::kProjected, "projected", kServedAround & ~(Needs::kCells | Needs::kZoneout | Needs::kChosenSplit),
     kServedAround & ~(Needs::kCells | Needs::kZoneout | Needs::kChosenSplit), false},
    {Engine::kSimt, "simt", Needs::kAll, Needs::kAll, true},
    {Engine::kWavefrontMma, "wavefront-mma", kServedTogether, kServedTogether, false},
    {Engine::kWavefrontWgmma, "wavefront-wgmma", kServedTogether, 0, false},
    {Engine::kWavefrontChunked, "wavefront-chunked", kServedTogether | Needs::kProjection,
     kServedTogether | Needs::kProjection, false},
    {Engine::kNormCluster, "cluster", kServedOfGates, kServedOfGates, true},
    {Engine::kNormGrid, "grid", kServedOfGates, kServedOfGates, true},
    {Engine::kNormSteps, "steps", kServedOfGates, kServedOfGates, true},
};

constexpr const EngineRow& row_of(Engine engine) { return kEngines[static_cast<int>(engine)]; }

constexpr bool serves(Engine engine, Pass pass, uint32_t needs) {
  const EngineRow& row = row_of(engine);
  return (needs & ~(pass == Pass::kForward ? row.forward : row.backward)) == 0;
}

// The first of some engines that serves the needs, which the last one does.
constexpr Engine first_serving(std::initializer_list<Engine> engines, Pass pass, uint32_t needs) {
  Engine last{};
  for (const Engine engine : engines) {
    last = engine;
    if (serves(engine, pass, needs)) break;
  }
  return last;
}

// How the layers of a stack follow each other, and who computes them.
enum class Schedule : int8_t {
  kOneByOne,    // a launch or more a layer
  kSideBySide,  // halves of two layers in one launch (side_by_side.h)
  kWavefront,   // several layers in one launch (wavefront.h)
  kStepByStep,  // a launch or two a timestep, inference (schedule.h)
  kCudnn
};

// The needs that a schedule serves in each pass.
struct ScheduleRow {
  Schedule schedule;
  uint32_t forward, backward;
};
constexpr ScheduleRow kSchedules[] = {
    {Schedule::kOneByOne, Needs::kAll | Needs::kLstmOfGates, Needs::kAll | Needs::kLstmOfGates},
    {Schedule::kSideBySide, kServedTogether & ~Needs::kSkipInput, kServedTogether & ~Needs::kSkipInput},
    {Schedule::kWavefront, (kServedTogether | Needs::kProjection) & ~Needs::kUnaligned,
     kServedTogether | Needs::kProjection},
    {Schedule::kStepByStep, Needs::kProjection | Needs::kFrozenLayers | Needs::kUnaligned, 0},
    {Schedule::kCudnn, kServedTogether | Needs::kProjection | Needs::kTwoDirections | Needs::kChosenSplit,
     kServedTogether | Needs::kProjection | Needs::kTwoDirections | Needs::kChosenSplit},
};

constexpr bool serves(Schedule schedule, Pass pass, uint32_t needs) {
  const ScheduleRow& row = kSchedules[static_cast<int>(schedule)];
  return (needs & ~(pass == Pass::kForward ? row.forward : row.backward)) == 0;
}

// The sentence for the first need that a schedule does not serve; NULL: it serves all.
const char* why_not(Schedule schedule, Pass pass, uint32_t needs);

}  // namespace prnn
