// Which node of a lattice a cell of the logits is.
#pragma once

#include "rnnt/cuda/cells.cuh"
#include "rnnt/cuda/duration.h"

namespace prnn::duration_cuda {

struct Cell {
  int64_t n;
  int t, u;
  Sequence sequence;
  bool real;  // false: padding

  __device__ Cell(const Problem& p, const Sequence* sequences, int64_t cell) {
    int64_t frame;
    rnnt_cuda::divide(cell, p.width(), frame, u);
    rnnt_cuda::divide(frame, p.max_frames, n, t);
    sequence = sequences[n];
    real = t < sequence.frames && u <= sequence.targets;
  }
};

}  // namespace prnn::duration_cuda
