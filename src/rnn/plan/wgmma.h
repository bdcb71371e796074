// The wgmma engines' part of the plans: gated layers of many states, a replica's sequences all at once. 16-bit types,
// and tf32 in multicast kernels. Plain C++ that needs no GPU, as plan.h. docs/resident_kernels.md explains the design.
#pragma once

#include "rnn/plan/shape.h"

namespace prnn {

constexpr int kWarpgroupThreads = 128;
constexpr int kWgmmaUnits = 16;  // hidden units that a block finishes
constexpr int kWgmmaChunk = 64;  // 16-bit elements of K in 128 bytes, what a swizzled row of shared memory holds
constexpr int kWgmmaTileBytes = 64 * kWgmmaChunk * 2;  // of weights: a chunk of 64 rows
constexpr int kWgmmaCluster = 4;                       // blocks that split K in the backward pass

// Chunks that a warpgroup fetches and multiplies together.
constexpr int wgmma_batch(int columns) { return columns <= 16 ? 4 : 64 / columns; }

// Chunks whose weights a warpgroup keeps in registers (16 a thread each).
constexpr int wgmma_register_chunks(int columns) { return columns <= 32 ? 8 : 6; }

// Split-K: kSplitKCluster blocks split K; forward they own their units, backward a gate set, a cluster for each gate,
// does.
constexpr int kSplitKCluster = 2;
constexpr int kSplitKStages = 4;          // batches of chunks that shared memory holds
constexpr int kSplitKRegisterChunks = 8;  // of a warpgroup
constexpr int split_k_batch(int columns) { return columns == 64 ? 1 : 4; }

// Blocks that own their units together.
int split_k_blocks(const RnnProblem& problem, Pass pass);

// Bytes of BackwardParams::sums of one launch of `recurrences` recurrences.
int64_t wgmma_sums_bytes(const RnnProblem& problem, const ResidentShape& backward, int64_t replicas,
                         int64_t recurrences);

// Multicast: all blocks of a cluster multiply the same states, which each reads a share of from L2 for all. Of H, whole
// chunks. `element`: bytes of one, 2 or, in tf32, 4.
constexpr int kMulticastCluster = 2;
constexpr int kMulticastMinHidden = 512;
constexpr int kMulticastUnits = 2 * kWgmmaUnits;
constexpr int kMulticastThreads = kResidentThreads + kWarpgroupThreads;
constexpr int kMulticastMaxSlots = 12;
constexpr int kMulticastCounterBytes = 128;
constexpr int kMulticastSharedBytes = 225 * 1024;

constexpr int multicast_chunk(int element) { return 128 / element; }  // elements of K
// Sequences of a replica in a pass, at most.
constexpr int multicast_columns(int element) { return 256 / element; }
// A larger layer's weights leave room for two pairs of chunks of states, or none.
constexpr int multicast_max_hidden(int element) { return 2048 / element; }
// Chunks whose weights a warpgroup keeps in registers: as many as leave it enough for the rest. And in shared memory.
constexpr int multicast_register_chunks(int element, bool backward) { return element == 4 && backward ? 10 : 8; }
constexpr int multicast_shared_chunks(int element, bool backward, int chunks) {
  const int in_registers = multicast_register_chunks(element, backward);
  return chunks > in_registers ? chunks - in_registers : 0;
}
// Warpgroups that have the units of a chunk.
constexpr int multicast_publishers(int element) { return multicast_chunk(element) / kWgmmaUnits; }

// Pairs of chunks of states that a block's shared memory holds beside each warpgroup's `in_shared` chunks of weights.
constexpr int multicast_slots(int in_shared, int columns, int of_column) {
  const int taken = 2 * (in_shared * kWgmmaTileBytes + columns * of_column);
  const int room = (kMulticastSharedBytes - taken) / (2 * columns * 128);
  return room < kMulticastMaxSlots ? room : kMulticastMaxSlots;
}
// Bytes of shared memory for a column of a warpgroup: of a step's input and output, and, backward, of what each group
// carries. Backward, groups have rooms of their own if there is room for some pairs of states beside them: what one
// group reads is then copied while the other is multiplied.
constexpr int kMulticastCarried = 4 * kWgmmaUnits, kMulticastRoomSlots = 4;
// 16 bytes keep banks apart.
constexpr int multicast_input_column(int element) { return 4 * kWgmmaUnits * element + 16; }
constexpr int multicast_staged_column(int element) { return kWgmmaUnits * element + 16; }
constexpr int multicast_forward_column(int element, int groups) {
  return multicast_input_column(element) * groups + 2 * multicast_staged_column(element);
}
constexpr int multicast_saved_column(int element) { return 7 * kWgmmaUnits * element + 16; }
constexpr int multicast_rooms(int element, int in_shared, int columns, int groups) {
  const int of_column = (multicast_saved_column(element) + kMulticastCarried) * groups;
  return multicast_slots(in_shared, columns, of_column) < kMulticastRoomSlots ? 1 : groups;
}
constexpr int multicast_backward_column(int element, int in_shared, int columns, int groups) {
  return multicast_saved_column(element) * multicast_rooms(element, in_shared, columns, groups) +
         kMulticastCarried * groups;
}
// The ring also stages the weights.
constexpr int multicast_ring_bytes(int slots, int columns) {
  return slots * columns * 256 > 2 * kWgmmaTileBytes ? slots * columns * 256 : 2 * kWgmmaTileBytes;
}
constexpr int multicast_shared_bytes(int in_shared, int columns, int of_column) {
  return multicast_ring_bytes(multicast_slots(in_shared, columns, of_column), columns) +
         2 * (in_shared * kWgmmaTileBytes + columns * of_column);
}
// The bytes that a replica's blocks exchange; chunks of units, and of K.
constexpr int64_t multicast_exchange_bytes(int unit_chunks, int chunks, int columns, int groups) {
  return int64_t{groups} * (2 * chunks * columns * 128 + unit_chunks * kMulticastCounterBytes);
}
// Backward, the chunks of K are split in kMulticastParts of whole pairs: the first chunk of a part, and how many the
// largest part has.
constexpr int kMulticastParts = 4;
constexpr int multicast_part_begin(int chunks, int part) { return chunks / 2 * part / kMulticastParts * 2; }
constexpr int multicast_part_chunks(int chunks) { return (chunks / 2 + kMulticastParts - 1) / kMulticastParts * 2; }

// Backward, the sums that kMulticastParts blocks give each other. Where a part of K is one gate of all units, a product
// needs what all blocks have published, which had read the sums of the step before. Blocks of other cells may be a step
// behind: the sums of even and odd steps have places of their own, or, of several groups, whose sums would take too
// much of the L2 cache, a block waits for the set while it works for another group.
constexpr int multicast_sums_places(int gates, int groups) { return gates == kMulticastParts || groups > 1 ? 1 : 2; }
constexpr int64_t multicast_sums_bytes(int blocks, int gates, int columns, int groups) {
  return int64_t{blocks} * multicast_sums_places(gates, groups) * groups * kMulticastParts * kMulticastUnits * columns *
         4;
}

// The bytes of a forward kernel's replicas: ForwardDirection::exchange.
int64_t multicast_exchange_bytes(const RnnProblem& problem, const ResidentShape& forward, int64_t replicas);

// Sets `shape` to the layout with so many replicas; false if it does not fit the row.
bool wgmma_shape_for(const GpuRow& row, const RnnProblem& problem, Pass pass, int replicas, ResidentShape* shape);
bool split_k_shape_for(const GpuRow& row, const RnnProblem& problem, Pass pass, int replicas, ResidentShape* shape);
bool multicast_shape_for(const GpuRow& row, const RnnProblem& problem, Pass pass, int replicas, ResidentShape* shape);

// Sets `best` to the layout of split-K for the fewest passes; false if no replica of all recurrences fits.
bool choose_split_k_shape(const GpuRow& row, const RnnProblem& problem, Pass pass, int recurrences,
                          ResidentShape* best);

// Sets `best` to the layout of multicast; false where another engine is faster, or no replica of all recurrences fits.
bool choose_multicast_shape(const GpuRow& row, const RnnProblem& problem, Pass pass, int recurrences,
                            ResidentShape* best);

// Sets `best` to the layout of the engine that is faster; false where another engine is, or neither fits.
bool choose_wgmma_shape(const GpuRow& row, const RnnProblem& problem, Pass pass, int recurrences, ResidentShape* best);

}  // namespace prnn
