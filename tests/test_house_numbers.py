"""Sizes of the Python that a recurrent call goes through, which may only fall: lines, names of torch that torch does
not document, caches, and Python functions of the package that a call enters."""

import ast
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import torch

import prnn

FOLDER = Path(prnn.__file__).parent

# The files of a call of a layer: its modules, checks, operators, choices and what it says of them.
CALL = [
    *("nn.py", "_called_module.py", "_calls.py", "_options.py"),
    *("_recurrent.py", "_layer_norm_stack.py", "_layer_norm_lstm.py", "_slstm.py", "_cells.py", "_modes.py"),
    *("_layer_arguments.py", "_state_masks.py", "_torch_on_cpu.py", "_compiler.py"),
    *("explain.py", "convert.py"),
    *("_ops/rnn.py", "_ops/_call.py", "_ops/_layer.py", "_ops/_rnn_function.py", "_ops/_operator.py"),
    *("_ops/layer_norm_lstm_input.py", "_ops/_segments.py", "_ops/_sequences.py"),
    *(
        "_ops/_autocast.py",
        "_ops/_capture.py",
        "_ops/_dropout.py",
        "_ops/_flops.py",
        "_ops/_handles.py",
        "_ops/_measured.py",
    ),
    *("_ops/_precision.py", "_ops/_torch_private.py", "_ops/_twin.py", "_ops/_vmap.py"),
]
MOST_LINES = 5374


def test_lines_of_a_call() -> None:
    assert sum(len((FOLDER / name).read_text().splitlines()) for name in CALL) <= MOST_LINES


# ---- Names of torch ----

MOST_NAMES = 10


def parts_of(node: ast.expr) -> list[str]:
    """["torch", "cuda", "Event"] of torch.cuda.Event; [] of other expressions."""
    if isinstance(node, ast.Name):
        return [node.id]
    above = parts_of(node.value) if isinstance(node, ast.Attribute) else []
    return [*above, node.attr] if isinstance(node, ast.Attribute) and above else []


def private_names(file: Path) -> set[str]:
    """The names of torch with a leading underscore, or inside of one, that a file uses, by their longest form."""
    names, found = {"torch": "torch"}, set()
    for node in ast.walk(ast.parse(file.read_text())):
        parts: list[str] = []
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "torch":
            names |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
            for alias in node.names:
                found.add(f"{node.module}.{alias.name}")
        elif isinstance(node, ast.Attribute):
            parts = parts_of(node)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "getattr":
            above = parts_of(node.args[0])
            name = node.args[1]
            parts = [*above, str(name.value)] if above and isinstance(name, ast.Constant) else []
        if parts and parts[0] in names:
            found.add(".".join([names[parts[0]], *parts[1:]]))
    private = {name for name in found if any(p[0] == "_" and p[:2] != "__" for p in name.split("."))}
    return {name for name in private if not any(other.startswith(f"{name}.") for other in private)}


def test_private_names_of_torch() -> None:
    found = {name: private_names(FOLDER / name) for name in CALL}
    assert sum(len(names) for names in found.values()) <= MOST_NAMES, found
    assert {name for name, names in found.items() if names} <= {"_ops/_torch_private.py"}


# ---- Caches ----

CACHES = {  # file and name, and who needs it
    ("_calls.py", "calls"): "a module's call, which finds all that its size needs by one look-up",
    (
        "_ops/_layer.py",
        "layers",
    ): "operators, backward passes and modules of one configuration, which share a descriptor",
    ("_ops/_layer.py", "_plans"): "calls with resets on a GPU, which ask in each whether kernels serve them",
    ("_ops/_measured.py", "_choices"): "modules of one configuration, of which the first call measures",
}
REMEMBERED = {  # once a process, GPU, thread or call, whatever sizes there are
    ("_ops/_handles.py", "_spare"): "handles of threads that have ended",
    ("_ops/_handles.py", "of"): "the handles of a thread",
    ("_ops/_handles.py", "is_unproven"): "whether a GPU's kernels have ever run on one like it",
    ("_ops/_autocast.py", "_find_onednn_takes"): "whether torch's build has a oneDNN that takes a type",
    ("_ops/_call.py", "ready"): "threads in which a call's backward pass may be captured",
    ("_ops/_layer.py", "_told"): "warnings",
    ("_ops/_operator.py", "_kernels"): "the kernels of operators",
    ("_ops/_twin.py", "_agreed"): "comparisons of a new GPU's kernels",
    ("_ops/_twin.py", "_told"): "warnings",
    ("_ops/_twin.py", "_verdicts"): "comparisons of a new GPU's kernels",
    ("_ops/_twin.py", "describe_gpu"): "comparisons of a new GPU's kernels",
    ("_torch_on_cpu.py", "_processor"): "the processor's instruction set",
}


def containers(name: str) -> set[tuple[str, str]]:
    """Attributes and variables that a file makes as empty dictionaries and sets, and its cached functions, but for the
    local variables of functions."""
    found = set()
    for node in ast.walk(ast.parse((FOLDER / name).read_text())):
        if isinstance(node, ast.AnnAssign) and node.value is not None and ast.unparse(node.value) in ("{}", "set()"):
            target = node.target
            if isinstance(target, ast.Attribute) or node.col_offset == 0:
                found.add((name, target.attr if isinstance(target, ast.Attribute) else ast.unparse(target)))
        if isinstance(node, ast.FunctionDef) and any("cache" in ast.unparse(d) for d in node.decorator_list):
            found.add((name, node.name))
    return found


def test_caches() -> None:
    assert set().union(*map(containers, CALL)) == CACHES.keys() | REMEMBERED.keys()
    assert len(CACHES) <= 4


# ---- Functions of a call ----


def functions_of(call: Callable[[], object]) -> int:
    """The Python functions of the package that a call enters."""
    count = 0

    def trace(frame: FrameType, event: str, _: Any) -> None:
        nonlocal count
        if event == "call" and frame.f_code.co_filename.startswith(str(FOLDER)):
            count += 1

    before = sys.getprofile()
    sys.setprofile(trace)
    try:
        call()
    finally:
        sys.setprofile(before)
    return count


LENGTHS = {"lengths": [5, 3, 4]}
RESET = {"reset": torch.tensor([[False] * 3, [True] * 3] + [[False] * 3] * 3)}
CALLS: dict[str, tuple[dict[str, Any], dict[str, Any], bool, int]] = {  # options of the module and call, autocast, most
    "plain": ({}, {}, False, 7),
    "lengths": ({}, LENGTHS, False, 7),
    "reset": ({}, RESET, False, 10),
    "lengths and reset": ({}, LENGTHS | RESET, False, 10),
    "heads": ({"heads": 2}, {}, False, 9),
    "dropout": ({"num_layers": 2, "dropout": 0.5}, {}, False, 10),
    "recurrent dropout": ({"recurrent_dropout": 0.5}, {}, False, 10),
    "zoneout": ({"zoneout": 0.5}, LENGTHS, False, 10),
    "autocast": ({}, {}, True, 12),
    "autocast and lengths": ({}, LENGTHS, True, 10),
}


@pytest.mark.parametrize("name", CALLS)
def test_functions_of_a_call(name: str) -> None:
    options, arguments, is_cast, most = CALLS[name]
    module = prnn.nn.LSTM(6, 8, **options)
    x = torch.randn(5, 3, 6, requires_grad=True)
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=is_cast):
        for _ in range(2):
            module(x, **arguments)
        count = functions_of(lambda: module(x, **arguments))
    assert count <= most
