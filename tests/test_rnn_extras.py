"""prnnSetRNNExtras on the CPU: sequences that start anew within a batch, and c of every timestep with its gradient."""

import ctypes
import re
from typing import Any

import capi
import pytest
import torch
from reference import rnn as reference
from rnn_case import OUTPUTS, RnnCase

MODES = {"relu": reference.RNN_RELU, "tanh": reference.RNN_TANH, "lstm": reference.LSTM, "gru": reference.GRU}
TOLERANCE = {torch.float32: 2e-5, torch.float64: 1e-11}
STACKS = {
    "one": {},
    "stack": {"layers": 2, "directions": 2},
    "projection": {"layers": 2, "directions": 2, "projection": 5},
}
BATCHES = {"uniform": [4] * 7, "ragged": [6, 6, 4, 3, 3, 1], "one": [1], "wide": [60, 51, 51]}


GIVEN_BACK = ("cells", "dreset_hx", "dreset_cx")  # of the extras, what calls fill


def field_of(name: str) -> str:
    """The field of prnnRNNExtras_t."""
    return re.sub("_([hc])", lambda match: match[1].upper(), name)


def extras_of(mode: int) -> tuple[str, ...]:
    """All that the cell has."""
    of_h = ("reset", "reset_hx", "dreset_hx")
    return (*of_h, "cells", "dcells", "reset_cx", "dreset_cx") if mode == reference.LSTM else of_h


class ExtrasCase(RnnCase):
    """A training step with resets, to given states or zeros, and c of every timestep; each may be left out."""

    def make_data(self) -> None:
        super().make_data()
        rows = sum(self.batch_sizes)
        device = self.data["x"].device
        flags = (torch.rand(rows) < 0.3).to(torch.uint8) * torch.randint(1, 256, (rows,), dtype=torch.uint8)
        cells = torch.full((rows, self.stack.directions * self.stack.hidden), self.UNTOUCHED, dtype=self.dtype)
        self.reset, self.cells = flags.to(device), cells.to(device)
        self.dcells = torch.randn(cells.shape, dtype=torch.float64).to(cells).to(device)
        hx, cx = self.data["hx"], self.data["cx"]
        self.reset_hx, self.reset_cx = torch.randn(hx.shape).to(hx), torch.randn(cx.shape).to(cx)
        self.dreset_hx, self.dreset_cx = (torch.full_like(state, self.UNTOUCHED) for state in (hx, cx))

    def set_extras(self, names: tuple[str, ...]) -> None:
        extras = capi.Extras(**{field_of(name): getattr(self, name).data_ptr() for name in names})
        capi.check("SetRNNExtras", rnnDesc=self.rnn.pointer, extras=ctypes.addressof(extras))
        for name, query in (("workspace", "GetRNNWorkspaceSize"), ("reserve", "GetRNNTrainingReserveSize")):
            setattr(self, name, getattr(self, name).new_full((self.size(query),), 0x5A))

    def run(self, names: tuple[str, ...]) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
        """A training step with these extras: each result, and what the reference says, by name."""
        self.set_extras(names)
        self.train()
        given = {name: getattr(self, name) for name in names if name not in GIVEN_BACK}
        inputs = {name: self.data[name] for name in ("x", "w", "hx", "cx", "dy", "dhy", "dcy")}
        expected = vars(reference.train_step(self.stack, batch_sizes=self.batch_sizes, **inputs, **given))
        results = self.results() | {name: getattr(self, name) for name in GIVEN_BACK}
        for name, value in expected.items():
            is_missing = self.stack.mode != reference.LSTM and name in ("cy", "dcx")
            if is_missing or (name in GIVEN_BACK and name not in names):
                expected[name] = torch.full_like(value, self.UNTOUCHED)
        return {name: (results[name], expected[name]) for name in (*OUTPUTS, *GIVEN_BACK)}

    def compare(self, names: tuple[str, ...]) -> None:
        for name, (result, expected) in self.run(names).items():
            tolerance = TOLERANCE[self.dtype] * max(1.0, expected.abs().max().item())
            torch.testing.assert_close(
                result, expected.to(self.dtype), rtol=0, atol=tolerance, msg=lambda text, n=name: f"{n}: {text}"
            )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float", "double"])
@pytest.mark.parametrize("batches", BATCHES.values(), ids=BATCHES)
@pytest.mark.parametrize("options", STACKS.values(), ids=STACKS)
@pytest.mark.parametrize("mode", MODES.values(), ids=MODES)
def test_training_step(mode: int, options: dict[str, Any], batches: list[int], dtype: torch.dtype) -> None:
    if mode != reference.LSTM and "projection" in options:
        options = {"layers": 3}
    torch.manual_seed(mode)
    to_zeros = tuple(name for name in extras_of(mode) if not name.endswith("x"))
    for names in (extras_of(mode), to_zeros):
        ExtrasCase(reference.Stack(mode, 6, 19, **options), batches, dtype).compare(names)


SUBSETS = [
    ("reset",),
    ("cells",),
    ("dcells",),
    ("cells", "dcells"),
    ("reset", "dcells"),
    ("reset", "reset_hx"),
    ("reset", "reset_cx", "dreset_hx"),
    ("reset", "dreset_cx"),
    (),
]


@pytest.mark.parametrize("names", SUBSETS)
def test_any_subset(names: tuple[str, ...]) -> None:
    torch.manual_seed(3)
    ExtrasCase(reference.Stack(reference.LSTM, 6, 19, 2, 2), BATCHES["ragged"]).compare(names)


@pytest.mark.parametrize("mode", MODES.values(), ids=MODES)
def test_a_reset_in_the_first_step_leaves_the_initial_state_out(mode: int) -> None:
    torch.manual_seed(4)
    case = ExtrasCase(reference.Stack(mode, 3, 5), [3, 3])
    case.reset = torch.tensor([0, 1, 1, 0, 0, 0], dtype=torch.uint8)
    case.compare(("reset",))
    assert case.data["dhx"][0, 0].abs().min() > 0
    assert case.data["dhx"][0, 1:].abs().max() == 0


@pytest.mark.parametrize("mode", MODES.values(), ids=MODES)
def test_inference(mode: int) -> None:
    torch.manual_seed(5)
    case = ExtrasCase(reference.Stack(mode, 4, 21, 2, 2), [5] * 300)  # several chunks of inference
    case.set_extras(("reset",))
    case.check("RNNForwardTraining")
    expected = case.results()
    case.data["y"].fill_(0), case.data["hy"].fill_(0)
    case.check("RNNForwardInference")
    for name in ("y", "hy"):
        torch.testing.assert_close(case.data[name], expected[name], rtol=0, atol=1e-12)


def test_segments_are_sequences_of_their_own() -> None:
    torch.manual_seed(6)
    stack = reference.Stack(reference.GRU, 3, 8)
    case = ExtrasCase(stack, [1] * 7)
    case.reset = torch.tensor([1, 0, 0, 0, 1, 0, 0], dtype=torch.uint8)
    case.set_extras(("reset",))
    case.check("RNNForwardTraining")
    x, w = case.data["x"], case.data["w"]
    first, second = reference.forward(stack, x[:4], [1] * 4, w)[0], reference.forward(stack, x[4:], [1] * 3, w)[0]
    torch.testing.assert_close(case.data["y"], torch.cat([first, second]), rtol=0, atol=1e-12)


def test_the_descriptor_forgets_them() -> None:
    torch.manual_seed(7)
    case = ExtrasCase(reference.Stack(reference.LSTM, 3, 5), [2, 2])
    case.compare(("reset", "cells", "dcells"))
    case.cells.fill_(case.UNTOUCHED)
    case.data["dw"].zero_()
    capi.check("SetRNNExtras", rnnDesc=case.rnn.pointer, extras=None)
    case.compare(())
    case.set_extras(("cells",))
    case.set_rnn()
    case.data["dw"].zero_()
    case.compare(())


def test_what_is_refused() -> None:
    case = ExtrasCase(reference.Stack(reference.GRU, 3, 5), [2, 2])
    for name in ("cells", "dcells", "resetCx", "dresetCx"):
        extras = capi.Extras(reset=case.reset.data_ptr(), **{name: case.cells.data_ptr()})
        status = capi.call("SetRNNExtras", rnnDesc=case.rnn.pointer, extras=ctypes.addressof(extras))
        assert status == capi.BAD_PARAM
        assert capi.message() == f"extras->{name} is given with PRNN_GRU; only PRNN_LSTM has cells"
    case = ExtrasCase(reference.Stack(reference.LSTM, 3, 5), [2, 2])
    for name in ("resetHx", "resetCx", "dresetHx", "dresetCx"):
        extras = capi.Extras(**{name: case.cells.data_ptr()})
        status = capi.call("SetRNNExtras", rnnDesc=case.rnn.pointer, extras=ctypes.addressof(extras))
        assert status == capi.BAD_PARAM
        assert capi.message() == f"extras->{name} is given, but extras->reset is NULL: no sequence starts anew"
    case.set_extras(("cells",))
    assert case.call("RNNForwardInference") == capi.NOT_SUPPORTED
    assert capi.message(case.handle.pointer) == "extras->cells is given; only prnnRNNForwardTraining fills it"
    assert (case.data["y"] == case.UNTOUCHED).all()


WRITTEN = {"RNNBackwardData": ("dx", "dhx", "dcx"), "RNNBackwardWeights": ("dw",)}


@pytest.mark.parametrize("call", WRITTEN)
@pytest.mark.parametrize("mode", MODES.values(), ids=MODES)
def test_a_training_step_wants_the_same_extras(mode: int, call: str) -> None:
    """The extras are those of the forward call, wherever they lie: with others the results would be wrong."""
    torch.manual_seed(4)
    case = ExtrasCase(reference.Stack(mode, 3, 5, 2, 2), [4, 4, 2])
    names = extras_of(mode)

    def give(**arrays: torch.Tensor) -> None:
        extras = capi.Extras(**{field_of(name): array.data_ptr() for name, array in arrays.items()})
        capi.check("SetRNNExtras", rnnDesc=case.rnn.pointer, extras=ctypes.addressof(extras))

    def refused(**arrays: torch.Tensor) -> None:
        give(**arrays)
        for name in WRITTEN[call]:
            case.data[name].fill_(case.UNTOUCHED)
        assert case.call(call) == capi.BAD_PARAM
        text = (
            "was filled by prnnRNNForwardTraining with other extras (reset, resetHx or resetCx; prnnSetRNNExtras) than"
        )
        assert text in capi.message(case.handle.pointer)
        assert all((case.data[name] == case.UNTOUCHED).all() for name in WRITTEN[call])

    case.set_extras(names)
    case.check("RNNForwardTraining")
    if call == "RNNBackwardWeights":
        case.check("RNNBackwardData")
    same = {name: getattr(case, name) for name in names}
    refused()
    refused(**{name: array for name, array in same.items() if name not in ("reset_hx", "dreset_hx")})
    for name in {"reset", "reset_hx", "reset_cx"} & same.keys():
        for at in (0, same[name].numel() // 2, same[name].numel() - 1):
            changed = same[name].clone()
            changed.view(-1)[at] += 1
            refused(**(same | {name: changed}))
    copies = {name: array.clone() for name, array in same.items()}
    give(**copies)
    case.check(call)
