// The backward kernel of wavefronts by chunks: several layers of a stack in one launch, each on its own share of the
// GPU with its recurrent weights alone on the chip. A layer follows the one above by a chunk of timesteps, whose dy
// it makes itself, from the gradients of the gates above, before it steps down through them.
//
// A cluster of two blocks has the rows of R' of 80 units; each block multiplies the gradients of two of an LSTM's four
// gates, or those of half of a GRU's units.
// First come the rows of the other block's 40 units, whose sums travel while the own rows are multiplied.
#pragma once

#include "rnn/cuda/common/block.cuh"
#include "rnn/cuda/common/dsmem.cuh"
#include "rnn/cuda/common/launch.cuh"
#include "rnn/cuda/common/sequence.cuh"
#include "rnn/cuda/common/unit_io.cuh"
#include "rnn/cuda/common/unroll.cuh"
#include "rnn/cuda/wavefront/chunked_backward_memory.cuh"
#include "rnn/cuda/wavefront/chunked_exchange.cuh"
#include "rnn/cuda/wavefront/chunked_product.cuh"

namespace prnn {

// COLUMNS: 4 or 8, of sequences. LENGTHS: they have different lengths. A sequence begins in the step of its last
// timestep; until then nothing is published, read or waited for in its column. PROJECTED: there is a ChunkedProjection
// between layers.
template <class T, prnnRNNMode_t MODE, int COLUMNS, bool LENGTHS, bool PROJECTED>
__global__ void __launch_bounds__(kResidentThreads, 1)
    chunked_backward(const __grid_constant__ WavefrontBackwardParams params) {
  if constexpr (!kHasWgmma) return;
  using Memory = ChunkedBackwardMemory<T, MODE, COLUMNS>;
  using Exchange = ChunkedBackwardExchange<MODE>;
  using OfStep = typename Memory::OfStep;
  using Stage = ChunkedSaved<T, COLUMNS>;
  static_assert(sizeof(Memory) == chunked_backward_shared_bytes(Memory::kGates, COLUMNS));
  static_assert(sizeof(Memory::weights) % 1024 == 0, "stages are aligned");
  constexpr int kUnits = Memory::kUnits, kRows = Memory::kRows, kTiles = Memory::kTiles;
  constexpr int kFirstTiles = Memory::kFirstTiles, kLastTiles = Memory::kLastTiles, kKTiles = Memory::kKTiles;
  constexpr int kGates = Memory::kGates, kFirstOperands = Memory::kFirstOperands;
  constexpr int kFinishing = Memory::kFinishing, kStages = Memory::kStages, kOctets = Memory::kOctets;
  constexpr int kCopyParts = Memory::kCopyParts, kCopiedColumns = Memory::kCopiedColumns;
  constexpr int kInRegisters = chunked_backward_registers(COLUMNS);
  using Layout = ChunkedBackwardOperands<MODE, kInRegisters>;
  constexpr int kItems = COLUMNS / 4;                  // that a thread finishes: columns of one unit
  constexpr int kExchangeTile = COLUMNS * 64;          // bytes
  constexpr int kAhead = 2;                            // operands in flight from shared memory
  constexpr int kIdleDelay = kItems == 1 ? 400 : 200;  // cycles, of warps that finish no units: their polls would come
                                                       // in the way of the others' stores
  constexpr int kProbe = 1, kSend = 3;  // k-tiles of the last tiles after which the other block's sums may be sent

  extern __shared__ __align__(1024) uint4 chunked_shared[];
  Memory& memory = *reinterpret_cast<Memory*>(chunked_shared);
  const ResidentSizes& sizes = params.sizes;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, sub = lane % 4;
  const int rank = static_cast<int>(cluster_rank());
  const BlockPlace place = place_of_block(sizes, kUnits);
  const WavefrontBackwardLayer& layer = params.layer[place.direction];
  const int hidden = sizes.hidden, first_unit = place.first_unit;
  char* const exchange = static_cast<char*>(layer.exchange);
  const Exchange exchanged{hidden};
  const int exchange_half = exchanged.k_tiles() * kExchangeTile, exchange_step = 2 * exchange_half;
  const auto ring_bytes = [&] { return 4 * params.chunk_steps * exchange_step; };
  const auto is_fed = [&] { return layer.above != nullptr; };
  const auto in_table = [&](int s) -> StepSizes& { return memory.table[s & (Memory::kTableSteps - 1)]; };
  const auto row_of = [&](int s) { return LENGTHS ? in_table(s).row : (sizes.steps - 1 - s) * sizes.batch; };
  const auto batch_of = [&](int s) { return LENGTHS ? in_table(s).batch : sizes.batch; };

  // The weights. A lane has words sub * 4 onwards of a k-tile.
  const T* const weights = static_cast<const T*>(layer.recurrent);
  const auto load_operand = [&](int operand) {
    const bool is_first = operand < kFirstOperands;
    const int tiles = is_first ? kFirstTiles : kLastTiles, i = is_first ? operand : operand - kFirstOperands;
    const int half = i % 2, tile = i / 2 % tiles + (is_first ? 0 : kFirstTiles), k_tile = i / 2 / tiles;
    uint32_t words[4];
#pragma unroll
    for (int w = 0; w < 4; ++w) {  // row, row + 8, the next word of both
      const int row = tile * 16 + w % 2 * 8 + lane / 4, own = row < kUnits ? row : row - kUnits;
      const int unit = first_unit + own + (row >= kUnits ? 0 : rank == 0 ? kUnits : -kUnits);
      const int q = warp * kKTiles + k_tile;
      alignas(4) T pair[2] = {Element<T>::from_float(0), Element<T>::from_float(0)};
      if (unit < hidden && q < exchanged.k_tiles()) {
        int k[2];
        exchanged.elements(rank, q, sub * 4 + half * 2 + w / 2, k);
        pair[0] = weights[int64_t{k[0]} * hidden + unit];
        pair[1] = weights[int64_t{k[1]} * hidden + unit];
      }
      words[w] = reinterpret_cast<const uint32_t&>(pair);
    }
    return uint4{words[0], words[1], words[2], words[3]};
  };
  // Through shared memory: loads of many operands at once would take registers.
  constexpr int kRoom = sizeof(Memory) / sizeof(uint4) / kResidentThreads;
  uint4 in_registers[kInRegisters];
#pragma unroll
  for (int first = 0; first < kInRegisters; first += kRoom) {
#pragma unroll 4
    for (int i = first; i < min(first + kRoom, kInRegisters); ++i) {
      chunked_shared[(i - first) * kResidentThreads + threadIdx.x] = load_operand(Layout::register_operand(i));
    }
#pragma unroll
    for (int i = 0; i < kRoom; ++i) {
      if (first + i >= kInRegisters) continue;
      in_registers[first + i] = load_shared(shared_address(chunked_shared + i * kResidentThreads + threadIdx.x));
    }
  }
  __syncthreads();  // they may lie beyond the weights that stay there
#pragma unroll 2
  for (int i = 0; i < Layout::kInShared; ++i) {
    memory.weights[i][threadIdx.x] = load_operand(Layout::shared_operand(i));
  }

  const uint32_t own_base = shared_address(chunked_shared), other_base = address_in_rank(own_base, rank ^ 1);
  constexpr uint32_t kStep = offsetof(Memory, step), kMultiplied = offsetof(Memory, multiplied);
  constexpr uint32_t kSums = kStep + offsetof(OfStep, sums), kSaved = kStep + offsetof(OfStep, saved);
  constexpr uint32_t kDerived = kStep + offsetof(OfStep, derived);
  constexpr uint32_t kPartial = offsetof(Memory, partial), kCarried = offsetof(Memory, carried);
  const uint32_t weights_at = own_base + threadIdx.x * 16;
  bool timed_out = false;
  const auto wait_until = [&](const auto& is_there) {
    SpinTimeout timeout;
    while (!timed_out && !is_there()) {
      if (!timeout.keeps_spinning(sizes.timed_out)) timed_out = true;
    }
  };

  // The copies and the stores of rows of dgates by the threads that finish no units.
  if (threadIdx.x >= kFinishing) {
    const int task = threadIdx.x - kFinishing;
    {
      const int part = task % kCopyParts, first = task / kCopyParts;
      const bool is_gates = part < 4 * kOctets, is_cells = part < 5 * kOctets;
      const int at = is_gates ? part * 2 : part % kOctets * 8;  // unit
      const int of_unit = is_gates ? 4 : 1, row_elements = of_unit * hidden;
      const void* const states = Cell<MODE>::kHasCellState ? layer.cells : layer.y;
      const void* const data = is_gates ? layer.gates : is_cells ? states : is_fed() ? layer.products : params.dy;
      const T* const from = static_cast<const T*>(data) + (int64_t{first} * row_elements + (first_unit + at) * of_unit);
      const int to = (is_gates   ? 0
                      : is_cells ? offsetof(Stage, cells)
                                 : offsetof(Stage, dy)) +
                     (first * kUnits + at) * of_unit * sizeof(T);
      const bool copies = first < kCopiedColumns && first_unit + at < hidden;
      memory.copies[task] = {copies ? reinterpret_cast<const char*>(from) : nullptr,
                             static_cast<int>(row_elements * sizeof(T)), to};
    }
    const int octet = task % kOctets, column = task / kOctets % COLUMNS, half = task / (kOctets * COLUMNS);
    const int at = first_unit + octet * 8;
    const bool stores = half < 2 && at < hidden;
    memory.rows[task] = {stores ? column : kTileColumns, exchanged.place(at, half % 2, kExchangeTile) + column * 64,
                         shared_address(&memory.step.published[0][half % 2][column][octet * 8]),
                         half * 2 * hidden + at};
  }
  // Copies the saved values and dy of step s; `end`: of the chunk, of whose step c (GRU: h) alone is wanted, that
  // before.
  const auto copy_saved = [&](int s, int end) {
    const int task = threadIdx.x - kFinishing, part = task % kCopyParts, first = task / kCopyParts;
    const ChunkedCopy copy = memory.copies[task];
    const bool is_gates = part < 4 * kOctets, is_cells = !is_gates && part < 5 * kOctets;
    if (copy.from == nullptr || s > end || (s == end && !is_cells)) return;
    if (s == sizes.steps) {
      // It may lie anywhere.
      const T* const initial = initial_states<T, MODE>(layer);
      if (initial == nullptr) return;
#pragma unroll 1
      for (int i = first * 8; i < sizes.batch * 8; i = i % 8 == 7 ? i + 1 + (kCopiedColumns - 1) * 8 : i + 1) {
        const int at = part % kOctets * 8 + i % 8;
        memory.step.saved[s % kStages].cells[i / 8][at] = initial[i / 8 * hidden + first_unit + at];
      }
      return;
    }
    const int row = row_of(s) - (is_fed() && !is_gates && !is_cells ? row_of(end - 1) : 0);
    const int column_bytes = (is_gates ? 4 : 1) * kUnits * static_cast<int>(sizeof(T));
    const int batch = batch_of(s);
    const char* from = copy.from + int64_t{row} * copy.row_bytes;
    uint32_t to = own_base + kSaved + s % kStages * sizeof(Stage) + copy.to;
#pragma unroll
    for (int i = 0; i < (COLUMNS + kCopiedColumns - 1) / kCopiedColumns; ++i) {
      copy_ahead(first + i * kCopiedColumns < batch, to, from);
      from += kCopiedColumns * copy.row_bytes;
      to += kCopiedColumns * column_bytes;
    }
  };

  // This thread finishes `kItems` columns of a unit.
  const bool finishes = warp < kFinishing / 32;
  const auto last_step = [&] { return layer.dhx == nullptr && layer.dcx == nullptr ? sizes.steps - 1 : sizes.steps; };

  // The derivatives of step s, which need no gradient; `at`: of the step in the exchange buffer.
  const auto derive = [&](int step, int at) {
    const int thread = pin_in_register(threadIdx.x), s = pin_in_register(step);  // takes no register elsewhere
    const int own_unit = thread / 4, own_column = thread % 4 * kItems;
    const int unit = first_unit + own_unit;
    const int to = at + exchanged.place(unit, 0, kExchangeTile) + own_column * 64;
    const Stage& now = memory.step.saved[s % kStages];
    const auto& before = memory.step.saved[(s + 1) % kStages].cells;
#pragma unroll
    for (int i = 0; i < kItems; ++i) {
      const Four<T> gates = *reinterpret_cast<const Four<T>*>(now.gates[own_column + i][own_unit]);
      const float c = Element<T>::to_float(now.cells[own_column + i][own_unit]);
      const bool has_before = s + 1 < sizes.steps || initial_states<T, MODE>(layer) != nullptr;
      const float c_before = has_before ? Element<T>::to_float(before[own_column + i][own_unit]) : 0;
      float saved[4];
#pragma unroll
      for (int g = 0; g < 4; ++g) saved[g] = Element<T>::to_float(gates.value[g]);
      const UnitDerivatives d = Cell<MODE>::template derivatives<digits_of<T>()>(saved, c, c_before);
      memory.step.derived[i].gates[thread] = {d.gate[0], d.gate[1], d.gate[2], d.gate[3]};
      const bool exists = unit < hidden && own_column + i < batch_of(s) && (LENGTHS || s < sizes.steps);
      float dh = exists ? Element<T>::to_float(now.dy[own_column + i][own_unit]) : 0;
      const bool begins = LENGTHS ? exists && own_column + i >= batch_of(s - 1) : s == 0;
      if (begins) dh += load_final_gradients<T, MODE>(layer, (own_column + i) * hidden + unit, exists).dh;
      memory.step.derived[i].others[thread] = {d.state, d.carry, dh, __int_as_float(exists ? to + i * 64 : -1)};
    }
  };

  // The exchange buffer is a ring of four chunks. A block makes its words of step s - 2 (GRU: s - 3) empty again in
  // step s: all blocks have read them, since all have published step s - 1 (a GRU's block has seen so of half of the
  // units, and its step s - 1 had sums of the other half of s - 2). So those of chunk c are empty when the block counts
  // chunk c + 1 (GRU, of chunks of two timesteps: c + 2), and its release orders these stores, which the block's
  // barrier has collected, before the count. A block acquires, before it reads or publishes a word of chunk c + 4, the
  // counts of all blocks of the layer up to chunk c + 2: it cannot see the old words again, and new ones come after the
  // empty ones.
  const auto empty_words = [&](int at) {
    const int before = at - Exchange::kReadAfter * exchange_step;
    const ChunkedRowsOut rows = memory.rows[threadIdx.x - kFinishing];
    if (rows.column >= kTileColumns) return;
    char* const to = exchange + (before + (before < 0 ? ring_bytes() : 0) + rows.exchange);
    publish_16_bytes(to, {kEmpty, kEmpty, kEmpty, kEmpty});
    if (Exchange::kByUnits && rows.to >= 2 * hidden) return;  // a candidate's words are of two units each
    publish_16_bytes(to + 16, {kEmpty, kEmpty, kEmpty, kEmpty});
  };
  const auto store_rows = [&](int s) {
    const ChunkedRowsOut rows = memory.rows[threadIdx.x - kFinishing];
    if (rows.column >= batch_of(s)) return;
    const uint32_t from = rows.from + (s & 1) * static_cast<uint32_t>(sizeof(memory.step.published[0]));
    const uint4 low = load_shared(from), high = load_shared(from + 16);
    T* const to = static_cast<T*>(layer.dgates) + (int64_t{row_of(s) + rows.column} * (4 * hidden) + rows.to);
#pragma unroll
    for (int g = 0; g < 2; ++g) {
      const unsigned bytes = g == 0 ? 0x5410 : 0x7632;
      *reinterpret_cast<uint4*>(to + g * hidden) = {__byte_perm(low.x, low.y, bytes), __byte_perm(low.z, low.w, bytes),
                                                    __byte_perm(high.x, high.y, bytes),
                                                    __byte_perm(high.z, high.w, bytes)};
    }
  };

  // The product that makes dy of the chunk that ends before step `end`, from the gradients of the gates above.
  // PROJECTED: the first of two products, from these, leaves gradients of h, each cluster its share; the last one is of
  // all of them.
  const auto multiply_chunk = [&](auto is_last, int end) {
    constexpr bool kLast = decltype(is_last)::value, kOfGates = !kLast || !PROJECTED;
    const int thread = pin_in_register(static_cast<int>(threadIdx.x)), pinned_end = pin_in_register(end);
    const int own_rank = PROJECTED ? pin_in_register(rank) : rank;
    int chunk_row, rows;
    const auto find_rows = [&](int chunk_end) {
      chunk_row = row_of(chunk_end - 1);
      const int first = memory.chunk_first;
      rows = row_of(first) + batch_of(first) - chunk_row;
    };
    find_rows(pinned_end);
    const ChunkedProjection& projection = layer.projection;
    const int outputs = kLast ? hidden : params.projection, inputs = kOfGates ? kGates * hidden : params.projection;
    const int row_inputs = kOfGates ? 4 * hidden : params.projection;
    // K of the product. Of a GRU it has what the candidate has for W x, which follows what it has for R h.
    constexpr int kStageK = kChunkedColumnsK;
    const auto k_begin = [&](int r) { return (inputs / kStageK * r + 1) / 2 * kStageK; };
    const int k_first = k_begin(own_rank), k_elements = k_begin(own_rank + 1) - k_first;
    // The cluster's columns: its units, or its octets of the gradients of h. Those are worked out again after the
    // product, as rows are.
    int first_column, octets_of_cluster = kTiles * 2;
    const auto find_columns = [&](int unit) {
      first_column = unit - own_rank * kUnits;
      if constexpr (kLast) return;
      first_column = first_column / kRows * params.projection_columns;
      octets_of_cluster = min(params.projection_columns, outputs - first_column) / 8;
    };
    find_columns(first_unit);
    if (!kLast && octets_of_cluster <= 0) return;
    float product[32];
    const void* const source = kOfGates ? layer.above : projection.states;
    const T* const above =
        static_cast<const T*>(source) + k_first + (Exchange::kByUnits && k_first >= 2 * hidden ? hidden : 0);
    const T* const matrix =
        static_cast<const T*>(kOfGates ? layer.input_above : projection.matrix) + int64_t{k_first} * outputs;
    const uint32_t stages = own_base + kStep;
    // Sums of 8 columns, the octets of the cluster: a thread's first one, how many it has, and whose they are. Those of
    // an octet and a thread go to the same place in either block, in a stage that is free, and are kEmpty until they
    // have arrived.
    const int first_octet = thread / 128 * 8;
    const auto slots_of = [&](int r) { return kStep + free_columns_stage(k_begin(r + 1) - k_begin(r)); };
    const uint32_t slots = slots_of(own_rank);
    const auto slot_of = [&](int octet) { return (octet % kOctets * 128 + thread % 128) * 16; };
    multiply_columns<T, kLast>(
        product, k_elements, stages, thread, {above + int64_t{chunk_row} * row_inputs, rows, row_inputs},
        [&](int s) { return kStageK + (Exchange::kByUnits && k_first + (s + 1) * kStageK == 2 * hidden ? hidden : 0); },
        matrix, outputs, [&](int v) { return min(first_column + v * 8, outputs - 8); }, octets_of_cluster,
        [&] {
          for (int i = thread; i < kOctets * 128; i += kResidentThreads) {
            store_shared(own_base + slots + i * 16, uint4{kEmpty, kEmpty, kEmpty, kEmpty});
          }
          arrive_at_cluster();
        });
    wait_for_cluster();  // the other block's slots are empty
    if constexpr (!kLast) find_columns(pin_in_register(first_unit));
    const int octets = thread / 128 == 0 ? min(octets_of_cluster, 8) : kLast ? kTiles * 2 - 8 : 0;
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      if (j >= octets || (first_octet + j) / kOctets == own_rank) continue;
      chunked_store_to_rank(other_base + slots_of(own_rank ^ 1) + slot_of(first_octet + j), product + j * 4);
    }
    const int first_row = thread % 128 / 32 * 16 + thread % 32 / 4, column = thread % 4 * 2;
    const uint8_t* const kept = PROJECTED ? projection.kept : params.kept[place.direction];
    if constexpr (LENGTHS || PROJECTED)
      find_rows(memory.chunk_end);  // again: kept during the product, they would be spilled
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      if (j >= octets || (first_octet + j) / kOctets != own_rank) continue;
      float sums[4];
      wait_until([&] { return chunked_load_arrived(own_base + slots + slot_of(first_octet + j), sums); });
#pragma unroll
      for (int q = 0; q < 4; ++q) sums[q] += product[j * 4 + q];
      const int unit = first_column + (first_octet + j) * 8 + column;
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const int row = first_row + e * 8;
        if (row >= rows || unit >= outputs) continue;
        float first = sums[e * 2], second = sums[e * 2 + 1];
        if (kOfGates && kept != nullptr) {
          const unsigned bits = kept[int64_t{chunk_row + row} * (outputs / 8) + unit / 8] >> column;
          first *= bits & 1 ? params.dropout_scale : 0;
          second *= bits & 2 ? params.dropout_scale : 0;
        }
        T* const to = kLast ? static_cast<T*>(layer.products) + row * outputs
                            : static_cast<T*>(projection.states) + int64_t{chunk_row + row} * outputs;
        *reinterpret_cast<uint32_t*>(to + unit) = Element<T>::pack(first, second);
      }
    }
  };
  const auto make_dy = [&](int end) {
    if constexpr (PROJECTED) {
      multiply_chunk(std::false_type(), end);
      __syncthreads();
      if (threadIdx.x == 0) {
        unsigned* const progress = layer.projection.progress;
        count_block(progress);
        const unsigned blocks = sizes.blocks * (memory.chunk_first / params.chunk_steps + 1);
        wait_for_blocks(progress, blocks, sizes.timed_out, timed_out);
      }
      __syncthreads();
    }
    multiply_chunk(std::true_type(), PROJECTED ? memory.chunk_end : end);
    __syncthreads();
  };

  if (finishes) {
    memory.biases[threadIdx.x] = {0, 0, 0, 0};
#pragma unroll
    for (int i = 0; i < kItems; ++i) {
      const int unit = first_unit + threadIdx.x / 4, column = sub * kItems + i;
      const bool exists = unit < hidden && column < sizes.batch;
      memory.carried[i][threadIdx.x] = load_final_gradients<T, MODE>(layer, column * hidden + unit, exists).dc;
    }
  }
  for (int i = threadIdx.x; i < kUnits * COLUMNS; i += kResidentThreads) {
    memory.partial[0][i] = memory.partial[1][i] = __uint_as_float(kEmpty);
  }
  if (threadIdx.x == 0) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0],%1;" ::"r"(own_base + kMultiplied), "r"(kResidentWarps)
                 : "memory");
  }
  __syncthreads();
  sync_cluster();

  unsigned published = clock_low();
  int at = 0;  // of this step in the exchange buffer
  bool begins_chunk = true;
  const int k_tiles = min(max(exchanged.k_tiles() - warp * kKTiles, 0), kKTiles);

#pragma unroll 1
  for (int s = 0; s <= last_step(); ++s) {
    if (begins_chunk && s < sizes.steps) {
      const int chunk = s / params.chunk_steps, chunk_end = min(s + params.chunk_steps, sizes.steps);
      if (threadIdx.x == 0) {
        memory.chunk_first = s;
        memory.chunk_end = chunk_end;
        // In a last chunk of one timestep, a block may be through when another one has not counted the chunk before.
        const int ahead = chunk_end + 1 == sizes.steps ? 2 : 1;
        if (is_fed()) wait_for_blocks(layer.above_progress, sizes.blocks * (chunk + ahead), sizes.timed_out, timed_out);
      } else if (threadIdx.x == 32 && chunk >= 2) {
        wait_for_blocks(layer.progress, sizes.blocks * (chunk - 1), sizes.timed_out, timed_out);
      }
      if (LENGTHS && threadIdx.x >= 64) {
        const int q = s - 1 + static_cast<int>(threadIdx.x) - 64;
        const Step step = q < 0 || q > chunk_end ? Step{} : step_of_pass(sizes, sizes.steps, true, q);
        if (q <= chunk_end) in_table(q) = {step.row, step.batch};
      }
      __syncthreads();
      if (is_fed()) {
        make_dy(chunk_end);
        if constexpr (PROJECTED) {  // kept during the products, they would be spilled
          s = memory.chunk_first;
          at = s % (4 * params.chunk_steps) * exchange_step;
        }
      }
#pragma unroll 1
      for (int q = s; !finishes && q < s + kStages - 1; ++q) copy_saved(q, PROJECTED ? memory.chunk_end : chunk_end);
      asm volatile("cp.async.wait_all;" ::: "memory");
      __syncthreads();
    }

    uint4 ahead[kAhead];
#pragma unroll
    for (int q = 0; q < kAhead; ++q) ahead[q] = load_shared(weights_at + q * kResidentThreads * 16);
    const auto multiply = [&](int operand, float (&sum)[4], uint32_t b0, uint32_t b1) {
      const int q = Layout::shared_index(operand);
      const uint4 a = Layout::in_register(operand) ? in_registers[Layout::before(operand)] : ahead[q % kAhead];
      Element<T>::mma(sum, a.x, a.y, a.z, a.w, b0, b1);
      if (!Layout::in_register(operand) && q + kAhead < Layout::kInShared) {
        ahead[q % kAhead] = load_shared(weights_at + (q + kAhead) * kResidentThreads * 16);
      }
    };

    // The gradients of the step before.
    uint4 states[kKTiles];
    const char* const source = exchange + ((at == 0 ? ring_bytes() : at) - exchange_step +
                                           (PROJECTED ? pin_in_register(rank) : rank) * exchange_half +
                                           warp * kKTiles * kExchangeTile + lane * 16);
    const bool reads = (LENGTHS || s > 0) && lane / 4 < batch_of(s - 1);
    wait_poll_delay(published, sizes.poll_delay_cycles + (finishes ? 0 : kIdleDelay));
#pragma unroll
    for (int i = 0; i < kKTiles; ++i) states[i] = load_or_zeros(reads && i < k_tiles, source + i * kExchangeTile);
    if (finishes) derive(s, at);  // while the loads are in flight
    poll_words(states, [&](int i) { return source + i * kExchangeTile; }, sizes.timed_out, timed_out);

    float first_sums[kFirstTiles][4] = {};
    unroll<kKTiles, kFirstTiles>([&](int k, int o) {
      const int operand = (k * kFirstTiles + o) * 2;
      multiply(operand, first_sums[o], states[k].x, states[k].y);
      multiply(operand + 1, first_sums[o], states[k].z, states[k].w);
    });

    float* const warp_sums = memory.step.sums[warp] + (lane / 4) * COLUMNS + sub * 2;
    const auto store_sums = [&](int row, float first, float second) {
      if (sub * 2 < COLUMNS) *reinterpret_cast<float2*>(warp_sums + row * COLUMNS) = {first, second};
    };
#pragma unroll
    for (int o = 0; o < kFirstTiles; ++o) {
      store_sums(o * 16, first_sums[o][0], first_sums[o][1]);
      if (o * 16 + 8 < kUnits) store_sums(o * 16 + 8, first_sums[o][2], first_sums[o][3]);
    }
    __syncwarp();
    if (lane == 0) chunked_arrive(own_base + kMultiplied);

    // Sends the sums of the other block's units as soon as all warps have them.
    bool has_sent = false;
    const auto send = [&](bool waits) {
      if (has_sent) return;
      if (waits) {
        wait_until([&] { return chunked_is_over(own_base + kMultiplied, s & 1); });
        __syncwarp();
      } else if (!__all_sync(kWholeWarp, chunked_is_over(own_base + kMultiplied, s & 1))) {
        return;
      }
      has_sent = true;
      constexpr int kPairsOfWarp = kUnits * COLUMNS / 2 / kResidentWarps;
      if (lane < kPairsOfWarp) {
        const int index = (warp * kPairsOfWarp + lane) * 2;
        float2 total[2] = {};
#pragma unroll
        for (int w = 0; w < kResidentWarps; ++w) {
          const float2 value = *reinterpret_cast<const float2*>(&memory.step.sums[w][index]);
          total[w % 2].x += value.x;
          total[w % 2].y += value.y;
        }
        chunked_store_to_rank(other_base + kPartial + ((s & 1) * kUnits * COLUMNS + index) * 4,
                              float2{total[0].x + total[1].x, total[0].y + total[1].y});
      }
    };
    float last_sums[kLastTiles][4] = {};
#pragma unroll
    for (int k = 0; k < kKTiles; ++k) {
#pragma unroll
      for (int o = 0; o < kLastTiles; ++o) {
        const int operand = kFirstOperands + (k * kLastTiles + o) * 2;
        multiply(operand, last_sums[o], states[k].x, states[k].y);
        multiply(operand + 1, last_sums[o], states[k].z, states[k].w);
      }
      if (k == kProbe || k == kSend) send(k == kSend);
    }

    // No warp reads the own units' sums of the step before any longer: all have been at a barrier since.
    if constexpr (kFirstTiles * 16 > kUnits) {
      store_sums(kUnits, first_sums[kFirstTiles - 1][2], first_sums[kFirstTiles - 1][3]);
    }
#pragma unroll
    for (int o = 0; o < kLastTiles; ++o) {
      store_sums((kFirstTiles + o) * 16, last_sums[o][0], last_sums[o][1]);
      store_sums((kFirstTiles + o) * 16 + 8, last_sums[o][2], last_sums[o][3]);
    }
    asm volatile("cp.async.wait_all;" ::: "memory");

    // All that finishing needs and that is there before the barrier.
    UnitDerivatives d[kItems];
    float past[kItems], dh[kItems];
    int to[kItems];
    if (finishes) {
#pragma unroll
      for (int i = 0; i < kItems; ++i) {
        const uint32_t from = weights_at + kDerived + i * sizeof(ChunkedDerived);
        float4 gates, others;
        load_shared(from + offsetof(ChunkedDerived, gates), gates);
        load_shared(from + offsetof(ChunkedDerived, others), others);
        d[i].gate[0] = gates.x, d[i].gate[1] = gates.y, d[i].gate[2] = gates.z, d[i].gate[3] = gates.w;
        d[i].state = others.x, d[i].carry = others.y, dh[i] = others.z;
        to[i] = __float_as_int(others.w);
      }
    }
    __syncthreads();

    if (finishes) {
      float own[kResidentWarps][kItems], other[kItems];
      const uint32_t own_sums = own_base + threadIdx.x * (kItems * 4);  // a thread's are beside each other
#pragma unroll
      for (int w = 0; w < kResidentWarps; ++w)
        chunked_load(own_sums + kSums + (w * kRows + kUnits) * COLUMNS * 4, own[w]);
#pragma unroll
      for (int i = 0; i < kItems; ++i) {
        dh[i] +=
            ((own[0][i] + own[1][i]) + (own[2][i] + own[3][i])) + ((own[4][i] + own[5][i]) + (own[6][i] + own[7][i]));
        pin_in_register(dh[i]);
      }
      wait_until([&] { return chunked_load_arrived(own_sums + kPartial + (s & 1) * (kUnits * COLUMNS * 4), other); });

      uint32_t words[kItems][2];
      float sums[4] = {};
      const int to_candidate =
          Exchange::kByUnits ? exchanged.to_candidate(first_unit + threadIdx.x / 4, kExchangeTile) : 0;
#pragma unroll
      for (int i = 0; i < kItems; ++i) {
        dh[i] += other[i];
        load_shared(own_base + kCarried + (i * kFinishing + threadIdx.x) * 4, past[i]);
      }
      if (s == sizes.steps) {  // what is left belongs to the initial state
#pragma unroll
        for (int i = 0; i < kItems; ++i) {
          const int unit = first_unit + pin_in_register(threadIdx.x) / 4, column = sub * kItems + i;
          if (unit >= hidden || column >= sizes.batch) continue;
          store_initial_gradients<T, MODE>(layer, column * hidden + unit, dh[i], past[i], kWholeUnit);
        }
        break;
      }
#pragma unroll
      for (int i = 0; i < kItems; ++i) {
        float out[4];
        unit_gradients<MODE>(d[i], dh[i], past[i], out);
#pragma unroll
        for (int half = 0; half < 2; ++half) words[i][half] = Element<T>::pack(out[half * 2], out[half * 2 + 1]);
        publish_word(to[i] >= 0, exchange + to[i], words[i][0]);
        if constexpr (Exchange::kByUnits) {
          const uint32_t beside = __shfl_down_sync(kWholeWarp, words[i][1], 4);  // of the next unit
          const bool has_word = to[i] >= 0 && threadIdx.x / 4 % 2 == 0;
          publish_word(has_word, exchange + (to[i] + to_candidate), __byte_perm(words[i][1], beside, 0x5410));
        } else {
          publish_word(to[i] >= 0, exchange + (to[i] + exchange_half), words[i][1]);
        }
#pragma unroll
        for (int g = 0; g < 4; ++g) sums[g] += to[i] >= 0 ? out[g] : 0;
        past[i] = to[i] >= 0 ? past[i] : 0;
      }
      published = clock_low();

      const int thread = pin_in_register(threadIdx.x), now = pin_in_register(s);
      const int own_unit = thread / 4, own_column = thread % 4 * kItems, place_of_sum = own_unit * COLUMNS + own_column;
#pragma unroll
      for (int i = 0; i < kItems; ++i) {
        memory.partial[now & 1][place_of_sum + i] = __uint_as_float(kEmpty);
        if (!LENGTHS || to[i] >= 0) memory.carried[i][thread] = past[i];  // else dcy stays
        memory.step.published[now & 1][0][own_column + i][own_unit] = words[i][0];
        memory.step.published[now & 1][1][own_column + i][own_unit] = words[i][1];
      }
      float4& bias = memory.biases[thread];
      bias = {bias.x + sums[0], bias.y + sums[1], bias.z + sums[2], bias.w + sums[3]};
    } else {
      published = clock_low();
      copy_saved(s + kStages - 1, memory.chunk_end);
      if (s >= Exchange::kReadAfter) empty_words(at);
      if (s > memory.chunk_first && s < sizes.steps) store_rows(s - 1);
    }
    at = at + exchange_step == ring_bytes() ? 0 : at + exchange_step;

    begins_chunk = s + 1 == memory.chunk_end;
    if (begins_chunk) {
      __syncthreads();
      if (!finishes) store_rows(s);
      __syncthreads();
      if (threadIdx.x == kResidentThreads - 32) count_block(layer.progress);
    }
  }

  if (finishes) {
    const float4 bias = memory.biases[threadIdx.x];
    const int unit = first_unit + threadIdx.x / 4;
    float sums[4] = {bias.x, bias.y, bias.z, bias.w};
#pragma unroll
    for (int g = 0; g < 4; ++g) {
      sums[g] += __shfl_xor_sync(kWholeWarp, sums[g], 1);
      sums[g] += __shfl_xor_sync(kWholeWarp, sums[g], 2);
      if (sub == g && unit < hidden) layer.bias_sums[g * hidden + unit] = sums[g];
    }
  }
  // No block leaves while the other one may still write to its shared memory.
  __syncthreads();
  sync_cluster();
}

template <class T, prnnRNNMode_t MODE, int UNIT_TILES, int CLUSTER>
cudaError_t launch_wavefront_chunked_backward(const ResidentShape& shape, const WavefrontBackwardParams& params,
                                              cudaStream_t stream) {
  static_assert(UNIT_TILES * kTileRows == kChunkedBackwardUnits && CLUSTER == kChunkedBackwardCluster);
  const auto launch_kernel = [&](auto half_tile, auto lengths, auto projected) {
    constexpr int kColumns = decltype(half_tile)::value ? kChunkedHalfTile : kTileColumns;
    return launch_resident(chunked_backward<T, MODE, kColumns, decltype(lengths)::value, decltype(projected)::value>,
                           shape, params, stream);
  };
  const auto launch = [&](auto half_tile, auto lengths) {
    if constexpr (MODE == PRNN_LSTM) {
      if (params.projection > 0) return launch_kernel(half_tile, lengths, std::true_type());
    }
    return launch_kernel(half_tile, lengths, std::false_type());
  };
  const auto launch_of_columns = [&](auto lengths) {
    return params.sizes.batch <= kChunkedHalfTile ? launch(std::true_type(), lengths)
                                                  : launch(std::false_type(), lengths);
  };
  return params.sizes.table != nullptr ? launch_of_columns(std::true_type()) : launch_of_columns(std::false_type());
}

}  // namespace prnn
