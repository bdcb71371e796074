"""prnnSetRNNMasks on the CPU: recurrent dropout, and zoneout of GRU and LSTM, against the float64 reference."""

import ctypes
from typing import Any

import capi
import pytest
import torch
from reference import rnn as reference
from rnn_case import RnnCase
from test_rnn_extras import GIVEN_BACK, WRITTEN, ExtrasCase, extras_of

MODES = {"relu": reference.RNN_RELU, "tanh": reference.RNN_TANH, "lstm": reference.LSTM, "gru": reference.GRU}
TOLERANCE = {torch.float32: 2e-5, torch.float64: 1e-11}
STACKS = {"one": {}, "stack": {"layers": 3, "directions": 2}}
BATCHES = {"uniform": [4] * 7, "ragged": [6, 6, 4, 3, 3, 1], "one": [1], "wide": [60, 51, 51]}
EXPECTATION = 0.3


def masks_of(mode: int) -> list[tuple[str, ...]]:
    """The sets of masks that the cell has."""
    if mode in (reference.RNN_RELU, reference.RNN_TANH):
        return [("recurrent",)]
    return [("recurrent",), ("zoneout",), ("expectation",), ("recurrent", "zoneout"), ("recurrent", "expectation")]


class MasksCase(RnnCase):
    """A training step with masks, each of which may be left out."""

    def make_data(self) -> None:
        super().make_data()
        cells, hidden = self.stack.layers * self.stack.directions, self.stack.hidden
        kept = torch.rand(cells, self.batch_sizes[0], hidden, dtype=torch.float64) < 0.7
        rows = sum(self.batch_sizes)
        zoned = (torch.rand(rows, cells, hidden) < 0.4) * torch.randint(1, 256, (rows, cells, hidden))
        self.recurrent = (kept / 0.7).to(self.dtype)
        self.zoneout = zoned.to(torch.uint8)
        self.recurrent, self.zoneout = (mask.to(self.data["x"].device) for mask in (self.recurrent, self.zoneout))

    def set_masks(self, names: tuple[str, ...]) -> None:
        masks = capi.Masks(**{name: getattr(self, name).data_ptr() for name in names if name != "expectation"})
        masks.zoneoutExpectation = EXPECTATION if "expectation" in names else 0
        capi.check("SetRNNMasks", rnnDesc=self.rnn.pointer, masks=ctypes.addressof(masks))
        for name, size in (("workspace", self.size("GetRNNWorkspaceSize")), ("reserve", self.reserve_size())):
            setattr(self, name, getattr(self, name).new_full((size,), 0x5A))

    def reference_masks(self, names: tuple[str, ...]) -> reference.Masks:
        given = {name: getattr(self, name) for name in names if name != "expectation"}
        return reference.Masks(**given, expectation=EXPECTATION if "expectation" in names else 0.0)

    def run(self, names: tuple[str, ...]) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
        """A training step with these masks: each result, and what the reference says, by name."""
        self.set_masks(names)
        self.train()
        inputs = {name: self.data[name] for name in ("x", "w", "hx", "cx", "dy", "dhy", "dcy")}
        given = {"masks": self.reference_masks(names)} | self.reset_inputs()
        expected = vars(reference.train_step(self.stack, batch_sizes=self.batch_sizes, **inputs, **given))
        results = self.results()
        absent = () if self.stack.mode == reference.LSTM else ("cy", "dcx")
        return {name: (results[name], expected[name]) for name in results if name not in absent}

    def reset_inputs(self) -> dict[str, torch.Tensor]:
        """To the reference, besides the data."""
        return {}

    def compare(self, names: tuple[str, ...]) -> None:
        for name, (result, expected) in self.run(names).items():
            tolerance = TOLERANCE[self.dtype] * max(1.0, expected.abs().max().item())
            torch.testing.assert_close(
                result,
                expected.to(self.dtype),
                rtol=0,
                atol=tolerance,
                msg=lambda text, n=name: f"{names}, {n}: {text}",
            )


class ResetMasksCase(MasksCase, ExtrasCase):
    """A case of masks with resets to given states, or to zeros."""

    to_given_states = True
    trains = True

    def extras(self) -> tuple[str, ...]:
        names = extras_of(self.stack.mode) if self.to_given_states else ("reset",)
        return names if self.trains else tuple(name for name in names if name != "cells")

    def set_masks(self, names: tuple[str, ...]) -> None:
        super().set_masks(names)
        self.set_extras(self.extras())

    def reset_inputs(self) -> dict[str, torch.Tensor]:
        return {name: getattr(self, name) for name in self.extras() if name not in GIVEN_BACK}

    def results(self) -> dict[str, torch.Tensor]:
        return super().results() | {name: getattr(self, name) for name in self.extras() if name in GIVEN_BACK}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float", "double"])
@pytest.mark.parametrize("batches", BATCHES.values(), ids=BATCHES)
@pytest.mark.parametrize("options", STACKS.values(), ids=STACKS)
@pytest.mark.parametrize("mode", MODES.values(), ids=MODES)
def test_training_step(mode: int, options: dict[str, Any], batches: list[int], dtype: torch.dtype) -> None:
    torch.manual_seed(mode)
    for names in masks_of(mode):
        MasksCase(reference.Stack(mode, 6, 19, **options), batches, dtype).compare(names)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float", "double"])
@pytest.mark.parametrize("batches", BATCHES.values(), ids=BATCHES)
@pytest.mark.parametrize("options", STACKS.values(), ids=STACKS)
@pytest.mark.parametrize("mode", MODES.values(), ids=MODES)
def test_training_step_with_resets(mode: int, options: dict[str, Any], batches: list[int], dtype: torch.dtype) -> None:
    torch.manual_seed(mode)
    for names in masks_of(mode):
        case = ResetMasksCase(reference.Stack(mode, 6, 19, **options), batches, dtype)
        case.to_given_states = len(names) != 1 or "zoneout" in names
        case.compare(names)


@pytest.mark.parametrize("make", [MasksCase, ResetMasksCase])
@pytest.mark.parametrize("mode", MODES.values(), ids=MODES)
def test_inference(mode: int, make: type[MasksCase]) -> None:
    torch.manual_seed(5)
    case = make(reference.Stack(mode, 4, 21, 2, 2), [5] * 300)  # several chunks of inference
    case.trains = False
    for names in masks_of(mode):
        case.set_masks(names)
        case.check("RNNForwardTraining")
        expected = case.results()
        case.data["y"].fill_(0), case.data["hy"].fill_(0)
        case.check("RNNForwardInference")
        for name in ("y", "hy"):
            torch.testing.assert_close(case.data[name], expected[name], rtol=0, atol=1e-12)


def test_the_descriptor_forgets_them() -> None:
    torch.manual_seed(7)
    case = MasksCase(reference.Stack(reference.GRU, 3, 5), [2, 2])
    case.compare(("recurrent", "zoneout"))
    case.data["dw"].zero_()
    capi.check("SetRNNMasks", rnnDesc=case.rnn.pointer, masks=None)
    case.compare(())
    case.set_masks(("recurrent",))
    case.set_rnn()
    case.data["dw"].zero_()
    case.compare(())


def refused(case: RnnCase, status: int, **fields: object) -> str:
    masks = capi.Masks(**fields)
    assert capi.call("SetRNNMasks", rnnDesc=case.rnn.pointer, masks=ctypes.addressof(masks)) == status
    return capi.message()


def test_what_the_setter_refuses() -> None:
    address = ctypes.create_string_buffer(1)
    given = {"zoneout": ctypes.addressof(address)}
    gru = MasksCase(reference.Stack(reference.GRU, 3, 5), [2, 2])
    for value, text in ((-0.5, "-0.5"), (1.5, "1.5"), (float("nan"), "nan")):
        message = refused(gru, capi.BAD_PARAM, zoneoutExpectation=value)
        assert message == f"masks->zoneoutExpectation is {text}; it must be 0 to 1"
    assert refused(gru, capi.BAD_PARAM, **given, zoneoutExpectation=0.5) == (
        "masks->zoneout is given and masks->zoneoutExpectation is 0.5; one stands for the other"
    )
    rnn = MasksCase(reference.Stack(reference.RNN_TANH, 3, 5), [2, 2])
    assert refused(rnn, capi.NOT_SUPPORTED, **given) == (
        "masks->zoneout is given with PRNN_RNN_TANH; only PRNN_GRU and PRNN_LSTM have zoneout"
    )
    assert refused(rnn, capi.NOT_SUPPORTED, zoneoutExpectation=0.5) == (
        "masks->zoneoutExpectation is given with PRNN_RNN_TANH; only PRNN_GRU and PRNN_LSTM have zoneout"
    )


def test_what_calls_refuse() -> None:
    case = MasksCase(reference.Stack(reference.GRU, 6, 6), [2, 2])
    case.set_rnn(inputMode=1)
    masks = capi.Masks(recurrent=case.recurrent.data_ptr())
    capi.check("SetRNNMasks", rnnDesc=case.rnn.pointer, masks=ctypes.addressof(masks))
    assert case.call("RNNForwardTraining") == capi.NOT_SUPPORTED
    assert (case.data["y"] == case.UNTOUCHED).all()
    assert capi.message(case.handle.pointer) == "a layer with masks (prnnSetRNNMasks) has no PRNN_SKIP_INPUT"


@pytest.mark.parametrize("call", WRITTEN)
@pytest.mark.parametrize("mode", MODES.values(), ids=MODES)
def test_a_training_step_wants_the_same_masks(mode: int, call: str) -> None:
    """The masks are those of the forward call, wherever they lie: with others the results would be wrong."""
    torch.manual_seed(4)
    for names in masks_of(mode):
        case = MasksCase(reference.Stack(mode, 3, 5, 2, 2), [4, 4, 2])

        def give(case: MasksCase = case, **fields: Any) -> None:
            given = {name: value.data_ptr() if torch.is_tensor(value) else value for name, value in fields.items()}
            masks = capi.Masks(**given)
            capi.check("SetRNNMasks", rnnDesc=case.rnn.pointer, masks=ctypes.addressof(masks))

        def refused(case: MasksCase = case, give: Any = give, **fields: Any) -> None:
            give(**fields)
            for name in WRITTEN[call]:
                case.data[name].fill_(case.UNTOUCHED)
            assert case.call(call) == capi.BAD_PARAM
            text = "was filled by prnnRNNForwardTraining with other masks (prnnSetRNNMasks) than those of this call"
            assert text in capi.message(case.handle.pointer)
            assert all((case.data[name] == case.UNTOUCHED).all() for name in WRITTEN[call])

        case.set_masks(names)
        case.check("RNNForwardTraining")
        if call == "RNNBackwardWeights":
            case.check("RNNBackwardData")
        same: dict[str, Any] = {name: getattr(case, name) for name in names if name != "expectation"}
        if "expectation" in names:
            same["zoneoutExpectation"] = EXPECTATION
            refused(**(same | {"zoneoutExpectation": EXPECTATION / 2}))
        refused()
        if "recurrent" in names:
            for at in (0, case.recurrent.numel() // 2, case.recurrent.numel() - 1):
                changed = case.recurrent.clone()
                changed.view(-1)[at] += 1
                refused(**(same | {"recurrent": changed}))
        for name in same if len(same) > 1 else ():
            refused(**{other: value for other, value in same.items() if other != name})
        copies = {name: value.clone() if torch.is_tensor(value) else value for name, value in same.items()}
        give(**copies)
        case.check(call)
