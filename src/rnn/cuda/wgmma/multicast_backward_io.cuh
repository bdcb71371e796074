// MulticastIo of the backward kernel.
#pragma once

#include "rnn/cuda/wgmma/multicast_io.cuh"

namespace prnn {

template <class T, prnnRNNMode_t MODE, int COLUMNS, int GROUPS, bool RESETS>
struct BackwardIo : MulticastIo<T, COLUMNS, GROUPS> {
  using Io = MulticastIo<T, COLUMNS, GROUPS>;
  using Io::columns, Io::first_unit, Io::lane, Io::room;
  using Io::kVec, Io::kUnits, Io::kLanes, Io::kMoved;
  using Starting = Restarts<RESETS, COLUMNS>;
  using LoadedStarting = LoadedRestarts<RESETS, COLUMNS>;

  // The layout of a warpgroup's column in shared memory, in bytes: [unit][gate] of what the forward pass saved, where
  // the gates' gradients, [gate][unit], go then; dy, the state of a timestep earlier (c of an LSTM, h of a GRU) and c,
  // [unit] each; Restarts.
  static constexpr int kSavedColumn = multicast_saved_column(sizeof(T)), kSavedDy = 4 * kUnits,
                       kSavedBefore = 5 * kUnits, kSavedState = 6 * kUnits, kSavedRestarts = 7 * kUnits;

  const BackwardParams& params;
  const BackwardDirection& dir;
  int rooms;  // 1, or of each group

  // The set of columns that a group has, and its shared address.
  __device__ __forceinline__ bool has_rooms() const { return GROUPS > 1 && rooms > 1; }
  __device__ __forceinline__ int set_of(int group) const { return has_rooms() ? group : 0; }
  __device__ __forceinline__ uint32_t room_of(int group) const {
    return room + set_of(group) * (COLUMNS * kSavedColumn);
  }
  // Whether a column's sequence started anew with the step before, which is the timestep after. For the warpgroup.
  __device__ __forceinline__ bool restarted(int group, int column) const {
    return Starting::load(room_of(group) + kSavedRestarts, kSavedColumn, column);
  }

  __device__ __forceinline__ void run(int timesteps, int last_step) const {
    constexpr int kGates = gate_count(MODE);
    const auto step_of = [&](int s) { return step_of_pass(params.sizes, timesteps, !dir.reverse, s); };
    const int hidden = params.sizes.hidden;
    Step previous, current = step_of(0), next = step_of(1);
#pragma unroll 1
    for (int group = 0; group < GROUPS; ++group) Io::announce(group);  // the first step's are zeros
#pragma unroll 1
    for (int group = 0; group < (has_rooms() ? GROUPS : 1); ++group) {
      copy_saved(current, next, group, load_restarts(previous, current, next, group));
      Io::give_back(group);
    }
#pragma unroll 1
    for (int s = 0; s <= last_step; ++s) {
      const Step after_next = step_of(s + 2);
#pragma unroll 1
      for (int group = 0; group < GROUPS; ++group) {
        const int present = columns.count(group, current.batch);
        // The copy then is the group's own of the next step, or, with one room, what comes next.
        const bool same = !has_rooms() && group + 1 < GROUPS;
        const int copied = has_rooms() ? group : same ? group + 1 : 0;
        const uint32_t own = room_of(group);
        const Step before = choose(same, previous, current), here = choose(same, current, next),
                   after = choose(same, next, after_next);
        Io::take_over(set_of(group));
        char* to = Io::published_at(s + 1, group, 0);
#pragma unroll 2
        for (int g = 0; g < kGates; ++g) {
          Io::publish(to, own + g * kUnits, kSavedColumn, present, [](int, const uint4&) {});
          to += hidden / Io::kChunk * Io::kChunkBytes;
        }
        Io::announce(group);
        // The other group's copies have had a product's time.
        if (has_rooms() && s + group > 0) Io::give_back(GROUPS - 1 - group);
        const LoadedPair loaded = load_restarts(before, here, after, copied);
        // Off the critical path: no block polls these stores.
        const int64_t row = current.row + columns.sequence(group, 0);
#pragma unroll 1
        for (int g = 0; g < kGates; ++g) {
          Io::store_units(own + g * kUnits, kSavedColumn, static_cast<T*>(dir.dgates) + (row * kGates + g) * hidden,
                          int64_t{kGates} * hidden, present, true);
        }
        if (MODE == PRNN_GRU) {
          Io::store_units(own + 3 * kUnits, kSavedColumn, static_cast<T*>(dir.dcandidate) + row * hidden, hidden,
                          present, true);
        }
        __syncwarp();
        copy_saved(here, after, copied, loaded);
        if (!has_rooms()) Io::give_back();
      }
      previous = current;
      current = next;
      next = after_next;
    }
    if (has_rooms()) Io::give_back(GROUPS - 1);
  }

 private:
  static __device__ __forceinline__ Step choose(bool first, const Step& a, const Step& b) {
    return {first ? a.row : b.row, first ? a.batch : b.batch};
  }

  // The sequences of a step that started anew with the timestep after, and with its own.
  struct LoadedPair {
    LoadedStarting after, here;
  };
  __device__ __forceinline__ LoadedPair load_restarts(const Step& previous, const Step& here, const Step& next,
                                                      int group) const {
    return {{dir, columns, group, here, previous}, {dir, columns, group, next, here}};
  }

  // 16 bytes at a time, of every kColumns-th column: of its gates by all its lanes, of the others by a quarter each.
  // `after`: the next step, which has the timestep earlier.
  __device__ __forceinline__ void copy_saved(const Step& here, const Step& after, int group,
                                             const LoadedPair& loaded) const {
    loaded.after.of_all_lanes().store(room_of(group) + kSavedRestarts, kSavedColumn);
    const Starting starting = loaded.here.of_all_lanes();
    constexpr int kOfColumn = 4 * kLanes, kColumns = kMoved / 4;  // lanes; columns at a time
    const int hidden = params.sizes.hidden, vec = lane() % kOfColumn, unit = Io::own_unit();
    const int present = columns.count(group, here.batch), continuing = min(present, columns.count(group, after.batch));
    // A lane's copies besides gates: vec / kLanes = 0 dy, 1 the state of the timestep earlier, 2 c of an LSTM.
    const int array = vec / kLanes;
    const bool is_before = array == 1, is_of_rows = array == 0 || (is_before && MODE == PRNN_GRU);
    const void* const arrays = array == 0 ? dir.dy : MODE == PRNN_GRU ? dir.y : dir.cells;
    const int64_t row_elements = is_of_rows ? params.y_row : hidden;
    const int first = lane() / kOfColumn, first_n = columns.sequence(group, first);
    const T* other =
        static_cast<const T*>(arrays) + ((is_before ? after.row : here.row) + first_n) * row_elements + unit;
    const T* gates =
        static_cast<const T*>(dir.gates) + (int64_t{here.row + first_n} * hidden + first_unit) * 4 + vec * kVec;
    const bool copies_other = array < (MODE == PRNN_LSTM ? 3 : 2);
    const bool aligned = ((reinterpret_cast<uintptr_t>(arrays) | row_elements * sizeof(T)) % 16) == 0;
    const int there = is_before ? continuing : present;
    static_assert(kSavedBefore == kSavedDy + kUnits && kSavedState == kSavedBefore + kUnits);
    uint32_t to = room_of(group) + first * kSavedColumn + vec * 16;
#pragma unroll 2
    for (int column = first; column < COLUMNS; column += kColumns) {
      Io::copy_vec(to, gates, column < present, true);
      if (copies_other) {
        const bool starts = is_before && column < present && (column >= continuing || starting.has(column));
        if (starts) {
          const T* const states = starting.has(column) ? reset_states<T, MODE>(dir) : initial_states<T, MODE>(dir);
          const int64_t index = int64_t{columns.sequence(group, column)} * hidden + unit;
          Io::copy_vec(to + kSavedDy, states == nullptr ? other : states + index, states != nullptr);
        } else {
          Io::copy_vec(to + kSavedDy, other, column < there, aligned);
        }
      }
      to += kColumns * kSavedColumn;
      gates += int64_t{kColumns * 4} * hidden;
      other += kColumns * row_elements;
    }
  }
};

}  // namespace prnn
