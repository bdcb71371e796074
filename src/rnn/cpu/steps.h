// The timesteps of a variable-length batch in the order in which a direction walks through them.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <vector>

#include "core/cpu/threads.h"
#include "rnn/problem.h"

namespace prnn {

struct Step {
  int64_t row;       // first packed row
  int64_t batch;     // sequences
  int64_t prev_row;  // first packed row of the step before in this direction
  int64_t carried;   // sequences [0, carried) come from the step before, the others from the initial state
  int64_t kept;      // sequences [0, kept) go on to the step after, for the others this is the last
};

inline std::vector<Step> direction_steps(const RnnProblem& problem, int64_t direction) {
  const int64_t count = problem.steps();
  std::vector<Step> steps(count);
  int64_t row = 0;
  for (int64_t t = 0; t < count; ++t) {
    steps[direction == 0 ? t : count - 1 - t] = {row, problem.batch[t], 0, 0, 0};
    row += problem.batch[t];
  }
  for (int64_t s = 1; s < count; ++s) {
    steps[s].prev_row = steps[s - 1].row;
    steps[s].carried = steps[s - 1].kept = std::min(steps[s].batch, steps[s - 1].batch);
  }
  return steps;
}

// The steps of every direction. A pass makes them before it writes anything, for they take memory.
inline std::array<std::vector<Step>, 2> all_direction_steps(const RnnProblem& problem) {
  return {direction_steps(problem, 0), problem.directions == 2 ? direction_steps(problem, 1) : std::vector<Step>()};
}

// Where the state before a timestep comes from: the step before in this direction, hx and cx, or, where the sequence
// starts anew (prnnRNNExtras_t::reset), resetHx and resetCx.
enum class StateBefore { kPrevious, kInitial, kReset };

inline StateBefore state_before(const RnnProblem& problem, int64_t direction, const Step& step, int64_t n) {
  const bool carried = n < step.carried;
  if (problem.extras.reset != nullptr && (direction == 0 || carried)) {
    // In reverse, it is the later timestep, the one before in this direction, that starts anew.
    const int64_t row = direction == 0 ? step.row : step.prev_row;
    if (problem.extras.reset[row + n] != 0) return StateBefore::kReset;
  }
  return carried ? StateBefore::kPrevious : StateBefore::kInitial;
}

// Calls body(Range, StateBefore) for each run of a step's sequences [begin, end) with the same state_before().
template <class Body>
void for_each_state_before(const RnnProblem& problem, int64_t direction, const Step& step, Range sequences,
                           const Body& body) {
  for (int64_t begin = sequences.begin, end; begin < sequences.end; begin = end) {
    const StateBefore before = state_before(problem, direction, step, begin);
    end = begin + 1;
    while (end < sequences.end && state_before(problem, direction, step, end) == before) ++end;
    body(Range{begin, end}, before);
  }
}

// A team as a grid of threads: each has a run of a timestep's panels and a run of its sequences.
class StepGrid {
 public:
  // matrix_bytes: of the matrix that a timestep reads, cut into so many panels. Sequences are cut where it is packed:
  // as it lies, every thread would transpose it.
  StepGrid(const RnnProblem& problem, const Team& team, int64_t panels, int64_t matrix_bytes, bool packed)
      : team_(team) {
    constexpr int64_t kOfCore = 128 * 1024;  // read anew by each core in every timestep
    const int64_t groups = packed ? (problem.max_batch() + kSequences - 1) / kSequences : 1;
    const bool prefers_sequences = matrix_bytes <= kOfCore;
    int64_t least = INT64_MAX;
    for (int cuts = 1; cuts <= std::min<int64_t>(team.size(), groups); ++cuts) {
      if (team.size() % cuts != 0) continue;
      const int64_t of_panels = team.size() / cuts;
      const int64_t largest = ((panels + of_panels - 1) / of_panels) * ((groups + cuts - 1) / cuts);
      if (largest < least || (largest == least && prefers_sequences)) {
        least = largest;
        sequence_cuts_ = cuts;
      }
    }
    is_apart_ = sequence_cuts_ == team.size() && problem.rows == problem.steps() * problem.max_batch();
  }

  bool cuts_sequences() const { return sequence_cuts_ > 1; }

  Range panels(int64_t count) const {
    return share(count, team_.rank() / sequence_cuts_, team_.size() / sequence_cuts_);
  }

  // This thread's part of the sequences [begin, end) of a timestep.
  Range sequences(int64_t begin, int64_t end) const {
    const Range groups =
        share((end - begin + kSequences - 1) / kSequences, team_.rank() % sequence_cuts_, sequence_cuts_);
    return {std::min(begin + groups.begin * kSequences, end), std::min(begin + groups.end * kSequences, end)};
  }

  // Between timesteps and their parts. Threads whose sequences are theirs alone in all timesteps do not wait.
  void sync() const {
    if (!is_apart_) team_.sync();
  }

 private:
  static constexpr int64_t kSequences = 4;  // of a batch, cut no further

  const Team& team_;
  int sequence_cuts_ = 1;
  bool is_apart_;
};

// The largest of layer_input().
inline int64_t widest_input(const RnnProblem& problem) {
  return problem.layers == 1 ? problem.input : std::max(problem.input, problem.layer_input(1));
}

// Threads for a pass in which every row costs that many multiply-adds, spread over the timesteps.
inline double flops_per_step(const RnnProblem& problem, double macs_per_row) {
  return 2 * macs_per_row * static_cast<double>(problem.rows) / static_cast<double>(problem.steps() + 1);
}

}  // namespace prnn
