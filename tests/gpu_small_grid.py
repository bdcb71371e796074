"""A few small layers on the GPU, for compute-sanitizer: every cell and type, two directions, even and ragged batch, and
layers that run together."""

import itertools
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import torch
from reference import rnn as reference
from test_rnn_cuda import MODES, TYPES, CudaCase, TeamCase

for mode, dtype, batch_sizes in itertools.product(MODES.values(), TYPES.values(), ([5, 4, 2], [20] * 3)):
    CudaCase(reference.Stack(mode, 24, 72, 1, 2), batch_sizes, dtype).train()
    torch.cuda.synchronize()
# The wide kernels: 16-bit gated cells of some size.
for cell, name, batch_sizes in itertools.product(("lstm", "gru"), ("half", "bfloat16"), ([70, 33, 2], [64] * 3)):
    CudaCase(reference.Stack(MODES[cell], 24, 264, 1, 2), batch_sizes, TYPES[name]).train()
    torch.cuda.synchronize()
# A batch too large for the cluster kernels, which take the first layers above, and clusters of 16 blocks.
for mode, name in itertools.product(MODES.values(), ("half", "bfloat16")):
    CudaCase(reference.Stack(mode, 24, 72), [121, 3], TYPES[name]).train()
    CudaCase(reference.Stack(mode, 24, 500, 1, 2), [9, 9, 4], TYPES[name]).train()
    torch.cuda.synchronize()
for cell, name, (batch_sizes, groups) in itertools.product(
    ("lstm", "gru"), ("half", "bfloat16"), (([70, 33, 2], 2), ([64] * 3, 1), ([5] * 5, 1))
):
    TeamCase(reference.Stack(MODES[cell], 24, 264), batch_sizes, TYPES[name], groups).train()
    torch.cuda.synchronize()
# The lean kernels, which only large layers use.
for cell, dtype, hidden in (
    ("lstm", torch.float16, 2100),
    ("gru", torch.float32, 1600),
    ("tanh", torch.bfloat16, 4300),
):
    CudaCase(reference.Stack(MODES[cell], 8, hidden), [3, 1], dtype).train()
    torch.cuda.synchronize()
for mode, dtype, batch in itertools.product(MODES.values(), (torch.float16, torch.bfloat16), (5, 20)):
    CudaCase(reference.Stack(mode, 24, 96, 3), [batch] * 3, dtype).train()  # layers together
    torch.cuda.synchronize()
# Wide wavefront kernels: two tiles of rows or one.
for dtype, hidden in itertools.product((torch.float16, torch.bfloat16), (288, 544)):
    CudaCase(reference.Stack(MODES["lstm"], 24, hidden, 2), [20] * 3, dtype).train()
    torch.cuda.synchronize()
print("ran")
