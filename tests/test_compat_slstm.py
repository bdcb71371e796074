"""prnn.compat.xlstm, tirex and flashrnn beside formulas in float64, and beside the packages that are installed."""

import dataclasses
import importlib
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from nn_slstm_case import slstm
from torch import Tensor

import prnn
import prnn.compat
from prnn.compat import flashrnn, tirex, xlstm

HEADS, UNITS = 3, 4
HIDDEN = HEADS * UNITS


@dataclasses.dataclass
class Config:
    """The fields of xlstm's sLSTMCellConfig that a cell reads, with its defaults but for the types."""

    hidden_size: int = HIDDEN
    num_heads: int = HEADS
    backend: str = "vanilla"
    function: str = "slstm"
    bias_init: str = "standard"
    recurrent_weight_init: str = "standard"
    _block_idx: int = 0
    _num_blocks: int = 1
    gradient_recurrent_cut: bool = False
    gradient_recurrent_clipval: float | None = None
    forward_clipval: float | None = None
    input_shape: str = "BSGNH"
    output_shape: str = "BNSH"
    dtype_b: str = "float32"
    dtype_r: str = "float32"
    dtype_w: str = "float32"
    enable_automatic_mixed_precision: bool = True


def cell_reference(cell: Any, x: Tensor, state: Tensor | None) -> tuple[Tensor, Tensor]:
    """Output (B, heads, S, D) and last states (4, B, H) of gate inputs (B, S, 4 H), in float64, with gradients."""
    kernel = cell.recurrent_kernel.permute(0, 2, 3, 1).flatten(1, 2)  # (heads, 4 D, D)
    gates = x.unflatten(2, (4, HEADS, UNITS)).permute(1, 0, 3, 2, 4).flatten(2) + cell.bias.flatten()
    found = slstm(gates, None if state is None else list(state), kernel)
    return found.all[0].unflatten(2, (HEADS, UNITS)).permute(1, 2, 0, 3), torch.stack(found.last)


def gradients(found: tuple[Tensor, Tensor], leaves: list[Tensor]) -> list[Tensor]:
    loss = found[0].sin().sum() + found[1].cos().sum()
    return [*found, *torch.autograd.grad(loss, leaves)]


@pytest.mark.parametrize("backend", ["vanilla", "cuda"])
@pytest.mark.parametrize("has_state", [False, True])
def test_xlstm_cell_equals_its_formulas(backend: str, has_state: bool) -> None:
    cell = xlstm.sLSTMCell(Config(backend=backend)).double()
    cell.config.backend, cell.config.dtype_w = "vanilla", "float32"  # whose computation is in the type of the input
    x = torch.randn(2, 5, 4 * HIDDEN, dtype=torch.float64, requires_grad=True)
    state = torch.randn(4, 2, HIDDEN, dtype=torch.float64)
    state[2] = state[2].abs() + 1
    state = state.requires_grad_() if has_state else None
    leaves = [x, *cell.parameters(), *([state] if state is not None else [])]
    ours = gradients(cell(x, state), leaves)
    theirs = gradients(cell_reference(cell, x, state), leaves)
    for own, expected in zip(ours, theirs, strict=True):
        torch.testing.assert_close(own, expected, rtol=1e-10, atol=1e-11)


def test_layouts_of_input_and_output() -> None:
    plain = xlstm.sLSTMCell(Config())
    x = torch.randn(2, 5, 4 * HIDDEN)
    expected, state = plain(x)
    order = {"BNSH": (0, 1, 2, 3), "SBNH": (2, 0, 1, 3)}
    for shape in ("BNSH", "SBNH", "BSH", "SBH"):
        for of_input in ("BSGNH", "SBGNH"):
            cell = xlstm.sLSTMCell(Config(input_shape=of_input, output_shape=shape))
            cell.load_state_dict(plain.state_dict())
            output, last = cell(x.transpose(0, 1) if of_input == "SBGNH" else x)
            wanted = expected.permute(order.get(shape, (0, 2, 1, 3) if shape == "BSH" else (2, 0, 1, 3)))
            assert torch.equal(output, wanted if len(shape) == 4 else wanted.flatten(2))
            assert torch.equal(last, state)


def test_state_dicts_of_either_backend_load_in_both() -> None:
    vanilla, cuda = (xlstm.sLSTMCell(Config(backend=backend)) for backend in ("vanilla", "cuda"))
    assert vanilla._recurrent_kernel_.shape == (HEADS, 4 * UNITS, UNITS)
    assert cuda._recurrent_kernel_.shape == (HEADS, UNITS, 4 * UNITS)
    assert vanilla._bias_.shape == cuda._bias_.shape == (4 * HIDDEN,)
    for source, target in ((vanilla, cuda), (cuda, vanilla), (vanilla, vanilla)):
        target.load_state_dict(source.state_dict())
        assert torch.equal(source.recurrent_kernel, target.recurrent_kernel)
        assert torch.equal(source.bias, target.bias)
        own = source.state_dict()
        other = xlstm.sLSTMCell(source.config)
        other.load_state_dict(target.state_dict())
        assert all(torch.equal(value, other.state_dict()[name]) for name, value in own.items())
    parent = torch.nn.ModuleDict({"a": cuda})
    parent.load_state_dict({f"a.{name}": value for name, value in vanilla.state_dict().items()})
    assert torch.equal(parent["a"].bias, vanilla.bias)
    with pytest.raises(RuntimeError, match="size mismatch for _recurrent_kernel_"):
        cuda.load_state_dict(xlstm.sLSTMCell(Config(num_heads=1, backend="cuda")).state_dict())


@pytest.mark.parametrize("backend", ["vanilla", "cuda"])
def test_initial_values_are_xlstms(backend: str) -> None:
    cell = xlstm.sLSTMCell(Config(backend=backend, bias_init="small_init", recurrent_weight_init="zeros"))
    assert not cell._recurrent_kernel_.any()
    torch.testing.assert_close(cell.bias[:, 1], torch.linspace(3, 6, UNITS).expand(HEADS, UNITS))
    assert not cell.bias[:, [0, 2, 3]].any()
    cell = xlstm.sLSTMCell(Config(backend=backend, bias_init="powerlaw_blockdependent", _block_idx=1, _num_blocks=3))
    places = torch.arange(UNITS) / (UNITS - 1)
    torch.testing.assert_close(cell.bias[:, 1], (5 - 12 * places**0.95).expand(HEADS, UNITS))
    bound = HIDDEN**-0.5
    assert 0.8 * bound < cell._recurrent_kernel_.abs().max() <= bound
    assert not xlstm.sLSTMCell(Config(bias_init="zeros")).bias.any()


def test_types() -> None:
    x = torch.randn(2, 5, 4 * HIDDEN)
    cuda = xlstm.sLSTMCell(Config(backend="cuda", dtype_w="bfloat16"))
    vanilla = xlstm.sLSTMCell(Config())
    vanilla.load_state_dict(cuda.state_dict())
    output, state = cuda(x)
    assert output.dtype == state.dtype == torch.float32
    assert torch.equal(output, output.bfloat16().float())
    torch.testing.assert_close(output, vanilla(x)[0], rtol=0, atol=2**-6)
    with torch.autocast("cpu", torch.bfloat16):
        output, state = cuda(x)
    assert output.dtype == state.dtype == torch.bfloat16
    own = xlstm.sLSTMCell(Config(enable_automatic_mixed_precision=False, dtype_r="bfloat16"))
    assert own._recurrent_kernel_.dtype == torch.bfloat16
    assert own._bias_.dtype == torch.float32


def test_biases_keep_their_digits() -> None:
    """xlstm's biases are float32 where the rest is bfloat16."""
    cell = xlstm.sLSTMCell(Config(backend="cuda", dtype_w="bfloat16", recurrent_weight_init="zeros"))
    with torch.no_grad():
        cell.bias[:, 2] = torch.linspace(1.001, 1.003, UNITS)
    rounded = cell.bias.bfloat16().float()
    x = -rounded.transpose(0, 1).flatten().expand(1, 1, -1)  # all that is left is what was rounded off
    _, state = cell(x)
    left = (cell.bias - rounded)[:, 2].flatten()
    assert left.all()
    torch.testing.assert_close(state[1, 0], left.tanh(), rtol=2**-7, atol=0)
    state.sum().backward()
    assert cell._bias_.grad.isfinite().all()


def test_lengths_and_steps() -> None:
    cell = xlstm.sLSTMCell(Config(output_shape="BSH"))
    x = torch.randn(2, 5, 4 * HIDDEN)
    whole, last = cell(x, lengths=torch.tensor([5, 3]))
    assert not whole[1, 3:].any()
    own, own_last = cell(x[1:, :3])
    assert torch.equal(whole[1:, :3], own)
    assert torch.equal(last[:, 1:], own_last)
    state = None
    for t in range(5):
        output, state = cell.step(x[:, t : t + 1], state)
    assert torch.equal(output, cell(x)[0][:, -1:])


def test_configurations_that_prnn_has_not() -> None:
    for name, value, kind in [
        ("function", "lstm", prnn.NotSupportedError),
        ("gradient_recurrent_cut", True, prnn.NotSupportedError),
        ("gradient_recurrent_clipval", 1.0, prnn.NotSupportedError),
        ("backend", "triton", ValueError),
        ("output_shape", "HSB", ValueError),
        ("num_heads", 5, ValueError),
    ]:
        with pytest.raises(kind, match=f"{name} is {value!r}"):
            xlstm.sLSTMCell(Config(**{name: value}))
    cell = xlstm.sLSTMCell(Config())
    with pytest.raises(ValueError, match=r"input has shape \(2, 5, 7\)"):
        cell(torch.randn(2, 5, 7))
    with pytest.raises(ValueError, match=r"state has shape \(4, 1, 12\); it must be \(4, 2, 12\)"):
        cell(torch.randn(2, 5, 4 * HIDDEN), torch.zeros(4, 1, HIDDEN))


def test_tirex_cell() -> None:
    config = SimpleNamespace(embedding_dim=HIDDEN, num_heads=HEADS)
    cell = tirex.sLSTMCell(config, "torch")
    for parameter in cell.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    cell = cell.double()
    x = torch.randn(2, 5, 4 * HIDDEN, dtype=torch.float64, requires_grad=True)
    leaves = [x, *cell.parameters()]
    for own, expected in zip(
        gradients(cell(x, None), leaves), gradients(cell_reference(cell, x, None), leaves), strict=True
    ):
        torch.testing.assert_close(own, expected, rtol=1e-10, atol=1e-11)
    half, state = cell.float()(x.bfloat16())
    assert half.dtype == state.dtype == torch.bfloat16
    with pytest.raises(ValueError, match="backend is 'triton'"):
        tirex.sLSTMCell(config, "triton")


# flashrnn


def flash_arguments(has_states: bool = True, steps: int = 6) -> list[Tensor | None]:
    generator = torch.Generator().manual_seed(4)
    shapes = [(2, steps, 4, HEADS, UNITS), (4, HEADS, UNITS, UNITS), (4, HEADS, UNITS), (4, 2, 1, HEADS, UNITS)]
    made = [torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes]
    made[3][2] = made[3][2].abs() + 1
    made[3][2, 0, 0, 0] = 0  # units that have had no input
    made[3][1, 0, 0, 0] = 0
    arguments: list[Tensor | None] = [tensor.requires_grad_() for tensor in made]
    return arguments if has_states else [*arguments[:3], None]


def flash_reference(Wx: Tensor, R: Tensor, b: Tensor, states: Tensor | None) -> tuple[Tensor, Tensor]:
    gates = Wx.permute(1, 0, 3, 2, 4).flatten(2) + b.transpose(0, 1).flatten()
    recurrent = R.transpose(0, 1).flatten(1, 2)
    initial = None if states is None else list(states.squeeze(2).flatten(2))
    found = slstm(gates, initial, recurrent)
    every = torch.stack(found.all).transpose(1, 2).unflatten(3, (HEADS, UNITS))  # S B T
    return every, torch.stack(found.last).unflatten(2, (HEADS, UNITS)).unsqueeze(2)


@pytest.mark.parametrize("steps", [1, 6])
@pytest.mark.parametrize("has_states", [False, True])
def test_flashrnn_equals_its_formulas(has_states: bool, steps: int) -> None:
    arguments = flash_arguments(has_states, steps)
    leaves = [argument for argument in arguments if argument is not None]
    ours = gradients(flashrnn.flashrnn(*arguments, function="slstm", backend="vanilla"), leaves)
    theirs = gradients(flash_reference(*arguments), leaves)
    assert ours[0].shape == (4, 2, steps, HEADS, UNITS)
    assert ours[1].shape == (4, 2, 1, HEADS, UNITS)
    for own, expected in zip(ours, theirs, strict=True):
        torch.testing.assert_close(own, expected, rtol=1e-9, atol=1e-10)


def test_flashrnns_states_of_large_gates_and_many_timesteps() -> None:
    generator = torch.Generator().manual_seed(5)
    Wx = torch.randn(1, 700, 4, 1, 2, generator=generator)
    Wx[:, 100:120] *= 1e4
    R, b = torch.randn(4, 1, 2, 2, generator=generator) * 0.1, torch.zeros(4, 1, 2)
    found, last = flashrnn.flashrnn(Wx, R, b, function="slstm", dtype="float32")
    assert found.isfinite().all()
    torch.testing.assert_close(found[:, :, -1:], last, rtol=1e-4, atol=1e-4)
    whole, _ = reference_of_one_head(Wx.double(), R.double(), b.double())
    torch.testing.assert_close(found.double(), whole, rtol=1e-4, atol=1e-4)


def reference_of_one_head(Wx: Tensor, R: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    gates = Wx.permute(1, 0, 3, 2, 4).flatten(2) + b.flatten()
    found = slstm(gates, None, R.transpose(0, 1).flatten(1, 2))
    return torch.stack(found.all).transpose(1, 2).unsqueeze(3), torch.stack(found.last)


def test_flashrnns_layouts() -> None:
    Wx, R, b, states = flash_arguments()
    expected = flashrnn.flashrnn(Wx, R, b, states, "slstm", backend="vanilla")
    config = SimpleNamespace(
        function="slstm",
        backend="vanilla",
        dtype="float32",
        input_shape="TBGHD",
        recurrent_shape="HPGD",
        bias_shape="HDG",
        output_shape="STBHD",
        gradient_recurrent_cut=False,
        gradient_recurrent_clipval=None,
        forward_clipval=None,
    )
    given = Wx.transpose(0, 1), R.permute(1, 3, 0, 2), b.permute(1, 2, 0), states.transpose(1, 2)
    found = flashrnn.flashrnn(*given, config=config)
    for own, wanted in zip(found, expected, strict=True):
        torch.testing.assert_close(own.transpose(1, 2), wanted)


def test_flashrnns_types_and_refusals() -> None:
    Wx, R, b, _ = (None if a is None else a.detach().float() for a in flash_arguments(False))
    found, last = flashrnn.flashrnn(Wx, R, b, function="slstm")
    assert found.dtype == last.dtype == torch.float32
    exact, _ = flashrnn.flashrnn(Wx, R, b, function="slstm", dtype="float32")
    assert torch.equal(found[0], found[0].bfloat16().float())
    torch.testing.assert_close(found[0], exact[0], rtol=0, atol=2**-5)
    assert flashrnn.flashrnn(Wx.half(), R, b, function="slstm", dtype="float16")[0].dtype == torch.float16
    with pytest.raises(prnn.NotSupportedError, match="function is 'lstm'"):
        flashrnn.flashrnn(Wx, R, b)
    with pytest.raises(ValueError, match="dtype is 'float8'"):
        flashrnn.flashrnn(Wx, R, b, function="slstm", dtype="float8")
    with pytest.raises(ValueError, match="Wx, R and b have shapes"):
        flashrnn.flashrnn(Wx[:, :, :3], R, b, function="slstm")
    with pytest.raises(ValueError, match=r"R has shape \(3, 4, 4\); its dimensions must be GHDP"):
        flashrnn.flashrnn(Wx, R[0], b, function="slstm")
    with pytest.raises(ValueError, match="states has shape"):
        flashrnn.flashrnn(Wx, R, b, torch.zeros(4, 1, 1, HEADS, UNITS), function="slstm")


# In the packages


def stand_in(monkeypatch: pytest.MonkeyPatch, names: tuple[str, ...], **attributes: Any) -> list[ModuleType]:
    for above in {".".join(name.split(".")[:end]) for name in names for end in range(1, name.count(".") + 1)}:
        monkeypatch.setitem(sys.modules, above, ModuleType(above))
    made = []
    for name in names:
        module = sys.modules.get(name) if name.count(".") == 0 else None
        made.append(module or ModuleType(name))
        vars(made[-1]).update(attributes)
        monkeypatch.setitem(sys.modules, name, made[-1])
    return made


@pytest.mark.parametrize("own", [xlstm, tirex], ids=["xlstm", "tirex"])
def test_install_replaces_the_cell(own: Any, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    name = own.__name__.rpartition(".")[2]
    modules = stand_in(monkeypatch, own.TRIGGERS, sLSTMCell=object)
    prnn.compat.install(name)
    prnn.compat.install(name)
    assert all(module.sLSTMCell is own.sLSTMCell for module in modules)
    said = [f"prnn.compat: {trigger}.sLSTMCell is prnn's" for trigger in own.TRIGGERS]
    assert capsys.readouterr().err.splitlines() == said


def test_install_of_flashrnn_leaves_the_other_functions(monkeypatch: pytest.MonkeyPatch) -> None:
    def original(Wx: Any, R: Any, b: Any, states: Any = None, function: str = "lstm", *rest: Any, **more: Any) -> Any:
        return function, rest, more

    modules = stand_in(monkeypatch, flashrnn.TRIGGERS, flashrnn=original)
    prnn.compat.install("flashrnn")
    prnn.compat.install("flashrnn")
    assert len({module.flashrnn for module in modules}) == 1
    replaced = modules[0].flashrnn
    assert replaced(1, 2, 3, function="gru", backend="cuda") == ("gru", (None,), {"backend": "cuda"})
    arguments = flash_arguments()
    found, _ = replaced(*arguments, function="slstm", backend="vanilla")
    assert torch.equal(found, flashrnn.flashrnn(*arguments, function="slstm", backend="vanilla")[0])


def package(name: str) -> Any:
    return pytest.importorskip(name, reason=f"needs {name.partition('.')[0]}")


@pytest.mark.parametrize("has_state", [False, True])
def test_beside_xlstm(has_state: bool) -> None:
    original = package("xlstm.blocks.slstm.cell")
    config = original.sLSTMCellConfig(
        HIDDEN, HEADS, backend="vanilla", bias_init="standard", recurrent_weight_init="standard", dtype="float32"
    )
    theirs = original.sLSTMCell_vanilla(config).double()
    ours = xlstm.sLSTMCell(config).double()
    ours.load_state_dict(theirs.state_dict())
    x = torch.randn(2, 5, 4 * HIDDEN, dtype=torch.float64, requires_grad=True)
    state = torch.randn(4, 2, HIDDEN, dtype=torch.float64)
    state[2] = state[2].abs() + 1
    state = state.requires_grad_() if has_state else None
    found = []
    for cell in (ours, theirs):
        leaves = [x, cell._recurrent_kernel_, cell._bias_, *([state] if state is not None else [])]
        found.append(gradients(cell(x, state), leaves))
    for own, expected in zip(*found, strict=True):
        torch.testing.assert_close(own, expected, rtol=1e-10, atol=1e-11)
    theirs.load_state_dict(ours.state_dict())


def test_xlstms_layer_and_stack_with_prnns_cell(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = package("xlstm")
    for name in xlstm.TRIGGERS:  # to be put back
        module = importlib.import_module(name)
        monkeypatch.setattr(module, "sLSTMCell", module.sLSTMCell)
    block = whole.sLSTMBlockConfig(
        slstm=whole.sLSTMLayerConfig(backend="vanilla", num_heads=HEADS, dtype="float32", bias_init="standard"),
        feedforward=whole.FeedForwardConfig(),
    )
    config = whole.xLSTMBlockStackConfig(
        slstm_block=block, num_blocks=2, slstm_at="all", embedding_dim=HIDDEN, context_length=8
    )
    theirs = whole.xLSTMBlockStack(config)
    for name, parameter in theirs.named_parameters():
        if "slstm_cell" in name:
            torch.nn.init.normal_(parameter, std=0.3)
    prnn.compat.install("xlstm")
    ours = whole.xLSTMBlockStack(config)
    assert type(ours.blocks[0].xlstm.slstm_cell) is xlstm.sLSTMCell
    ours.load_state_dict(theirs.state_dict())
    x = torch.randn(2, 8, HIDDEN)
    torch.testing.assert_close(ours(x), theirs(x), rtol=1e-4, atol=1e-5)
    (ours(x).square().sum() - theirs(x).square().sum()).backward()
    for own, expected in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(own.grad, -expected.grad, rtol=1e-3, atol=1e-4)
    theirs.load_state_dict(ours.state_dict())


def test_beside_tirex() -> None:
    original = package("tirex.models.slstm.cell")
    config = original.sLSTMBlockConfig(HIDDEN, HEADS)
    theirs = original.sLSTMCell(config, "torch")
    for parameter in theirs.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    ours = tirex.sLSTMCell(config, "torch")
    ours.load_state_dict(theirs.state_dict())
    x = torch.randn(2, 5, 4 * HIDDEN)
    (output, state), (expected, expected_state) = ours(x, None), theirs(x, None)
    # The original rounds states and inputs to bfloat16 in every timestep.
    torch.testing.assert_close(output, expected, rtol=0, atol=2**-4)
    torch.testing.assert_close(state, expected_state, rtol=2**-4, atol=2**-4)


@pytest.mark.parametrize("has_states", [False, True])
def test_beside_flashrnn(has_states: bool) -> None:
    original = package("flashrnn.flashrnn.flashrnn").flashrnn
    arguments = flash_arguments(False)
    if has_states:  # what a call leaves; the original's n is at least 1, and it asks whether all are 0
        states = original(*arguments[:3], function="slstm", backend="vanilla", dtype="float32")[1]
        arguments[3] = states.detach().requires_grad_()
    leaves = [argument for argument in arguments if argument is not None]
    options = {"function": "slstm", "backend": "vanilla", "dtype": "float32"}
    ours = gradients(flashrnn.flashrnn(*arguments, **options), leaves)
    theirs = gradients(original(*arguments, **options), leaves)
    for own, expected in zip(ours, theirs, strict=True):
        assert own.shape == expected.shape
        torch.testing.assert_close(own, expected, rtol=1e-9, atol=1e-10)
