"""torch.ops.prnn.rnn and rnn_backward: opcheck, torch.compile, autocast, functional transforms."""

import itertools
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from nn_pairs import CELLS, assert_same, flat, make, make_pair, make_states, train_step
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

import prnn
from prnn import _C
from prnn._ops import rnn as rnn_ops
from prnn._ops._call import Call
from prnn._ops._layer import Layer
from prnn._ops.rnn import MODES

LENGTHS = [2, 5, 1]
RNN, BACKWARD = torch.ops.prnn.rnn.default, torch.ops.prnn.rnn_backward.default


@pytest.fixture
def filled_memory() -> Iterator[None]:
    """Memory that nobody has written to is the same in every run, as opcheck compares the reserve space whole."""
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


@pytest.fixture(autouse=True)
def fresh_compiler() -> None:
    torch.compiler.reset()


def op_arguments(
    cell: str,
    layout: str,
    dropout: float,
    train: bool,
    requires_grad: bool,
    extras: bool = False,
    heads: int = 1,
    masks: int = 0,
) -> tuple[Any, ...]:
    """Arguments of torch.ops.prnn.rnn for a stack of two layers of both directions."""
    module = make(prnn.nn, cell, 3, 4, num_layers=2, bidirectional=True, dtype=torch.float64, heads=heads)
    module.requires_grad_(requires_grad)
    input, batch_sizes, lengths = torch.randn(5, 3, 3, dtype=torch.float64), None, None
    if layout == "packed":
        packed = pack_padded_sequence(input, torch.tensor(LENGTHS), enforce_sorted=False)
        input, batch_sizes = packed.data, packed.batch_sizes
    elif layout == "lengths":
        lengths = torch.tensor(LENGTHS)
    reset = torch.rand(input.shape[:-1]) < 0.3 if extras else None
    shape = (4 * heads, 3, 4 // heads)
    if extras:  # and those of sequences that start anew
        shape = (2, *shape)
    states = [torch.randn(shape, dtype=torch.float64, requires_grad=requires_grad) for _ in range(2)]
    given = [
        torch.rand(*input.shape[:-1], 16) < 0.3 if masks & 1 else None,
        (torch.rand(4, 3, 4, dtype=torch.float64) < 0.5) * 2.0 if masks & 2 else None,
    ]
    return (
        input.requires_grad_(requires_grad),
        states[0],
        states[1] if cell == "LSTM" else None,
        [getattr(module, name) for name in module._packed_names],
        batch_sizes,
        lengths,
        reset,
        given if masks else [],
        torch.tensor([11, 3]) if dropout else None,
        3 if layout == "packed" else None,
        MODES[module.mode],
        4,
        0,
        2,
        True,
        dropout,
        2,
        extras and cell == "LSTM",
        extras,
        heads,
        0.0,
        masks,
        0,
        *(False, False, _C.NORMALIZE_NONE, 0.0),
        train,
    )


@pytest.mark.usefixtures("filled_memory")
@pytest.mark.parametrize(
    ("cell", "layout", "dropout", "train", "requires_grad"),
    [
        ("LSTM", "padded", 0.0, False, False),
        ("LSTM", "padded", 0.0, False, True),
        ("LSTM", "lengths", 0.5, False, True),
        ("LSTM", "packed", 0.0, False, True),
        ("GRU", "padded", 0.5, False, False),
        ("GRU", "packed", 0.0, True, False),
        ("RNN", "lengths", 0.0, False, True),
        ("RNN_RELU", "padded", 0.0, True, True),
    ],
)
def test_opcheck(cell: str, layout: str, dropout: float, train: bool, requires_grad: bool) -> None:
    torch.library.opcheck(RNN, op_arguments(cell, layout, dropout, train, requires_grad))


@pytest.mark.usefixtures("filled_memory")
@pytest.mark.parametrize(
    ("cell", "layout", "train", "requires_grad"),
    [("LSTM", "padded", False, True), ("GRU", "packed", True, False), ("RNN", "lengths", False, True)],
)
def test_opcheck_with_options(cell: str, layout: str, train: bool, requires_grad: bool) -> None:
    for options in ({"extras": True}, {"heads": 2}, {"masks": {"GRU": 3, "LSTM": 0}.get(cell, 2)}):
        torch.library.opcheck(RNN, op_arguments(cell, layout, 0.0, train, requires_grad, **options))


@pytest.mark.usefixtures("filled_memory")
@pytest.mark.parametrize(("cell", "layout"), [("LSTM", "padded"), ("GRU", "lengths"), ("RNN", "packed")])
@pytest.mark.parametrize("wanted", [[True] * 4, [True, False, False, False]])
@pytest.mark.parametrize(("extras", "masks"), [(False, 0), (True, 0), (False, 2)])
def test_opcheck_of_backward(cell: str, layout: str, wanted: list[bool], extras: bool, masks: int) -> None:
    masks = 0 if cell == "LSTM" else masks
    arguments = op_arguments(cell, layout, 0.0, train=True, requires_grad=False, extras=extras, masks=masks)
    input, hx, cx, weights, batch_sizes, lengths, reset, given, _, _, *config, _ = arguments
    output, hy, cy, reserve, cells = RNN(*arguments)
    wanted = [*wanted[:2], wanted[2] and cell == "LSTM", wanted[3]]
    of_cells = (torch.randn_like(cy), torch.randn_like(cells) if extras else None) if cell == "LSTM" else (None, None)
    grads = (torch.randn_like(output), torch.randn_like(hy), *of_cells)
    sequences = (batch_sizes, lengths, reset, given)
    backward = (*grads, input, hx, cx, weights, *sequences, output, reserve, *config, wanted)
    BACKWARD(*backward)  # leaves its intermediate values in the reserve space, where the second call writes them again
    torch.library.opcheck(BACKWARD, backward)


def test_bad_arguments_of_the_operator() -> None:
    """Whoever calls the operator and not the module gets exceptions too, never a read out of bounds."""
    good = list(op_arguments("GRU", "padded", 0.0, train=False, requires_grad=False))
    for place, value, message in [
        (0, good[0][0], "input has 2 dimensions; it must have 3, or 2 with batch_sizes"),
        (1, good[1][:3], r"hx has shape \(3, 3, 4\); it must be \(4, 3, 4\)"),
        (1, torch.stack([good[1]] * 2), r"hx has shape \(2, 4, 3, 4\); it must be \(4, 3, 4\)"),  # without reset
        (2, good[1], "cx is given, but only an LSTM and an sLSTM have a cell state"),
        (3, [], "weights is empty"),
        (3, good[3][:-1], "weights hold"),
        (5, torch.tensor([1.0, 2.0, 3.0]), "lengths has shape"),
        (6, torch.zeros(5, 3, dtype=torch.bool), "has_reset is False, but reset is given"),
        (7, [None], "masks has 1 entries; it must have two, zoneout and recurrent, or none"),
        (7, [None, good[1]], "mask_kinds is 0, but that of recurrent is given"),
        (21, 1, "masks has 0 entries"),
        (15, 0.5, "seed is None; dropout 0.5 wants one"),
        (19, 3, "heads is 3; it must be at least 1 and divide hiddenSize, 4"),
        (19, 0, "heads is 0; it must be at least 1 and divide hiddenSize, 4"),
    ]:
        with pytest.raises(ValueError, match=message):
            RNN(*[value if index == place else argument for index, argument in enumerate(good)])
    good = list(op_arguments("GRU", "padded", 0.0, train=False, requires_grad=False, extras=True))
    with pytest.raises(ValueError, match=r"hx has shape \(3, 4, 3, 4\); it must be \(2, 4, 3, 4\)"):
        RNN(good[0], torch.cat([good[1], good[1][:1]]), *good[2:])
    for reset, message in [
        (None, "has_reset is True, but reset is None"),
        (torch.zeros(3, 5, dtype=torch.bool), r"reset has shape \(3, 5\); it must be \(5, 3\)"),
        (torch.zeros(5, 3), r"reset has dtype torch.float32, it must have torch.bool"),
    ]:
        with pytest.raises(ValueError, match=message):
            RNN(*good[:6], reset, *good[7:])
    good = list(op_arguments("LSTM", "padded", 0.5, train=False, requires_grad=False))
    for seed, message in [
        (torch.tensor([11]), r"seed has shape \(1,\); it must be \(2,\)"),
        (torch.tensor([11, 3], dtype=torch.int32), "seed has dtype torch.int32, it must have torch.int64"),
    ]:
        with pytest.raises(ValueError, match=message):
            RNN(*good[:8], seed, *good[9:])


@pytest.mark.parametrize(
    ("place", "name"), [(1, "hx"), (2, "cx"), (3, "weights"), (5, "lengths"), (6, "reset"), (8, "seed")]
)
def test_one_argument_on_the_meta_device(place: int, name: str) -> None:
    """The dispatcher then calls the fake kernel, whose outputs nobody has computed."""
    arguments = list(op_arguments("LSTM", "lengths", 0.5, train=False, requires_grad=False, extras=True))
    whole = arguments[place]
    arguments[place] = [whole[0], whole[1].to("meta"), *whole[2:]] if name == "weights" else whole.to("meta")
    with pytest.raises(ValueError, match=f"{name} is on meta, but input is on cpu"):
        RNN(*arguments)


def test_no_masks_may_be_none() -> None:
    """AOTInductor's programs call the kernels with None for an empty list."""
    arguments = op_arguments("GRU", "lengths", 0.0, False, False)
    expected = rnn_ops.rnn(*arguments)
    for kernel in (rnn_ops._rnn_below_autograd, rnn_ops._rnn):
        torch.testing.assert_close(kernel(*arguments[:7], None, *arguments[8:]), expected, rtol=0, atol=0)


def test_the_masks_follow_from_both_words_of_the_seed_which_stays() -> None:
    arguments = list(op_arguments("LSTM", "padded", 0.5, train=False, requires_grad=False))
    outputs = []
    for seed in ([11, 3], [11, 3], [12, 3], [11, 4]):
        arguments[8] = torch.tensor(seed)
        outputs.append(RNN(*arguments)[0])
        assert arguments[8].tolist() == seed
    assert torch.equal(outputs[0], outputs[1])
    assert not torch.equal(outputs[0], outputs[2])
    assert not torch.equal(outputs[0], outputs[3])


# torch.compile


def compiled(module: torch.nn.Module, backend: str = "aot_eager", dynamic: bool | None = None) -> Any:
    return torch.compile(module, fullgraph=True, backend=backend, dynamic=dynamic)


@pytest.mark.parametrize("cell", CELLS)
def test_compile(cell: str) -> None:
    module = make(prnn.nn, cell, 3, 4, num_layers=2, bidirectional=True, batch_first=True, dtype=torch.float64)
    parameters, run = dict(module.named_parameters()), compiled(module)
    x = torch.randn(2, 6, 3, dtype=torch.float64, requires_grad=True)
    for states in (None, make_states(module, 2)):
        assert_same(train_step(run, parameters, x, states), train_step(module, parameters, x, states))
    with torch.no_grad():
        torch.testing.assert_close(flat(run(x)), flat(module(x)), rtol=0, atol=0)


def test_compile_without_bias_and_with_projection() -> None:
    module = prnn.nn.LSTM(3, 4, bias=False, proj_size=2, dtype=torch.float64)
    x = torch.randn(5, 3, dtype=torch.float64, requires_grad=True)
    parameters = dict(module.named_parameters())
    assert_same(train_step(compiled(module), parameters, x), train_step(module, parameters, x))


def test_compile_with_sizes_that_change() -> None:
    """One graph serves every T and N: nothing is compiled for the fourth time."""
    module = prnn.nn.LSTM(3, 4, num_layers=2, dtype=torch.float64)
    parameters, run = dict(module.named_parameters()), compiled(module)
    limit = "recompile_limit" if hasattr(torch._dynamo.config, "recompile_limit") else "cache_size_limit"  # torch 2.6
    with torch._dynamo.config.patch({"error_on_recompile": False, limit: 3}):
        for steps, batch in [(5, 2), (6, 3), (9, 4), (70, 7), (2, 5), (33, 9)]:
            x = torch.randn(steps, batch, 3, dtype=torch.float64, requires_grad=True)
            assert_same(train_step(run, parameters, x), train_step(module, parameters, x))


def test_compile_with_lengths() -> None:
    module = prnn.nn.GRU(3, 4, bidirectional=True, dtype=torch.float64)
    parameters, run = dict(module.named_parameters()), compiled(module)
    x = torch.randn(5, 3, 3, dtype=torch.float64, requires_grad=True)
    for lengths in (torch.tensor(LENGTHS), torch.tensor([5, 1, 4])):
        expected = train_step(module, parameters, x, lengths=lengths)
        assert_same(train_step(run, parameters, x, lengths=lengths), expected)


@pytest.mark.skipif(torch.__version__.startswith("2.6."), reason="torch 2.6 compiles no PackedSequence")
def test_compile_with_packed_sequence() -> None:
    module = prnn.nn.LSTM(3, 4, dtype=torch.float64)
    padded = torch.randn(5, 3, 3, dtype=torch.float64, requires_grad=True)

    def step(padded: torch.Tensor, packed: PackedSequence) -> list[torch.Tensor]:
        doubled = packed.data * 2
        return flat(module(PackedSequence(doubled, packed.batch_sizes, packed.sorted_indices, packed.unsorted_indices)))

    packed = pack_padded_sequence(padded, torch.tensor(LENGTHS), enforce_sorted=False)
    torch.testing.assert_close(compiled(step)(padded, packed), step(padded, packed), rtol=0, atol=0)


def test_compile_with_dropout() -> None:
    module = prnn.nn.LSTM(3, 16, num_layers=2, dropout=0.5)
    x, run = torch.randn(5, 2, 3), compiled(module)
    torch.manual_seed(1)
    expected = [module(x)[0], module(x)[0]]
    torch.manual_seed(1)
    found = [run(x)[0], run(x)[0]]
    torch.testing.assert_close(found, expected, rtol=0, atol=0)
    assert not torch.equal(found[0], found[1])


@pytest.fixture
def quick_inductor() -> Iterator[None]:
    """A stored graph may be another build's. What inductor compiles itself is not under test: it neither looks for
    vector instructions nor compiles its headers."""
    config = torch._inductor.config
    changes = {"force_disable_caches": True, "cpp.vec_isa_ok": False}
    if hasattr(config, "cpp_cache_precompile_headers"):  # since torch 2.7
        changes["cpp_cache_precompile_headers"] = False
    with config.patch(changes):  # monkeypatch of pytest 9.2 takes the settings away at its end
        yield


@pytest.mark.usefixtures("quick_inductor")
def test_compile_with_inductor() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(3, 3), prnn.nn.GRU(3, 4, num_layers=2, dropout=0.1))
    x = torch.randn(5, 2, 3)
    run = compiled(model, "inductor")
    run(x)[0].sum().backward()
    found = [parameter.grad.clone() for parameter in model.parameters()]
    assert all(gradient.isfinite().all() and gradient.any() for gradient in found)
    model.eval().zero_grad()
    torch.testing.assert_close(run(x), model(x))


def test_compile_of_a_checkpointed_module() -> None:
    module = prnn.nn.LSTM(3, 4, dtype=torch.float64)
    parameters = dict(module.named_parameters())
    x = torch.randn(5, 2, 3, dtype=torch.float64, requires_grad=True)

    def run(x: torch.Tensor, states: Any = None) -> Any:
        return checkpoint(module, x, states, use_reentrant=False)

    assert_same(train_step(compiled(run), parameters, x), train_step(module, parameters, x))


def test_export() -> None:
    model = torch.nn.Sequential(prnn.nn.GRU(3, 4, num_layers=2)).eval()
    x = torch.randn(5, 2, 3)
    with torch.no_grad():
        exported = torch.export.export(model, (x,)).module()
        torch.testing.assert_close(exported(x), model(x), rtol=0, atol=0)


# Autocast


def test_autocast_keeps_no_more_than_the_library_asks_for(monkeypatch: pytest.MonkeyPatch) -> None:
    forward, kept = Call.forward, []

    def record(*arguments: Any) -> Any:
        results = forward(*arguments)
        kept.append(results[3].numel())
        return results

    monkeypatch.setattr(Call, "forward", record)
    module, x = prnn.nn.LSTM(3, 4), torch.randn(5, 2, 3)
    module(x, reset=torch.zeros(5, 2, dtype=torch.bool))[0].sum().backward()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        output = module(x)[0]
    output.sum().backward()
    assert kept[0] == kept[1]


def assert_autocast_is_torchs(
    theirs: torch.nn.Module, ours: torch.nn.Module, x: Any, states: Any, dtype: torch.dtype
) -> None:
    with torch.autocast("cpu", dtype=dtype):
        found, expected = flat(ours(x, states)), flat(theirs(x, states))
    assert [tensor.dtype for tensor in found] == [tensor.dtype for tensor in expected]
    # torch rounds every step to 8 bits, prnn the results alone.
    torch.testing.assert_close(found, expected, rtol=0.05, atol=0.05)


@pytest.mark.filterwarnings("ignore:TF32 acceleration")  # of torch.backends.mkldnn.flags
@pytest.mark.parametrize("onednn", [False, True])
@pytest.mark.parametrize("packed", [None, [5, 3], [5, 5]])
@pytest.mark.parametrize(("cell", "proj_size"), [*((cell, 0) for cell in CELLS), ("LSTM", 2)])
@pytest.mark.parametrize("weights", [torch.float32, torch.bfloat16])
def test_autocast_on_the_cpu_gives_torchs_dtypes(
    cell: str, proj_size: int, weights: torch.dtype, packed: list[int] | None, onednn: bool
) -> None:
    """From every dtype of input and states, with oneDNN, which serves torch.nn.LSTM alone, and without. torch takes
    packed sequences of one length for padded ones."""
    if onednn and not torch.ops.mkldnn._is_mkldnn_bf16_supported():
        pytest.skip("torch.nn.LSTM itself raises under autocast where oneDNN has no bfloat16")
    is_old = torch.__version__ < (2, 12)
    if is_old and (cell, proj_size, packed, onednn) == ("LSTM", 0, [5, 5], True):
        pytest.skip("torch up to 2.11 computes these in float32; prnn does as newer ones")
    options = {"proj_size": proj_size} if proj_size else {}
    theirs, ours = make_pair(cell, 3, 4, num_layers=2, bidirectional=True, dtype=weights, **options)
    half, single = torch.bfloat16, torch.float32
    pairs = [None, *itertools.product((single, half), repeat=2 if cell == "LSTM" else 1)]
    # From a packed float16 input torch makes float16 and bfloat16 tensors, and raises.
    x_dtypes = (single, half) if packed else (single, half, torch.float16)
    for x_dtype, state_dtypes in itertools.product(x_dtypes, pairs):
        x = torch.randn(5, 2, 3, dtype=x_dtype)
        states = None
        if state_dtypes is not None:
            sizes = (proj_size or 4, 4)
            states = [torch.randn(4, 2, size, dtype=d) for size, d in zip(sizes, state_dtypes, strict=False)]
            states = tuple(states) if cell == "LSTM" else states[0]
        with torch.backends.mkldnn.flags(enabled=onednn):
            sequences = pack_padded_sequence(x, packed) if packed else x
            assert_autocast_is_torchs(theirs, ours, sequences, states, half)


@pytest.mark.filterwarnings("ignore:TF32 acceleration")
@pytest.mark.parametrize("cell", CELLS)
def test_autocast_to_float16_on_the_cpu(cell: str) -> None:
    """Without oneDNN, which trains no LSTM in float16."""
    theirs, ours = make_pair(cell, 3, 4, num_layers=2, dtype=torch.float32)
    with torch.backends.mkldnn.flags(enabled=False):
        for x_dtype in (torch.float32, torch.float16, torch.bfloat16):
            assert_autocast_is_torchs(theirs, ours, torch.randn(5, 2, 3, dtype=x_dtype), None, torch.float16)


def test_autocast_of_padded_sequences_with_lengths_is_that_of_packed_ones() -> None:
    module, x = prnn.nn.LSTM(3, 4), torch.randn(5, 2, 3)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        packed, padded = module(pack_padded_sequence(x, [5, 3])), module(x, lengths=[5, 3])
    assert [tensor.dtype for tensor in flat(padded)] == [tensor.dtype for tensor in flat(packed)]


@pytest.mark.parametrize("cell", CELLS)
def test_autocast_computes_in_float32_and_gives_gradients_to_the_parameters(cell: str) -> None:
    module = make(prnn.nn, cell, 3, 4, num_layers=2)
    x = torch.randn(5, 2, 3, requires_grad=True)
    expected = train_step(module, dict(module.named_parameters()), x)

    def run(x: torch.Tensor, states: Any) -> Any:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return [tensor.float() for tensor in flat(module(x))]

    found = train_step(run, dict(module.named_parameters()), x)
    for name, tensor in found.items():
        assert tensor.dtype == torch.float32
        torch.testing.assert_close(tensor, expected[name], rtol=0.01, atol=0.01)
        if cell == "GRU":  # whose results are not rounded
            assert torch.equal(tensor, expected[name])


@pytest.mark.parametrize("cell", CELLS)
def test_autocast_leaves_float64_alone(cell: str) -> None:
    module = make(prnn.nn, cell, 3, 4, dtype=torch.float64)
    x = torch.randn(5, 2, 3, dtype=torch.float64)
    expected = flat(module(x))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        torch.testing.assert_close(flat(module(x)), expected, rtol=0, atol=0)
        with pytest.raises(ValueError, match=r"dtype torch\.float64, but the weights have torch\.float32"):
            make(prnn.nn, cell, 3, 4)(x)


def test_autocast_of_weights_compiles() -> None:
    module = prnn.nn.LSTM(3, 4, num_layers=2, dtype=torch.bfloat16)
    x = torch.randn(5, 2, 3)

    def run(x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return module(x)[0].float().square().sum()

    expected = torch.autograd.grad(run(x), list(module.parameters()))
    found = torch.autograd.grad(compiled(run)(x), list(module.parameters()))
    for ours, theirs in zip(found, expected, strict=True):
        assert torch.equal(ours, theirs)


def test_autocast_compiles() -> None:
    module = prnn.nn.RNN(3, 4)
    x = torch.randn(5, 2, 3)

    def run(x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return module(x)[0]

    assert torch.equal(compiled(run)(x), run(x))
    assert run(x).dtype == torch.bfloat16


# Functional transforms


def test_func_grad() -> None:
    module = prnn.nn.LSTM(3, 4, num_layers=2, dropout=0.3, dtype=torch.float64)
    x = torch.randn(5, 2, 3, dtype=torch.float64)
    parameters = {name: parameter.detach() for name, parameter in module.named_parameters()}

    def loss(parameters: dict[str, torch.Tensor]) -> torch.Tensor:
        torch.manual_seed(1)
        return torch.func.functional_call(module, parameters, (x,))[0].sum()

    found = torch.func.grad(loss)(parameters)
    expected = torch.autograd.grad(loss(dict(module.named_parameters())), list(module.parameters()))
    assert all(torch.equal(found[name], grad) for name, grad in zip(parameters, expected, strict=True))


@pytest.mark.parametrize("requires_grad", [True, False])
def test_forward_mode_is_refused(requires_grad: bool) -> None:
    module = prnn.nn.GRU(3, 4).requires_grad_(requires_grad)
    x = torch.randn(5, 2, 3)
    refused = pytest.raises(NotImplementedError, match="no derivative in forward mode")
    with torch.autograd.forward_ad.dual_level():
        module(x)
        with refused:
            module(torch.autograd.forward_ad.make_dual(x, x))
    with refused:
        torch.func.jvp(lambda x: module(x)[0], (x,), (x,))


@pytest.mark.parametrize("layout", ["padded", "lengths", "packed"])
@pytest.mark.parametrize("cell", CELLS)
def test_plain_calls_do_without_the_dispatcher(cell: str, layout: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the same bits as through it, where a mode or a subclass of Tensor looks on."""
    module = make(prnn.nn, cell, 3, 4, 2, bidirectional=True, dtype=torch.float64)
    x = torch.randn(5, 3, 3, dtype=torch.float64, requires_grad=True)
    states = make_states(module, 3)
    input = pack_padded_sequence(x, [5, 3, 1]) if layout == "packed" else x
    options = {"lengths": [2, 5, 1]} if layout == "lengths" else {}
    parameters = dict(module.named_parameters())
    operators: list[str] = []

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            operators.append(str(func))
            return func(*args, **(kwargs or {}))

    with Watch():
        expected = train_step(module, parameters, input, states, **options)
    assert {"prnn.rnn.default", "prnn.rnn_backward.default"} <= set(operators)

    def refuse(*_: Any) -> None:
        raise AssertionError("the dispatcher was called")

    monkeypatch.setattr(prnn._ops.rnn, "rnn", refuse)
    monkeypatch.setattr(prnn._ops.rnn, "rnn_backward", refuse)
    assert_same(train_step(module, parameters, input, states, **options), expected)
    with torch.no_grad():
        module(input, states, **options)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        module(input, states, **options)


@pytest.mark.parametrize("lengths", [None, [2, 5, 1]])
def test_a_retained_graph_where_the_reserve_space_serves_once(
    lengths: list[int] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As cuDNN's, which its backward pass overwrites: later passes run forward again, with the same masks."""
    monkeypatch.setattr(prnn._ops._layer.Layer, "spends_reserve", lambda *arguments: True)
    backward = Call.backward

    def spend(*arguments: Any) -> Any:
        results = backward(*arguments)
        arguments[7].data.zero_()  # unseen by autograd, as what the library writes
        return results

    monkeypatch.setattr(Call, "backward", spend)
    module = prnn.nn.GRU(3, 4, 2, dropout=0.5, zoneout=0.2, recurrent_dropout=0.3, dtype=torch.float64)
    x = torch.randn(5, 3, 3, dtype=torch.float64, requires_grad=True)
    output = module(x, lengths=lengths)[0]
    first, *others = (
        torch.autograd.grad(output, [x, *module.parameters()], torch.ones_like(output), retain_graph=True)
        for _ in range(3)
    )
    for other in others:
        assert all(torch.equal(a, b) for a, b in zip(first, other, strict=True))


def test_a_forward_pass_that_runs_again_is_not_cast(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a GPU, for a second backward pass; what it saved has been through the autocast of the first."""
    dtypes, forward = [], Call.forward

    def watched(call: Call, sequences: Any, data: Any, *rest: Any) -> Any:
        dtypes.append({tensor.dtype for tensor in (data[0], *forward(call, sequences, data, *rest)[:2])})
        return forward(call, sequences, data, *rest)

    monkeypatch.setattr(Call, "forward", watched)
    monkeypatch.setattr(Layer, "spends_reserve", lambda *_: True)
    module, x = prnn.nn.GRU(3, 5), torch.randn(4, 2, 3)
    loss = module(x)[0].sum()
    with torch.autocast("cpu"):
        first, second = (torch.autograd.grad(loss, list(module.parameters()), retain_graph=True) for _ in range(2))
    assert dtypes == [{torch.float32}] * 2
    torch.testing.assert_close(second, first, rtol=0, atol=0)


@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.parametrize("dtypes", [(torch.float32, torch.float64), (torch.float64, torch.float32)])
def test_autocast_mixes_float64_with_nothing(cell: str, dtypes: tuple[torch.dtype, torch.dtype]) -> None:
    """It casts no float64: states of another size of element would be read as if they had that of the input."""
    dtype, other = dtypes
    module = make(prnn.nn, cell, 3, 4, num_layers=2, dtype=dtype)
    x, state = torch.randn(5, 2, 3, dtype=dtype), torch.zeros(2, 2, 4, dtype=dtype)
    is_lstm, wrong = cell == "LSTM", state.to(other)
    message = rf"has dtype {other}, but input has {dtype}"
    for pair in ((wrong, state), (state, wrong)) if is_lstm else (wrong,):
        for is_training in (False, True):
            module.requires_grad_(is_training)
            with torch.autocast("cpu", dtype=torch.bfloat16), pytest.raises(ValueError, match=message):
                module(x, pair)
    with torch.autocast("cpu", dtype=torch.bfloat16), pytest.raises(ValueError, match=r"has dtype torch.int64"):
        module(x, (state, state.long()) if is_lstm else state.long())
