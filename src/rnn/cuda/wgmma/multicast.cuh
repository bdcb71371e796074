// How the blocks of a cluster fetch the states that all of them multiply: each reads its share from L2 once and
// multicasts it to the shared memory of all. 16-bit types and tf32.
#pragma once

#include "rnn/cuda/common/block.cuh"
#include "rnn/cuda/common/dsmem.cuh"
#include "rnn/cuda/wgmma/operands.cuh"
#include "rnn/plan/wgmma.h"

namespace prnn {

#if PRNN_HAS_CLUSTERS
__device__ __forceinline__ void init_barrier(uint64_t* barrier, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0],%1;" ::"r"(shared_address(barrier)), "r"(arrivals) : "memory");
}
__device__ __forceinline__ void expect_bytes(uint32_t barrier, uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _,[%0],%1;" ::"r"(barrier), "r"(bytes) : "memory");
}
// `barrier`: of address_in_rank().
__device__ __forceinline__ void arrive_in_cluster(uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared::cluster.b64 _,[%0];" ::"r"(barrier) : "memory");
}
// Copies to the same address in each block of the cluster; the barrier at the same address there counts the bytes.
__device__ __forceinline__ void copy_to_cluster(uint32_t to, const void* from, int bytes, uint32_t barrier,
                                                uint16_t ranks) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0],[%1],%2,[%3],%4;" ::
          "r"(to),
      "l"(from), "r"(bytes), "r"(barrier), "h"(ranks)
      : "memory");
}
// After a wait for what other threads stored to global memory, and before asynchronous copies of it.
__device__ __forceinline__ void fence_for_bulk_copies() { asm volatile("fence.proxy.async.global;" ::: "memory"); }
#else
__device__ __forceinline__ void init_barrier(uint64_t*, int) {}
__device__ __forceinline__ void expect_bytes(uint32_t, uint32_t) {}
__device__ __forceinline__ void arrive_in_cluster(uint32_t) {}
__device__ __forceinline__ void copy_to_cluster(uint32_t, const void*, int, uint32_t, uint16_t) {}
__device__ __forceinline__ void fence_for_bulk_copies() {}
#endif

__device__ __forceinline__ void add_released(unsigned* counter) {
  asm volatile("red.release.gpu.global.add.u32 [%0],1;" ::"l"(counter) : "memory");
}
__device__ __forceinline__ unsigned load_acquired(const unsigned* counter) {
  unsigned value;
  asm volatile("ld.acquire.gpu.global.u32 %0,[%1];" : "=r"(value) : "l"(counter) : "memory");
  return value;
}

// The warpgroups that multiply take registers from the one that fetches.
template <bool MULTIPLIES>
__device__ __forceinline__ void take_registers() {
#if PRNN_HAS_WGMMA
  if constexpr (MULTIPLIES) {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 224;");
  } else {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 56;");
  }
#endif
}

// Elements in shared memory: one, or four that lie together.
template <class T>
__device__ __forceinline__ float load_shared_element(uint32_t address) {
  if constexpr (sizeof(T) == 4) {
    float value;
    load_shared(address, value);
    return value;
  } else {
    uint16_t bits;
    asm volatile("ld.shared.u16 %0,[%1];" : "=h"(bits) : "r"(address) : "memory");
    return Element<T>::to_float(reinterpret_cast<const T&>(bits));
  }
}
template <class T>
__device__ __forceinline__ void store_shared_element(uint32_t address, float value) {
  if constexpr (sizeof(T) == 4) {
    asm volatile("st.shared.f32 [%0],%1;" ::"r"(address), "f"(value) : "memory");
  } else {
    const T element = Element<T>::from_float(value);
    asm volatile("st.shared.u16 [%0],%1;" ::"r"(address), "h"(reinterpret_cast<const uint16_t&>(element)) : "memory");
  }
}
template <class T>
__device__ __forceinline__ void store_shared_four(uint32_t address, const float (&values)[4]) {
  if constexpr (sizeof(T) == 4) {
    store_shared(address, {__float_as_uint(values[0]), __float_as_uint(values[1]), __float_as_uint(values[2]),
                           __float_as_uint(values[3])});
  } else {
    asm volatile("st.shared.v2.u32 [%0],{%1,%2};" ::"r"(address), "r"(Element<T>::pack(values[0], values[1])),
                 "r"(Element<T>::pack(values[2], values[3]))
                 : "memory");
  }
}

// The columns of a replica, in groups.
template <int GROUPS>
struct GroupColumns {
  int first, all, of_group;

  explicit __device__ __forceinline__ GroupColumns(const BlockPlace& place)
      : first(place.first_column), all(place.columns), of_group((place.columns + GROUPS - 1) / GROUPS) {}
  __device__ __forceinline__ int sequence(int group, int column) const { return first + group * of_group + column; }
  // Columns of a group that a timestep of so many sequences has; not above 0: none.
  __device__ __forceinline__ int count(int group, int sequences) const {
    const int before = group * of_group;
    return min(min(of_group, all - before), sequences - first - before);
  }
};

// The exchange between a replica's blocks: states, or, backward, the gates' gradients, of even and odd steps, in chunks
// of COLUMNS rows of 128 bytes as they lie in shared memory, and a counter for each chunk of units, which starts from
// `first_count`.
template <class T, int COLUMNS, int GROUPS>
struct MulticastExchange {
  static constexpr int kChunkBytes = COLUMNS * 128;

  char* base;               // of the replica
  int chunks, unit_chunks;  // of K, of units
  unsigned first_count;

  // The operand of step `s`.
  __device__ __forceinline__ char* states(int s, int group, int chunk) const {
    return base + (((s & 1) * GROUPS + group) * chunks + chunk) * kChunkBytes;
  }
  __device__ __forceinline__ unsigned* counter(int group, int chunk) const {
    return reinterpret_cast<unsigned*>(base + 2 * GROUPS * chunks * kChunkBytes +
                                       (group * unit_chunks + chunk % unit_chunks) * kMulticastCounterBytes);
  }
  // Whether all of a chunk has been published.
  __device__ __forceinline__ bool has_states(int s, int group, int chunk) const {
    const unsigned count = load_acquired(counter(group, chunk)) - first_count;
    return static_cast<int>(count - static_cast<unsigned>((s + 1) * multicast_publishers(sizeof(T)))) >= 0;
  }
};

// The ring of chunks in shared memory, two to a slot. Pair i of all goes to slot i % slots, from the block of rank i %
// 2; or, in a cluster whose blocks do not share, from the block itself. The barriers by their shared addresses, worked
// out once.
static_assert(kMulticastCluster == 2);
struct RingBarriers {
  uint64_t full[kMulticastMaxSlots];   // the pair is there
  uint64_t empty[kMulticastMaxSlots];  // both warpgroups of the blocks that share have multiplied the one before

  // By one thread. Barriers of the block and of the cluster must follow. `sharing`: blocks that fetch for each other.
  __device__ __forceinline__ void init(int slots, int pair_bytes, int sharing) {
    for (int i = 0; i < slots; ++i) {
      init_barrier(&full[i], 1);
      init_barrier(&empty[i], 2 * sharing);
    }
    fence_barriers();
    for (int i = 0; i < slots; ++i) expect_bytes(&full[i], pair_bytes);
  }
};

// A warp's position in the ring. The barriers by their shared addresses, worked out once.
struct Ring {
  uint32_t chunks, full, empty;  // shared addresses
  int slots;
  int only_rank;          // -1; of a block that does not share: its own
  int slot = 0, use = 0;  // of the next pair; how often the slot has been used before

  __device__ __forceinline__ Ring(uint32_t chunks_at, RingBarriers& barriers, int slot_count, bool shares)
      : chunks(chunks_at),
        full(shared_address(barriers.full)),
        slots(slot_count),
        only_rank(shares ? -1 : static_cast<int>(cluster_rank())) {
    pin_in_register(full);
    empty = full + sizeof barriers.full;
  }
  __device__ __forceinline__ bool is_shared() const { return only_rank < 0; }
  __device__ __forceinline__ uint32_t full_at() const { return full + slot * 8; }
  __device__ __forceinline__ void advance(int count) {
    slot += count;
    while (slot >= slots) {
      slot -= slots;
      ++use;
    }
  }
};

// A warp's work: fetches the block's share of chunks [first, first + count) of all steps and groups, as they become
// ready. A lane has one of them. Those of the last pair also wait for may_end(step, group, lane % 2), without which no
// block that this one fetches for ends its product.
template <class T, int COLUMNS, int GROUPS, class MayEnd>
__device__ __forceinline__ void fetch_states(const MulticastExchange<T, COLUMNS, GROUPS>& exchange, int first,
                                             int count, Ring ring, int steps, int* fault, const MayEnd& may_end) {
  constexpr int kChunkBytes = COLUMNS * 128;
  const int lane = static_cast<int>(threadIdx.x % 32), of_pair = lane % 2;
  const int pairs = count / 2;
  const bool shares = ring.is_shared();
  int pair = shares ? lane / 2 * kMulticastCluster + static_cast<int>(cluster_rank()) : lane / 2;
  const auto ranks = static_cast<uint16_t>(shares ? (1 << kMulticastCluster) - 1 : 1 << ring.only_rank);
  // The empty barrier of a slot has a phase for each of this block's uses of it: all, or every second one. It tells a
  // phase from the next one alone, so that they are fetched one after the other. So many lanes apart have the same
  // slot.
  const int own_uses = shares && ring.slots % 2 != 0 ? 1 : 0, apart = shares ? ring.slots << own_uses : 2 * ring.slots;
  const unsigned same_slot = lane < apart ? 0 : 1u << (lane - apart);
  ring.advance(pair);
  for (int s = 0; s < steps; ++s) {
#pragma unroll 1
    for (int group = 0; group < GROUPS; ++group) {
      const int chunk = pair * 2 + of_pair;
      bool waits = chunk < count;
      SpinTimeout timeout;
      for (unsigned waiting; (waiting = __ballot_sync(kWholeWarp, waits)) != 0;) {
        if (waits && (waiting & same_slot) == 0 && exchange.has_states(s, group, first + chunk) &&
            (ring.use == 0 || has_arrived(ring.empty + ring.slot * 8, (ring.use - 1) >> own_uses & 1)) &&
            (pair + 1 < pairs || may_end(s, group, of_pair))) {
          fence_for_bulk_copies();
          copy_to_cluster(ring.chunks + (ring.slot * 2 + of_pair) * kChunkBytes,
                          exchange.states(s, group, first + chunk), kChunkBytes, ring.full_at(), ranks);
          waits = false;
        }
        if (!__all_sync(kWholeWarp, timeout.keeps_spinning(fault))) return;
      }
      // The number of pairs so far may become odd: then a block that shares has the others.
      const int own = shares ? pair ^ (pairs & 1) : pair;
      ring.advance(pairs + own - pair);
      pair = own;
    }
  }
}

// The product: each warpgroup has a tile of 64 rows, and multiplies it with the chunks of the ring, FEWEST or more. The
// weights of REGISTERS chunks are in registers.
template <class T, int COLUMNS, int REGISTERS, int FEWEST>
struct MulticastProduct {
  static constexpr int kChunkBytes = COLUMNS * 128;
  using Sums = float[COLUMNS / 2];

  const Warpgroup warpgroup;
  Ring ring;
  uint32_t weights[REGISTERS][4][4];
  uint32_t more_weights;  // shared address of this warpgroup's weights beyond the registers
  int chunks;
  // Where a pair is given back: slot 0's empty barrier of the block that fetches the slot's next pair. With each pair
  // that is the other block, whose addresses differ by the bits of `turns`. Worked out once, not with each pair.
  uint32_t given_to = address_in_rank(ring.empty, ring.is_shared() ? ring.slots % kMulticastCluster : ring.only_rank);
  uint32_t turns = ring.is_shared() ? address_in_rank(ring.empty, 0) ^ address_in_rank(ring.empty, 1) : 0;

  // Waits for a pair, multiplies, and gives the pair before back when that one's product is done.
  template <class Multiply>
  __device__ __forceinline__ void step(int pair, int& before, int* fault, bool& timed_out, const Multiply& multiply) {
    wait_for_arrival_by_warp(ring.full_at(), ring.use & 1, fault, timed_out);
    if (threadIdx.x == 0) expect_bytes(ring.full_at(), 2 * kChunkBytes);
    wgmma_begin();
    multiply(matrix_descriptor(ring.chunks + ring.slot * (2 * kChunkBytes)));
    wgmma_commit();
    wgmma_wait<1>();
    if (pair > 0) give_back(before);
    before = ring.slot;
    ring.advance(1);
  }

  __device__ __forceinline__ void give_back(int slot) {
    if (warpgroup.thread == 0) arrive_in_cluster(given_to + slot * 8);
    given_to ^= turns;
  }

  // Adds the product of a step to `sums`.
  __device__ __forceinline__ void run(Sums& sums, int* fault, bool& timed_out) {
    int before = 0;
#pragma unroll
    for (int p = 0; p < REGISTERS / 2; ++p) {
      if (2 * p >= FEWEST && 2 * p >= chunks) break;
      step(p, before, fault, timed_out, [&](uint64_t states) {
        multiply_chunk<T>(sums, weights[2 * p], states);
        multiply_chunk<T>(sums, weights[2 * p + 1], states + kChunkBytes / 16);
      });
    }
#pragma unroll 1
    for (int p = REGISTERS / 2; p < chunks / 2; ++p) {
      const uint64_t from = matrix_descriptor(more_weights) + (2 * p - REGISTERS) * 512;
      step(p, before, fault, timed_out, [&](uint64_t states) {
        multiply_chunk<T>(sums, from, states);
        multiply_chunk<T>(sums, from + 512, states + kChunkBytes / 16);
      });
    }
    wgmma_wait<0>();
    give_back(before);
  }
};

}  // namespace prnn
