// MulticastIo of the backward kernel.
#pragma once

#include "rnn/cuda/wgmma/multicast_io.cuh"

namespace prnn {

// Of a column of a warpgroup in shared memory, in bytes: [unit][gate] of what the forward pass saved, where the gates'
// gradients, [gate][unit], go then; dy, the state of a timestep earlier (c of an LSTM, h of a GRU) and c, [unit] each.
constexpr int kSavedColumn = kMulticastBackwardColumn, kSavedDy = 128, kSavedBefore = 160, kSavedState = 192;

template <class T, prnnRNNMode_t MODE, int COLUMNS, int GROUPS>
struct BackwardIo : MulticastIo<T, COLUMNS, GROUPS> {
  using Io = MulticastIo<T, COLUMNS, GROUPS>;
  using Io::columns, Io::first_unit, Io::lane, Io::room;

  const BackwardParams& params;
  const BackwardDirection& dir;

  __device__ __forceinline__ void run(int timesteps, int last_step) const {
    constexpr int kGates = gate_count(MODE);
    const auto step_of = [&](int s) { return step_of_pass(params.sizes, timesteps, !dir.reverse, s); };
    const int hidden = params.sizes.hidden;
    Step current = step_of(0), next = step_of(1);
#pragma unroll 1
    for (int group = 0; group < GROUPS; ++group) Io::announce(group);  // the first step's are zeros
    copy_saved(current, next, 0);
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
          Io::publish(Io::published_at(s + 1, group, g * (hidden / kWgmmaChunk)), room + g * 32, kSavedColumn, present);
        }
        Io::announce(group);
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
          copy_saved(current, next, group + 1);
        } else {
          copy_saved(next, after_next, 0);
        }
        Io::give_back();
      }
      current = next;
      next = after_next;
    }
  }

 private:
  // 16 bytes at a time, of every fourth column: 8 times gates, and twice each of the others. `after`: the next step,
  // which has the timestep earlier.
  __device__ __forceinline__ void copy_saved(const Step& here, const Step& after, int group) const {
    const int hidden = params.sizes.hidden, present = columns.count(group, here.batch), vec = lane() % 8;
    const T* const initial = initial_states<T, MODE>(dir);
    const int unit = Io::own_unit();
#pragma unroll 2
    for (int column = lane() / 8; column < COLUMNS; column += 4) {
      const int n = columns.sequence(group, column);
      const bool wanted = column < present, has_before = wanted && n < after.batch;
      const int64_t row = wanted ? here.row + n : 0;
      const uint32_t to = room + column * kSavedColumn;
      Io::copy_vec(to + vec * 16, static_cast<const T*>(dir.gates) + (row * hidden + first_unit) * 4 + vec * 8, wanted);
      if (vec < 2) {
        Io::copy_vec(to + kSavedDy + vec * 16, static_cast<const T*>(dir.dy) + (row * params.y_row + unit), wanted);
      } else if (vec < 4) {
        const T* const before =
            state_before<T, MODE>(dir, hidden, params.y_row, unit, has_before, has_before ? after.row + n : row,
                                  wanted ? int64_t{n} * hidden + unit : 0);
        Io::copy_vec(to + kSavedBefore + vec % 2 * 16, before, wanted && (has_before || initial != nullptr));
      } else if (MODE == PRNN_LSTM && vec < 6) {
        Io::copy_vec(to + kSavedState + vec % 2 * 16, static_cast<const T*>(dir.cells) + (row * hidden + unit), wanted);
      }
    }
  }
};

}  // namespace prnn
