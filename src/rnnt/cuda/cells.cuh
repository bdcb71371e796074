// Which lattice cell a row of the activations is.
#pragma once

#include "rnnt/cuda/lattice.h"

namespace prnn::rnnt_cuda {

struct Cell {
  int64_t n;
  int t, u;
  bool real;  // false: padding
};

__device__ __forceinline__ void divide(int64_t a, int64_t b, int64_t& quotient, int& remainder) {
  if (a <= 0xffffffff && b <= 0xffffffff) {  // 64-bit division takes some hundred instructions
    const uint32_t q = static_cast<uint32_t>(a) / static_cast<uint32_t>(b);
    quotient = q;
    remainder = static_cast<int>(static_cast<uint32_t>(a) - q * static_cast<uint32_t>(b));
  } else {
    quotient = a / b;
    remainder = static_cast<int>(a - quotient * b);
  }
}

// Where sequences begin in PADDED logits and targets, and their lengths; none of a sequence whose lengths are out of
// range. Symbols are not looked at.
struct PaddedSequences {
  const Problem& problem;

  __device__ __forceinline__ Sequence operator[](int64_t n) const {
    const Problem& p = problem;
    const int frames = p.frame_lengths[n], targets = p.target_lengths[n];
    const bool valid = frames >= 1 && frames <= p.maxFrames && targets >= 0 && targets <= p.maxTargets;
    return {0, n * p.maxTargets, valid ? frames : 0, valid ? targets : 0};
  }
};

__device__ __forceinline__ bool is_target(const Problem& p, int symbol) {
  return symbol >= 0 && symbol < p.classes && (symbol != p.blank || p.blankTargets);
}

// Whether the symbols of a sequence are in range. By a whole warp.
__device__ __forceinline__ bool symbols_valid(const Problem& p, const Sequence& s, int lane) {
  bool valid = true;
  if (p.input != PRNN_LOSS_GATHERED) {
    for (int u = lane; u < s.targets; u += 32) valid = valid && is_target(p, p.targets[s.target_begin + u]);
  }
  return __all_sync(~0u, valid);
}

// Sequences: what [n] of makes a Sequence.
template <class Sequences>
__device__ __forceinline__ Cell find_cell(const Problem& p, const Sequences& sequences, int64_t row) {
  Cell cell;
  int64_t frame;
  if (p.layout == PRNN_RNNT_PACKED) {
    int64_t low = 0, high = p.batch;  // the last sequence that begins at or before the row
    while (high - low > 1) {
      const int64_t middle = (low + high) / 2;
      if (sequences[middle].cell_begin <= row)
        low = middle;
      else
        high = middle;
    }
    const Sequence s = sequences[low];
    cell.n = low;
    divide(row - s.cell_begin, s.targets + 1, frame, cell.u);
    cell.t = static_cast<int>(frame);
    cell.real = frame < s.frames;
    return cell;
  }
  divide(row, p.layout == PRNN_RNNT_PRUNED ? p.pruneRange : p.width(), frame, cell.u);
  divide(frame, p.maxFrames, cell.n, cell.t);
  const Sequence s = sequences[cell.n];
  cell.real = cell.t < s.frames;
  if (p.layout == PRNN_RNNT_PRUNED && cell.real) cell.u += p.range_begins[frame];
  cell.real = cell.real && cell.u <= s.targets;
  return cell;
}

__device__ __forceinline__ int64_t lattice_index(const Problem& p, const Cell& cell) {
  return (cell.n * p.steps() + cell.t + p.skew() * cell.u) * p.width() + cell.u;
}

}  // namespace prnn::rnnt_cuda
