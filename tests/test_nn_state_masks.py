"""prnn.nn.GRU and RNN with zoneout and recurrent dropout, on the CPU: against torch operations with the same
masks, what is served and what is refused. Of the kernels: test_rnn_masks.py."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.utils.checkpoint
from masked_layer_case import check_copies_and_pickles, check_masks_follow_torchs_generator, run_written_out
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

import prnn

GRU, RNN = prnn.nn.GRU, prnn.nn.RNN
MASKED: dict[str, tuple[Callable[..., Any], dict[str, Any]]] = {
    "zoneout": (GRU, {"zoneout": 0.3}),
    "dropout": (GRU, {"recurrent_dropout": 0.4}),
    "both": (GRU, {"zoneout": 0.2, "recurrent_dropout": 0.1}),
    "tanh": (RNN, {"recurrent_dropout": 0.4}),
    "relu": (RNN, {"recurrent_dropout": 0.4, "nonlinearity": "relu"}),
}
EVERY = pytest.mark.parametrize(("make", "masks"), MASKED.values(), ids=MASKED)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("options", [{}, {"bidirectional": True}, {"bias": False}], ids=str)
@EVERY
def test_equals_its_formulas(
    make: Callable[..., Any], masks: dict[str, Any], options: dict[str, bool], training: bool
) -> None:
    module = make(5, 6, 2, dtype=torch.float64, **masks, **options).train(training)
    input = torch.randn(4, 3, 5, dtype=torch.float64, requires_grad=True)
    hx = torch.randn(4 if options.get("bidirectional") else 2, 3, 6, dtype=torch.float64, requires_grad=True)
    leaves = [input, hx, *module.parameters()]
    found = []
    for run in (module, lambda *inputs: run_written_out(module, *inputs)):
        torch.manual_seed(5)
        output, h = run(input, hx)
        loss = output.sin().sum() + h.cos().sum()
        found.append((output, h, *torch.autograd.grad(loss, leaves)))
    for ours, theirs in zip(*found, strict=True):
        torch.testing.assert_close(ours, theirs)


@EVERY
def test_gradcheck(make: Callable[..., Any], masks: dict[str, Any]) -> None:
    module = make(2, 3, 2, dtype=torch.float64, bidirectional=True, **masks)  # small: it runs twice for each number
    names = [name for name, _ in module.named_parameters()]

    def call(input: torch.Tensor, hx: torch.Tensor, *weights: torch.Tensor) -> Any:
        torch.manual_seed(2)
        return torch.func.functional_call(module, dict(zip(names, weights, strict=True)), (input, hx))

    input = torch.randn(3, 2, 2, dtype=torch.float64, requires_grad=True)
    hx = torch.randn(4, 2, 3, dtype=torch.float64, requires_grad=True)
    weights = [weight.detach().requires_grad_() for weight in module.parameters()]
    assert torch.autograd.gradcheck(call, (input, hx, *weights))
    if module.zoneout > 0:
        module.eval()
        assert torch.autograd.gradcheck(call, (input, hx, *weights))


@pytest.mark.parametrize("make", [GRU, RNN])
def test_without_masks_it_is_the_plain_layer(make: Callable[..., Any]) -> None:
    plain, module = make(5, 6, 2), make(5, 6, 2, recurrent_dropout=0.3).eval()
    module.load_state_dict(plain.state_dict())
    input = torch.randn(4, 3, 5)
    assert torch.equal(module(input)[0], plain(input)[0])
    assert (plain.zoneout, plain.recurrent_dropout) == (0, 0)
    torch.manual_seed(1)
    plain(input)
    state = torch.get_rng_state()
    torch.manual_seed(1)
    assert torch.equal(torch.get_rng_state(), state)  # nothing was drawn


def test_zoneout_keeps_states() -> None:
    module = GRU(3, 200, zoneout=0.3, dtype=torch.float64)
    output, _ = module(torch.randn(9, 4, 3, dtype=torch.float64))
    kept = ((output[1:] - output[:-1]).abs() < 1e-15).double().mean().item()
    assert 0.27 < kept < 0.33
    assert (output[0].abs() < 1e-15).any()


@EVERY
def test_masks_follow_torchs_generator(make: Callable[..., Any], masks: dict[str, Any]) -> None:
    check_masks_follow_torchs_generator(make(3, 16, 2, **masks))


def test_one_mask_of_recurrent_dropout_for_all_timesteps() -> None:
    """A unit that is dropped has no influence on the next timestep, one that is kept has."""
    module = RNN(1, 8, nonlinearity="relu", recurrent_dropout=0.5, dtype=torch.float64)
    hx = torch.randn(1, 2, 8, dtype=torch.float64, requires_grad=True)
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            parameter.copy_(torch.eye(8) if name == "weight_hh_l0" else torch.zeros_like(parameter))
        module.bias_ih_l0.fill_(10)
    output, _ = module(torch.zeros(3, 2, 1, dtype=torch.float64), hx)
    (gradient,) = torch.autograd.grad(output[2].sum(), hx)
    assert set(gradient.flatten().tolist()) == {0.0, 8.0}  # of three steps, each 1 / (1 - 0.5)


@pytest.mark.parametrize("batch_first", [False, True])
def test_lengths(batch_first: bool) -> None:
    """Each sequence as if it were alone, whatever the padding holds."""
    module = GRU(3, 4, 2, bidirectional=True, batch_first=batch_first, zoneout=0.2, dtype=torch.float64).eval()
    lengths = [4, 1, 6]
    input, hx = torch.randn(6, 3, 3, dtype=torch.float64), torch.randn(4, 3, 4, dtype=torch.float64)
    padded = input.clone()
    for n, length in enumerate(lengths):
        padded[length:, n] = float("nan")
    output, h = module(padded.transpose(0, 1) if batch_first else padded, hx, lengths=lengths)
    output = output.transpose(0, 1) if batch_first else output
    for n, length in enumerate(lengths):
        alone, h1 = module(input[:length, n], hx[:, n])
        torch.testing.assert_close((output[:length, n], h[:, n]), (alone, h1))
        assert (output[length:, n] == 0).all()


@EVERY
def test_lengths_in_training(make: Callable[..., Any], masks: dict[str, Any]) -> None:
    """The masks of a sequence are its own, in whatever order the kernels take the sequences."""
    module = make(3, 4, 2, dtype=torch.float64, **masks)
    lengths, found = [4, 1, 6], []
    input = torch.randn(6, 3, 3, dtype=torch.float64, requires_grad=True)
    for arguments in ({"lengths": lengths}, {}):
        torch.manual_seed(4)
        output, _ = module(input, **arguments)
        valid = [output[:length, n] for n, length in enumerate(lengths)]
        found.append((*valid, *torch.autograd.grad(sum(x.sin().sum() for x in valid), [input, *module.parameters()])))
    torch.testing.assert_close(*found)


@EVERY
@pytest.mark.parametrize("enforce_sorted", [False, True])
def test_packed_sequences(make: Callable[..., Any], masks: dict[str, Any], enforce_sorted: bool) -> None:
    module = make(3, 4, 2, bidirectional=True, dtype=torch.float64, **masks)
    lengths = [6, 4, 1] if enforce_sorted else [4, 1, 6]
    input = torch.randn(6, 3, 3, dtype=torch.float64, requires_grad=True)
    packed = pack_padded_sequence(input, lengths, enforce_sorted=enforce_sorted)
    torch.manual_seed(4)
    output, h = module(packed)
    assert torch.equal(output.batch_sizes, packed.batch_sizes)
    torch.manual_seed(4)
    assert torch.equal(module(packed)[1], h)
    output.data.sum().backward()
    module.eval()
    output, h = module(packed)
    torch.testing.assert_close((pad_packed_sequence(output)[0], h), module(input, lengths=lengths))


@pytest.mark.parametrize(
    ("make", "masks", "train"),
    [*((*MASKED[name], True) for name in MASKED), (*MASKED["both"], False), (*MASKED["relu"], False)],
    ids=str,
)
def test_compiles(make: Callable[..., Any], masks: dict[str, Any], train: bool) -> None:
    torch.compiler.reset()
    for factor in (1.0, 0.5):
        values = {name: value * factor if isinstance(value, float) else value for name, value in masks.items()}
        module = make(3, 4, 2, **values).train(train)
        compiled = torch.compile(module, fullgraph=True, backend="aot_eager")
        input = torch.randn(5, 2, 3, requires_grad=True)
        results = []
        for call in (module, compiled):
            torch.manual_seed(1)
            results.append(call(input)[0])
        torch.testing.assert_close(*results)
        torch.testing.assert_close(*(torch.autograd.grad(result.sum(), input)[0] for result in results))


@EVERY
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_sixteen_bits_are_computed_in_float32(
    make: Callable[..., Any], masks: dict[str, Any], dtype: torch.dtype
) -> None:
    module = make(3, 4, dtype=dtype, **masks).eval()
    input, hx = torch.randn(5, 2, 3, dtype=dtype), torch.randn(1, 2, 4, dtype=dtype)
    output, h = module(input, hx)
    expected, state = copy.deepcopy(module).float()(input.float(), hx.float())
    assert torch.equal(output, expected.to(dtype))
    assert torch.equal(h, state.to(dtype))
    assert module.train()(input, hx)[0].dtype == dtype


@EVERY
def test_autocast(make: Callable[..., Any], masks: dict[str, Any]) -> None:
    module = make(3, 4, **masks)
    plain = make(3, 4, **{name: value for name, value in masks.items() if name == "nonlinearity"})
    input = torch.randn(5, 2, 3)
    with torch.autocast("cpu"):
        output, _ = module(input)
        assert output.dtype == plain(input)[0].dtype
    output.float().sum().backward()
    assert module.weight_hh_l0.grad.dtype == torch.float32


def test_with_retained_graph_and_checkpoint() -> None:
    module = GRU(3, 4, zoneout=0.3, recurrent_dropout=0.2)
    input = torch.randn(5, 2, 3, requires_grad=True)
    output, _ = module(input)
    first, second = (torch.autograd.grad(output.sum(), input, retain_graph=True)[0] for _ in range(2))
    assert torch.equal(first, second)
    torch.manual_seed(6)
    plain = module(input)[0]
    torch.manual_seed(6)
    repeated = torch.utils.checkpoint.checkpoint(module, input, use_reentrant=False)[0]
    for result in (plain, repeated):
        assert torch.equal(result, plain)
    assert torch.equal(*(torch.autograd.grad(result.sum(), input)[0] for result in (plain, repeated)))


def test_state_dict_copies_and_pickles() -> None:
    module = GRU(3, 4, 2, zoneout=0.2, recurrent_dropout=0.1)
    assert repr(module) == "prnn.nn.GRU(3, 4, num_layers=2, zoneout=0.2, recurrent_dropout=0.1)"
    assert repr(RNN(3, 4, recurrent_dropout=0.1)) == "prnn.nn.RNN(3, 4, recurrent_dropout=0.1)"
    assert module.state_dict().keys() == torch.nn.GRU(3, 4, 2).state_dict().keys()
    check_copies_and_pickles(module)


def test_convert() -> None:
    module = prnn.convert(torch.nn.GRU(3, 4))
    assert (module.zoneout, module.recurrent_dropout) == (0, 0)
    assert type(prnn.convert_back(GRU(3, 4))) is torch.nn.GRU
    for make, masks in MASKED.values():
        with pytest.raises(ValueError, match=r"has (zoneout|recurrent_dropout), which torch.nn's layers have not"):
            prnn.convert_back(make(3, 4, **masks))


def test_explain() -> None:
    def engines(module: Any, batch: int = 4, dtype: torch.dtype = torch.float16) -> tuple[str, str]:
        (found,) = prnn.explain(module, batch, gpu="h200", dtype=dtype).layers
        return found.forward, found.backward

    assert engines(GRU(80, 512, recurrent_dropout=0.1)) == ("cluster", "cluster")
    assert engines(GRU(80, 1024, recurrent_dropout=0.1), 64) == ("mma", "mma")
    assert engines(GRU(80, 1024, recurrent_dropout=0.1).eval(), 64)[0].startswith("wgmma")
    assert engines(GRU(80, 1024, zoneout=0.1), 64) == engines(GRU(80, 1024), 64)
    assert engines(GRU(80, 1024, zoneout=0.1).eval(), 64) == ("mma", "mma")
    assert engines(RNN(80, 256, recurrent_dropout=0.1), dtype=torch.float32) == ("simt", "simt")
    (found,) = prnn.explain(GRU(80, 5000, recurrent_dropout=0.1), 4, gpu="h200", dtype=torch.float16).layers
    assert not found.supported


BAD: list[tuple[Callable[[], object], type[Exception], str]] = [
    (lambda: GRU(3, 4, zoneout=1.0), ValueError, "zoneout is 1.0; it must be at least 0 and less than 1"),
    (lambda: RNN(3, 4, recurrent_dropout=-0.5), ValueError, "recurrent_dropout is -0.5; it must be at least 0"),
    (lambda: GRU(3, 4, zoneout="no"), TypeError, "zoneout is 'no'; it must be a number"),
    (lambda: GRU(3, 4, zoneout=-0.1), ValueError, "zoneout is -0.1; it must be at least 0 and less than 1"),
    (lambda: RNN(3, 4, zoneout=0.1), TypeError, "zoneout"),
]


@pytest.mark.parametrize(("call", "error", "message"), BAD)
def test_bad_arguments(call: Callable[[], object], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call()
