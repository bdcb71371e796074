"""The recurrent layers through the C API on a CPU handle: values and gradients against the float64 reference."""

import ctypes
import itertools
from collections.abc import Callable

import capi
import pytest
import torch
from reference import rnn as reference
from rnn_case import OUTPUTS, RnnCase, dropout_descriptor

MODES = {"relu": reference.RNN_RELU, "tanh": reference.RNN_TANH, "lstm": reference.LSTM, "gru": reference.GRU}
BATCHES = {"even": [3, 3, 3, 3, 3], "ragged": [5, 4, 4, 2, 1, 1], "one": [1], "wide": [9, 7]}
TOLERANCE = {torch.float64: 1e-12, torch.float32: 2e-6}

STACKS = [
    reference.Stack(mode, 7 if skip else 5, 7, layers, directions, skip, projection)
    for mode, layers, directions, skip, projection in itertools.product(
        MODES.values(), (1, 3), (1, 2), (False, True), (0, 3)
    )
    if mode == reference.LSTM or not projection
]


def assert_results(case: RnnCase, expected: dict[str, torch.Tensor], names: tuple[str, ...] = OUTPUTS) -> None:
    for name in names:
        if case.stack.mode != reference.LSTM and name in ("cy", "dcx"):
            assert torch.all(case.data[name] == case.UNTOUCHED), f"{name} was written"
            continue
        scale = max(1.0, expected[name].abs().max().item())
        torch.testing.assert_close(
            case.data[name].double(),
            expected[name],
            rtol=0,
            atol=TOLERANCE[case.dtype] * scale * len(case.batch_sizes),
            msg=lambda text, name=name: f"{name}: {text}",
        )


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["double", "float"])
@pytest.mark.parametrize("batch_sizes", BATCHES.values(), ids=BATCHES)
@pytest.mark.parametrize("stack", STACKS, ids=str)
def test_training_step(stack: reference.Stack, batch_sizes: list[int], dtype: torch.dtype) -> None:
    case = RnnCase(stack, batch_sizes, dtype)
    case.train()
    assert_results(case, case.expected())


@pytest.mark.parametrize("mode", MODES.values(), ids=MODES)
@pytest.mark.parametrize(("hidden", "input_"), [(1, 1), (1, 33), (16, 1), (31, 64), (64, 16), (100, 37), (129, 3)])
def test_sizes_around_vector_widths(mode: int, hidden: int, input_: int) -> None:
    for dtype, batch_sizes in itertools.product(TOLERANCE, ([17, 16, 3], [4, 4, 1, 1])):
        case = RnnCase(reference.Stack(mode, input_, hidden, 2, 2), batch_sizes, dtype)
        case.train()
        assert_results(case, case.expected())


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["double", "float"])
@pytest.mark.parametrize("batch_sizes", [[1], [4], [8], [9], [2, 1], [3] * 5, [8] * 6, [13, 2], [40]], ids=str)
@pytest.mark.parametrize(
    ("mode", "projection"),
    [*((mode, 0) for mode in MODES.values()), (reference.LSTM, 66)],
    ids=[*MODES, "projected lstm"],
)
def test_few_rows(mode: int, projection: int, batch_sizes: list[int], dtype: torch.dtype) -> None:
    """Matrices with whole panels and a rest, which few rows multiply as they lie."""
    case = RnnCase(reference.Stack(mode, 35, 68, projection=projection), batch_sizes, dtype)
    case.train()
    assert_results(case, case.expected())


@pytest.mark.parametrize("batch_sizes", BATCHES.values(), ids=BATCHES)
@pytest.mark.parametrize("stack", STACKS, ids=str)
def test_inference(stack: reference.Stack, batch_sizes: list[int]) -> None:
    case = RnnCase(stack, batch_sizes)
    case.check("RNNForwardInference")
    assert_results(case, case.expected(), ("y", "hy", "cy"))


@pytest.mark.parametrize("mode", MODES.values(), ids=MODES)
def test_a_long_sequence(mode: int) -> None:
    case = RnnCase(reference.Stack(mode, 4, 24), [2] * 400)
    case.train()
    assert_results(case, case.expected())


class TestOptionalArguments:
    """NULL states are zeros, NULL outputs are not wanted, and what clients of cuDNN pass is taken."""

    ZEROED = ("hx", "cx", "dhy", "dcy")
    UNWANTED = ("hy", "cy", "dx", "dhx", "dcx")

    @pytest.mark.parametrize("with_descriptors", [True, False])
    @pytest.mark.parametrize("mode", MODES.values(), ids=MODES)
    def test_null_states(self, mode: int, with_descriptors: bool) -> None:
        case = RnnCase(reference.Stack(mode, 5, 6, 2, 2, projection=2 if mode == reference.LSTM else 0), [3, 2, 2])
        null = dict.fromkeys((*self.ZEROED, *self.UNWANTED))
        if not with_descriptors:
            null |= {f"{name}Desc": None for name in null}
        for name in ("RNNForwardTraining", "RNNBackwardData", "RNNBackwardWeights"):
            taken = capi.FUNCTIONS[f"prnn{name}"].parameters
            case.check(name, **{key: None for key in null if key in taken})
        expected = case.expected(**{name: torch.zeros_like(case.data[name]) for name in self.ZEROED})
        assert_results(case, expected, ("y", "dw"))
        for name in self.UNWANTED:
            assert torch.all(case.data[name] == case.UNTOUCHED)

    @pytest.mark.parametrize("absent", ["hx", "cx", "dhy", "dcy"])
    def test_each_state_alone_may_be_null(self, absent: str) -> None:
        case = RnnCase(reference.Stack(reference.LSTM, 5, 6, 2, 2), [3, 2])
        for name in ("RNNForwardTraining", "RNNBackwardData", "RNNBackwardWeights"):
            taken = capi.FUNCTIONS[f"prnn{name}"].parameters
            case.check(name, **({absent: None} if absent in taken else {}))
        assert_results(case, case.expected(**{absent: torch.zeros_like(case.data[absent])}))

    @pytest.mark.parametrize("mode", [reference.RNN_RELU, reference.GRU])
    def test_cell_arguments_of_other_modes_are_not_looked_at(self, mode: int) -> None:
        case = RnnCase(reference.Stack(mode, 5, 6), [3, 2])
        odd = capi.tensor([1, 77], capi.HALF)
        for name in ("RNNForwardTraining", "RNNBackwardData", "RNNBackwardWeights"):
            taken = capi.FUNCTIONS[f"prnn{name}"].parameters
            case.check(name, **{key: odd.pointer for key in ("cxDesc", "cyDesc", "dcyDesc", "dcxDesc") if key in taken})
        assert_results(case, case.expected())

    def test_no_dx_and_no_descriptor_of_it(self) -> None:
        for skip in (False, True):
            case = RnnCase(reference.Stack(reference.LSTM, 6 if skip else 5, 6, 2, 2, skip), [3, 2])
            case.check("RNNForwardTraining")
            case.check("RNNBackwardData", dx=None, dxDesc=None)
            case.check("RNNBackwardWeights")
            assert_results(case, case.expected(), ("dhx", "dw"))

    @pytest.mark.parametrize("trailing", [[1], [1, 1], [1, 1, 1], []])
    def test_descriptors_of_two_to_five_dimensions(self, trailing: list[int]) -> None:
        case = RnnCase(reference.Stack(reference.LSTM, 5, 6), [3, 3])
        x, y = capi.tensor([3, 5, *trailing], capi.DOUBLE), capi.tensor([3, 6, *trailing], capi.DOUBLE)
        state = capi.tensor([1, 3, 6, *trailing], capi.DOUBLE)
        case.x_desc, case.y_desc = capi.addresses([x] * 2), capi.addresses([y] * 2)  # one descriptor for all timesteps
        case.h_desc = case.c_desc = state
        case.train()
        assert_results(case, case.expected())

    def test_strides_of_dimensions_of_one_do_not_matter(self) -> None:
        case = RnnCase(reference.Stack(reference.GRU, 5, 6), [1, 1])
        x = capi.tensor([1, 5, 1], capi.DOUBLE, strides=[1, 1, 1])
        case.x_desc = capi.addresses([x, x])
        case.h_desc = capi.tensor([1, 1, 6], capi.DOUBLE, strides=[9, 99, 1])
        case.train()
        assert_results(case, case.expected())

    def test_larger_spaces_than_asked_for(self) -> None:
        case = RnnCase(reference.Stack(reference.LSTM, 5, 6, 2), [3, 2])
        case.workspace = torch.zeros(case.workspace.numel() + 4096, dtype=torch.uint8)
        case.reserve = torch.zeros(case.reserve.numel() + 4096, dtype=torch.uint8)
        case.train()
        assert_results(case, case.expected())
        assert not case.reserve[-4096:].any()

    @pytest.mark.parametrize("backend", [0, 1, 2])
    def test_every_backend_is_served_by_the_cpu(self, backend: int) -> None:
        case = RnnCase(reference.Stack(reference.GRU, 5, 6), [3, 2])
        capi.check("SetRNNBackend", rnnDesc=case.rnn.pointer, backend=backend)
        case.train()
        assert_results(case, case.expected())


def test_weight_gradients_accumulate() -> None:
    case = RnnCase(reference.Stack(reference.LSTM, 5, 6, 2, 2, projection=4), [3, 2, 1])
    case.train()
    once = case.data["dw"].clone()
    case.train()
    torch.testing.assert_close(case.data["dw"], 2 * once, rtol=0, atol=1e-12)


def test_a_step_can_be_repeated_with_the_same_spaces() -> None:
    """Nothing of one step leaks into the next, and results do not differ in a single bit."""
    case = RnnCase(reference.Stack(reference.LSTM, 5, 70, 2, 2), [6, 6, 3])
    case.train()
    first = case.results()
    case.data["dw"].zero_()
    case.train()
    for name, value in case.results().items():
        assert torch.equal(value, first[name]), name


def test_two_steps_in_flight() -> None:
    """Two reserves of one layer, backward in the other order."""
    stack = reference.Stack(reference.GRU, 5, 6, 2)
    first = RnnCase(stack, [3, 2])
    second = RnnCase(stack, [3, 2], handle=first.handle)
    for case in (first, second):
        case.check("RNNForwardTraining")
    for case in (second, first):
        case.check("RNNBackwardData")
        case.check("RNNBackwardWeights")
        assert_results(case, case.expected())


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16], ids=["double", "float", "half"])
@pytest.mark.parametrize("projection", [0, 4])
def test_the_reserve_space_can_be_moved_between_the_calls(projection: int, dtype: torch.dtype) -> None:
    """To addresses of other alignments: the same results, bit by bit."""
    stack = reference.Stack(reference.LSTM, 5, 6, 2, 2, projection=projection)
    case = RnnCase(stack, [3, 2], dtype)
    case.train()
    expected, size = case.results(), case.reserve.numel()
    case.data["dw"].zero_()
    room = torch.empty(size + 128, dtype=torch.uint8)
    line = -room.data_ptr() % 64
    first, second, third = (room[line + offset : line + offset + size] for offset in (0, 16, 3))
    for name, place in (("RNNForwardTraining", first), ("RNNBackwardData", second), ("RNNBackwardWeights", third)):
        place.copy_(case.reserve.clone())
        case.reserve = place
        case.check(name)
    for name, value in case.results().items():
        assert torch.equal(value, expected[name]), name
    case.data["dw"].zero_()
    case.check("RNNBackwardWeights")  # once more, where it was moved to
    assert torch.equal(case.data["dw"], expected["dw"])


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.parametrize("mode", [reference.RNN_TANH, reference.LSTM, reference.GRU])
def test_what_is_not_a_number_stays_in_its_sequence(mode: int, bad: float) -> None:
    case = RnnCase(reference.Stack(mode, 5, 6), [3, 3, 3])
    case.check("RNNForwardTraining")
    clean = case.results()
    case.data["x"][4] = bad  # second sequence, second timestep
    case.data["x"][4, 1:] = 0
    case.check("RNNForwardTraining")
    y = case.data["y"].view(3, 3, 6)
    assert torch.equal(y[:, [0, 2]], clean["y"].view(3, 3, 6)[:, [0, 2]])
    assert torch.equal(y[0], clean["y"].view(3, 3, 6)[0])
    if bad != bad:
        assert y[1:, 1].isnan().all()
    case.check("RNNBackwardData")
    case.check("RNNBackwardWeights")


class TestDropout:
    P = 0.4

    def make(self, stack: reference.Stack, batch_sizes: list[int], seed: int = 1234) -> RnnCase:
        handle = capi.cpu_handle()
        states = (ctypes.c_uint64 * 2)()
        case = RnnCase(stack, batch_sizes, dropout=dropout_descriptor(handle, self.P, states, seed), handle=handle)
        case.states = states
        return case

    def identity(self, rows: int = 40, hidden: int = 50, seed: int = 1234) -> RnnCase:
        """Two layers that pass positive inputs through, so that y = x * mask / (1 - p)."""
        case = self.make(reference.Stack(reference.RNN_RELU, hidden, hidden, 2), [rows] * 2, seed)
        case.data["w"].zero_()
        for weights in reference.split_weights(case.stack, case.data["w"]):
            weights[0].input.copy_(torch.eye(hidden, dtype=torch.float64)[None])
        case.data["x"].abs_().add_(0.1)
        return case

    def mask(self, case: RnnCase) -> torch.Tensor:
        case.check("RNNForwardTraining")
        return case.data["y"] / case.data["x"]

    def test_masks(self) -> None:
        mask = self.mask(self.identity())
        kept = mask != 0
        torch.testing.assert_close(mask[kept], torch.full_like(mask[kept], 1 / (1 - self.P)), rtol=0, atol=1e-7)
        deviation = (self.P * (1 - self.P) / mask.numel()) ** 0.5
        assert abs((~kept).double().mean().item() - self.P) < 4 * deviation
        for direction in (0, 1):  # no row or column is left out or kept whole
            assert kept.any(direction).all()
            assert not kept.all(direction).any()
        assert not torch.equal(kept[:40], kept[40:])  # every timestep has a mask of its own

    def test_masks_follow_from_the_seed(self) -> None:
        first, again, other = self.identity(), self.identity(), self.identity(seed=1235)
        kept = [self.mask(first) != 0, self.mask(first) != 0]
        assert not torch.equal(kept[0], kept[1])
        assert torch.equal(kept[0], self.mask(again) != 0)
        assert torch.equal(kept[1], self.mask(again) != 0)
        assert not torch.equal(kept[0], self.mask(other) != 0)

    def test_the_states_count_training_calls_alone(self) -> None:
        case = self.identity()
        case.train()
        case.check("RNNForwardInference")
        assert list(case.states) == [1234, 1]

    def test_states_can_be_put_back(self) -> None:
        case = self.identity()
        self.mask(case)
        saved = list(case.states)
        kept = self.mask(case) != 0
        case.states[:] = saved
        assert torch.equal(kept, self.mask(case) != 0)

    def test_states_of_the_callers_are_taken_as_they_are(self) -> None:
        case, other = self.identity(), self.identity(seed=99)
        self.mask(case)
        saved = (ctypes.c_uint64 * 2)(*case.states)
        capi.check(
            "RestoreDropoutDescriptor",
            dropoutDesc=other.dropout.pointer,
            handle=other.handle.pointer,
            dropout=self.P,
            states=saved,
            stateSizeInBytes=16,
            seed=7,
        )
        assert list(saved) == [1234, 1]
        assert torch.equal(self.mask(case) != 0, self.mask(other) != 0)
        assert list(saved) == [1234, 2]
        saved[:] = [1234, 0]  # read when a call runs, not when they were handed over
        assert torch.equal(self.mask(self.identity()) != 0, self.mask(other) != 0)

    def test_backward_uses_the_mask_of_its_forward(self) -> None:
        case = self.identity(rows=3, hidden=20)
        mask = self.mask(case).clone()
        other = RnnCase(case.stack, case.batch_sizes, dropout=case.dropout, handle=case.handle)
        other.check("RNNForwardTraining")  # draws further masks from the same states
        case.check("RNNBackwardData")
        case.check("RNNBackwardWeights")
        assert_results(case, case.expected(dropout=lambda _, x: x * mask))

    def test_inference_drops_nothing(self) -> None:
        case = self.make(reference.Stack(reference.LSTM, 5, 6, 3), [3, 2])
        case.check("RNNForwardInference")
        assert_results(case, case.expected(), ("y", "hy", "cy"))

    def test_one_layer_drops_nothing(self) -> None:
        case = self.make(reference.Stack(reference.LSTM, 5, 6, 1), [3, 2])
        case.train()
        assert_results(case, case.expected())

    @pytest.mark.parametrize("directions", [1, 2])
    @pytest.mark.parametrize("mode", MODES.values(), ids=MODES)
    def test_gradients_are_those_of_the_loss(self, mode: int, directions: int) -> None:
        """Along a random direction, by central differences: every cell, three layers, ragged batches."""
        projection = 4 if mode == reference.LSTM else 0
        case = self.make(reference.Stack(mode, 5, 9, 3, directions, projection=projection), [4, 3, 3, 1])

        def loss() -> float:
            case.states[:] = [1234, 0]
            case.check("RNNForwardTraining")
            pairs = [("y", "dy"), ("hy", "dhy")] + [("cy", "dcy")] * (mode == reference.LSTM)
            return sum((case.data[out] * case.data[gradient]).sum().item() for out, gradient in pairs)

        loss()
        case.check("RNNBackwardData")
        case.check("RNNBackwardWeights")
        gradients = case.results()
        for name in ("x", "w", "hx"):
            along = torch.randn_like(case.data[name])
            expected = (gradients[f"d{name}"] * along).sum().item()
            step = 1e-6
            case.data[name] += step * along
            above = loss()
            case.data[name] -= 2 * step * along
            below = loss()
            case.data[name] += step * along
            assert (above - below) / (2 * step) == pytest.approx(expected, rel=1e-5, abs=1e-6), name


class TestOrderOfCalls:
    """On a CPU handle the reserve space tells what it was filled for."""

    def make(self) -> RnnCase:
        return RnnCase(reference.Stack(reference.LSTM, 5, 6, 2), [3, 2])

    def assert_refused(self, case: RnnCase, name: str, text: str) -> None:
        assert case.call(name) == capi.BAD_PARAM
        assert text in capi.message(case.handle.pointer)
        for output in ("dx", "dhx", "dcx"):
            assert torch.all(case.data[output] == case.UNTOUCHED)
        assert not case.data["dw"].any()

    def test_backward_without_forward(self) -> None:
        for name in ("RNNBackwardData", "RNNBackwardWeights"):
            self.assert_refused(self.make(), name, "was not filled by prnnRNNForwardTraining")

    def test_weights_before_data(self) -> None:
        case = self.make()
        case.check("RNNForwardTraining")
        self.assert_refused(case, "RNNBackwardWeights", "prnnRNNBackwardData has not been called")

    @pytest.mark.parametrize(
        ("change", "batch_sizes"),
        [
            (lambda: reference.Stack(reference.LSTM, 5, 6, 2), [3, 1, 1]),
            (lambda: reference.Stack(reference.GRU, 5, 6, 2), [3, 2]),
            (lambda: reference.Stack(reference.LSTM, 4, 6, 2), [3, 2]),
            (lambda: reference.Stack(reference.LSTM, 5, 5, 2), [3, 2]),
            (lambda: reference.Stack(reference.LSTM, 5, 6, 1), [3, 2]),
            (lambda: reference.Stack(reference.LSTM, 5, 6, 2, 2), [3, 2]),
        ],
    )
    def test_the_reserve_of_another_layer(self, change: Callable[[], reference.Stack], batch_sizes: list[int]) -> None:
        case, other = self.make(), RnnCase(change(), batch_sizes)
        size = max(case.reserve.numel(), other.reserve.numel())
        case.reserve = other.reserve = torch.zeros(size, dtype=torch.uint8)
        other.check("RNNForwardTraining")
        self.assert_refused(case, "RNNBackwardData", "for another layer or other sizes")
