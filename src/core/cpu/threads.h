// A team of OpenMP threads that walks through a layer in step: one parallel region, and between timesteps a barrier
// light enough to be passed thousands of times a second.
#pragma once

#include <atomic>
#include <cstdint>

namespace prnn {

struct Range {
  int64_t begin, end;
  int64_t size() const { return end - begin; }
};

// Share `rank` of `count` items cut into `size` runs whose lengths differ by one at most.
inline Range share(int64_t count, int64_t rank, int64_t size) {
  return {count * rank / size, count * (rank + 1) / size};
}

// Spins for some microseconds, then yields its core between looks: the partner may not be running.
class SpinBarrier {
 public:
  void wait(int threads);

 private:
  alignas(64) std::atomic<int> arrived_{0};
  alignas(64) std::atomic<unsigned> phase_{0};
};

// A team of threads as one of them sees it.
class Team {
 public:
  Team(int rank, int size, SpinBarrier* barrier) : rank_(rank), size_(size), barrier_(barrier) {}
  int rank() const { return rank_; }
  int size() const { return size_; }
  void sync() const {
    if (size_ > 1) barrier_->wait(size_);
  }
  Range share_of(int64_t count) const { return share(count, rank_, size_); }

 private:
  int rank_, size_;
  SpinBarrier* barrier_;
};

// omp_get_max_threads(), but 1 in a process that was forked after prnn had started threads: OpenMP would wait for them,
// and they exist in the parent alone.
int most_threads();

// Processors that the process could use when this was first asked; one value for the life of the process.
int processors();

// The threads of an OpenMP region, for its num_threads(): at most `most`, and 1 unless the work is worth more.
int region_threads(bool is_worth_more = true, int64_t most = INT64_MAX);

// Threads worth starting when the work between two barriers is `flops` floating point operations: at most
// most_threads(), one inside somebody else's parallel region.
int team_size(double flops);

void run_team(int threads, void (*body)(const Team&, void*), void* context);

// Runs body(const Team&) on `threads` threads, fewer if OpenMP gives fewer. The body must not throw.
template <class Body>
void run_team(int threads, Body&& body) {
  run_team(threads, [](const Team& team, void* context) { (*static_cast<Body*>(context))(team); }, &body);
}

}  // namespace prnn
