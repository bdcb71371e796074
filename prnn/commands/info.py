"""``prnn info``: what is installed, what this machine has, and how large a layer stays on each GPU's chip; or the
plan of one layer."""

from __future__ import annotations

import argparse
import importlib.metadata
import os
import platform

from prnn._fields import Within, number_parser
from prnn.commands.failure import CommandError, reported

_CELLS = ("lstm", "gru", "rnn")
_TYPES = ("float32", "float16", "bfloat16")
_OF_A_LAYER = {
    "hidden": 512,
    "input": None,
    "proj_size": None,
    "layers": 1,
    "steps": 256,
    "dtype": "float32",
    "gpu": None,
}


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> argparse.ArgumentParser:
    """Adds the command to the command line."""
    parser = subparsers.add_parser(
        "info",
        help="versions, this machine, and the largest layer that stays resident on each GPU",
        description="Print versions, what this machine has, and, for each GPU that prnn knows, the largest hidden size "
        "whose recurrent weights stay on the chip. With --cell, the plan of such a layer instead: which kernels "
        "run it, in how many blocks, and why not faster ones.",
    )
    batch = number_parser(int, Within(1, 2**20))
    parser.add_argument("--batch", type=batch, default=4, metavar="N", help="sequences at once (%(default)s)")
    parser.add_argument("--bidirectional", action="store_true", help="layers of two directions")
    parser.add_argument("--cell", choices=_CELLS, help="print the plan of a layer of this cell")
    size = number_parser(int, Within(1, 2**20))
    count = number_parser(int, Within(1, 1024))
    layer = parser.add_argument_group("of the layer, with --cell")
    layer.add_argument("--hidden", type=size, metavar="H", help="hidden units (512)")
    layer.add_argument("--input", type=size, metavar="I", help="input size (H)")
    layer.add_argument("--proj-size", type=size, metavar="P", help="output size of an LSTM with a projection (none)")
    layer.add_argument("--layers", type=count, metavar="L", help="layers of the stack (1)")
    layer.add_argument("--steps", type=size, metavar="T", help="timesteps (256)")
    layer.add_argument("--dtype", choices=_TYPES, help="data type (float32)")
    layer.add_argument(
        "--gpu", metavar="NAME", help="a GPU that prnn knows, as prnn info lists them (this machine's device)"
    )
    return parser


def run(arguments: argparse.Namespace) -> None:
    """Prints all that."""
    import torch

    from prnn import _C, __version__

    given = [name for name in _OF_A_LAYER if getattr(arguments, name) is not None]
    if arguments.cell is not None:
        for name in _OF_A_LAYER.keys() - given:
            setattr(arguments, name, _OF_A_LAYER[name])
        with reported():
            _print_plan(arguments)
        return
    if given:
        raise CommandError(f"--{given[0].replace('_', '-')} is of use with --cell only")
    print(f"prnn {__version__}, torch {torch.__version__}, Python {platform.python_version()}")
    extra = {name: _version(name) for name in ("lightning", "kaldi-native-fbank", "soundfile", "soxr", "jiwer")}
    missing = [name for name, version in extra.items() if version is None]
    print("for prnn train: " + ", ".join(f"{name} {version or 'missing'}" for name, version in extra.items()))
    if missing:
        print("                pip install 'prnn[asr]' brings what is missing")

    layer = _layer(_C, _C.LSTM, _C.FLOAT, arguments.bidirectional)
    cores = len(os.sched_getaffinity(0))
    device = layer.query(_C.Handle.cpu(), arguments.batch)["device"]
    print(f"{device}: {cores} cores, {torch.get_num_threads()} threads (OMP_NUM_THREADS)")
    row, sentence = _gpu(_C, layer, arguments.batch)
    print(sentence)

    directions = "two directions" if arguments.bidirectional else "one direction"
    print(f"\nLargest resident hidden size, N = {arguments.batch}, {directions}, 16 bits / float32:")
    names = _C.gpu_names()
    width = max(len(name) for name in names)
    print(f"  {'':{width}}" + "".join(f"{cell:>14}" for cell in _CELLS))
    unmeasured = False
    for name in names:
        cells = []
        for mode in (_C.LSTM, _C.GRU, _C.RNN_TANH):
            sizes = [
                _layer(_C, mode, dtype, arguments.bidirectional).query_gpu(name, arguments.batch)["largest_hidden_size"]
                for dtype in (_C.HALF, _C.FLOAT)
            ]
            cells.append(" / ".join(str(size) if size else "-" for size in sizes))
        query = layer.query_gpu(name, arguments.batch)
        is_guess = bool(query["supported"]) and not query["measured"]
        unmeasured = unmeasured or is_guess
        mark = "  +" if is_guess else ""
        print(f"{'*' if name == row else ' '} {name:{width}}" + "".join(f"{cell:>14}" for cell in cells) + mark)
    if unmeasured:
        print("+ planned from the GPU's published figures: nobody has run these plans on one")


def _print_plan(arguments: argparse.Namespace) -> None:
    import torch

    import prnn
    from prnn import _C
    from prnn._ops._handles import DTYPES, handle

    if arguments.gpu is not None and arguments.gpu.lower() not in map(str.lower, _C.gpu_names()):
        raise CommandError(f"--gpu is {arguments.gpu!r}; the table has {', '.join(_C.gpu_names())}")
    projection = arguments.proj_size or 0
    if projection and arguments.cell != "lstm":
        raise CommandError(f"--proj-size is of LSTMs; --cell is {arguments.cell}")
    if projection >= arguments.hidden:
        raise CommandError(f"--proj-size is {projection}; it must be below --hidden, {arguments.hidden}")
    shape = (arguments.input or arguments.hidden, arguments.hidden, arguments.layers)
    place = "cuda" if arguments.gpu is None and torch.cuda.is_available() else "cpu"
    device = "cuda" if place == "cuda" else "meta"  # where there is room for weights of any size
    make = dict(bidirectional=arguments.bidirectional, device=device, dtype=getattr(torch, arguments.dtype))
    options = {"proj_size": projection} if projection else {}
    module = getattr(torch.nn, arguments.cell.upper())(*shape, **make, **options)
    print(prnn.explain(module, [arguments.steps] * arguments.batch, gpu=arguments.gpu))
    if arguments.gpu is None:
        dtype = DTYPES[torch.float32 if place == "cpu" else module.weight_hh_l0.dtype]
        mode = {"lstm": _C.LSTM, "gru": _C.GRU, "rnn": _C.RNN_TANH}[arguments.cell]
        rnn = _C.Rnn(mode, dtype, shape[1], shape[2], shape[0], arguments.bidirectional, projection=projection)
        found = rnn.query(handle(torch.device(place)), [arguments.batch] * arguments.steps)
        if found["workspace_size"] + found["reserve_size"] > 0:
            sizes = f"workspace {found['workspace_size']} bytes, reserve space {found['reserve_size']} bytes"
            print(f"training over {arguments.steps} timesteps: {sizes}")


def _layer(extension, mode: int, dtype: int, bidirectional: bool):  # type: ignore[no-untyped-def]
    return extension.Rnn(mode, dtype, 256, 1, 256, bidirectional)


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _gpu(extension, layer, batch: int) -> tuple[str, str]:  # type: ignore[no-untyped-def]
    """The name of the row that the GPU is planned as ("" for none), and a sentence."""
    import torch

    if not torch.cuda.is_available():
        return "", "GPU: none that torch can use"
    try:
        query = layer.query(extension.Handle.cuda(), batch)
    except (NotImplementedError, RuntimeError) as error:
        return "", f"GPU: {torch.cuda.get_device_name()}; prnn cannot use it: {error}"
    if query["device"] not in extension.gpu_names():
        return "", f"GPU: {torch.cuda.get_device_name()}; nothing stays resident on it: {query['reason']}"
    return query["device"], f"GPU: {torch.cuda.get_device_name()}, planned as {query['device']} (*)"
