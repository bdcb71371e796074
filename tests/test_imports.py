"""Programs that compile nothing do not import torch.compile, which takes a second and 70 MB, for prnn."""

import subprocess
import sys

import torch

from prnn import _compiler

CALLS = """
import sys, torch, prnn
x = torch.ones(5, 2, 3)
for layer in (prnn.nn.RNN(3, 4), prnn.nn.GRU(3, 4), prnn.nn.LSTM(3, 4, 2), prnn.nn.LayerNormLSTM(3, 4)):
    layer(x)[0].sum().backward()
    with torch.inference_mode(), torch.autocast("cpu"):
        layer(x, lengths=[5, 4])
assert "torch._dynamo" not in sys.modules
"""


PACKAGES = """
import sys, prnn
print(sorted(name for name in ("prnn.asr", "prnn.compat", "prnn.jax") if name in sys.modules))
print(prnn.compat.install.__name__, prnn.asr.__name__)
print(hasattr(prnn, "nothing"))
"""


def test_packages_are_imported_at_their_first_use() -> None:
    done = subprocess.run([sys.executable, "-c", PACKAGES], capture_output=True, text=True)
    assert done.stdout == "[]\ninstall prnn.asr\nFalse\n", done.stderr


def test_layers_without_torch_compile() -> None:
    subprocess.run([sys.executable, "-c", CALLS], check=True)


def test_the_mark_of_a_constant_is_torchs() -> None:
    def ours() -> int:
        return 1

    def theirs() -> int:
        return 1

    _compiler.assume_constant_result(ours)
    torch.compiler.assume_constant_result(theirs)
    assert vars(ours) == vars(theirs)


def test_what_is_disabled_is_not_compiled() -> None:
    compiling = []

    @_compiler.disable
    def inner(x: torch.Tensor) -> torch.Tensor:
        compiling.append(torch.compiler.is_compiling())
        return x + 1

    compiled = torch.compile(lambda x: inner(x * 2) * 3, backend="eager")
    assert compiled(torch.ones(())).item() == 9
    assert compiling == [False]
