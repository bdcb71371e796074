// Follows in what order threads access memory: two accesses to one place, one of them a write, must be ordered by what
// the kernel waits for, in whatever order a schedule made them. Every thread knows up to which of their steps it comes
// after the other warps, products and mbarriers (vector clocks); each place in memory knows its last accesses. What the
// kernels access in C++ and in PTX statements is seen by the compiler's hooks of -fsanitize=thread, which order.cc
// defines; what is done later by the functions here. Programs without PRNN_ORDER have none of this.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

namespace order {

// The kinds of global memory: arrays; exchanges between blocks, with words that are polled, which are not checked; such
// words alone, which are.
enum class Kind { kArray, kExchange, kWords };
// Whether words of kWords that are polled order what their stores depend on.
inline bool words_order = true;

// Whether mma.sync multiplies, and so reads its operands: not where the order of accesses is followed and nothing
// depends on values.
#if defined(PRNN_ORDER) && !defined(PRNN_ORDER_MULTIPLIES)
constexpr bool kMultiplies = false;
#else
constexpr bool kMultiplies = true;
#endif

#ifdef PRNN_ORDER

// Marks functions whose accesses have the address, and so the line, of the kernel that calls them. The compiler has no
// hook for a store of what a call returns: the kernels' functions are all inlined, too.
#define PRNN_IN_CALLER inline __attribute__((always_inline))
constexpr bool kOn = true;
using Clock = int16_t;
using Clocks = std::vector<Clock>;  // of each actor; empty: zeros

// A barrier's phase: the knowledge of those who arrived in this phase, and in the last one.
struct Phase {
  Clocks arriving, last;
  int actor = -1;  // of the copies that an mbarrier counts
};

constexpr uint32_t kEmpty = 0xFFFFFFFF;  // a word of Kind::kWords that is not there

// Global memory of the next launch is followed where follow() says so.
void follow(const void* memory, size_t bytes, Kind kind = Kind::kExchange);
void start(int blocks, int threads, char* shared, size_t bytes_of_block);
// Prints a line for each pair of instructions with unordered accesses: "unordered read|write ADDRESS read|write
// ADDRESS", addresses in the program, of the earlier and the later.
void finish();

// The thread arrives with all lanes of its warp; alone, with what the warp did before its last __syncwarp().
void arrive(Phase& phase);
void arrive_alone(Phase& phase);
void end(Phase& phase);
void acquire(const Phase& phase);
// red.release and ld.acquire.
void release_counter(const void* counter);
void acquire_counter(const void* counter);
// PTX statements that access global memory, or words of shared memory that are polled; what is stored is there when it
// is called. What words that say by their values whether they are there depend on was before.
void store_words(const void* to, size_t bytes);
void load_words(const void* from, size_t bytes);

// cp.async: of the thread's group number `group`, and the end of all groups before `group`. `from_bytes`: 0 or `bytes`.
void begin_copy(const void* to, size_t bytes, const void* from, size_t from_bytes, long group);
void end_copies(long group);
// Copies that an mbarrier counts, in its phase number `phase`. begin returns what the barrier knows from them.
Clocks begin_counted(Phase& barrier, long phase, const void* to, const void* from, size_t bytes);
void end_counted(Phase& barrier, const Clocks& issued);
void end_counted_phase(Phase& barrier, long phase);
// Follows the reads of a product of the warpgroup's group `group`, and the end of all groups before it.
void read_by_product(const void* from, size_t bytes, long group);
void end_products(long group);

// memcpy() and memset() that are not followed.
void copy(void* to, const void* from, size_t bytes);
void fill(void* to, int byte, size_t bytes);

#else

#define PRNN_IN_CALLER inline
constexpr bool kOn = false;
struct Phase {};
struct Clocks {};
inline void follow(const void*, size_t, Kind = Kind::kExchange) {}
inline void start(int, int, char*, size_t) {}
inline void finish() {}
inline void arrive(Phase&) {}
inline void arrive_alone(Phase&) {}
inline void end(Phase&) {}
inline void acquire(const Phase&) {}
inline void release_counter(const void*) {}
inline void acquire_counter(const void*) {}
inline void store_words(const void*, size_t) {}
inline void load_words(const void*, size_t) {}
inline void begin_copy(const void*, size_t, const void*, size_t, long) {}
inline void end_copies(long) {}
inline Clocks begin_counted(Phase&, long, const void*, const void*, size_t) { return {}; }
inline void end_counted(Phase&, const Clocks&) {}
inline void end_counted_phase(Phase&, long) {}
inline void read_by_product(const void*, size_t, long) {}
inline void end_products(long) {}
inline void copy(void* to, const void* from, size_t bytes) { std::memcpy(to, from, bytes); }
inline void fill(void* to, int byte, size_t bytes) { std::memset(to, byte, bytes); }

#endif

}  // namespace order
