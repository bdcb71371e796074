#include "rnn/plan/engines.h"

#include <iterator>

namespace prnn {
namespace {

constexpr bool are_in_order() {
  for (int i = 0; i < static_cast<int>(std::size(kEngines)); ++i) {
    if (static_cast<int>(kEngines[i].engine) != i) return false;
  }
  for (int i = 0; i < static_cast<int>(std::size(kSchedules)); ++i) {
    if (static_cast<int>(kSchedules[i].schedule) != i) return false;
  }
  return std::size(kEngines) == static_cast<size_t>(Engine::kNormSteps) + 1 &&
         std::size(kSchedules) == static_cast<size_t>(Schedule::kCudnn) + 1;
}
static_assert(are_in_order(), "a row's place is its enumerator");

struct Reason {
  uint32_t needs;
  const char* sentence;
};

constexpr uint32_t kGivenPerStep = Needs::kReset | Needs::kResetStates | Needs::kCells | Needs::kDcells;

constexpr Reason kNotTogether[] = {
    {Needs::kTwoDirections, "layers of two directions run one after the other"},
    {Needs::kSlstm, "layers of an sLSTM run one after the other"},
    {Needs::kHeads, "layers with heads run one after the other"},
    {Needs::kChosenSplit, "the plan of prnnSetRNNPlan is one of single layers"},
    {kGivenPerStep | Needs::kMasks | Needs::kZoneout,
     "layers run one after the other with resets, masks and c of every timestep"},
    {Needs::kSkipInput, "the first layer has no input matrices"},
    {Needs::kUnaligned, "y or w is not aligned to 16 bytes"},
};

constexpr Reason kNotInCudnn[] = {
    {Needs::kSlstm, "cuDNN has no sLSTM"},
    {Needs::kLstmOfGates, "cuDNN has no LSTM on the input of its gates (PRNN_GATES_INPUT)"},
    {Needs::kHeads, "cuDNN has no heads (prnnSetRNNHeads)"},
    {Needs::kMasks | Needs::kZoneout, "cuDNN has no masks of the recurrence (prnnSetRNNMasks)"},
    {kGivenPerStep, "cuDNN has no resets and no c of every timestep (prnnSetRNNExtras)"},
};

template <size_t COUNT>
const char* first_sentence(const Reason (&reasons)[COUNT], uint32_t unserved) {
  for (const Reason& reason : reasons) {
    if ((reason.needs & unserved) != 0) return reason.sentence;
  }
  return nullptr;
}

}  // namespace

const char* why_not(Schedule schedule, Pass pass, uint32_t needs) {
  const ScheduleRow& row = kSchedules[static_cast<int>(schedule)];
  const uint32_t unserved = needs & ~(pass == Pass::kForward ? row.forward : row.backward);
  return schedule == Schedule::kCudnn ? first_sentence(kNotInCudnn, unserved) : first_sentence(kNotTogether, unserved);
}

}  // namespace prnn
