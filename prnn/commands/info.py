"""``prnn info``: what is installed, what this machine has, and how large a layer stays on each GPU's chip; or the
plan of one layer."""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import platform
from typing import TYPE_CHECKING, Any

from prnn._extras import install_command
from prnn._fields import Within, number_parser
from prnn.commands.failure import CommandError, reported

if TYPE_CHECKING:
    from prnn.explain import Explanation

_CELLS = ("lstm", "gru", "rnn")
_TYPES = ("float32", "float16", "bfloat16")
_FOR_TRAINING = ("lightning", "kaldi-native-fbank", "soundfile", "soxr", "jiwer")
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
    parser.add_argument("--json", action="store_true", help="print JSON")
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
    given = [name for name in _OF_A_LAYER if getattr(arguments, name) is not None]
    if arguments.cell is not None:
        for name in _OF_A_LAYER.keys() - given:
            setattr(arguments, name, _OF_A_LAYER[name])
        with reported():
            plan, sentence = _plan(arguments)
            print(_json(plan) if arguments.json else f"{plan}{sentence}")
        return
    if given:
        raise CommandError(f"--{given[0].replace('_', '-')} is of use with --cell only")
    found = _found(arguments.batch, arguments.bidirectional)
    print(json.dumps(found, indent=2) if arguments.json else _text(found, arguments))


def _found(batch: int, bidirectional: bool) -> dict[str, Any]:
    """Returns what is installed, what this machine has, and what stays resident where."""
    import torch

    from prnn import _C, __version__

    layer = _layer(_C, _C.LSTM, _C.FLOAT, bidirectional)
    row, sentence = _gpu(_C, layer, batch)
    gpus = []
    for name in _C.gpu_names():
        sizes = {
            cell: {
                bits: _layer(_C, mode, dtype, bidirectional).query_gpu(name, batch)["largest_hidden_size"]
                for bits, dtype in (("16", _C.HALF), ("32", _C.FLOAT))
            }
            for cell, mode in zip(_CELLS, (_C.LSTM, _C.GRU, _C.RNN_TANH), strict=True)
        }
        query = layer.query_gpu(name, batch)
        if query["supported"]:  # not by those of the original project's GPUs, which CUDA no longer compiles for
            gpus.append({"name": name, "largest_hidden_size": sizes, "was_run": bool(query["measured"])})
    return {
        "prnn": __version__,
        "built_for": _C.BUILT_FOR,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "for_training": {name: _version(name) for name in _FOR_TRAINING},
        "cpu": {
            "kernels": layer.query(_C.Handle.cpu(), batch)["device"],
            "cores": len(os.sched_getaffinity(0)),
            "threads": torch.get_num_threads(),
        },
        "gpu": {"planned_as": row or None, "sentence": sentence},
        "gpus": gpus,
    }


def _text(found: dict[str, Any], arguments: argparse.Namespace) -> str:
    lines = [
        f"prnn {found['prnn']}, torch {found['torch']}, Python {found['python']}",
        f"built for {found['built_for']}",
        "for prnn train: "
        + ", ".join(f"{name} {version or 'missing'}" for name, version in found["for_training"].items()),
    ]
    missing = [name for name, version in found["for_training"].items() if version is None]
    if missing:
        lines.append(f"                {install_command(*missing)} brings what is missing")
    cpu = found["cpu"]
    lines.append(f"{cpu['kernels']}: {cpu['cores']} cores, {cpu['threads']} threads (OMP_NUM_THREADS)")
    lines.append(found["gpu"]["sentence"])
    directions = "two directions" if arguments.bidirectional else "one direction"
    lines += ["", f"Largest resident hidden size, N = {arguments.batch}, {directions}, 16 bits / float32:"]
    width = max(len(gpu["name"]) for gpu in found["gpus"])
    lines.append(f"  {'':{width}}" + "".join(f"{cell:>14}" for cell in _CELLS))
    for gpu in found["gpus"]:
        sizes = [" / ".join(str(size or "-") for size in gpu["largest_hidden_size"][cell].values()) for cell in _CELLS]
        star = "*" if gpu["name"] == found["gpu"]["planned_as"] else " "
        mark = "" if gpu["was_run"] else "  +"
        lines.append(f"{star} {gpu['name']:{width}}" + "".join(f"{size:>14}" for size in sizes) + mark)
    if not all(gpu["was_run"] for gpu in found["gpus"]):
        lines.append(
            "+ planned from the GPU's published figures: nobody has run these plans on one, where prnn selftest"
        )
        lines.append("  compares what they compute with the CPU")
    return "\n".join(lines)


def _json(plan: Explanation) -> str:
    return json.dumps(dataclasses.asdict(plan), indent=2, default=lambda value: str(value).removeprefix("torch."))


def _plan(arguments: argparse.Namespace) -> tuple[Explanation, str]:
    """The plan of a layer, and a line on the memory that training takes, if that is known."""
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
    plan = prnn.explain(module, [arguments.steps] * arguments.batch, gpu=arguments.gpu)
    if arguments.gpu is None:
        dtype = DTYPES[torch.float32 if place == "cpu" else module.weight_hh_l0.dtype]
        mode = {"lstm": _C.LSTM, "gru": _C.GRU, "rnn": _C.RNN_TANH}[arguments.cell]
        rnn = _C.Rnn(mode, dtype, shape[1], shape[2], shape[0], arguments.bidirectional, projection=projection)
        found = rnn.query(handle(torch.device(place)), [arguments.batch] * arguments.steps)
        if found["workspace_size"] + found["reserve_size"] > 0:
            sizes = f"workspace {found['workspace_size']} bytes, reserve space {found['reserve_size']} bytes"
            return plan, f"\ntraining over {arguments.steps} timesteps: {sizes}"
    return plan, ""


def _layer(extension, mode: int, dtype: int, bidirectional: bool):  # type: ignore[no-untyped-def]
    return extension.Rnn(mode, dtype, 256, 1, 256, bidirectional)


def _version(package: str) -> str | None:
    import importlib.metadata

    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _gpu(extension, layer, batch: int) -> tuple[str, str]:  # type: ignore[no-untyped-def]
    """The name of the row that the GPU is planned as ("" for none), and a sentence."""
    import torch

    from prnn._ops._handles import handle

    if not torch.cuda.is_available():
        return "", "GPU: none that torch can use" + (
            ", which is a build for CPUs" if torch.version.cuda is None else ""
        )
    try:
        query = layer.query(handle(torch.device("cuda")), batch)
    except (NotImplementedError, RuntimeError) as error:
        return "", f"GPU: {torch.cuda.get_device_name()}; prnn cannot use it: {error}"
    if query["device"] not in extension.gpu_names():
        return "", f"GPU: {torch.cuda.get_device_name()}; nothing stays resident on it: {query['reason']}"
    return query["device"], f"GPU: {torch.cuda.get_device_name()}, planned as {query['device']} (*)"
