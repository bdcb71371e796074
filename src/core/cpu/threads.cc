#include "core/cpu/threads.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>

#if defined(_OPENMP)
#include <omp.h>
#endif

namespace prnn {
namespace {

constexpr int kSpins = 2000;
constexpr double kFlopsPerThread = 50e3;  // about a microsecond, several times what the barrier costs

std::atomic<pid_t> owner_of_threads{0};  // the process that started some

void own_threads() {
  if (owner_of_threads.load(std::memory_order_relaxed) == 0)
    owner_of_threads.store(getpid(), std::memory_order_relaxed);
}

inline void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

}  // namespace

void SpinBarrier::wait(int threads) {
  const unsigned phase = phase_.load(std::memory_order_relaxed);
  if (arrived_.fetch_add(1, std::memory_order_acq_rel) == threads - 1) {
    arrived_.store(0, std::memory_order_relaxed);
    phase_.store(phase + 1, std::memory_order_release);
    return;
  }
  for (int i = 0; phase_.load(std::memory_order_acquire) == phase; ++i) {
    if (i < kSpins) {
      pause();
    } else {
      sched_yield();
    }
  }
}

int most_threads() {
#if defined(_OPENMP)
  const pid_t owner = owner_of_threads.load(std::memory_order_relaxed);
  return owner == 0 || owner == getpid() ? omp_get_max_threads() : 1;
#else
  return 1;
#endif
}

int processors() {
#if defined(_OPENMP)
  static const int count = omp_get_num_procs();
  return count;
#else
  return 1;
#endif
}

int region_threads(bool is_worth_more, int64_t most) {
  const int threads = is_worth_more ? static_cast<int>(std::min<int64_t>(most, most_threads())) : 1;
  if (threads > 1) own_threads();
  return threads;
}

int team_size(double flops) {
#if defined(_OPENMP)
  if (omp_in_parallel()) return 1;
  return static_cast<int>(std::clamp(flops / kFlopsPerThread, 1.0, static_cast<double>(most_threads())));
#else
  (void)flops;
  return 1;
#endif
}

void run_team(int threads, void (*body)(const Team&, void*), void* context) {
#if defined(_OPENMP)
  if (threads > 1) {
    own_threads();
    SpinBarrier barrier;
#pragma omp parallel num_threads(threads)
    body(Team(omp_get_thread_num(), omp_get_num_threads(), &barrier), context);
    return;
  }
#endif
  (void)threads;
  body(Team(0, 1, nullptr), context);
}

}  // namespace prnn
