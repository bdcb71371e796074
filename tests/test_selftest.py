"""prnn selftest, and the comparison of layers with the CPU before a GPU that nobody has run serves them. The CPU takes
the GPU's place; faults are planted in what it is given, and in what it computes."""

import contextlib
import json
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest
import torch
from torch import Tensor

import prnn
from prnn import _selftest
from prnn._ops import _call, _handles, _layer, _twin
from prnn._ops._layer import BACKENDS, MODES, Config, Layer
from prnn.cli import main
from prnn.commands import selftest as command

CPU = torch.device("cpu")
TYPES = (torch.float32, torch.float16, torch.bfloat16)
SIZES = [9, 9, 9, 9, 5]
ROWS = sum(SIZES)
H = 64


def stack_of(mode: str = "LSTM", dtype: torch.dtype = torch.float32, **changes: object) -> Layer:
    config = Config(MODES[mode], H, 0, 1, False, 0.0, BACKENDS["best"])._replace(**changes)
    return Layer(config, dtype, 24, CPU)


Data = dict[str, Tensor]


def broken(
    monkeypatch: pytest.MonkeyPatch, of_data: Callable[[Data], None], of_results: Callable[[Data], None]
) -> None:
    """The device that is tested is given other data, or computes other results."""
    correct, calls = _twin._results, 0

    def results(stack: Layer, sizes: Sequence[int], data: Mapping[str, Tensor], infers: bool = False) -> Data:
        nonlocal calls
        calls += 1
        data = {name: value.clone() for name, value in data.items()}
        if calls % 2 == 1:  # then comes the CPU
            of_data(data)
        found = correct(stack, sizes, data, infers)
        if calls % 2 == 1:
            of_results(found)
        return found

    monkeypatch.setattr(_twin, "_results", results)


def nothing(data: Data) -> None:
    pass


def recurrent(data: Data) -> Tensor:
    """The recurrent matrices of the only layer, (G H, H), which follow the input's."""
    weights = data["weights"]
    gates = weights.numel() // (H * (24 + H + 2))
    return weights[gates * H * 24 :][: gates * H * H].view(gates * H, H)


def biases(data: Data) -> Tensor:
    gates = data["weights"].numel() // (H * (24 + H + 2))
    return data["weights"][-2 * gates * H :]


def swap_rows(value: Tensor, first: int, second: int) -> None:
    value[[first, second]] = value[[second, first]]


def misses_the_last_step_of_a_sequence(found: Data) -> None:
    found["dw"] *= 1 - 1 / ROWS


OF_DATA: dict[str, Callable[[Data], None]] = {
    "a tile of weights is not there": lambda d: recurrent(d)[8:16, 16:24].zero_(),
    "a warp's share of K is not summed": lambda d: recurrent(d)[:, 48:].zero_(),
    "rows of two units change places": lambda d: swap_rows(recurrent(d), 3, 4),
    "rows of one unit are another's": lambda d: recurrent(d)[5].copy_(recurrent(d)[6]),
    "a unit has no bias": lambda d: biases(d)[7].zero_(),
    "weights are transposed in a block": lambda d: recurrent(d)[:H].copy_(recurrent(d)[:H].T.clone()),
    "the initial state of a sequence is not read": lambda d: d["hx"][0, 4].zero_(),
    "initial states of two sequences change places": lambda d: swap_rows(d["hx"][0], 0, 8),
    "a unit's initial state is not read": lambda d: d["hx"][0, :, 63].zero_(),
    "the input of a timestep is the one before": lambda d: d["x"][9:18].copy_(d["x"][:9].clone()),
    "a sequence's gradient is not read": lambda d: d["dy"][2::9].zero_(),
    "the last state's gradient is not read": lambda d: d["dhy"].zero_(),
}
OF_RESULTS: dict[str, Callable[[Data], None]] = {
    "one number of y": lambda f: f["y"][20, 30].add_(1.0),
    "a block's units of y in the last timestep": lambda f: f["y"][-5:, 32:40].zero_(),
    "NaN": lambda f: f["y"][0, 0].fill_(torch.nan),
    "infinity in a gradient": lambda f: f["dx"][1, 1].fill_(torch.inf),
    "a sequence's last state is an earlier one": lambda f: f["hy"][0, 8].copy_(f["y"][0]),
    "a gradient of the initial state is not written": lambda f: f["dhx"][0, 3].zero_(),
    "inference is not as training": lambda f: f["y of inference"][12, :8].zero_(),
    "a timestep's input has no gradient": lambda f: f["dx"][18:27].zero_(),
    "weight gradients of one unit": lambda f: f["dw"][24 * 5 : 24 * 6].mul_(2.0),
}


@pytest.mark.parametrize("fault", [*OF_DATA, *OF_RESULTS])
def test_every_fault_is_found(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In every cell and type."""
    broken(monkeypatch, OF_DATA.get(fault, nothing), OF_RESULTS.get(fault, nothing))
    for mode in ("LSTM", "GRU", "RNN_TANH", "sLSTM", "sLSTM_EXP"):  # a ReLU may be off
        for dtype in TYPES[: 2 if mode == "sLSTM_EXP" else 3]:  # in bfloat16, a unit's gradients may be off
            assert not all(found.is_good for found in _twin.compare_layer(stack_of(mode, dtype), SIZES)), (mode, dtype)


@pytest.mark.parametrize("fault", OF_DATA)
def test_every_fault_is_found_in_numbers_that_repeat(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The numbers of large layers repeat."""
    monkeypatch.setattr(_twin, "_PERIOD", 101)
    broken(monkeypatch, OF_DATA[fault], nothing)
    for dtype in TYPES:
        assert not all(found.is_good for found in _twin.compare_layer(stack_of(dtype=dtype), SIZES)), dtype


def test_less_precision_than_float32_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def round_to_tf32(data: Data) -> None:
        bits = data["weights"].view(torch.int32)
        bits.add_(1 << 12).bitwise_and_(-1 << 13)

    broken(monkeypatch, round_to_tf32, nothing)
    for mode in ("LSTM", "GRU", "RNN_TANH"):
        assert not _twin.compare_layer(stack_of(mode), SIZES)[0].is_good, mode


@pytest.mark.parametrize("mode", MODES)
def test_no_fault_is_found_where_there_is_none(mode: str) -> None:
    """The CPU's kernels in 16 bits take at most half of the tolerance; with one sequence, too, some of whose gradients
    are many times larger than most."""
    is_lstm = mode == "LSTM"
    options: list[dict[str, object]] = [
        {"hidden_size": 768, "heads": 2},
        {"num_layers": 3, "dropout": 0.3, "bidirectional": True},
        {"has_reset": True, "return_cells": is_lstm},
        {"mask_kinds": 3 if mode in ("LSTM", "GRU") else 2},
        {"heads": 4},
        {"frozen_layers": 1, "num_layers": 2},
    ]
    options += [{"proj_size": 16}] if is_lstm else []
    for dtype in TYPES:
        for changes in options:
            found = _twin.compare_layer(
                stack_of(mode, dtype, **changes), SIZES if "hidden_size" not in changes else [1] * 5
            )
            assert all(difference.error < difference.tolerance / 2 for difference in found), (dtype, changes, found)


def test_the_cpu_has_few_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """And as many as before when it is done."""
    before, seen, correct = torch.get_num_threads(), [], _twin._results

    def results(stack: Layer, sizes: Sequence[int], data: Mapping[str, Tensor], infers: bool = False) -> Data:
        seen.append(torch.get_num_threads())
        return correct(stack, sizes, data, infers)

    monkeypatch.setattr(_twin, "_results", results)
    torch.set_num_threads(6)
    try:
        _twin.compare_layer(stack_of(), SIZES)
        monkeypatch.setattr(_twin, "_LARGE", 1000)
        _twin.compare_layer(stack_of(), SIZES)
        assert (seen[1::2], torch.get_num_threads()) == ([1, 4], 6)
    finally:
        torch.set_num_threads(before)


# ---- Before a layer's first call ----


@pytest.mark.parametrize(
    ("plan", "of_layers", "of_losses"),
    [
        ({"supported": True, "measured": True}, False, False),
        ({"supported": True, "measured": False}, True, True),
        ({"supported": False, "measured": False}, False, True),  # without a row: layers run on cuDNN
    ],
)
def test_what_is_unproven(
    monkeypatch: pytest.MonkeyPatch, plan: dict[str, bool], of_layers: bool, of_losses: bool
) -> None:
    class Rnn:
        def __init__(self, *arguments: object) -> None: ...

        def query(self, *arguments: object) -> dict[str, bool]:
            return plan

    monkeypatch.setattr(_handles._C, "Rnn", Rnn)
    monkeypatch.setattr(_handles, "handle", lambda device: None)
    monkeypatch.setattr(torch.cuda, "device", lambda device: contextlib.nullcontext())
    found = _handles.is_unproven.__wrapped__
    assert found(torch.device("cuda", 0)) is of_layers
    assert found(torch.device("cuda", 0), of_layers=False) is of_losses


@pytest.fixture
def unproven(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The CPU as a GPU that nobody has run; returns the folder of verdicts."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    for module in (_call, _handles):
        monkeypatch.setattr(module, "is_unproven", lambda device, of_layers=True: True)
    monkeypatch.setattr(_twin, "describe_gpu", lambda device: "a GPU, its driver and a build")
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "RTX 9999")
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    monkeypatch.setattr(_twin, "_verdicts", {})
    monkeypatch.setattr(_twin, "_told", set())
    monkeypatch.setattr(_twin, "_agreed", set())
    monkeypatch.setattr(_layer._measured, "_choices", {})
    monkeypatch.setattr(Layer, "is_served_by_cudnn", lambda self: self.config.heads == 1 and not self.takes_gates)
    monkeypatch.setattr(_layer, "_local", _layer._ThreadState())
    made = Layer.__init__

    def as_on_a_gpu(self: Layer, *arguments: object) -> None:
        made(self, *arguments)
        self._has_choice = self.config.backend == BACKENDS["best"]

    monkeypatch.setattr(Layer, "__init__", as_on_a_gpu)
    return tmp_path / "prnn" / "kernels_compared"


def sentences_in(folder: Path) -> list[str]:
    return [file.read_text() for file in folder.iterdir()]


def backends_of(module: prnn.nn.LSTM) -> set[int]:
    return {call.stack.config.backend for call in module._calls.calls.values()}


def count_comparisons(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    made, correct = [], _twin.compare_layer

    def counted(stack: Layer, sizes: Sequence[int]) -> object:
        made.append((stack.config, tuple(sizes)))
        return correct(stack, sizes)

    monkeypatch.setattr(_twin, "compare_layer", counted)
    return made


def test_kernels_that_agree_serve_the_layer(unproven: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = count_comparisons(monkeypatch)
    module, x = prnn.nn.LSTM(8, 16, 3), torch.randn(40, 2, 8)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(2):
            module(x)[0].sum().backward()
            with torch.no_grad():
                module(x)
    ((config, sizes),) = made  # of fewer layers and timesteps
    assert (config.num_layers, sizes) == (1, (2,) * 5)
    assert sentences_in(unproven) == [""]
    assert BACKENDS["cudnn"] not in backends_of(module)


@pytest.mark.parametrize("trains", [False, True])
def test_kernels_that_differ_do_not(unproven: Path, monkeypatch: pytest.MonkeyPatch, trains: bool) -> None:
    """The next process reads it, and compares no more."""
    broken(monkeypatch, nothing, lambda found: found["y"][0, 0].add_(0.1))
    made = count_comparisons(monkeypatch)
    x = torch.randn(6, 2, 8)
    for _ in range(2):
        module = prnn.nn.LSTM(8, 16).requires_grad_(trains)
        with pytest.warns(
            UserWarning, match="cuDNN runs a layer: the kernels .* have never run on RTX 9999 before, and"
        ):
            module(x)
        assert backends_of(module) == {BACKENDS["cudnn"]}
        monkeypatch.setattr(_twin, "_verdicts", {})
        monkeypatch.setattr(_twin, "_told", set())
    assert len(made) == 1
    (sentence,) = sentences_in(unproven)
    assert "y differs from the CPU's by" in sentence


def test_operators_take_the_other_kernels_in_both_passes(unproven: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken(monkeypatch, nothing, lambda found: found["dw"].zero_())
    served, forward, backward = set(), _call.Call.forward, _call.Call.backward

    def note(run: Callable[..., object]) -> Callable[..., object]:
        def noted(self: _call.Call, *arguments: object) -> object:
            if len(self.sequences) == 40:
                served.add((run.__name__, self.stack.config.backend))
            return run(self, *arguments)

        return noted

    monkeypatch.setattr(_call.Call, "forward", note(forward))
    monkeypatch.setattr(_call.Call, "backward", note(backward))
    weights = [weight.requires_grad_() for weight in prnn.nn.GRU(8, 16).parameters()]
    config = Config(MODES["GRU"], 16, 0, 1, False, 0.0, BACKENDS["best"])
    x = torch.randn(40, 2, 8, requires_grad=True)
    with pytest.warns(UserWarning, match="dw differs from the CPU's"):
        y, *_ = torch.ops.prnn.rnn(x, None, None, weights, None, None, None, [], None, None, *config, True)
    y.sum().backward()
    assert served == {("forward", BACKENDS["cudnn"]), ("backward", BACKENDS["cudnn"])}


def test_a_kernel_that_fails_differs(unproven: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(stack: Layer, sizes: Sequence[int]) -> object:
        raise RuntimeError("misaligned address")

    monkeypatch.setattr(_twin, "compare_layer", fail)
    with pytest.warns(UserWarning, match="and fail there: misaligned address"):
        prnn.nn.GRU(8, 16)(torch.randn(6, 2, 8))


def test_what_cudnn_cannot_serve_is_refused(unproven: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken(monkeypatch, nothing, lambda found: found["y"].zero_())
    with pytest.raises(prnn.NotSupportedError, match="have never run on RTX 9999 before, and y differs"):
        prnn.nn.GRU(8, 16, heads=2)(torch.randn(6, 2, 8))


def test_nothing_is_compared_in_a_capture(unproven: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = count_comparisons(monkeypatch)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    module, x = prnn.nn.GRU(8, 16), torch.randn(6, 2, 8)
    with pytest.warns(UserWarning, match="nothing can be compared while a CUDA graph is captured"):
        module(x)
    assert not made
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    other = prnn.nn.GRU(8, 16)
    other(x)
    assert len(made) == 1
    assert BACKENDS["cudnn"] not in backends_of(other)


@pytest.mark.parametrize("masked", [False, True])
def test_layer_normalisation(unproven: Path, monkeypatch: pytest.MonkeyPatch, masked: bool) -> None:
    """Its kernels run where they agree, and nothing else can take their place."""
    options = {"zoneout": 0.2, "recurrent_dropout": 0.2} if masked else {}
    x = torch.randn(9, 3, 8)
    for dtype in TYPES:
        module = prnn.nn.LayerNormLSTM(8, 16, **options).to(dtype)
        module(x.to(dtype))[0].sum().backward()
        with torch.no_grad():
            module(x.to(dtype), lengths=torch.tensor([9, 4, 1]))
    sentences = sentences_in(unproven)
    # In training and, where they have no masks, in evaluation; of float32, in which the CPU computes other types, too.
    assert sentences == [""]
    correct, calls = _call.Call.backward, 0

    def broken_once(*inputs: object) -> tuple[Tensor | None, ...]:
        nonlocal calls
        calls += 1
        gradients = correct(*inputs)
        if calls == 1:
            gradients[0][2, 0, 3] += 5.0
        return gradients

    monkeypatch.setattr(_call.Call, "backward", broken_once)
    for _ in range(2):
        with pytest.raises(prnn.NotSupportedError, match=r"have never run on RTX 9999 before, and dx differs"):
            prnn.nn.LayerNormLSTM(8, 24, **options)(x)
    assert calls == 2


def leaf(*shape: int) -> Tensor:
    return torch.randn(shape, requires_grad=True)


def joiner(classes: int) -> tuple[Tensor, ...]:
    return leaf(2, 6, 8), leaf(2, 4, 8), leaf(classes, 8), leaf(classes)


ON = (torch.tensor([[1, 2, 3], [3, 1, 1]]), torch.tensor([6, 4]), torch.tensor([3, 2]))
LOSSES: dict[str, Callable[[], Tensor]] = {
    "CTC loss": lambda: prnn.ctc_loss(leaf(6, 2, 5), *ON),
    "RNN-T loss": lambda: prnn.rnnt_loss(leaf(2, 6, 4, 5), *ON, blank=0),
    "TDT loss": lambda: prnn.tdt_loss(leaf(2, 6, 4, 7), *ON, 0, (0, 1)),
    "multi-blank loss": lambda: prnn.multi_blank_rnnt_loss(leaf(2, 6, 4, 6), *ON, -1, (2,)),
    "joint RNN-T loss": lambda: prnn.joint_rnnt_loss(*joiner(5), *ON, blank=0),
    "joint TDT loss": lambda: prnn.joint_tdt_loss(*joiner(7), *ON, 0, (0, 1)),
}


def breaks_losses(monkeypatch: pytest.MonkeyPatch, break_it: Callable[[Data], None]) -> list[str]:
    """The device computes another result; returns the names of what is compared."""
    compared, correct = [], _selftest._problems

    def problems(name: str, dtype: torch.dtype) -> object:
        compared.append(name)
        for problem, compute in correct(name, dtype):
            calls = []

            def broken(place: _selftest._Place, compute: object = compute, calls: list[int] = calls) -> Data:
                calls.append(1)
                found = {key: value.detach().clone() for key, value in compute(place).items()}
                if len(calls) == 1:  # then comes the CPU
                    break_it(found)
                return found

            yield problem, broken

    monkeypatch.setattr(_selftest, "_problems", problems)
    return compared


@pytest.mark.parametrize("name", LOSSES)
def test_losses_are_compared_before_their_first_call(
    name: str, unproven: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if name.startswith("joint"):  # which the CPU computes by blocks, without such a kernel
        _handles.require_proven(name, CPU, torch.float32)
        assert sentences_in(unproven) == [""]
        return
    compared = breaks_losses(monkeypatch, nothing)
    for _ in range(2):
        LOSSES[name]().backward()
        torch.func.grad(lambda x: prnn.ctc_loss(x, *ON))(leaf(6, 2, 5).detach())
    assert compared.count(name) == 1
    assert sentences_in(unproven) == [""] * len(set(compared))


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("output", ["costs", "gradients"])
def test_losses_that_differ_are_refused(
    name: str, output: str, unproven: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def break_it(found: Data) -> None:
        wrong = found["costs"] if output == "costs" else next(v for key, v in found.items() if key.startswith("d"))
        wrong.view(-1)[0] += 0.2 * wrong.abs().max()

    breaks_losses(monkeypatch, break_it)
    for dtype in TYPES:
        with pytest.raises(
            prnn.NotSupportedError, match=rf"\({name}\) have never run on RTX 9999 before, and \w+ differ"
        ):
            _handles.require_proven(name, CPU, dtype)
    if not name.startswith("joint"):
        with pytest.raises(prnn.NotSupportedError, match="have never run"):
            LOSSES[name]()


def test_a_search_that_differs_calls_its_modules(unproven: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    breaks_losses(monkeypatch, lambda found: found["symbols"][1, 0].add_(1))
    predictor, joiner = prnn.transducer.RecurrentPredictor(9, 8, 8), prnn.transducer.Joiner(8, 8, 8, 9)
    x = torch.randn(2, 5, 8)
    with pytest.warns(UserWarning, match=r"step by step: the kernels \(greedy search\) have never run"):
        found = prnn.transducer_search(x, predictor=predictor, joiner=joiner)
    monkeypatch.undo()
    assert torch.equal(found.symbols, prnn.transducer_search(x, predictor=predictor, joiner=joiner).symbols)


def test_a_cache_that_cannot_be_used(unproven: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its content is no verdict, and nothing can be written to it."""
    made = count_comparisons(monkeypatch)
    prnn.nn.GRU(8, 16)(torch.randn(6, 2, 8))
    (file,) = unproven.iterdir()
    file.write_bytes(b"\xff")
    monkeypatch.setattr(_twin, "_verdicts", {})
    prnn.nn.GRU(8, 16)(torch.randn(6, 2, 8))
    assert len(made) == 2
    assert file.read_text() == ""
    monkeypatch.setattr(_twin, "_verdicts", {})
    monkeypatch.setenv("XDG_CACHE_HOME", str(file))
    prnn.nn.GRU(8, 16)(torch.randn(6, 2, 8))
    assert len(made) == 3


# ---- The command ----


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small layers alone."""
    every = _selftest._candidates
    monkeypatch.setattr(_selftest, "_LAYER_NORM_SIZES", ((64, 4),))
    monkeypatch.setattr(_selftest, "_candidates", lambda mode: (p for p in every(mode) if p[1]["hidden_size"] < 100))


def test_a_report(few: None, capsys: pytest.CaptureFixture[str]) -> None:
    assert command._report(CPU, False)
    text = capsys.readouterr().out
    assert text.startswith(f"prnn {prnn.__version__}, built for {prnn._C.BUILT_FOR}, torch {torch.__version__}\nCPU ")
    rows = [line.split()[0] for line in text.splitlines() if line.startswith(("cpu", "layer", "CTC", "TDT", "joint"))]
    assert set(rows) == {"cpu", "layer", "CTC", "TDT", "joint"}
    assert len(text.splitlines()) < 60
    assert "!" not in text


def test_a_report_of_a_fault(few: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    broken(monkeypatch, nothing, lambda found: found["dw"][0].add_(5.0))
    assert not command._report(CPU, False)
    text = capsys.readouterr().out
    assert "! cpu backward, bfloat16, LSTM 64, N = 1, T = 5: dw is off by" in text
    assert not command._report(CPU, True)
    found = json.loads(capsys.readouterr().out)
    wrong = [problem for problem in found["problems"] if not problem["is_good"]]
    assert {(problem["direction"], problem["output"]) for problem in wrong} == {("backward", "dw")}
    assert not found["is_good"]


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["selftest"]) == 2
    assert "torch finds no GPU that it can use" in capsys.readouterr().err
