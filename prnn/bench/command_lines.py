"""The command lines of the programs of prnn.bench, a function for each: without torch, which --help does not need. A
function's docstring is the description that --help prints."""

from __future__ import annotations

import argparse
import inspect
from collections.abc import Callable
from pathlib import Path

from prnn._fields import Within, number_parser
from prnn.bench.options import COUNT, MODULES, PROBABILITY, SECONDS, THREADS, add_json
from prnn.commands.parser import Parser

_CELLS = list(MODULES)


def _parser(program: Callable[[], argparse.ArgumentParser], family: str) -> argparse.ArgumentParser:
    """A parser with the program's description. family: what stands behind `prnn bench`."""
    return Parser(
        prog=f"prnn bench {family}",
        description=inspect.getdoc(program),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )


# ---- Recurrent layers ----


def rnn_cpu() -> argparse.ArgumentParser:
    """
    prnn.nn's layers against torch.nn's on the CPU: time of inference and of a training step, and their ratios.

    Input size = hidden size, one layer unless --layers says more. Both modules have the same weights and run in turn in
    one process, many times, so that whatever else the machine does meets both; a run is one call, or as many as take
    half a millisecond. `ratio` is torch's time over prnn's (more than 1: prnn is faster), of the two fastest runs and,
    in brackets, the median over the pairs of neighbouring runs. A training step is the forward pass and the gradients
    of input and weights, with --frozen those of the weights above so many layers. The cell slstm, one layer without a
    state, has a table of its own.

    --cpu-time takes one thread's processor time in place of the clock's: what to use on a machine with other work,
    where a thread that waits for its partner mostly measures the scheduler.
    """
    parser = _parser(rnn_cpu, "--accelerator cpu rnn")
    add = parser.add_argument
    add("--threads", type=THREADS, default=2, help="OpenMP threads (%(default)s)")
    add("--steps", type=COUNT, default=100, help="timesteps (%(default)s)")
    add("--seconds", type=SECONDS, default=1.5, help="per measurement (%(default)s)")
    add("--cpu-time", action="store_true", help="one thread, its processor time")
    cells = ["LSTM", "GRU", "RNN", "slstm"]
    add("--cells", nargs="+", default=cells[:2], choices=cells, help="(LSTM GRU)")
    add("--hidden", nargs="+", type=COUNT, default=[256, 512, 1024], help="hidden units (256 512 1024)")
    add("--batch", nargs="+", type=COUNT, default=[1, 4, 16], help="sequences at once (1 4 16)")
    passes = ["inference", "training"]
    add("--what", nargs="+", default=passes, choices=passes, help="(both)")
    add("--dtype", default="float32", choices=["float32", "float64", "bfloat16", "float16"], help="(%(default)s)")
    add("--state", action="store_true", help="calls are given initial states, as those of a stream are")
    add("--layers", type=COUNT, default=1, help="(%(default)s)")
    add("--frozen", type=int, default=0, help="the lowest layers, that train nothing (%(default)s)")
    add_json(parser)
    return parser


def rnn_gpu() -> argparse.ArgumentParser:
    """
    Recurrent layers on a GPU: prnn against cuDNN, called directly and through torch, microseconds per timestep.

        prnn bench rnn --dtype float16 bfloat16 float32 --targets --json rows.json
        prnn bench rnn --cells lstm --hidden 512 1024 --batch 1 8 64
        prnn bench rnn --tune --dtype float16 --cells lstm --hidden 1024 --batch 16
        prnn bench rnn --modules float64 "dropout 0.1"

    Forward is inference; train is forward and backward of all gradients. Input size = hidden size. "cuDNN" is the best
    of its algorithms (standard, persistent static, persistent dynamic, persistent small-H), launched call by call or
    replayed from a CUDA graph; "torch" is torch.nn's module, which picks among the algorithms itself, replayed. prnn is
    replayed. Ratios are cuDNN's time over prnn's. All of a point is measured in one run, one after the other.
    --modules, --layer-norm and the cell slstm, which cuDNN has not, have tables of their own.
    """
    parser = _parser(rnn_gpu, "rnn")
    add = parser.add_argument
    types = ["float32", "tf32", "float16", "bfloat16"]
    add("--dtype", nargs="+", choices=types, default=["float16"], help="(float16)")
    add("--targets", action="store_true", help="the sizes of the tables in docs/resident_kernels_measured.md")
    add("--cells", nargs="+", choices=[*_CELLS, "slstm"], default=_CELLS, help=f"({' '.join(_CELLS)})")
    add("--layers", nargs="+", type=COUNT, default=[1], help="(1)")
    hidden, batches = [256, 512, 1024, 2048], [1, 4, 8, 16, 32, 64]
    add("--hidden", nargs="+", type=COUNT, default=hidden, help="hidden units (256 512 1024 2048)")
    add("--batch", nargs="+", type=COUNT, default=batches, help="sequences at once (1 4 8 16 32 64)")
    add("--steps", type=COUNT, default=256, help="timesteps (%(default)s)")
    add("--repeats", type=COUNT, default=7, help="runs of each, whose median is printed (%(default)s)")
    add("--tune", action="store_true", help="measure how to split the layers into blocks instead")
    help_ = "torch.nn and prnn.nn alone, on layers of many kinds, or the rows with WORD"
    add("--modules", nargs="*", metavar="WORD", help=help_)
    add("--layer-norm", action="store_true", help="LayerNormLSTM, LSTM and GRU with masks, beside torch operations")
    add_json(parser)
    add("--no-torch", action="store_true", help="leave torch.nn's modules out")
    return parser


def rnn_memory_cpu() -> argparse.ArgumentParser:
    """
    Peak memory of a training step of torch.nn's and prnn.nn's recurrent layers on the CPU.

    MB by which a process's largest resident set, after such a step, exceeds what was resident before, where the layer
    has run on one timestep and input and the output's gradient lie in memory. Each number is from a process of its own.
    """
    parser = _parser(rnn_memory_cpu, "--accelerator cpu memory")
    parser.add_argument("--one", nargs=2, metavar=("PACKAGE", "POINT"), help="one number alone, of this process")
    add_json(parser)
    return parser


def rnn_memory_gpu() -> argparse.ArgumentParser:
    """
    Peak memory of a training step of torch.nn's and prnn.nn's recurrent layers on a GPU.

    MiB at the peak of forward and backward with the gradients of input and parameters, in torch's allocator: input,
    parameters, their gradients and the output's gradient included, cuDNN's and cuBLAS's own memory not.
    """
    parser = _parser(rnn_memory_gpu, "memory")
    add = parser.add_argument
    add("--steps", type=COUNT, default=256, help="timesteps (%(default)s)")
    add("--backend", choices=["persistent", "cudnn", "best"], default="best", help="of prnn.nn (%(default)s)")
    add_json(parser)
    return parser


def rnn_backends() -> argparse.ArgumentParser:
    """
    The resident kernels and cuDNN side by side: the measurements behind PRNN_BEST_BACKEND.

        prnn bench backends --cells lstm --hidden 512 1024 --batches 1 8 64 512
        prnn bench backends --points bench/results/rnn_backends_h200.csv --processes 8 --csv new.csv

    Both run through the library, replayed from CUDA graphs, so that host time does not count: inference, and a training
    step (forward and the gradients of everything). Input size = hidden size. For each kind of layer the batches grow
    until cuDNN has been well ahead three times. Rows are printed as they come, in microseconds a timestep; ratios are
    cuDNN's time over the resident kernels'. --algorithms adds cuDNN's algorithms, called directly: those that the
    library chooses from. Most of the time goes into preparing calls: several processes prepare theirs at the same time,
    and have the GPU in turns.
    """
    parser = _parser(rnn_backends, "backends")
    add = parser.add_argument
    types = ["bfloat16", "float32", "tf32", "float16"]
    hidden = [64, 96, 128, 192, 256, 320, 384, 512, 768, 1024, 1536, 2048]
    batches = [1, 4, 8, 16, 32, 48, 64, 72, 96, 128, 136, 192, 256, 264, 384, 512, 520, 768, 1024, 1536, 2048]
    add("--types", nargs="+", choices=types, default=types, help="(all)")
    add("--cells", nargs="+", choices=_CELLS, default=_CELLS, help="(all)")
    add("--hidden", nargs="+", type=COUNT, default=hidden, help="hidden units (12 sizes from 64 to 2048)")
    add("--layers", nargs="+", type=COUNT, default=[1], help="(1)")
    add("--directions", nargs="+", type=int, choices=[1, 2], default=[1], help="(1)")
    add("--batches", nargs="+", type=COUNT, default=batches, help="sequences at once (21 sizes from 1 to 2048)")
    add("--steps", type=COUNT, help="timesteps; by default fewer for large layers")
    add("--ragged", action="store_true", help="sequences of different lengths")
    add("--projected", type=COUNT, nargs="?", const=2, default=0, help="LSTMs with a projection to H over that, 2")
    add("--dropout", type=PROBABILITY, default=0, help="between the layers, in training (%(default)s)")
    add("--algorithms", action="store_true", help="times of cuDNN's algorithms, too; of one plain layer")
    add("--points", nargs="+", metavar="FILE", help="measure the points of these files instead")
    help_ = "measure random layers instead, which check the choice"
    add("--random", nargs=2, type=COUNT, metavar=("COUNT", "SEED"), help=help_)
    add("--processes", type=COUNT, default=1, help="that prepare calls at the same time (%(default)s)")
    add("--seconds", type=SECONDS, default=600, help="no point is begun after this time (%(default)s)")
    help_ = "where the rows go; the build reads bench/results/rnn_backends_*.csv"
    add("--csv", metavar="FILE", help=help_)
    add_json(parser)
    return parser


def rnn_regret() -> argparse.ArgumentParser:
    """
    How far the library's choice between cuDNN and the resident kernels is behind the faster of the two.

    The files are those of prnn bench backends. A GPU is not needed: the choice is that of the plans for the GPU's row.
    """
    parser = _parser(rnn_regret, "regret")
    parser.add_argument("files", nargs="+", metavar="FILE", help="CSV of prnn bench backends")
    parser.add_argument("--gpu", help="the row whose plans choose (that of the GPU measured)")
    return parser


def rnn_eager() -> argparse.ArgumentParser:
    """
    Eager calls of small float32 layers, as torch ships it (tf32), beside torch.nn's: the host's time counts.

        prnn bench eager >eager.csv
        prnn bench eager --summary eager.csv

    Wall time of a call, microseconds: inference, a training step with all gradients, one with the input's alone, as of
    a frozen layer, the forward pass alone of one with all; for one sequence, those of an input (T, I), too; and for up
    to 8 timesteps a training step that calls the layer for each. Medians of turns in random order, of some calls each,
    on a GPU that nobody else uses. The columns prnn_share and behind that --summary prints are prnn's time over
    torch.nn's, the geometric mean, and how many points are more than 3 % behind.
    """
    parser = _parser(rnn_eager, "eager")
    help_ = "the table of a file that was written before"
    parser.add_argument("--summary", type=Path, metavar="FILE", help=help_)
    add_json(parser)
    return parser


def rnn_heads() -> argparse.ArgumentParser:
    """
    Layers with heads (block-diagonal recurrent weights) beside torch on a GPU, microseconds per timestep.

    Forward is inference; train is forward and backward of all gradients. The input is as wide as the output, heads *
    size. "cuDNN" is torch.nn's layer once for every head, their outputs side by side; "torch" is written out, a batched
    product of all heads and the cell's operations a timestep. All are replayed from CUDA graphs. Ratios are the rival's
    time over prnn's. All of a point is measured in one run, one after the other. Data are bfloat16.
    """
    parser = _parser(rnn_heads, "heads")
    add = parser.add_argument
    add("--cells", nargs="+", default=_CELLS, choices=_CELLS, help=f"({' '.join(_CELLS)})")
    add("--heads", type=COUNT, nargs="+", default=[8], help="(8)")
    add("--size", type=COUNT, nargs="+", default=[512], help="hidden units of a head (512)")
    add("--batch", type=COUNT, nargs="+", default=[16], help="sequences at once (16)")
    add("--steps", type=COUNT, default=256, help="timesteps (%(default)s)")
    add("--repeats", type=COUNT, default=5, help="runs of each, whose median is printed (%(default)s)")
    runs = ["prnn", "cuDNN", "torch"]
    add("--only", nargs="+", default=runs, choices=runs, help="what is measured (all)")
    add_json(parser)
    return parser


def rnn_reset() -> argparse.ArgumentParser:
    """
    Layers with reset=, as reinforcement learning trains them, beside TorchRL's Triton kernels, us per timestep.

    Forward / training step with the gradients of input and parameters, eager (the host's time counts) and replayed from
    a CUDA graph. One layer, input size = hidden size, 1 % of the timesteps reset. float32 in tf32, and bfloat16: prnn's
    layer and its data are of that type, TorchRL's data is float32 and its recurrent product bfloat16. Its kernels are
    tuned anew for every number of sequences. Most of the time goes into compiling them, up to a minute a variant:
    --compile I K does nothing else, with every Kth from the Ith on, for Triton's cache; processes with the same --lock
    measure in turns. --rival forward leaves TorchRL's training out: from 512 units on, most of its backward kernels do
    not fit. Ratios are TorchRL's time over prnn's. "torch loop" is a Python loop over torch.nn's cell, for where
    TorchRL is not installed. "-" did not run, or cannot be captured: the reason is on stderr.
    """
    parser = _parser(rnn_reset, "reset")
    add = parser.add_argument
    cells, types = ["lstm", "gru"], ["float32", "bfloat16"]
    add("--cells", nargs="+", default=cells, choices=cells, help="(both)")
    add("--types", nargs="+", default=types, choices=types, help="(both)")
    add("--hidden", type=COUNT, nargs="+", default=[128, 256, 512, 1024], help="hidden units (128 256 512 1024)")
    add("--batch", type=COUNT, nargs="+", default=[16, 64, 256, 1024], help="sequences at once (16 64 256 1024)")
    add("--steps", type=COUNT, default=128, help="timesteps (%(default)s)")
    add("--repeats", type=COUNT, default=5, help="runs of each, whose median is printed (%(default)s)")
    rivals = ["none", "forward", "train"]
    add("--rival", default="train", choices=rivals, help="what of TorchRL runs (%(default)s)")
    add("--compile", type=int, nargs=2, metavar=("I", "K"), help="compile only; not under --lock")
    add("--lock", metavar="FILE", help="whose lock the GPU's time goes by, among several processes")
    add_json(parser)
    add("--seconds", type=SECONDS, default=float("inf"), help="no row is begun after so many")
    return parser


def rnn_flashrnn() -> argparse.ArgumentParser:
    """
    Recurrent layers on a GPU: prnn beside FlashRNN in bfloat16, microseconds per timestep, forward and train.

    "recurrence" is what FlashRNN computes: a layer without its input product. prnn runs it with PRNN_SKIP_INPUT:
    forward, data gradient and weight gradient. "with input" adds the input product: prnn's module, and torch's linear
    layer before FlashRNN. Forward is inference; train is forward and backward of all gradients. FlashRNN is the faster
    of its fused and its alternating backend, in the layout that it has inside, so that nothing is transposed. prnn is
    replayed from a CUDA graph. FlashRNN, which cannot be captured, is launched five times in a row, so that nothing
    waits for the launches. Ratios are FlashRNN's time over prnn's. All of a point is measured in one run, one after the
    other.
    """
    parser = _parser(rnn_flashrnn, "flashrnn")
    add = parser.add_argument
    add("--steps", type=COUNT, default=256, help="timesteps (%(default)s)")
    add("--batch", type=COUNT, default=16, help="sequences at once (%(default)s)")
    add("--repeats", type=COUNT, default=7, help="runs of each, whose median is printed (%(default)s)")
    add_json(parser)
    return parser


def jax_layers() -> argparse.ArgumentParser:
    """
    Recurrent layers in JAX: microseconds a timestep of prnn.jax, of lax.scan and of jax.experimental.rnn, in one run.

    One layer, input size = H, jitted, all sequences whole. `scan` is the better of lax.scan with unroll 1 and 8 of a
    written cell, whose product on the inputs is made for all timesteps at once; `experimental` is jax.experimental.rnn,
    which has cuDNN's LSTM in float32 and runs on a GPU alone. `training` is the forward pass and the gradients of the
    parameters and inputs. The programs run in turns for --seconds each; the times are medians, with the results ready:
    on a GPU those of eight calls one after the other, so that a call is handed over while the one before runs.
    """
    parser = _parser(jax_layers, "jax")
    add = parser.add_argument
    add("--cells", nargs="+", choices=_CELLS, default=["lstm", "gru"], help="(lstm gru)")
    add("--hidden", nargs="+", type=COUNT, default=[128, 512], help="hidden units (128 512)")
    add("--batch", nargs="+", type=COUNT, default=[16, 256], help="sequences at once (16 256)")
    add("--steps", type=COUNT, default=256, help="timesteps (%(default)s)")
    add("--dtype", choices=["float32", "bfloat16", "float16"], default="float32", help="(%(default)s)")
    passes = ["forward", "training"]
    add("--what", nargs="+", choices=passes, default=passes, help="(both)")
    add("--seconds", type=SECONDS, default=1.0, help="of each program (%(default)s)")
    add_json(parser)
    return parser


# ---- Losses and search ----


def losses_cpu() -> argparse.ArgumentParser:
    """
    Losses on the CPU against torch's: median milliseconds of a forward and backward pass, and their ratio.

    Every line is one shape, from float32 logits, prnn and its rival taken in turns in this process. The rivals: for CTC
    torch's own loss on the CPU, log-softmax included; for RNN-T a loop over anti-diagonals in torch with autograd, and
    where they are importable torchaudio and warprnnt_numba; for TDT and multi-blank such a loop, and rnnt_loss on the
    same logits for a yardstick.
    """
    parser = _parser(losses_cpu, "--accelerator cpu loss")
    add = parser.add_argument
    add("--repeats", type=COUNT, default=7, help="runs of each, in turns; the median is printed (%(default)s)")
    add("--quick", action="store_true", help="small shapes only")
    help_ = "processor time of all threads, which other work disturbs less, instead of elapsed time"
    add("--cpu-time", action="store_true", help=help_)
    add("--ctc-costs", action="store_true", help="CTC alone, with gradients and without")
    add_json(parser)
    return parser


def losses_gpu() -> argparse.ArgumentParser:
    """
    Losses on the GPU, forward and backward, beside every rival that can be imported: milliseconds (median), peak MiB.

    --host adds what a step of small problems takes in a loop that waits for nothing, which is the host's time where the
    GPU needs less: as torch does it, and in one thread (torch.autograd.set_multithreading_enabled(False)), without
    which backward() runs in another; and what it takes of the GPU alone, by replays of a CUDA graph, where one can be
    made of it. Beside the rivals an autograd function that does nothing. "--host alone" leaves out the other tables.

    --shapes FILE adds RNN-T with its joiner on batches of LibriSpeech's shapes (arrays num_frames and num_labels of an
    npz file), after the protocol of transducer-loss-benchmarking: D = 512, V = 500, joiner Linear(tanh(enc + pred)),
    batches of 30 rows, and sorted batches of up to 10,000 frames; mean over batches 8 to 23, or over every --every-th
    of them. "pruned to 5" is its pruned loss: ranges from the smoothed simple loss, whose gradient is not asked for,
    then the loss of the cells within them; "largest error" is that of its gradients, relative to float64, on the first
    batch.

    "durations" has TDT and multi-blank from logits, and TDT with its joiner, of whose peak the gradients are a part.

    Rivals: torchaudio.functional.rnnt_loss, warp_rnnt, fast_rnnt, warprnnt_numba, apex's transducer,
    torch.nn.functional.ctc_loss (torch's own and cuDNN's), those of them that can be imported; for TDT and multi-blank
    a loop over anti-diagonals in torch operations. Every cell is measured here, one after the other in one process;
    "ratio" is the best rival's time over prnn's. "prnn, in place" is prnn with inplace=True.
    """
    parser = _parser(losses_gpu, "loss")
    add = parser.add_argument
    add("--only", default="rnnt,ctc,durations", help="which tables (%(default)s), or none")
    help_ = "also what each of prnn's kernels takes in a step of the RNN-T and CTC tables, by torch's profiler"
    add("--kernels", action="store_true", help=help_)
    help_ = "also the host's time of small problems"
    add("--host", nargs="?", const="too", choices=("too", "alone"), help=help_)
    add("--shapes", metavar="FILE", help="npz file with num_frames and num_labels: adds RNN-T with its joiner")
    add("--every", type=COUNT, default=1, metavar="N", help="of those batches, every N-th (%(default)s)")
    add_json(parser)
    return parser


def compat_cpu() -> argparse.ArgumentParser:
    """
    prnn.compat.k2 beside k2 on the CPU, each in an environment of its own, since one Python seldom has both.

        prnn bench --accelerator cpu compat measure prnn.compat.k2 prnn.npz
        python prnn/bench/compat_cpu.py measure k2 k2.npz
        prnn bench --accelerator cpu compat compare prnn.npz k2.npz

    The same calls on the same float32 inputs, forward and backward. Times are processor milliseconds, median of five,
    which other work on the machine disturbs little; OMP_NUM_THREADS=1 makes them times of one thread.
    """
    parser = _parser(compat_cpu, "--accelerator cpu compat")
    commands = parser.add_subparsers(required=True, dest="command", metavar="COMMAND")
    command = commands.add_parser("measure", help="times a package's calls, and keeps their results")
    command.add_argument("package", help="prnn.compat.k2 or k2")
    command.add_argument("file", help="to write, .npz")
    command = commands.add_parser("compare", help="prints a table of both packages' files")
    command.add_argument("ours", help="file of prnn.compat.k2")
    command.add_argument("theirs", help="file of k2")
    return parser


def compat_gpu() -> argparse.ArgumentParser:
    """
    The losses of prnn.compat beside the packages that they stand in for: the same call, forward and backward, on a GPU.

    Milliseconds (median) and peak MiB of a step, float32, as prnn bench loss measures them, for the packages that can
    be imported. The ratio is the package's time over prnn's, "difference" that of the gradients, relative to the
    largest.
    """
    parser = _parser(compat_gpu, "compat")
    help_ = "packages whose names begin so (all)"
    parser.add_argument("--only", nargs="+", default=[""], metavar="NAME", help=help_)
    add_json(parser)
    return parser


def decode() -> argparse.ArgumentParser:
    """
    Greedy search of a transducer: microseconds a symbol, and seconds of audio a second.

        prnn bench --accelerator cpu decode --predictor stateless --classes 500 --beam 4
        prnn bench --accelerator cpu decode --streams 1 16 --predictor stateless --sherpa

    A predictor and a joiner with random weights, the blank's bias such that a frame has --rate symbols; random encoder
    frames, all of one length. Searches of the same modules: `libprnn`, where it has one for them, `steps`, which serves
    modules of any class (docs/transducer.md), and `NeMo`, greedily with an LSTM where its package is installed, on a
    GPU in CUDA graphs. `ms` is the median time of a search of the batch, with the results on the host; `us a symbol` is
    that over the symbols of the longest transcript, `audio s/s` the audio of the batch, of frames of --frame-ms, over
    it. With --beam, each of them searches with a beam of that size, too, at most one symbol a frame. On a GPU, `launch`
    is the library's call alone, as a program in C has it: the median time of a replay of its CUDA graph, from projected
    frames and prepared weights to results on the GPU.

    With --streams, N streams of a random model with recurrent layers go through a StreamPool chunk by chunk: `ms` is
    the median time of a chunk of all streams, from their samples to their symbols on the host, features, encoder and
    search included. On a GPU the samples lie in one array of pinned memory.
    """
    parser = _parser(decode, "decode")
    add = parser.add_argument
    add("--batch", type=COUNT, nargs="+", help="utterances at once (1 16, on a GPU 1 16 128)")
    add("--frames", type=COUNT, default=188, help="encoder frames of an utterance (%(default)s)")
    add("--classes", type=COUNT, default=1025, help="symbols of the vocabulary, the blank included (%(default)s)")
    add("--predictor", choices=("lstm", "gru", "stateless"), default="lstm", help="(%(default)s)")
    add("--layers", type=COUNT, default=1, help="of the predictor (%(default)s)")
    add("--hidden", type=COUNT, default=640, help="units of the predictor (%(default)s)")
    add("--joiner", type=COUNT, default=640, help="width of the joiner (%(default)s)")
    add("--tdt", action="store_true", help="a token-and-duration transducer, durations 0 to 4")
    add("--dtype", choices=("float32", "bfloat16", "float16"), default="float32", help="(%(default)s)")
    add("--rate", type=SECONDS, default=0.3, help="symbols a frame (%(default)s)")
    add("--beam", type=COUNT, help="measure beam searches of this size, too")
    add("--frame-ms", type=SECONDS, default=80.0, help="audio of an encoder frame (%(default)s)")
    add("--seconds", type=SECONDS, default=1.0, help="of each measurement (%(default)s)")
    add("--threads", type=THREADS, help="of a CPU (all)")
    add = parser.add_argument_group("streams").add_argument
    add("--streams", type=COUNT, nargs="+", metavar="N", help="measure so many streams, chunk by chunk")
    help_ = "audio of a chunk (160 320)"
    add("--chunk-ms", type=SECONDS, nargs="+", metavar="MS", default=[160.0, 320.0], help=help_)
    add("--encoder-layers", type=COUNT, default=3, help="(%(default)s)")
    add("--encoder-hidden", type=COUNT, default=320, help="units of an encoder layer (%(default)s)")
    projection = number_parser(int, Within(0))
    add("--encoder-projection", type=projection, default=0, help="of an encoder layer; 0: none (%(default)s)")
    add("--sherpa", action="store_true", help="sherpa-onnx with the exported model in the same run")
    add_json(parser)
    return parser


# ---- Training ----


def train_cpu() -> argparse.ArgumentParser:
    """
    A training step of the digits recipe's model on the CPU, part by part, and its encoder layers against torch's.

    Random features and targets of the recipe's sizes: utterances of 1 to 4 s, 5 to 25 characters out of 16. A part's
    time is the median over the runs; parts are forward, "backward" is that of all of them. The last lines run the
    encoder's recurrent layers alone, forward and backward over the same packed batch, in turn with torch.nn.LSTM;
    `ratio` is torch's time over prnn's, the median over pairs of neighbouring runs.
    """
    parser = _parser(train_cpu, "--accelerator cpu train")
    add = parser.add_argument
    add("--threads", type=THREADS, default=2, help="OpenMP threads (%(default)s)")
    add("--seconds", type=SECONDS, default=5.0, help="of each of the two measurements (%(default)s)")
    add("--batch", type=COUNT, default=12, help="utterances in a batch (%(default)s)")
    add("--hidden", type=COUNT, default=256, help="units of an encoder layer (%(default)s)")
    add_json(parser)
    add("--cpu-time", action="store_true", help="one thread, its processor time, for a machine with other work")
    return parser


def train_gpu() -> argparse.ArgumentParser:
    """
    A training step of a streaming RNN-T on the GPU: prnn against the same model on torch.nn.LSTM and torchaudio's loss.

        prnn bench train --encoder plain projected
        torchrun --nproc-per-node 2 -m prnn bench train

    The model: frames of 80 features stacked by 4, an encoder, an LSTM predictor of 640, a joiner of 512. The encoder
    has five LSTM layers of 1024 ("plain"), or 12 of 1024 with projections of 512 ("projected"). The batch: --batch
    utterances of --seconds each, with 4 symbols a second; random features and symbols. A step is forward, backward,
    clipping of the gradient and AdamW, launched as a training loop launches it, with weights in float32 and --precision
    by autocast. Milliseconds a step (median) and peak MiB of the process' tensors.

    Both sides share weights and code outside the layers and the loss. torchaudio wants the logits of all lattice cells,
    in float32, and indexes them with 32 bits: beyond 2^31 logits it cannot run.

    Under torchrun every process has a GPU and a batch of its own. Each size is measured without communication
    ("alone"), with prnn.distributed.GradientMean, and with DistributedDataParallel; gradients are sent in bfloat16 if
    that is the precision (DistributedDataParallel: bf16_compress_hook). In a row:
        each        milliseconds alone, of every GPU
        all-reduce  NCCL's milliseconds for the gradients, with nothing else on the GPU
        mean        the same of a call of GradientMean
        exposed     milliseconds that GradientMean adds to the slowest step alone
        hidden      1 - exposed / mean
        scaling     the throughput of all GPUs together over the mean of theirs alone
    """
    parser = _parser(train_gpu, "train")
    add = parser.add_argument
    add("--encoder", nargs="+", choices=("plain", "projected"), default=["plain"], help="(plain)")
    add("--classes", nargs="+", type=COUNT, default=[500, 5000], help="vocabulary sizes (500 5000)")
    add("--batch", nargs="+", type=COUNT, default=[4, 8, 16, 32], help="utterances on a GPU (4 8 16 32)")
    add("--seconds", type=SECONDS, default=15.0, help="of an utterance (%(default)s)")
    add("--precision", choices=("bf16", "fp16", "fp32"), default="bf16", help="(%(default)s)")
    add("--measure", type=SECONDS, default=1.0, help="seconds to measure each model (%(default)s)")
    add_json(parser)
    return parser
