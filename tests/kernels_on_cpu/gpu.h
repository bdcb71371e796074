// What runs the kernels that translate.py makes host C++ of: every thread of a grid is a coroutine of one host thread,
// whose warps take turns in random order. Copies and products are done at once, the waits for them are barriers. Ends
// the program where a barrier is misused, an address is not aligned, or a factor is not rounded to tf32.
#pragma once

#include <cuda_runtime_api.h>
#include <sys/mman.h>
#include <vector_types.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <random>
#include <type_traits>
#include <unordered_map>
#include <vector>

#undef __device__
#undef __global__
#undef __forceinline__
#undef __grid_constant__
#undef __launch_bounds__
#define __device__
#define __global__
#define __forceinline__ inline
#define __grid_constant__
#define __launch_bounds__(...)

using std::isnan;
using std::max;
using std::min;

inline uint32_t __float_as_uint(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, 4);
  return bits;
}
inline float __uint_as_float(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, 4);
  return value;
}
inline float __ldcs(const float* from) { return *from; }

namespace prnn {
struct Tf32;
}

namespace gpu {

constexpr int kThreads = 384, kCluster = 2, kSharedBytes = 1 << 18, kStackBytes = 96 * 1024;
constexpr long kMostTurns = 20000;
// Where a block's variables lie; shared address 0 is none.
constexpr int kStatic = 1024, kDynamic = 4096;

struct Mbarrier {
  int arrivals = 0, pending = 0;
  long bytes = 0;
  unsigned phase = 0;
  void check() {
    if (pending > 0 || bytes != 0) return;
    phase ^= 1;
    pending = arrivals;
  }
};
struct Barrier {
  int arrived = 0;
  long phase = 0;
};
struct Block {
  int index = 0;
  char* shared = nullptr;
  std::unordered_map<uint32_t, Mbarrier> mbarriers;
  Barrier barriers[16];
};
struct Warp {
  uint64_t values[2][32][4];  // of even and odd exchanges
  long arrived = 0;
};
struct Thread {
  void* stack = nullptr;
  int number = 0;
  Block* block = nullptr;
  Warp* warp = nullptr;
  long exchanges = 0;
  bool is_done = false;
};

inline Thread* current;
inline void* scheduler;
inline std::function<void()> kernel;
inline std::vector<Block> blocks;
inline std::vector<Barrier> clusters;

[[noreturn]] inline void fail(const char* what) {
  std::printf("block %d thread %d: %s\n", current->block->index, current->number, what);
  std::fflush(stdout);
  std::_Exit(1);
}

extern "C" void switch_stack(void** saved, void* other);
asm(R"(
  .text
  .globl switch_stack
switch_stack:
  push %rbp
  push %rbx
  push %r12
  push %r13
  push %r14
  push %r15
  mov %rsp,(%rdi)
  mov %rsi,%rsp
  pop %r15
  pop %r14
  pop %r13
  pop %r12
  pop %rbx
  pop %rbp
  ret
)");
inline void yield() { switch_stack(&current->stack, scheduler); }
inline void run_thread() {
  kernel();
  current->is_done = true;
  yield();
}

inline char* reserve(size_t bytes) {
  void* const memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) std::abort();
  return static_cast<char*>(memory);
}

// Runs all blocks to their end. false: they wait for what never comes.
inline bool launch(int block_count, unsigned seed, std::function<void()> body) {
  constexpr int kWarps = kThreads / 32, kMostBlocks = 64;
  static char* const shared = reserve(size_t{kMostBlocks} * kSharedBytes);
  static char* const stacks = reserve(size_t{kMostBlocks} * kThreads * kStackBytes);
  std::memset(shared, 0x7B, static_cast<size_t>(block_count) * kSharedBytes);
  kernel = std::move(body);
  blocks.assign(block_count, Block());
  clusters.assign(block_count / kCluster, Barrier());
  std::vector<Warp> warps(block_count * kWarps);
  std::vector<Thread> threads(block_count * kThreads);
  for (int i = 0; i < block_count; ++i) {
    blocks[i].index = i;
    blocks[i].shared = shared + static_cast<size_t>(i) * kSharedBytes;
  }
  for (size_t i = 0; i < threads.size(); ++i) {
    auto* top = reinterpret_cast<void**>(stacks + (i + 1) * kStackBytes);
    *--top = nullptr;
    *--top = reinterpret_cast<void*>(run_thread);
    for (int r = 0; r < 6; ++r) *--top = nullptr;
    threads[i] = {top, static_cast<int>(i % kThreads), &blocks[i / kThreads], &warps[i / 32]};
  }
  std::vector<int> order(warps.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = static_cast<int>(i);
  std::mt19937 random(seed);
  size_t left = threads.size();
  for (long turns = 0; left > 0; ++turns) {
    if (turns == kMostTurns) return false;
    std::shuffle(order.begin(), order.end(), random);
    for (const int warp : order) {
      if (random() % 4 == 0) continue;
      for (int lane = 0; lane < 32; ++lane) {
        Thread& thread = threads[warp * 32 + lane];
        if (thread.is_done) continue;
        current = &thread;
        switch_stack(&scheduler, thread.stack);
        left -= thread.is_done ? 1 : 0;
      }
    }
  }
  return true;
}

struct Index {
  unsigned x;
};
inline int lane() { return current->number % 32; }
inline char* dynamic_shared() { return current->block->shared + kDynamic; }
template <class T>
T& static_shared() {
  return *reinterpret_cast<T*>(current->block->shared + kStatic);
}
// A shared address has the rank in the cluster, plus 1, in its highest byte; 0: the block's own.
inline Block& block_of(uint32_t address) {
  const int own = current->block->index;
  return address >> 24 == 0 ? *current->block : blocks[own / kCluster * kCluster + (address >> 24) - 1];
}
inline char* at(uint32_t address, uint32_t alignment) {
  if (address % alignment != 0) fail("a shared address is not aligned");
  return block_of(address).shared + (address & 0xFFFFFF);
}
inline Mbarrier& mbarrier(uint32_t address) { return block_of(address).mbarriers[address & 0xFFFFFF]; }
inline void arrive_at(Mbarrier& barrier) {
  if (--barrier.pending < 0) fail("more arrivals than an mbarrier expects");
  barrier.check();
}

// The value of every lane of the warp, which all wait for.
template <class V>
auto exchange(const V& value) -> const uint64_t (*)[4] {
  static_assert(sizeof(V) <= 32);
  Warp& warp = *current->warp;
  const long number = current->exchanges++;
  std::memcpy(warp.values[number & 1][lane()], &value, sizeof value);
  ++warp.arrived;
  while (warp.arrived < 32 * (number + 1)) yield();
  return warp.values[number & 1];
}
inline void join(Barrier& barrier, int threads, bool waits) {
  const long phase = barrier.phase;
  if (++barrier.arrived == threads) {
    barrier.arrived = 0;
    ++barrier.phase;
  }
  while (waits && barrier.phase == phase) yield();
}

// ---- wgmma: each warp has 16 rows; a row of B is a column of the product ----

inline uint32_t swizzled_word(uint32_t address) {
  uint32_t word;
  std::memcpy(&word, at(address ^ (address >> 7 & 7) << 4, 4), 4);
  return word;
}
template <class T>
float element(const uint32_t* words, int k) {
  if constexpr (std::is_same_v<T, prnn::Tf32>) {
    if ((words[k] & 0x1FFF) != 0 && (words[k] & 0x7F800000) != 0x7F800000) fail("a factor is not rounded to tf32");
    return __uint_as_float(words[k]);
  } else {
    T value;
    std::memcpy(&value, reinterpret_cast<const char*>(words) + 2 * k, 2);
    return static_cast<float>(value);
  }
}
template <class T, int HALF_COLUMNS>
void multiply_rows(float (&sums)[HALF_COLUMNS], const uint32_t (&a)[2][8], uint64_t b) {
  constexpr int kElements = std::is_same_v<T, prnn::Tf32> ? 8 : 16;
  const uint32_t start = static_cast<uint32_t>(b & 0x3FFF) << 4;
  for (int i = 0; i < HALF_COLUMNS; ++i) {
    const int column = i / 4 * 8 + lane() % 4 * 2 + i % 2;
    uint32_t words[8];
    for (int w = 0; w < 8; ++w) words[w] = swizzled_word(start + column * 128 + w * 4);
    for (int k = 0; k < kElements; ++k) sums[i] += element<T>(a[i % 4 / 2], k) * element<T>(words, k);
  }
}
struct Fragment {
  uint32_t words[4];
};
template <class T, int HALF_COLUMNS>
void multiply(float (&sums)[HALF_COLUMNS], const uint32_t (&a)[4], uint64_t b) {
  const auto all = exchange(Fragment{{a[0], a[1], a[2], a[3]}});
  uint32_t rows[2][8];
  for (int w = 0; w < 8; ++w) {
    Fragment fragment;
    std::memcpy(&fragment, all[lane() / 4 * 4 + w % 4], sizeof fragment);
    for (int half = 0; half < 2; ++half) rows[half][w] = fragment.words[w / 4 * 2 + half];
  }
  multiply_rows<T>(sums, rows, b);
}
template <class T, int HALF_COLUMNS>
void multiply(float (&sums)[HALF_COLUMNS], uint64_t a, uint64_t b) {
  exchange(0);
  const uint32_t start = static_cast<uint32_t>(a & 0x3FFF) << 4;
  uint32_t rows[2][8];
  for (int half = 0; half < 2; ++half) {
    const int row = current->number / 32 % 4 * 16 + half * 8 + lane() / 4;
    for (int w = 0; w < 8; ++w) rows[half][w] = swizzled_word(start + row * 128 + w * 4);
  }
  multiply_rows<T>(sums, rows, b);
}

inline Fragment load_fragment(uint32_t address, bool is_transposed) {
  const auto addresses = exchange(static_cast<uint64_t>(address));
  Fragment fragment;
  for (int matrix = 0; matrix < 4; ++matrix) {
    for (int i = 0; i < 2; ++i) {
      const int pair = lane() % 4 * 2 + i, row = is_transposed ? pair : lane() / 4;
      const int column = is_transposed ? lane() / 4 : pair;
      const auto from = static_cast<uint32_t>(addresses[8 * matrix + row][0]);
      std::memcpy(reinterpret_cast<char*>(&fragment.words[matrix]) + 2 * i, at(from, 16) + 2 * column, 2);
    }
  }
  return fragment;
}

// The names of translate.py.
// clang-format off
struct nothing {}; struct unknown {}; struct wait_for_products {}; struct load_global {}; struct load_byte {};
struct load_global4 {}; struct store_global4 {}; struct increment {}; struct load_shared {}; struct load_shared4 {};
struct store_shared {}; struct store_shared2 {}; struct store_shared4 {}; struct copy16 {}; struct load_transposed {};
struct load_matrices {}; struct sync128 {}; struct sync160 {}; struct arrive160 {}; struct cluster_rank {};
struct map_address {}; struct sync_cluster {}; struct init_barrier {}; struct expect_bytes {}; struct arrive {};
struct test_barrier {}; struct bulk {}; struct read_timer {}; struct round_to_tf32 {}; struct exp2 {};
struct reciprocal {};
// clang-format on

}  // namespace gpu

template <class... Operands>
void ptx(gpu::nothing, Operands&&...) {}
template <class... Operands>
void ptx(gpu::unknown, Operands&&...) {
  gpu::fail("an instruction that translate.py does not know");
}

inline void ptx(gpu::load_global, unsigned& value, const unsigned* from) { value = *from; }
inline void ptx(gpu::load_byte, uint32_t& value, const uint8_t* from, uint32_t wanted) { value = wanted ? *from : 0; }
inline void ptx(gpu::load_global4, uint32_t& x, uint32_t& y, uint32_t& z, uint32_t& w, uint32_t wanted,
                const void* from) {
  gpu::Fragment v{};
  if (wanted) std::memcpy(&v, from, sizeof v);
  x = v.words[0], y = v.words[1], z = v.words[2], w = v.words[3];
}
inline void ptx(gpu::store_global4, const void* to, uint32_t x, uint32_t y, uint32_t z, uint32_t w) {
  const gpu::Fragment v{{x, y, z, w}};
  std::memcpy(const_cast<void*>(to), &v, sizeof v);
}
inline void ptx(gpu::increment, unsigned* counter) { ++*counter; }

template <class V>
void ptx(gpu::load_shared, V& value, uint32_t from) {
  std::memcpy(&value, gpu::at(from, sizeof value), sizeof value);
}
template <class V>
void ptx(gpu::store_shared, uint32_t to, V value) {
  std::memcpy(gpu::at(to, sizeof value), &value, sizeof value);
}
inline void ptx(gpu::load_shared4, uint32_t& x, uint32_t& y, uint32_t& z, uint32_t& w, uint32_t from) {
  gpu::Fragment v;
  std::memcpy(&v, gpu::at(from, 16), sizeof v);
  x = v.words[0], y = v.words[1], z = v.words[2], w = v.words[3];
}
inline void ptx(gpu::store_shared2, uint32_t to, uint32_t x, uint32_t y) {
  const uint32_t v[2] = {x, y};
  std::memcpy(gpu::at(to, 8), v, sizeof v);
}
inline void ptx(gpu::store_shared4, uint32_t to, uint32_t x, uint32_t y, uint32_t z, uint32_t w) {
  const gpu::Fragment v{{x, y, z, w}};
  std::memcpy(gpu::at(to, 16), &v, sizeof v);
}
inline void ptx(gpu::copy16, uint32_t to, const void* from, int bytes) {
  char v[16] = {};
  if (bytes > 0 && reinterpret_cast<uintptr_t>(from) % 16 != 0) gpu::fail("a copy's source is not aligned");
  if (bytes > 0) std::memcpy(v, from, bytes);
  std::memcpy(gpu::at(to, 16), v, sizeof v);
}
inline void ptx(gpu::load_matrices, uint32_t& x, uint32_t& y, uint32_t& z, uint32_t& w, uint32_t from) {
  const gpu::Fragment v = gpu::load_fragment(from, false);
  x = v.words[0], y = v.words[1], z = v.words[2], w = v.words[3];
}
inline void ptx(gpu::load_transposed, uint32_t& x, uint32_t& y, uint32_t& z, uint32_t& w, uint32_t from) {
  const gpu::Fragment v = gpu::load_fragment(from, true);
  x = v.words[0], y = v.words[1], z = v.words[2], w = v.words[3];
}

// Barriers 0 to 11 are the kernel's.
inline void ptx(gpu::wait_for_products, int) {
  gpu::join(gpu::current->block->barriers[12 + gpu::current->number / 128], 128, true);
}
inline void ptx(gpu::sync128, int barrier) { gpu::join(gpu::current->block->barriers[barrier], 128, true); }
inline void ptx(gpu::sync160, int barrier) { gpu::join(gpu::current->block->barriers[barrier], 160, true); }
inline void ptx(gpu::arrive160, int barrier) { gpu::join(gpu::current->block->barriers[barrier], 160, false); }
inline void __syncthreads() { gpu::join(gpu::current->block->barriers[0], gpu::kThreads, true); }
inline void ptx(gpu::sync_cluster) {
  gpu::join(gpu::clusters[gpu::current->block->index / gpu::kCluster], gpu::kCluster * gpu::kThreads, true);
}
inline void ptx(gpu::cluster_rank, uint32_t& rank) { rank = gpu::current->block->index % gpu::kCluster; }
inline void ptx(gpu::map_address, uint32_t& mapped, uint32_t address, uint32_t rank) {
  mapped = (address & 0xFFFFFF) | (rank + 1) << 24;
}

inline void ptx(gpu::init_barrier, uint32_t address, int arrivals) {
  gpu::mbarrier(address) = {arrivals, arrivals, 0, 0};
}
inline void ptx(gpu::arrive, uint32_t address) { gpu::arrive_at(gpu::mbarrier(address)); }
inline void ptx(gpu::expect_bytes, uint32_t address, uint32_t bytes) {
  gpu::mbarrier(address).bytes += bytes;
  gpu::arrive_at(gpu::mbarrier(address));
}
inline void ptx(gpu::test_barrier, uint32_t& is_done, uint32_t address, uint32_t parity) {
  is_done = gpu::mbarrier(address).phase != parity;
  if (!is_done) gpu::yield();
}
inline void ptx(gpu::bulk, uint32_t to, const void* from, int bytes, uint32_t barrier, uint16_t ranks) {
  if (reinterpret_cast<uintptr_t>(from) % 16 != 0 || bytes % 16 != 0) gpu::fail("a bulk copy is not aligned");
  for (uint32_t rank = 0; rank < gpu::kCluster; ++rank) {
    if ((ranks >> rank & 1) == 0) continue;
    std::memcpy(gpu::at(to | (rank + 1) << 24, 16), from, bytes);
    gpu::Mbarrier& there = gpu::mbarrier(barrier | (rank + 1) << 24);
    there.bytes -= bytes;
    there.check();
  }
}

inline void ptx(gpu::read_timer, uint64_t& time) { time = 0; }
inline void ptx(gpu::round_to_tf32, uint32_t& rounded, float value) {
  const uint32_t bits = __float_as_uint(value);
  const bool is_finite = (bits & 0x7F800000) != 0x7F800000;
  rounded = is_finite ? (bits + 0x1000) & 0xFFFFE000 : (bits & 0x7FFFFF) != 0 ? 0x7FFFFFFF : bits;
}
inline void ptx(gpu::exp2, float& power, float x) { power = exp2f(x); }
inline void ptx(gpu::reciprocal, float& result, float x) { result = 1 / x; }

#define threadIdx (gpu::Index{static_cast<unsigned>(gpu::current->number)})
#define blockIdx (gpu::Index{static_cast<unsigned>(gpu::current->block->index)})

template <class V>
V value_of_lane(const V& value, int lane) {
  const auto all = gpu::exchange(value);
  V found;
  std::memcpy(&found, all[lane & 31], sizeof found);
  return found;
}
template <class V>
V __shfl_sync(unsigned, V value, int from) {
  return value_of_lane(value, from);
}
template <class V>
V __shfl_xor_sync(unsigned, V value, int bits) {
  return value_of_lane(value, gpu::lane() ^ bits);
}
template <class V>
V __shfl_down_sync(unsigned, V value, int distance) {
  return value_of_lane(value, gpu::lane() + distance < 32 ? gpu::lane() + distance : gpu::lane());
}
inline unsigned __ballot_sync(unsigned, bool value) {
  const auto all = gpu::exchange(static_cast<uint64_t>(value));
  unsigned bits = 0;
  for (int i = 0; i < 32; ++i) bits |= static_cast<unsigned>(all[i][0] != 0) << i;
  gpu::yield();  // who waits in a loop lets others run
  return bits;
}
inline bool __all_sync(unsigned mask, bool value) { return __ballot_sync(mask, value) == ~0u; }
inline bool __any_sync(unsigned mask, bool value) { return __ballot_sync(mask, value) != 0; }
inline void __syncwarp() { gpu::exchange(0); }
inline void __threadfence_system() {}
inline size_t __cvta_generic_to_shared(const void* pointer) {
  const auto offset = static_cast<size_t>(static_cast<const char*>(pointer) - gpu::current->block->shared);
  if (offset >= gpu::kSharedBytes) gpu::fail("an address is not of shared memory");
  return offset;
}
