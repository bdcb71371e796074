"""The multicast wgmma kernels in tf32, against the float64 reference on the GPU."""

import pytest
import torch
from reference import rnn as reference
from test_rnn_cluster_cuda import TF32_SLACK, Tf32Case, by_gated_mode
from test_rnn_cuda import assert_results, why_not
from test_rnn_extras_cuda import GpuCase
from test_rnn_multicast_cuda import RESETS_OF, SEQUENCES, MulticastCase, MulticastResetCase

pytestmark = pytest.mark.skipif(bool(why_not()), reason=f"needs a GPU: {why_not()}")


class Tf32MulticastCase(Tf32Case, MulticastCase):
    """MulticastCase in tf32."""


class Tf32ResetCase(Tf32Case, MulticastResetCase):
    """A tf32 case with resets."""


class Tf32PlannedCase(Tf32Case, GpuCase):
    """As the library plans it."""


def stack_of(mode: int, directions: int = 1, **options: bool) -> reference.Stack:
    return reference.Stack(mode, 512 if options else 24, 512, 1, directions, **options)


@SEQUENCES
@by_gated_mode
def test_training_step(mode: int, batch_sizes: list[int], replicas: int, directions: int) -> None:
    """64 sequences a replica and pass: half as many as in 16 bits."""
    torch.manual_seed(1)
    case = Tf32MulticastCase(stack_of(mode, directions), batch_sizes, replicas)
    case.train()
    case.assert_tf32()
    case.data["y"].fill_(case.UNTOUCHED)
    case.check("RNNForwardInference")
    assert_results(case, ("y", "hy", "cy"), slack=TF32_SLACK)


@pytest.mark.parametrize("given", [False, True], ids=["zeros", "given"])
@SEQUENCES
@by_gated_mode
def test_resets(mode: int, batch_sizes: list[int], replicas: int, directions: int, given: bool) -> None:
    torch.manual_seed(2)
    case = Tf32ResetCase(stack_of(mode, directions), batch_sizes, replicas)
    case.check_training_and_inference(given, TF32_SLACK)


@pytest.mark.parametrize("batch_sizes", [[70, 70, 3], [300, 299, 7, 7], [700] * 4], ids=str)
@by_gated_mode
def test_as_planned(mode: int, batch_sizes: list[int]) -> None:
    torch.manual_seed(3)
    case = Tf32PlannedCase(stack_of(mode), batch_sizes)
    case.train()
    case.assert_tf32()
    case.data["dw"].zero_()
    case.compare(RESETS_OF[mode], slack=TF32_SLACK)
    if "H200" in torch.cuda.get_device_name():
        assert case.engines() == ("wgmma-multicast", "wgmma-multicast")


@pytest.mark.parametrize("name", ["x", "y", "dy", "hx", "cx", "dhx", "w"])
def test_arrays_of_odd_addresses(name: str) -> None:
    """Without input matrices, so that the kernel reads x itself."""
    torch.manual_seed(4)
    case = Tf32MulticastCase(stack_of(reference.LSTM, skip_input=True), [40, 40, 7], 1)
    data = case.data[name]
    case.data[name] = torch.empty(data.numel() + 1, dtype=data.dtype, device="cuda")[1:].view(data.shape).copy_(data)
    case.train()
    case.assert_tf32()


@by_gated_mode
def test_results_are_the_same_in_every_call(mode: int) -> None:
    torch.manual_seed(5)
    Tf32MulticastCase(stack_of(mode), [500] * 20, 8).check_calls_are_the_same()


@by_gated_mode
def test_a_number_that_is_not_finite_reaches_the_caller(mode: int) -> None:
    case = Tf32MulticastCase(stack_of(mode), [60] * 3, 1)
    case.data["hx"][0, 3, 5] = float("nan")
    case.train()
    y = case.data["y"].view(3, 60, 512)
    assert y[1:, 3].isnan().all()
    assert not y[:, torch.arange(60) != 3].isnan().any()
