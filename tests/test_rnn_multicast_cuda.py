"""The multicast wgmma kernels, against the float64 reference on the GPU."""

import pytest
import torch
from reference import rnn as reference
from test_rnn_cuda import MODES, CudaCase, WgmmaCase, assert_results, why_not
from test_rnn_extras import GIVEN_BACK, extras_of
from test_rnn_extras_cuda import GpuCase

pytestmark = pytest.mark.skipif(bool(why_not()), reason=f"needs a GPU: {why_not()}")

HALF_TYPES = [torch.float16, torch.bfloat16]
HIDDEN = {"lstm": 512, "gru": 1024}
# Backward, K is split in four parts of whole pairs of chunks: equal ones, of LSTM and GRU 1024, one of them of fewer
# chunks than the registers hold (GRU 512, 640), or of different sizes. Of 640 and 896 units the number of sets is odd:
# the last one's blocks fetch for themselves.
OTHER_SIZES = [(cell, hidden) for cell in HIDDEN for hidden in (512, 640, 768, 896, 1024) if hidden != HIDDEN[cell]]


class MulticastCase(WgmmaCase):
    """CudaCase for the multicast kernels, forward and backward."""

    ENGINE = 4

    def check_calls_are_the_same(self) -> None:
        self.train()
        first = self.results()
        for _ in range(20):
            self.data["dw"].zero_()
            self.train()
            assert all(torch.equal(first[name], self.data[name]) for name in first)


class MulticastResetCase(GpuCase, MulticastCase):
    """With resets."""

    def check_training_and_inference(self, given: bool, slack: float = 1) -> None:
        """To zeros, or to given states: a training step beside the reference, inference equal to it."""
        names = RESETS_OF[self.stack.mode] if given else ("reset",)
        self.compare(names, slack)
        assert self.engines() == ("wgmma-multicast", "wgmma-multicast")
        trained = self.data["y"].clone()
        self.data["y"].fill_(self.UNTOUCHED)
        self.set_extras(tuple(name for name in names if name not in GIVEN_BACK))
        self.check("RNNForwardInference")
        assert torch.equal(self.data["y"], trained)


# The extras that multicast kernels take backward, by the extras that a layer has.
RESETS_OF = {
    mode: tuple(name for name in extras_of(mode) if name != "dcells") for mode in (reference.LSTM, reference.GRU)
}


SEQUENCES = pytest.mark.parametrize(
    ("batch_sizes", "replicas", "directions"),
    [
        ([64] * 5, 2, 1),  # 32 sequences a replica
        ([100] * 5, 2, 1),  # 64
        ([128] * 5, 1, 1),  # two groups of 64
        ([75] * 4, 1, 2),  # two groups of 38 and 37
        ([70, 70, 33, 9, 2, 1], 1, 2),
        ([300, 200, 200, 70, 3], 2, 1),  # in two passes
        ([5], 1, 2),
        ([3] * 40, 1, 1),
    ],
    ids=str,
)


@pytest.mark.parametrize("dtype", HALF_TYPES, ids=["half", "bfloat16"])
@SEQUENCES
@pytest.mark.parametrize("cell", HIDDEN)
def test_training_step(cell: str, batch_sizes: list[int], replicas: int, directions: int, dtype: torch.dtype) -> None:
    torch.manual_seed(1)
    stack = reference.Stack(MODES[cell], 24, HIDDEN[cell], 1, directions)
    case = MulticastCase(stack, batch_sizes, dtype, replicas)
    case.train()
    assert_results(case)
    case.data["y"].fill_(case.UNTOUCHED)
    case.check("RNNForwardInference")
    assert_results(case, ("y", "hy", "cy"))


@pytest.mark.parametrize("dtype", HALF_TYPES, ids=["half", "bfloat16"])
@pytest.mark.parametrize(
    ("batch_sizes", "replicas", "directions"),
    [([150, 90, 1], 3, 1), ([128] * 9, 1, 1), ([70, 33, 9, 9], 1, 2), ([20] * 30, 1, 2)],
    ids=str,
)
@pytest.mark.parametrize(("cell", "hidden"), OTHER_SIZES)
def test_other_hidden_sizes(
    cell: str, hidden: int, batch_sizes: list[int], replicas: int, directions: int, dtype: torch.dtype
) -> None:
    torch.manual_seed(2)
    case = MulticastCase(reference.Stack(MODES[cell], 24, hidden, 1, directions), batch_sizes, dtype, replicas)
    case.train()
    assert_results(case)


@pytest.mark.parametrize(
    ("cell", "hidden", "batch"),
    [
        ("gru", 512, 150),
        ("lstm", 512, 150),
        ("gru", 512, 200),
        ("lstm", 768, 110),
        ("gru", 768, 130),
        # An odd number of pairs of chunks: the blocks of a cluster change places with each group and step.
        ("lstm", 640, 110),
        ("gru", 640, 700),
        ("lstm", 896, 400),
        ("gru", 896, 80),
    ],
)
def test_as_planned(cell: str, hidden: int, batch: int) -> None:
    torch.manual_seed(6)
    case = CudaCase(reference.Stack(MODES[cell], 24, hidden), [batch] * 6 + [7], torch.bfloat16)
    case.train()
    assert_results(case)
    if "H200" in torch.cuda.get_device_name():
        plan = case.plan()
        assert (plan.forwardEngine, plan.backwardEngine) == (b"wgmma-multicast", b"wgmma-multicast")


@pytest.mark.parametrize("name", ["x", "y", "dy", "hx", "cx", "dhx", "w"])
def test_arrays_of_odd_addresses(name: str) -> None:
    """Without input matrices, so that the kernel reads x itself."""
    torch.manual_seed(3)
    case = MulticastCase(reference.Stack(reference.LSTM, 512, 512, skip_input=True), [40, 40, 7], torch.float16, 1)
    data = case.data[name]
    case.data[name] = torch.empty(data.numel() + 1, dtype=data.dtype, device="cuda")[1:].view(data.shape).copy_(data)
    case.train()
    assert_results(case)


@pytest.mark.parametrize("given", [False, True], ids=["zeros", "given"])
@pytest.mark.parametrize("dtype", HALF_TYPES, ids=["half", "bfloat16"])
@SEQUENCES
@pytest.mark.parametrize("cell", HIDDEN)
def test_resets(
    cell: str, batch_sizes: list[int], replicas: int, directions: int, dtype: torch.dtype, given: bool
) -> None:
    torch.manual_seed(7)
    stack = reference.Stack(MODES[cell], 24, HIDDEN[cell], 1, directions)
    MulticastResetCase(stack, batch_sizes, dtype, replicas).check_training_and_inference(given)


@pytest.mark.parametrize("batch", [130, 500])
@pytest.mark.parametrize(("cell", "hidden"), OTHER_SIZES)
def test_resets_as_planned(cell: str, hidden: int, batch: int) -> None:
    torch.manual_seed(8)
    case = GpuCase(reference.Stack(MODES[cell], 24, hidden), [batch, batch, batch, 7], torch.bfloat16)
    case.compare(RESETS_OF[case.stack.mode])
    if "H200" in torch.cuda.get_device_name():
        assert case.engines() == ("wgmma-multicast", "wgmma-multicast")


def test_resets_and_a_gradient_of_c() -> None:
    torch.manual_seed(9)
    case = GpuCase(reference.Stack(reference.LSTM, 24, 1024), [100, 100, 7], torch.bfloat16)
    case.compare(extras_of(reference.LSTM))
    if "H200" in torch.cuda.get_device_name():
        assert case.engines() == ("wgmma-multicast", "mma")


def test_a_number_that_is_not_finite_ends_with_its_sequence() -> None:
    case = MulticastResetCase(reference.Stack(reference.LSTM, 24, 512), [70] * 4, torch.bfloat16, 1)
    case.set_extras(("reset",))
    case.reset.zero_()
    case.reset.view(4, 70)[2, 3] = 1
    case.data["hx"][0, 3, 5] = case.data["cx"][0, 3, 7] = float("nan")
    case.check("RNNForwardTraining")
    y = case.data["y"].view(4, 70, 512)
    assert y[0:2, 3].isnan().any(1).all()
    assert not y[2:].isnan().any()


def test_states_that_are_not_given() -> None:
    torch.manual_seed(4)
    case = MulticastCase(reference.Stack(reference.LSTM, 24, 512), [66, 66, 5], torch.float16, 1)
    for name in ("hx", "cx", "dhy", "dcy"):
        case.data[name].zero_()
    case.train()
    given = case.results()
    case.data["dw"].zero_()
    none = {"hx": None, "cx": None, "hy": None, "cy": None}
    case.check("RNNForwardTraining", **none)
    case.check("RNNBackwardData", hx=None, cx=None, dhy=None, dcy=None, dhx=None, dcx=None)
    case.check("RNNBackwardWeights", hx=None)
    assert all(torch.equal(given[name], case.data[name]) for name in ("y", "dx", "dw"))


def test_results_are_the_same_in_every_call() -> None:
    torch.manual_seed(5)
    stack = reference.Stack(reference.LSTM, 24, 1024)
    MulticastCase(stack, [256] * 20, torch.bfloat16, 4).check_calls_are_the_same()


def test_a_number_that_is_not_finite_reaches_the_caller() -> None:
    case = MulticastCase(reference.Stack(reference.LSTM, 24, 512), [70] * 3, torch.bfloat16, 1)
    case.data["hx"][0, 3, 5] = float("nan")
    case.train()
    y = case.data["y"].view(3, 70, 512)
    assert y[1:, 3].isnan().all()
    assert not y[:, torch.arange(70) != 3].isnan().any()
