// MulticastIo of the backward kernel.
#pragma once

#include "rnn/cuda/wgmma/multicast_io.cuh"

namespace prnn {

// Of a column of a warpgroup in shared memory, in bytes: [unit][gate] of what the forward pass saved, where the gates'
// gradients, [gate][unit], go then; dy, the state of a timestep earlier (c of an LSTM, h of a GRU) and c, [unit] each;
// Restarts.
constexpr int kSavedColumn = kMulticastBackwardColumn, kSavedDy = 128, kSavedBefore = 160, kSavedState = 192,
              kSavedRestarts = 224;

template <class T, prnnRNNMode_t MODE, int COLUMNS, int GROUPS, bool RESETS>
struct BackwardIo : MulticastIo<T, COLUMNS, GROUPS> {
  using Io = MulticastIo<T, COLUMNS, GROUPS>;
  using Io::columns, Io::first_unit, Io::lane, Io::room;
  using Starting = Restarts<RESETS, COLUMNS>;
  using LoadedStarting = LoadedRestarts<RESETS, COLUMNS>;

  const BackwardParams& params;
  const BackwardDirection& dir;

  // Whether a column's sequence started anew with the step before, which is the timestep after. For the warpgroup.
  __device__ __forceinline__ bool restarted(int column) const {
    return Starting::load(room + kSavedRestarts, kSavedColumn, column);
  }

  __device__ __forceinline__ void run(int timesteps, int last_step) const {
    constexpr int kGates = gate_count(MODE);
    const auto step_of = [&](int s) { return step_of_pass(params.sizes, timesteps, !dir.reverse, s); };
    const int hidden = params.sizes.hidden;
    Step previous, current = step_of(0), next = step_of(1);
#pragma unroll 1
    for (int group = 0; group < GROUPS; ++group) Io::announce(group);  // the first step's are zeros
    copy_saved(current, next, 0, load_restarts(previous, current, next, 0));
    Io::give_back();
#pragma unroll 1
    for (int s = 0; s <= last_step; ++s) {
      const Step after_next = step_of(s + 2);
#pragma unroll 1
      for (int group = 0; group < GROUPS; ++group) {
        const int present = columns.count(group, current.batch);
        Io::take_over();
#pragma unroll 1
        for (int g = 0; g < kGates; ++g) {
          Io::publish(Io::published_at(s + 1, group, g * (hidden / kWgmmaChunk)), room + g * 32, kSavedColumn, present,
                      [](int, const uint4&) {});
        }
        Io::announce(group);
        const LoadedPair loaded = group + 1 < GROUPS ? load_restarts(previous, current, next, group + 1)
                                                     : load_restarts(current, next, after_next, 0);
        // Off the critical path: no block polls these stores.
        const int64_t row = current.row + columns.sequence(group, 0);
#pragma unroll 1
        for (int g = 0; g < kGates; ++g) {
          Io::store_units(room + g * 32, kSavedColumn, static_cast<T*>(dir.dgates) + (row * kGates + g) * hidden,
                          int64_t{kGates} * hidden, present);
        }
        if (MODE == PRNN_GRU) {
          Io::store_units(room + 3 * 32, kSavedColumn, static_cast<T*>(dir.dcandidate) + row * hidden, hidden, present);
        }
        __syncwarp();
        if (group + 1 < GROUPS) {
          copy_saved(current, next, group + 1, loaded);
        } else {
          copy_saved(next, after_next, 0, loaded);
        }
        Io::give_back();
      }
      previous = current;
      current = next;
      next = after_next;
    }
  }

 private:
  // Of a step: who started anew with the timestep after, and with its own.
  struct LoadedPair {
    LoadedStarting after, here;
  };
  __device__ __forceinline__ LoadedPair load_restarts(const Step& previous, const Step& here, const Step& next,
                                                      int group) const {
    return {{dir, columns, group, here, previous}, {dir, columns, group, next, here}};
  }

  // 16 bytes at a time, of every fourth column: 8 times gates, and twice each of the others. `after`: the next step,
  // which has the timestep earlier.
  __device__ __forceinline__ void copy_saved(const Step& here, const Step& after, int group,
                                             const LoadedPair& loaded) const {
    const int hidden = params.sizes.hidden, present = columns.count(group, here.batch), vec = lane() % 8;
    const T* const initial = initial_states<T, MODE>(dir);
    const int unit = Io::own_unit();
    loaded.after.of_all_lanes().store(room + kSavedRestarts, kSavedColumn);
    const Starting starting = loaded.here.of_all_lanes();
    constexpr int kUnroll = RESETS ? 1 : 2;  // with resets, two took a register too many
#pragma unroll kUnroll
    for (int column = lane() / 8; column < COLUMNS; column += 4) {
      const int n = columns.sequence(group, column);
      const bool wanted = column < present, has_before = wanted && n < after.batch;
      const int64_t row = wanted ? here.row + n : 0;
      const uint32_t to = room + column * kSavedColumn;
      Io::copy_vec(to + vec * 16, static_cast<const T*>(dir.gates) + (row * hidden + first_unit) * 4 + vec * 8, wanted);
      if (vec < 2) {
        Io::copy_vec(to + kSavedDy + vec * 16, static_cast<const T*>(dir.dy) + (row * params.y_row + unit), wanted);
      } else if (vec < 4) {
        const T* before =
            state_before<T, MODE>(dir, hidden, params.y_row, unit, has_before, has_before ? after.row + n : row,
                                  wanted ? int64_t{n} * hidden + unit : 0);
        bool has_state = has_before || initial != nullptr;
        if (starting.has(column)) {
          const T* const states = reset_states<T, MODE>(dir);
          has_state = states != nullptr;
          if (wanted && has_state) before = states + (int64_t{n} * hidden + unit);
        }
        Io::copy_vec(to + kSavedBefore + vec % 2 * 16, before, wanted && has_state);
      } else if (MODE == PRNN_LSTM && vec < 6) {
        Io::copy_vec(to + kSavedState + vec % 2 * 16, static_cast<const T*>(dir.cells) + (row * hidden + unit), wanted);
      }
    }
  }
};

}  // namespace prnn
