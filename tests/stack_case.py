"""What tests of layers that run together on a GPU check of a stack, whichever kernels it has."""

import torch
from rnn_case import OUTPUTS
from test_rnn_cuda import CudaCase, assert_results


def check_inference_and_no_states(case: CudaCase) -> None:
    case.check("RNNForwardInference")
    assert_results(case, ("y", "hy", "cy"))
    case.data["hx"].zero_()
    case.data["cx"].zero_()
    case.check("RNNForwardInference", hx=None, cx=None, hy=None, cy=None)
    assert_results(case, ("y",))


def check_gradients_without_states(case: CudaCase) -> None:
    for name in ("hx", "cx", "dhy", "dcy"):
        case.data[name].zero_()
    case.check("RNNForwardTraining", hx=None, cx=None, hy=None, cy=None)
    case.check("RNNBackwardData", hx=None, cx=None, dhy=None, dcy=None, dhx=None, dcx=None)
    case.check("RNNBackwardWeights", hx=None)
    assert_results(case, ("y", "dx", "dw"), slack=4)


def check_unaligned_output(case: CudaCase) -> None:
    y = case.data["y"]
    room = torch.full((y.numel() + 1,), case.UNTOUCHED, dtype=y.dtype, device=y.device)
    case.data["y"] = room[1:].view_as(y)
    case.train()
    assert_results(case, slack=2)


def check_several_backward_calls(case: CudaCase) -> None:
    """With the reserve space of prnnGetRNNTrainingReserveSize."""
    case.train()
    once = case.results()
    case.reserve = torch.full((case.size("GetRNNTrainingReserveSize"),), 0x5A, dtype=torch.uint8, device="cuda")
    case.check("RNNForwardTraining")
    for _ in range(2):
        case.data["dw"].zero_()
        case.check("RNNBackwardData")
        case.check("RNNBackwardWeights")
        assert all(torch.equal(once[name], case.data[name]) for name in OUTPUTS)


def check_same_bits_in_a_graph(case: CudaCase) -> None:
    case.train()
    first = case.results()
    graph = case.capture()
    for _ in range(3):
        case.data["dw"].zero_()
        graph.replay()
        torch.cuda.synchronize()
        assert all(torch.equal(tensor, first[name]) for name, tensor in case.results().items())
