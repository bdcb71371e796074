// Runs what translate.py makes of kernels: every thread of a grid is a coroutine of one host thread, whose warps take
// turns in random order; now and then a warp or a block stands still for a while. Asynchronous copies and products are
// done at once or as late as the wait for them allows. Ends the program where a barrier is misused, or a shared address
// is not aligned or not of a variable.
#pragma once

#include <cuda_runtime.h>
#include <sys/mman.h>
#include <vector_types.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <random>
#include <type_traits>
#include <unordered_map>
#include <vector>

#include "order.h"

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#else
#define ASAN_POISON_MEMORY_REGION(address, bytes) ((void)0)
#define ASAN_UNPOISON_MEMORY_REGION(address, bytes) ((void)0)
#endif

namespace gpu {

#ifdef __SANITIZE_ADDRESS__
constexpr size_t kStackBytes = 1 << 20;
#else
constexpr size_t kStackBytes = 192 * 1024;
#endif
constexpr size_t kSharedBytes = 1 << 19, kGuardBytes = 1 << 14;  // below each stack
constexpr int kDynamic = 1024;      // where a block's variables begin, those of dynamic size; shared address 0 is none
constexpr long kIdleTurns = 10000;  // in which no wait ended: none will
constexpr int kAhead = 2;           // threads whose stacks are fetched into the caches meanwhile

struct Grid {
  int blocks, threads, cluster;
  int64_t shared_bytes;
  int across = blocks, down = 1;  // of them in x and y, the others in z
  int threads_across = threads;   // in x, the others in y
};
struct Mbarrier {
  int arrivals = 0, pending = 0;
  long bytes = 0;
  long phase = 0;
  order::Phase order;
  void check();
};
struct Barrier {
  int arrived = 0;
  long phase = 0;
  bool any[4] = {};  // of joins that ask for whether something is so; by phase
  order::Phase order;
};
struct Block {
  int index = 0, running = 0;  // threads
  char* shared = nullptr;
  int64_t end = 0;  // of its variables
  std::map<std::pair<int, size_t>, int64_t> statics;
  std::unordered_map<uint32_t, Mbarrier> mbarriers;
  Barrier barriers[20];  // 16 of the kernel, and those of its warpgroups' products
};
struct Warp {
  uint64_t values[2][32][6];  // of even and odd exchanges
  long arrived = 0, asleep_until = 0;
  order::Phase order;  // of __syncwarp()
};
// A copy of a function object, without an allocation as std::function's.
class Action {
 public:
  template <class Act>
  explicit Action(const Act& act) : call_([](void* place) { (*static_cast<Act*>(place))(); }) {
    static_assert(sizeof act <= sizeof place_ && std::is_trivially_copyable_v<Act>);
    new (place_) Act(act);
  }
  void operator()() { call_(place_); }

 private:
  void (*call_)(void*);
  alignas(8) unsigned char place_[112];
};
// Work that is done now or when it is waited for. Group: number of those committed before.
struct Pending {
  long group;
  Action act;
};
struct Thread {
  void* stack = nullptr;
  int number = 0;
  Block* block = nullptr;
  Warp* warp = nullptr;
  long exchanges = 0;
  const long* awaited = nullptr;  // goes on when this is `least`, or in this turn
  long least = 0, last_turn = 0;
  bool is_done = false;
  bool waits() const;
  long copy_groups = 0, product_groups = 0, stores = 0;  // to other blocks, on their way
  long cluster_phase = 0;                                // of the barrier of the cluster where it has arrived
  std::vector<Pending> copies, products;
};

inline unsigned seed = 1;
inline Grid grid;
inline Thread* current;
inline void* scheduler;
inline std::function<void()> kernel;
inline std::vector<Block> blocks;
inline std::vector<Barrier> clusters;
inline std::vector<std::function<void()>> in_flight;  // copies that count in an mbarrier
inline std::mt19937 random_bits;
inline unsigned clock_cycles;
inline long turn, last_progress;

inline bool Thread::waits() const { return awaited != nullptr && *awaited < least && turn < last_turn; }
inline bool one_in(unsigned count) { return random_bits() % count == 0; }

[[noreturn]] inline void fail(const char* what) {
  std::printf("block %d thread %d: %s\n", current->block->index, current->number, what);
  std::fflush(stdout);
  std::_Exit(1);
}

// ---- coroutines ----

extern "C" void switch_stack(void** saved, void* other);
inline void yield() { switch_stack(&current->stack, scheduler); }
inline void yield_until(const long& value, long least, long turns = 1L << 40) {
  current->awaited = &value;
  current->least = least;
  current->last_turn = turn + turns;
  yield();
  current->awaited = nullptr;
}
// Before an access to memory that others see.
inline void may_yield() {
  if (one_in(64)) yield();
}
inline void run_thread() {
  kernel();
  current->is_done = true;
  --current->block->running;
  last_progress = turn;
  yield();
}

inline char* reserve(size_t bytes) {
  void* const memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) std::abort();
  return static_cast<char*>(memory);
}
inline void release(void* memory, size_t bytes) {
  ASAN_UNPOISON_MEMORY_REGION(memory, bytes);
  munmap(memory, bytes);
}

// A block or a warp stands still.
inline void put_to_sleep(std::vector<Warp>& warps) {
  const size_t of_block = grid.threads / 32, warp = random_bits() % warps.size();
  const long until = turn + random_bits() % 300;
  const bool is_block = one_in(2);
  for (size_t i = is_block ? warp / of_block * of_block : warp, last = is_block ? i + of_block : i + 1; i < last; ++i)
    warps[i].asleep_until = until;
}

inline void do_some(std::vector<std::function<void()>>& actions) {
  std::vector<std::function<void()>> all;
  all.swap(actions);
  for (auto& action : all) {
    if (one_in(4)) {
      action();
    } else {
      actions.push_back(std::move(action));
    }
  }
}

// Runs all blocks to their end. false: they wait for what never comes.
inline bool launch(const Grid& shape, std::function<void()> body) {
  grid = shape;
  kernel = std::move(body);
  random_bits.seed(seed);
  clock_cycles = random_bits();
  in_flight.clear();
  const size_t count = size_t(grid.blocks) * grid.threads, shared_bytes = grid.blocks * kSharedBytes;
  char *const shared = reserve(shared_bytes), *const stacks = reserve(count * kStackBytes);
  blocks.assign(grid.blocks, Block());
  clusters.assign(grid.blocks / grid.cluster, Barrier());
  std::vector<Warp> warps(count / 32);
  std::vector<Thread> threads(count);
  for (int i = 0; i < grid.blocks; ++i) {
    blocks[i].index = i;
    blocks[i].running = grid.threads;
    blocks[i].shared = shared + i * kSharedBytes;
    blocks[i].end = kDynamic + grid.shared_bytes;
    std::memset(blocks[i].shared + kDynamic, 0x7B, grid.shared_bytes);
    ASAN_POISON_MEMORY_REGION(blocks[i].shared, kDynamic);
    ASAN_POISON_MEMORY_REGION(blocks[i].shared + blocks[i].end, kSharedBytes - blocks[i].end);
  }
  for (size_t i = 0; i < count; ++i) {
    mprotect(stacks + i * kStackBytes, kGuardBytes, PROT_NONE);
    const size_t shift = i * 448 % 12288;  // not all at the same place of a page, for the caches
    auto* top = reinterpret_cast<void**>(stacks + (i + 1) * kStackBytes - shift);
    *--top = nullptr;
    *--top = reinterpret_cast<void*>(run_thread);
    for (int r = 0; r < 6; ++r) *--top = nullptr;
    threads[i].stack = top;
    threads[i].number = static_cast<int>(i % grid.threads);
    threads[i].block = &blocks[i / grid.threads];
    threads[i].warp = &warps[i / 32];
  }
  order::start(grid.blocks, grid.threads, shared, kSharedBytes);
  std::vector<int> turns(warps.size());
  for (size_t i = 0; i < turns.size(); ++i) turns[i] = static_cast<int>(i);
  size_t left = count;
  last_progress = 0;
  for (turn = 0; left > 0 && turn - last_progress < kIdleTurns; ++turn) {
    if (one_in(30)) put_to_sleep(warps);
    std::shuffle(turns.begin(), turns.end(), random_bits);
    for (const int warp : turns) {
      if (warps[warp].asleep_until > turn || one_in(4)) continue;
      const unsigned first = random_bits() % 32;
      for (unsigned i = 0; i < 32; ++i) {
        Thread& thread = threads[warp * 32 + (first + i) % 32];
        const Thread& later = threads[warp * 32 + (first + i + kAhead) % 32];
        if (!later.is_done && !later.waits()) {
          __builtin_prefetch(later.stack);
          __builtin_prefetch(static_cast<char*>(later.stack) + 64);
        }
        if (thread.is_done || thread.waits()) continue;
        current = &thread;
        switch_stack(&scheduler, thread.stack);
        left -= thread.is_done ? 1 : 0;
      }
    }
    do_some(in_flight);
  }
  order::finish();
  release(shared, shared_bytes);
  release(stacks, count * kStackBytes);
  return left == 0;
}

// ---- what a thread sees ----

inline int lane() { return current->number % 32; }
inline char* dynamic_shared() { return current->block->shared + kDynamic; }
template <class T>
T& static_shared(int number) {
  Block& block = *current->block;
  const auto [found, is_new] = block.statics.try_emplace({number, sizeof(T)}, (block.end + 31) / 16 * 16);
  char* const at = block.shared + found->second;
  if (is_new) {
    block.end = found->second + sizeof(T);
    ASAN_UNPOISON_MEMORY_REGION(at, sizeof(T));
    order::fill(at, 0x7B, sizeof(T));
  }
  return *reinterpret_cast<T*>(at);
}
// A shared address has the rank in the cluster, plus 1, in its highest byte; 0: the block's own.
inline Block& block_of(uint32_t address) {
  if (address >> 24 == 0) return *current->block;
  Block& block = blocks[current->block->index / grid.cluster * grid.cluster + (address >> 24) - 1];
  if (block.running == 0) fail("the block of an address has ended");
  return block;
}
inline uint32_t in_rank(uint32_t address, uint32_t rank) { return (address & 0xFFFFFF) | (rank + 1) << 24; }
inline char* at(uint32_t address, uint32_t bytes) {
  Block& block = block_of(address);
  const int64_t first = address & 0xFFFFFF, last = first + bytes;
  if (first % bytes != 0) fail("a shared address is not aligned");
  if (first < kDynamic || last > block.end) fail("no variable has a shared address");
  return block.shared + first;
}
inline void Mbarrier::check() {
  if (pending > 0 || bytes != 0) return;
  order::end_counted_phase(order, phase);
  ++phase;
  pending = arrivals;
  last_progress = turn;
}
inline Mbarrier& mbarrier(uint32_t address) { return block_of(address).mbarriers[address & 0xFFFFFF]; }
inline void arrive_at(Mbarrier& barrier) {
  order::arrive_alone(barrier.order);
  if (--barrier.pending < 0) fail("more arrivals than an mbarrier expects");
  barrier.check();
}
inline void meet(Barrier& barrier, int threads, bool waits) {
  const long phase = barrier.phase;
  if (++barrier.arrived == threads) {
    barrier.arrived = 0;
    ++barrier.phase;
    last_progress = turn;
  }
  if (waits && barrier.phase == phase) yield_until(barrier.phase, phase + 1);
}
// Arrives by all lanes of warps, which orders what they did before and do after.
inline void join(Barrier& barrier, int threads, bool waits) {
  order::arrive(barrier.order);
  if (barrier.arrived + 1 == threads) order::end(barrier.order);
  meet(barrier, threads, waits);
  if (waits) order::acquire(barrier.order);
}

// The place of the phase after the next is emptied, of which nobody reads any more.
inline bool join_or(Barrier& barrier, int threads, bool value) {
  const long phase = barrier.phase;
  barrier.any[(phase + 2) % 4] = false;
  barrier.any[phase % 4] |= value;
  join(barrier, threads, true);
  return barrier.any[phase % 4];
}

inline Barrier& cluster_barrier() { return clusters[current->block->index / grid.cluster]; }

// The values of all lanes of the warp, which wait for each other.
template <class V>
auto exchange(const V& value) -> const uint64_t (*)[6] {
  static_assert(sizeof(V) <= sizeof Warp::values[0][0]);
  Warp& warp = *current->warp;
  const long number = current->exchanges++;
  std::memcpy(warp.values[number & 1][lane()], &value, sizeof value);
  ++warp.arrived;
  if (warp.arrived < 32 * (number + 1)) yield_until(warp.arrived, 32 * (number + 1));
  return warp.values[number & 1];
}

// Now or later, in order.
template <class Act>
void issue(std::vector<Pending>& pending, long group, const Act& act) {
  if (pending.empty() && one_in(2)) return act();
  pending.push_back({group, Action(act)});
}
// All of the groups before `group`.
inline void finish(std::vector<Pending>& pending, long group) {
  size_t done = 0;
  while (done < pending.size() && pending[done].group < group) pending[done++].act();
  pending.erase(pending.begin(), pending.begin() + done);
}

}  // namespace gpu
