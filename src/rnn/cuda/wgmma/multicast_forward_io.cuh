// MulticastIo of the forward kernel.
#pragma once

#include "rnn/cuda/wgmma/multicast_io.cuh"

namespace prnn {

template <class T, prnnRNNMode_t MODE, int COLUMNS, int GROUPS, bool RESETS>
struct ForwardIo : MulticastIo<T, COLUMNS, GROUPS> {
  using Io = MulticastIo<T, COLUMNS, GROUPS>;
  using Io::columns, Io::first_unit, Io::lane, Io::room;
  using Io::kVec, Io::kUnits, Io::kLanes, Io::kMoved;
  using Starting = Restarts<RESETS, COLUMNS>;
  using LoadedStarting = LoadedRestarts<RESETS, COLUMNS>;

  // The layout of a warpgroup's column in shared memory: [gate][unit] of a step's input products, where [unit][gate] of
  // what is saved goes then, for each group; new states, [unit]; and c. Bytes, with what keeps banks apart. Beyond a
  // column's products: Restarts.
  static constexpr int kInputColumn = multicast_input_column(sizeof(T)), kInputRestarts = 4 * kUnits,
                       kStagedColumn = multicast_staged_column(sizeof(T));
  // Lanes that move the gates of a column, and columns whose gates a warp moves at a time.
  static constexpr int kGateLanes = 4 * kLanes, kGatesMoved = kMoved / 4;

  const ForwardParams& params;
  const ForwardDirection& dir;

  __device__ __forceinline__ uint32_t inputs(int group) const { return room + group * (COLUMNS * kInputColumn); }
  __device__ __forceinline__ uint32_t staged_h() const { return inputs(GROUPS); }
  __device__ __forceinline__ uint32_t staged_c() const { return staged_h() + COLUMNS * kStagedColumn; }
  // Whether a column has no state from the step before, for the warpgroup.
  __device__ __forceinline__ bool starts_anew(int group, int column) const {
    return Starting::load(inputs(group) + kInputRestarts, kInputColumn, column);
  }

  __device__ __forceinline__ void run(int count) const {
    const auto step_of = [&](int s) { return step_of_pass(params.sizes, count, dir.reverse, s); };
    const int hidden = params.sizes.hidden;
    Step current = step_of(0), next = step_of(1);
#pragma unroll 1
    for (int group = 0; group < GROUPS; ++group) {
      const Starting starting = LoadedStarting(dir, columns, group, Step(), current).of_all_lanes();
      publish_initial(group, starting);
      Io::announce(group);
      copy_inputs(current, group);
      starting.store(inputs(group) + kInputRestarts, kInputColumn);
    }
    Io::give_back();
#pragma unroll 1
    for (int s = 0; s < count; ++s) {
#pragma unroll 1
      for (int group = 0; group < GROUPS; ++group) {
        const int present = columns.count(group, current.batch);
        const LoadedStarting loaded(dir, columns, group, current, next);
        Io::take_over();
        const Starting starting = loaded.of_all_lanes();
        Io::publish(Io::published_at(s + 1, group, 0), staged_h(), kStagedColumn, present,
                    [&](int column, uint4& units) {
                      if (starting.has(column)) units = initial_units(dir.reset_hx, group, column, column < present);
                    });
        Io::announce(group);
        // Off the critical path: no block polls these stores.
        const int64_t row = current.row + columns.sequence(group, 0);
        T* const y = static_cast<T*>(dir.y) + row * params.y_row;
        Io::store_units(staged_h(), kStagedColumn, y, params.y_row, present, Io::has_aligned_units(y, params.y_row));
        if (dir.gates != nullptr) {
          store_gates(group, row, present);
          if (MODE == PRNN_LSTM) {
            Io::store_units(staged_c(), kStagedColumn, static_cast<T*>(dir.cells) + row * hidden, hidden, present,
                            true);
          }
        }
        if (next.batch < current.batch) store_final(group, present, columns.count(group, next.batch));
        __syncwarp();
        copy_inputs(next, group);
        starting.store(inputs(group) + kInputRestarts, kInputColumn);
        Io::give_back();
      }
      current = next;
      next = step_of(s + 2);
    }
  }

 private:
  // The lane's units of [N, H] states, or zeros.
  __device__ __forceinline__ uint4 initial_units(const void* states, int group, int column, bool wanted) const {
    const int64_t index = int64_t{columns.sequence(group, column)} * params.sizes.hidden + Io::own_unit();
    return load_row_fragment(static_cast<const T*>(states), index, states != nullptr && wanted ? kVec : 0);
  }

  // For the first step, and for columns that begin later.
  __device__ __forceinline__ void publish_initial(int group, const Starting& starting) const {
    const int present = columns.count(group, params.sizes.batch);
#pragma unroll 1
    for (int i = 0; i < COLUMNS / kMoved; ++i) {
      const int column = i * kMoved + lane() / kLanes;
      const uint4 initial =
          factors_of<T>(initial_units(starting.has(column) ? dir.reset_hx : dir.hx, group, column, column < present));
      *reinterpret_cast<uint4*>(Io::published_at(0, group, 0) + i * kMoved * 128) = initial;
      *reinterpret_cast<uint4*>(Io::published_at(1, group, 0) + i * kMoved * 128) = initial;
    }
  }

  __device__ __forceinline__ void store_gates(int group, int64_t row, int present) const {
    const int64_t row_elements = int64_t{4} * params.sizes.hidden;
    const int first = lane() / kGateLanes, vec = lane() % kGateLanes;
    uint32_t from = inputs(group) + first * kInputColumn + vec * 16;
    T* to = static_cast<T*>(dir.gates) + (row + first) * row_elements + first_unit * 4 + vec * kVec;
#pragma unroll 4
    for (int column = first; column < present; column += kGatesMoved) {
      *reinterpret_cast<uint4*>(to) = load_shared(from);
      from += kGatesMoved * kInputColumn;
      to += kGatesMoved * row_elements;
    }
  }

  // Stores the last states of columns [remaining, present), whose sequences are over.
  __device__ __forceinline__ void store_final(int group, int present, int remaining) const {
#pragma unroll 1
    for (int column = max(remaining, 0) + lane() / kLanes; column < present; column += kMoved) {
      const uint32_t at = column * kStagedColumn + lane() % kLanes * 16;
      const int64_t index = int64_t{columns.sequence(group, column)} * params.sizes.hidden + Io::own_unit();
      if (dir.hy != nullptr) Io::store_elements(static_cast<T*>(dir.hy) + index, load_shared(staged_h() + at));
      if (MODE == PRNN_LSTM && dir.cy != nullptr) {
        Io::store_elements(static_cast<T*>(dir.cy) + index, load_shared(staged_c() + at));
      }
    }
  }

  // 16 bytes of a gate value of every kGatesMoved-th column; zeros beyond the step's sequences.
  __device__ __forceinline__ void copy_inputs(const Step& step, int group) const {
    const int first = lane() / kGateLanes, gate_value = lane() % kGateLanes / kLanes,
              present = columns.count(group, step.batch);
    if (MODE == PRNN_GRU && gate_value == 2) return;
    uint32_t to = inputs(group) + first * kInputColumn + lane() % kGateLanes * 16;
    const T* const xw = static_cast<const T*>(dir.xw) + input_gate<MODE>(gate_value) * params.xw_gate + Io::own_unit();
    int64_t row = step.row + columns.sequence(group, first);
#pragma unroll 4
    for (int column = first; column < COLUMNS; column += kGatesMoved, row += kGatesMoved) {
      const bool exists = column < present;
      Io::copy_vec(to, xw + (exists ? row : 0) * params.xw_row, exists);
      to += kGatesMoved * kInputColumn;
    }
  }
};

}  // namespace prnn
