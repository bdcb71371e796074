// The best of the ways on from the hypotheses of a beam.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>

namespace prnn {

// A way on: from the `row`-th hypothesis with a class and the `duration`-th duration.
struct Candidate {
  double score;
  int row, index, duration;
};

// A higher score is better; of equal scores, the first in the order of rows, classes and durations.
inline bool is_better(const Candidate& a, const Candidate& b) {
  if (a.score != b.score) return a.score > b.score;
  if (a.row != b.row) return a.row < b.row;
  return a.index != b.index ? a.index < b.index : a.duration < b.duration;
}

// The `most` best of what is offered, a heap with the least of them first.
class Top {
 public:
  // candidates: of `most` elements.
  Top(Candidate* candidates, int64_t most) : candidates_(candidates), most_(most) {}

  // Nothing below is taken.
  double bar() const { return bar_; }
  // Takes nothing that is no better than this.
  void raise(double bar) { floor_ = bar_ = bar; }

  void offer(const Candidate& candidate) {
    if (!(candidate.score > floor_)) return;
    if (count_ == most_) {
      if (!is_better(candidate, candidates_[0])) return;
      std::pop_heap(candidates_, candidates_ + count_--, is_better);
    }
    candidates_[count_++] = candidate;
    std::push_heap(candidates_, candidates_ + count_, is_better);
    if (count_ == most_) bar_ = candidates_[0].score;
  }

  // Sorts the candidates that were taken, the best first, and counts them. Nothing is offered afterwards.
  int64_t sort() {
    std::sort_heap(candidates_, candidates_ + count_, is_better);
    return count_;
  }
  const Candidate& operator[](int64_t i) const { return candidates_[i]; }

 private:
  Candidate* candidates_;
  int64_t most_, count_ = 0;
  double floor_ = -std::numeric_limits<double>::infinity(), bar_ = floor_;
};

}  // namespace prnn
