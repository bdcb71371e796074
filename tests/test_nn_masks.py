"""prnn.nn.LSTM with zoneout and recurrent dropout on the CPU: against torch operations with the same masks, what is
served and what is refused. Of the kernels: test_rnn_masks.py."""

import math
from collections.abc import Callable

import pytest
import torch
from masked_layer_case import (
    check_copies_and_pickles,
    check_lengths,
    check_masks_follow_torchs_generator,
    check_packed_sequences,
    run_written_out,
    written_out,
)

import prnn

LSTM = prnn.nn.LSTM


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("options", [{}, {"bidirectional": True}, {"bias": False}], ids=str)
@pytest.mark.parametrize(
    "masks", [{"zoneout": 0.3}, {"recurrent_dropout": 0.4}, {"zoneout": 0.2, "recurrent_dropout": 0.1}]
)
def test_equals_its_formulas(masks: dict[str, float], options: dict[str, bool], training: bool) -> None:
    module = LSTM(5, 6, 2, dtype=torch.float64, **masks, **options).train(training)
    input = torch.randn(4, 3, 5, dtype=torch.float64, requires_grad=True)
    states = 4 if options.get("bidirectional") else 2
    hx = tuple(torch.randn(states, 3, 6, dtype=torch.float64, requires_grad=True) for _ in range(2))
    leaves = [input, *hx, *module.parameters()]
    found = []
    for run in (module, lambda *inputs: run_written_out(module, *inputs)):
        torch.manual_seed(5)
        output, (h, c) = run(input, hx)
        loss = output.sin().sum() + h.cos().sum() + c.square().sum()
        found.append((output, h, c, *torch.autograd.grad(loss, leaves)))
    for ours, theirs in zip(*found, strict=True):
        torch.testing.assert_close(ours, theirs)


def test_cells_of_every_timestep() -> None:
    module = LSTM(5, 6, 2, bidirectional=True, zoneout=0.2, recurrent_dropout=0.1, dtype=torch.float64)
    input = torch.randn(4, 3, 5, dtype=torch.float64, requires_grad=True)
    found = []
    for expected in (False, True):
        torch.manual_seed(5)
        cells = written_out(module, input)[3].view(4, 3, 12) if expected else module(input, return_cells=True)[2]
        found.append([cells, *torch.autograd.grad(cells.sin().sum(), [input, *module.parameters()])])
    torch.testing.assert_close(*found)


def test_without_masks_it_is_the_plain_lstm() -> None:
    plain = LSTM(5, 6, 2)
    module = LSTM(5, 6, 2, recurrent_dropout=0.3).eval()
    module.load_state_dict(plain.state_dict())
    input = torch.randn(4, 3, 5)
    assert torch.equal(module(input)[0], plain(input)[0])
    zoned = LSTM(5, 6, 2, zoneout=1e-30).eval()
    zoned.load_state_dict(torch.nn.LSTM(5, 6, 2).state_dict())
    theirs = torch.nn.LSTM(5, 6, 2)
    theirs.load_state_dict(zoned.state_dict())
    torch.testing.assert_close(zoned(input), theirs(input))


def test_zoneout_keeps_states() -> None:
    module = LSTM(3, 200, zoneout=0.3)
    output, _ = module(torch.randn(9, 4, 3))
    kept = (output[1:] == output[:-1]).double().mean().item()
    assert 0.27 < kept < 0.33
    assert (output[0] == 0).any()


@pytest.mark.parametrize("name", ["zoneout", "recurrent_dropout"])
def test_masks_follow_torchs_generator(name: str) -> None:
    check_masks_follow_torchs_generator(LSTM(3, 16, 2, **{name: 0.5}))


def test_dropout_between_layers() -> None:
    module = LSTM(3, 16, 2, zoneout=1e-30, dropout=0.5)
    input = torch.randn(6, 2, 3)
    assert not torch.equal(module(input)[0], module(input)[0])
    module.eval()
    assert torch.equal(module(input)[0], module(input)[0])


@pytest.mark.parametrize("batch_first", [False, True])
def test_lengths(batch_first: bool) -> None:
    options = {"bidirectional": True, "batch_first": batch_first, "dtype": torch.float64}
    check_lengths(LSTM(3, 4, 2, zoneout=0.2, **options).eval())


@pytest.mark.parametrize("batch_first", [False, True])
@pytest.mark.parametrize("enforce_sorted", [False, True])
def test_packed_sequences(enforce_sorted: bool, batch_first: bool) -> None:
    options = {"bidirectional": True, "batch_first": batch_first, "dtype": torch.float64}
    check_packed_sequences(LSTM(3, 4, 2, zoneout=0.2, **options).eval(), enforce_sorted)


@pytest.mark.parametrize("train", [False, True])
@pytest.mark.parametrize("make_layer", [LSTM, prnn.nn.LayerNormLSTM])
def test_compiles(make_layer: type[torch.nn.Module], train: bool) -> None:
    """Several modules: torch.compile makes a symbol of a number that differs between them."""
    torch.compiler.reset()
    for zoneout, recurrent_dropout in ((0.2, 0.1), (0.3, 0.2), (0.25, 0.0)):
        module = make_layer(3, 4, 2, zoneout=zoneout, recurrent_dropout=recurrent_dropout).train(train)
        compiled = torch.compile(module, fullgraph=True, backend="aot_eager")
        input = torch.randn(5, 2, 3, requires_grad=True)
        results = []
        for call in (module, compiled):
            torch.manual_seed(1)
            results.append(call(input)[0])
        torch.testing.assert_close(*results)
        torch.testing.assert_close(*(torch.autograd.grad(result.sum(), input)[0] for result in results))


def test_state_dict_copies_and_pickles() -> None:
    module = LSTM(3, 4, 2, zoneout=0.2, recurrent_dropout=0.1, forget_bias=1.0)
    assert repr(module) == "prnn.nn.LSTM(3, 4, num_layers=2, zoneout=0.2, recurrent_dropout=0.1, forget_bias=1.0)"
    assert module.state_dict().keys() == torch.nn.LSTM(3, 4, 2).state_dict().keys()
    check_copies_and_pickles(module)


def test_convert() -> None:
    module = prnn.convert(torch.nn.LSTM(3, 4))
    assert (module.zoneout, module.recurrent_dropout) == (0, 0)
    assert type(prnn.convert_back(LSTM(3, 4))) is torch.nn.LSTM
    for name in ("zoneout", "recurrent_dropout"):
        with pytest.raises(ValueError, match=f"has {name}, which torch.nn's layers have not"):
            prnn.convert_back(LSTM(3, 4, **{name: 0.5}))


def test_explain() -> None:
    module = LSTM(80, 512, 2, recurrent_dropout=0.1)
    (found,) = prnn.explain(module, 4, gpu="h200", dtype=torch.float16).layers
    assert (found.forward, found.backward, found.replicas, found.blocks) == ("cluster", "cluster", 4, 16)
    assert found.layers_together == 1
    (found,) = prnn.explain(module, 500, gpu="h200", dtype=torch.float16).layers
    assert (found.forward, found.backward) == ("cluster", "cluster")
    (found,) = prnn.explain(module.eval(), 4, gpu="h200", dtype=torch.float16).layers
    assert found.forward == prnn.explain(LSTM(80, 512, 2), 4, gpu="h200", dtype=torch.float16).layers[0].forward
    (found,) = prnn.explain(module.train(), 4, dtype=torch.float16).layers
    assert (found.forward, found.notes) == ("cpu", ("computed in float32",))


@pytest.mark.parametrize(
    ("hidden", "dtype", "backend", "reason"),
    [
        (512, torch.float64, "best", "the data type is double; the resident kernels take float, half and bfloat16; "),
        (
            2048,
            torch.float32,
            "best",
            "hidden size 2048 is more than stays resident on this GPU, at most 1664 for",
        ),
        (512, torch.float16, "cudnn", ""),
    ],
)
def test_what_no_kernel_serves_is_explained(hidden: int, dtype: torch.dtype, backend: str, reason: str) -> None:
    for masks in ({"zoneout": 0.1}, {"recurrent_dropout": 0.1}):
        module = LSTM(80, hidden, backend=backend, device="meta", **masks)
        (found,) = prnn.explain(module, 4, gpu="h200", dtype=dtype).layers
        assert (found.supported, found.forward, found.backward) == (False, "-", "-")
        assert found.notes[0].startswith(reason)
        assert found.notes[0].endswith("cuDNN has no masks of the recurrence (prnnSetRNNMasks)")


MASKED = {"zoneout": 0.25}
BAD: list[tuple[Callable[[], object], type[Exception], str]] = [
    (lambda: LSTM(3, 4, zoneout=1.0), ValueError, "zoneout is 1.0; it must be at least 0 and less than 1"),
    (lambda: LSTM(3, 4, recurrent_dropout=-0.5), ValueError, "recurrent_dropout is -0.5; it must be at least 0"),
    (lambda: LSTM(3, 4, zoneout=math.nan), ValueError, "zoneout is nan"),
    (lambda: LSTM(3, 4, zoneout="no"), TypeError, "zoneout is 'no'; it must be a number"),
    (lambda: LSTM(3, 4, proj_size=2, **MASKED), ValueError, "zoneout is 0.25, but proj_size is 2"),
    (lambda: LSTM(3, 4, proj_size=2, recurrent_dropout=0.5), ValueError, "recurrent_dropout is 0.5, but proj_size is"),
    (lambda: LSTM(3, 4, **MASKED)(torch.zeros(0, 2, 3)), ValueError, "input has 0 timesteps; it must have at least 1"),
    (lambda: LSTM(3, 4, **MASKED)(torch.zeros(2, 1, 3), lengths=[3]), ValueError, r"lengths\[0\] is 3; it must lie"),
]


@pytest.mark.parametrize(("call", "error", "message"), BAD)
def test_bad_arguments(call: Callable[[], object], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call()
