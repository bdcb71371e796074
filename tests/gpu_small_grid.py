"""A few small layers on the GPU, for compute-sanitizer: every kind of kernel, cell and type, two directions, even and
ragged batches. `gpu_small_grid.py [--part I/N] [KIND ...]` runs those kinds of kernels alone, and of each the cases I,
I + N, I + 2 N and so on, counted from 1: racecheck takes minutes for some kinds, which N processes share. `--list`
prints the kinds."""

import argparse
import itertools
import sys
import time
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import capi
import torch
from layer_norm_lstm_case import Case, results
from reference import rnn as reference
from rnn_case import dropout_descriptor
from test_rnn_cluster_cuda import Tf32Case
from test_rnn_cuda import MODES, TYPES, CudaCase, SplitKCase, WgmmaCase
from test_rnn_extras import extras_of
from test_rnn_extras_cuda import GpuCase
from test_rnn_masks import masks_of
from test_rnn_masks_cuda import GpuMasksCase
from test_rnn_multicast_cuda import RESETS_OF, MulticastCase, MulticastResetCase
from test_rnn_multicast_tf32_cuda import Tf32MulticastCase

import prnn

GATED = [(MODES[cell], TYPES[name]) for cell, name in itertools.product(("lstm", "gru"), ("half", "bfloat16"))]
HALF_TYPES = (torch.float16, torch.bfloat16)
MULTICAST_SIZES = [(MODES["gru"], 512), (MODES["gru"], 640), (MODES["gru"], 768), (MODES["lstm"], 640)]


def with_dropout(stack: reference.Stack, batch_sizes: list[int]) -> CudaCase:
    states = torch.zeros(2, dtype=torch.int64, device="cuda")
    return CudaCase(
        stack, batch_sizes, torch.float16, dropout=dropout_descriptor(capi.Object("Create", "Destroy"), 0.3, states, 77)
    )


def mma() -> Iterator[CudaCase]:
    for mode, dtype, batch_sizes in itertools.product(MODES.values(), TYPES.values(), ([5, 4, 2], [20] * 3, [1] * 3)):
        yield CudaCase(reference.Stack(mode, 24, 72, 1, 2), batch_sizes, dtype)


def long() -> Iterator[CudaCase]:
    """Float layers of more timesteps than their biases' gradients are summed over at once."""
    for mode, batch in itertools.product(MODES.values(), (3, 20)):
        yield CudaCase(reference.Stack(mode, 8, 72), [batch] * 34, torch.float32)


def wgmma() -> Iterator[CudaCase]:
    """16-bit gated cells of some size; those that a cluster does not hold, with few sequences, forward on mma."""
    for (mode, dtype), batch_sizes in itertools.product(GATED, ([70, 33, 2], [64] * 3)):
        yield CudaCase(reference.Stack(mode, 24, 264, 1, 2), batch_sizes, dtype)
    for (mode, dtype), (batch_sizes, replicas) in itertools.product(GATED, (([30, 9], 1), ([12] * 3, 1), ([5] * 4, 1))):
        yield WgmmaCase(reference.Stack(mode, 24, 264), batch_sizes, dtype, replicas)
    for mode, dtype in GATED:
        yield CudaCase(reference.Stack(mode, 24, 544), [5, 5, 3], dtype)


def cluster() -> Iterator[CudaCase]:
    """Clusters of 16 blocks, of which smaller ones take layers of 72 above, and a batch too large for them."""
    for mode, dtype in itertools.product(MODES.values(), HALF_TYPES):
        yield CudaCase(reference.Stack(mode, 24, 500, 1, 2), [9, 9, 4], dtype)
        yield CudaCase(reference.Stack(mode, 24, 72), [121, 3], dtype)


def simt() -> Iterator[CudaCase]:
    """Float layers of a few sequences: in clusters of 8 and 16, over L2, with weights in shared memory, and some
    sequences a replica."""
    for cell, hidden in itertools.product(("tanh", "lstm", "gru"), (72, 300, 800)):
        yield CudaCase(reference.Stack(MODES[cell], 8, hidden), [1] * 3, torch.float32)
    for cell in ("tanh", "lstm", "gru"):
        yield CudaCase(reference.Stack(MODES[cell], 8, 72, 1, 2), [4, 3, 1], torch.float32)
    for cell, hidden in (("tanh", 2600), ("lstm", 1060), ("gru", 1060)):
        yield CudaCase(reference.Stack(MODES[cell], 8, hidden), [1] * 3, torch.float32)
    for batch_sizes in ([1] * 3, [4, 4, 1]):
        yield CudaCase(reference.Stack(MODES["tanh"], 8, 1100), batch_sizes, torch.float32)


def split_k() -> Iterator[CudaCase]:
    for (mode, dtype), (batch_sizes, replicas) in itertools.product(
        GATED, (([70, 33, 2], 2), ([64] * 3, 1), ([5] * 5, 1))
    ):
        yield SplitKCase(reference.Stack(mode, 24, 264), batch_sizes, dtype, replicas)


def multicast() -> Iterator[CudaCase]:
    """Also of parts of K that differ, and of an odd number of sets of blocks."""
    for mode, dtype in GATED:
        hidden = 512 if mode == MODES["lstm"] else 1024
        for batch_sizes, replicas in (([100, 9], 1), ([70, 70], 2), ([20] * 3, 1)):
            yield MulticastCase(reference.Stack(mode, 24, hidden), batch_sizes, dtype, replicas)
    for mode, hidden in MULTICAST_SIZES:
        for batch_sizes, replicas in (([100, 9, 9], 1), ([20] * 3, 2)):
            yield MulticastCase(reference.Stack(mode, 24, hidden), batch_sizes, torch.bfloat16, replicas)


def multicast_tf32() -> Iterator[CudaCase]:
    """Two groups, in one pass and in two, and one."""
    for mode in (MODES["lstm"], MODES["gru"]):
        for batch_sizes, replicas in (([60, 9], 1), ([70, 70], 1), ([20] * 3, 1)):
            yield Tf32MulticastCase(reference.Stack(mode, 24, 512), batch_sizes, replicas)


def large() -> Iterator[CudaCase]:
    """Large layers."""
    for cell, dtype, hidden in (
        ("lstm", torch.float16, 2100),
        ("gru", torch.float32, 1600),
        ("tanh", torch.bfloat16, 4300),
    ):
        yield CudaCase(reference.Stack(MODES[cell], 8, hidden), [3, 1], dtype)


def wavefront() -> Iterator[CudaCase]:
    """Layers together."""
    for mode, dtype, batch_sizes in itertools.product(MODES.values(), HALF_TYPES, ([5] * 3, [12] * 3, [12, 9, 3])):
        yield CudaCase(reference.Stack(mode, 24, 96, 3), batch_sizes, dtype)
    for mode, batch_sizes in itertools.product(MODES.values(), ([5, 3], [12] * 2)):
        yield with_dropout(reference.Stack(mode, 24, 96, 3), batch_sizes)


def wavefront_pairs() -> Iterator[CudaCase]:
    """Up to 4 sequences: two timesteps a tile."""
    for mode, batch_sizes in itertools.product(MODES.values(), ([3] * 3, [4, 3, 1, 1])):
        yield CudaCase(reference.Stack(mode, 24, 96, 3), batch_sizes, torch.float16)
        yield with_dropout(reference.Stack(mode, 24, 96, 3), batch_sizes)
    yield CudaCase(reference.Stack(MODES["lstm"], 24, 1024, 2), [4] * 3, torch.bfloat16)


def wgmma_wavefront() -> Iterator[CudaCase]:
    """Two tiles of rows or one."""
    for dtype, hidden in itertools.product(HALF_TYPES, (288, 544)):
        yield CudaCase(reference.Stack(MODES["lstm"], 24, hidden, 2), [20, 20, 3], dtype)
        yield with_dropout(reference.Stack(MODES["lstm"], 24, hidden, 2), [20, 7])


def chunked_wavefront() -> Iterator[CudaCase]:
    """Up to 4 sequences and more, of the fewest timesteps; a last chunk of one; with a projection."""
    for dtype, batch_sizes in itertools.product(
        HALF_TYPES, ([3] * 129, [4] * 60 + [2] * 68, [7] * 129, [7] * 60 + [5] * 68)
    ):
        yield CudaCase(reference.Stack(MODES["lstm"], 24, 768, 3), batch_sizes, dtype)
    for batch_sizes in ([4] * 128, [7] * 60 + [5] * 68):
        yield with_dropout(reference.Stack(MODES["lstm"], 24, 768, 3), batch_sizes)
        yield with_dropout(reference.Stack(MODES["gru"], 24, 768, 3), batch_sizes)
    for batch_sizes in ([3] * 65, [7] * 65):
        yield CudaCase(reference.Stack(MODES["gru"], 24, 768, 3), batch_sizes, torch.float16)
    yield CudaCase(reference.Stack(MODES["lstm"], 24, 576, 3, projection=100), [5] * 64, torch.float16)
    for batch_sizes in ([4] * 40 + [2] * 24, [7] * 65):
        yield with_dropout(reference.Stack(MODES["lstm"], 24, 576, 3, projection=192), batch_sizes)


def side_by_side() -> Iterator[CudaCase]:
    """Cases of the fewest timesteps, even, odd and ragged."""
    for (mode, dtype), batch_sizes in itertools.product(GATED, ([20] * 32, [9] * 10 + [3] * 23)):
        yield CudaCase(reference.Stack(mode, 24, 1024, 2), batch_sizes, dtype)
    for mode in (MODES["lstm"], MODES["gru"]):
        yield with_dropout(reference.Stack(mode, 24, 1024, 3), [33] * 33)


def projection() -> Iterator[CudaCase]:
    """Around the kernels of every engine but the large one; odd sizes and whole k-tiles."""
    for dtype, batch_sizes in itertools.product(TYPES.values(), ([5, 4, 2], [20] * 3)):
        yield CudaCase(reference.Stack(MODES["lstm"], 24, 72, 2, 2, projection=17), batch_sizes, dtype)
    yield CudaCase(reference.Stack(MODES["lstm"], 72, 72, 1, 2, True, 8), [3, 1], torch.float16)
    yield CudaCase(reference.Stack(MODES["lstm"], 24, 264, 1, 2, projection=100), [70, 33, 2], torch.float16)
    yield CudaCase(reference.Stack(MODES["lstm"], 24, 544, projection=100), [5, 5, 3], torch.bfloat16)
    yield SplitKCase(reference.Stack(MODES["lstm"], 24, 264, projection=100), [70, 33, 2], torch.float16, 2)


def projected() -> Iterator[CudaCase]:
    """LSTMs with a projection whose two matrices stay apart: both layouts of a type, one tile and several."""
    for dtype, batch_sizes in itertools.product(TYPES.values(), ([5, 4, 2], [20, 11])):
        hidden = 1700 if dtype == torch.float32 else 2500
        yield CudaCase(reference.Stack(MODES["lstm"], 8, hidden, 1, 2, projection=17), batch_sizes, dtype)
    yield CudaCase(reference.Stack(MODES["lstm"], 8, 4096, projection=70), [3, 1], torch.float16)
    yield CudaCase(reference.Stack(MODES["lstm"], 8, 2500, projection=40), [2] * 2, torch.float32)
    yield CudaCase(reference.Stack(MODES["lstm"], 8, 4096, projection=40), [2] * 2, torch.float32)


class ExtrasCase(GpuCase):
    """With all of prnnRNNExtras_t."""

    def train(self) -> None:
        self.set_extras(extras_of(self.stack.mode))
        super().train()


def extras_mma() -> Iterator[ExtrasCase]:
    """Resets to given states, c and its gradient, in mma with one tile and several, large layers, and a projection."""
    for cell, dtype in itertools.product(("tanh", "lstm", "gru"), TYPES.values()):
        yield ExtrasCase(reference.Stack(MODES[cell], 24, 520, 1, 2), [9, 9, 3], dtype)
        yield ExtrasCase(reference.Stack(MODES[cell], 24, 520), [70, 33], dtype)
    for cell, dtype, hidden in (
        ("lstm", torch.float16, 2100),
        ("gru", torch.float32, 1600),
        ("tanh", torch.bfloat16, 4300),
    ):
        yield ExtrasCase(reference.Stack(MODES[cell], 8, hidden), [3, 1], dtype)
    yield ExtrasCase(reference.Stack(MODES["lstm"], 24, 520, 2, projection=17), [5, 4, 2], torch.float16)


def extras_cluster() -> Iterator[ExtrasCase]:
    """Cases with extras in clusters, in one pass and two, and in simt, in clusters and over L2."""
    for cell, dtype in itertools.product(("tanh", "lstm", "gru"), HALF_TYPES):
        yield ExtrasCase(reference.Stack(MODES[cell], 24, 72, 1, 2), [9, 9, 4], dtype)
        yield ExtrasCase(reference.Stack(MODES[cell], 24, 72), [121, 3], dtype)
        yield ExtrasCase(reference.Stack(MODES[cell], 24, 500), [9, 4], dtype)
    for cell, hidden in itertools.product(("tanh", "lstm", "gru"), (72, 300, 800)):
        yield ExtrasCase(reference.Stack(MODES[cell], 8, hidden), [1] * 3, torch.float32)
    for cell in ("tanh", "lstm", "gru"):
        yield ExtrasCase(reference.Stack(MODES[cell], 8, 72, 1, 2), [4, 3, 1], torch.float32)
    yield ExtrasCase(reference.Stack(MODES["lstm"], 24, 72, 2, 2, projection=17), [5, 4, 2], torch.float16)


class ResetCase(MulticastResetCase):
    """With all that multicast kernels take."""

    def train(self) -> None:
        self.set_extras(RESETS_OF[self.stack.mode])
        super().train()


def extras_multicast() -> Iterator[ResetCase]:
    for mode, dtype in GATED:
        hidden = 512 if mode == MODES["lstm"] else 1024
        for batch_sizes, replicas in (([100, 9], 1), ([70, 70], 2), ([20] * 3, 1)):
            yield ResetCase(reference.Stack(mode, 24, hidden), batch_sizes, dtype, replicas)
    for mode, hidden in MULTICAST_SIZES:
        yield ResetCase(reference.Stack(mode, 24, hidden), [100, 9, 9], torch.bfloat16, 1)


class Tf32ResetCase(Tf32Case, ResetCase):
    """A case with resets in tf32."""


def extras_multicast_tf32() -> Iterator[Tf32ResetCase]:
    for mode in (MODES["lstm"], MODES["gru"]):
        for batch_sizes, replicas in (([60, 9], 1), ([20] * 3, 1)):
            yield Tf32ResetCase(reference.Stack(mode, 24, 512), batch_sizes, replicas)


class MasksCase(GpuMasksCase):
    """With every set of prnnRNNMasks_t."""

    def train(self) -> None:
        for names in masks_of(self.stack.mode):
            self.set_masks(names)
            super().train()


def masks() -> Iterator[MasksCase]:
    """Cases with masks of cluster, mma and simt, and the large mma kernels."""
    for cell, dtype in itertools.product(("tanh", "gru", "lstm"), TYPES.values()):
        yield MasksCase(reference.Stack(MODES[cell], 24, 72, 1, 2), [9, 9, 4], dtype)
        yield MasksCase(reference.Stack(MODES[cell], 24, 520), [33, 20], dtype)
    for cell, hidden in itertools.product(("tanh", "gru", "lstm"), (72, 300, 800)):
        yield MasksCase(reference.Stack(MODES[cell], 8, hidden), [1] * 3, torch.float32)
    yield MasksCase(reference.Stack(MODES["gru"], 8, 1600), [3, 1], torch.float32)
    yield MasksCase(reference.Stack(MODES["lstm"], 8, 1500), [3, 1], torch.float32)
    yield MasksCase(reference.Stack(MODES["tanh"], 8, 4300), [3, 1], torch.bfloat16)


class HeadsCase:
    """A layer of prnn.nn with heads."""

    def __init__(self, cell: str, heads: int, size: int, dtype: torch.dtype, batch: int) -> None:
        hidden = heads * size
        self.module = getattr(prnn.nn, cell)(24, hidden, heads=heads, dtype=dtype, device="cuda", backend="persistent")
        self.x = torch.randn(3, batch, 24, dtype=dtype, device="cuda", requires_grad=True)

    def train(self) -> None:
        reset = torch.rand(self.x.shape[:2], device="cuda") < 0.3
        for output in (self.module(self.x)[0], self.module(self.x, reset=reset)[0]):
            output.sum().backward()


def heads() -> Iterator[HeadsCase]:
    """Cases with heads of every engine that has them, in one launch and in several."""
    for cell, dtype in itertools.product(("RNN", "GRU", "LSTM"), (torch.float32, torch.float16)):
        yield HeadsCase(cell, 3, 40, dtype, 5)
    for cell in ("GRU", "LSTM"):
        yield HeadsCase(cell, 8, 264, torch.float16, 16)
        yield HeadsCase(cell, 3, 72, torch.bfloat16, 70)


class LayerNormCase(Case):
    """The operator of prnn.nn.LayerNormLSTM, and of an LSTM with masks."""

    def train(self) -> None:
        for tf32, *dtypes in ((True, torch.float32, *HALF_TYPES), (False, torch.float32)):
            torch.backends.cudnn.allow_tf32 = tf32
            for dtype in dtypes:
                results(self, dtype, "cuda", False)


def layer_norm() -> Iterator[LayerNormCase]:
    """Clusters of 8 and 16 blocks with one to six sequences, two column tiles, the grid, and steps."""
    yield LayerNormCase(4, 9, 72, "gates", masks=True)
    yield LayerNormCase(4, 40, 200, "products", reverse=True, has_lengths=True)
    yield LayerNormCase(3, 9, 500, "gates", masks=True, has_lengths=True)
    yield LayerNormCase(3, 40, 500, "products")
    yield LayerNormCase(4, 9, 540, "products", masks=True, has_lengths=True)
    yield LayerNormCase(2, 3, 1060, "gates")
    yield LayerNormCase(2, 3, 2000, "gates")
    yield LayerNormCase(2, 3, 2100, "gates")
    yield LayerNormCase(2, 40, 600, "gates")
    yield LayerNormCase(2, 110, 600, "products", masks=True, has_lengths=True)
    yield LayerNormCase(2, 66, 1021, "gates")
    yield LayerNormCase(2, 3, 2101, "gates", reverse=True)
    yield LayerNormCase(4, 9, 72, "none", masks=True, reverse=True)
    yield LayerNormCase(3, 40, 500, "none", has_lengths=True)
    yield LayerNormCase(3, 60, 512, "none", masks=True)
    yield LayerNormCase(3, 60, 512, "gates", masks=True, has_lengths=True)
    yield LayerNormCase(3, 100, 500, "products", reverse=True)
    yield LayerNormCase(4, 9, 540, "none", masks=True, has_lengths=True)
    yield LayerNormCase(2, 3, 1060, "none")
    yield LayerNormCase(2, 3, 2100, "none", masks=True)


ENGINES = (
    mma,
    long,
    wgmma,
    cluster,
    simt,
    split_k,
    multicast,
    multicast_tf32,
    large,
    projected,
    wavefront,
    wavefront_pairs,
)
EXTRAS = (extras_mma, extras_cluster, extras_multicast, extras_multicast_tf32, masks)
OTHERS = (wgmma_wavefront, chunked_wavefront, side_by_side, projection, *EXTRAS, heads, layer_norm)
KINDS = {kind.__name__: kind for kind in (*ENGINES, *OTHERS)}

parser = argparse.ArgumentParser()
parser.add_argument("--part", default="1/1", metavar="I/N")
parser.add_argument("--list", action="store_true")
parser.add_argument("kinds", nargs="*", default=list(KINDS), metavar="KIND", help=", ".join(KINDS))
arguments = parser.parse_args()
part, parts = map(int, arguments.part.split("/"))
if arguments.list:
    print(*KINDS, sep="\n")
    sys.exit()
for name in arguments.kinds:
    for number, case in enumerate(KINDS[name](), 1):
        if number % parts != part % parts:
            continue
        begin = time.monotonic()
        case.train()
        torch.cuda.synchronize()
        print(f"{name} {number} ran in {time.monotonic() - begin:.1f} s", flush=True)
