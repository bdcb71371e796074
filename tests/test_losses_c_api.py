"""The losses through the C API: what Python has no way to ask for, and that the two agree."""

import ctypes
from collections.abc import Callable

import capi
import loss_case
import pytest
import torch

import prnn

RNNT_LAYOUTS = [loss_case.RNNT_PADDED, loss_case.RNNT_PACKED, loss_case.RNNT_PRUNED]


def test_defaults() -> None:
    """All that prnnInit...Options does not leave at 0 is said in the header: nothing."""
    for struct, function in (
        (loss_case.CtcOptions, "InitCTCLossOptions"),
        (loss_case.RnntOptions, "InitRNNTLossOptions"),
    ):
        options = struct(*(1 for _ in struct._fields_))
        capi.check(function, options=loss_case.address(options))
        assert not any(getattr(options, name) for name, _ in struct._fields_)
        assert capi.call(function, options=None) == capi.BAD_PARAM


@pytest.mark.parametrize("data_type", [capi.FLOAT, capi.DOUBLE])
@pytest.mark.parametrize("target_layout", [loss_case.PADDED, loss_case.CONCATENATED])
def test_ctc_agrees_with_python(data_type: int, target_layout: int) -> None:
    case = loss_case.ctc_case(dataType=data_type, targetLayout=target_layout)
    data = case.data
    x = data["activations"].clone().requires_grad_()
    costs = prnn.ctc_loss(x, data["targets"], data["frameLengths"], data["targetLengths"], reduction="none")
    (gradient,) = torch.autograd.grad((costs * data["costGradients"]).sum(), x)
    case.run("CTCLossForward")
    assert torch.equal(data["costs"], costs)
    case.run("CTCLossBackward")
    assert torch.equal(data["gradients"], gradient)
    case.reset()
    case.run("CTCLoss")
    assert torch.equal(data["costs"], costs)
    assert torch.equal(data["gradients"], torch.autograd.grad(prnn_ctc(x, data).sum(), x)[0])


def prnn_ctc(x: torch.Tensor, data: dict[str, torch.Tensor]) -> torch.Tensor:
    return prnn.ctc_loss(x, data["targets"], data["frameLengths"], data["targetLengths"], reduction="none")


@pytest.mark.parametrize("layout", RNNT_LAYOUTS)
@pytest.mark.parametrize("data_type", [capi.FLOAT, capi.DOUBLE])
@pytest.mark.parametrize("target_layout", [loss_case.PADDED, loss_case.CONCATENATED])
def test_rnnt_one_call_is_forward_and_backward(layout: int, data_type: int, target_layout: int) -> None:
    case = loss_case.rnnt_case(dataType=data_type, layout=layout, targetLayout=target_layout)
    case.run("RNNTLoss")
    costs, gradients = case.data["costs"].clone(), case.data["gradients"].clone()
    assert torch.isfinite(costs).all()
    case.reset()
    case.run("RNNTLossForward")
    assert torch.equal(case.data["costs"], costs)
    for factors in (None, torch.ones_like(costs)):
        case.data["gradients"].fill_(case.UNTOUCHED)
        case.run("RNNTLossBackward", costGradients=factors)
        assert torch.equal(case.data["gradients"], gradients)
    case.run("RNNTLossBackward")
    if layout != loss_case.RNNT_PACKED:
        scaled = gradients * case.data["costGradients"].reshape(3, 1, 1, 1)
        torch.testing.assert_close(case.data["gradients"], scaled)


@pytest.mark.parametrize("name", ["CTCLoss", "RNNTLoss"])
def test_costs_alone(name: str) -> None:
    """Without gradients a call wants the smaller workspace, and Forward no reserve space."""
    case = loss_case.ctc_case() if name == "CTCLoss" else loss_case.rnnt_case()
    case.run(name)
    costs = case.data["costs"].clone()
    case.reset()
    size = case.size(f"Get{name}WorkspaceSize")
    case.run(name, gradients=None, workspaceSizeInBytes=size)
    assert torch.equal(case.data["costs"], costs)
    assert (case.data["gradients"] == case.UNTOUCHED).all()
    case.run(f"{name}Forward", reserveSpace=None, reserveSizeInBytes=0, workspaceSizeInBytes=size)
    assert torch.equal(case.data["costs"], costs)


@pytest.mark.parametrize("name", ["CTCLoss", "RNNTLoss"])
@pytest.mark.parametrize("kind", [loss_case.LOGITS, loss_case.LOG_PROBS])
def test_gradients_in_place_of_the_activations(name: str, kind: int) -> None:
    case = loss_case.ctc_case(input=kind) if name == "CTCLoss" else loss_case.rnnt_case(input=kind, clamp=0.1)
    case.run(name)
    costs, gradients = case.data["costs"].clone(), case.data["gradients"].clone()
    case.reset()
    x = case.data["activations"]
    case.run(name, activations=x, gradients=x)
    assert torch.equal(case.data["costs"], costs)
    assert torch.equal(x, gradients)


def test_ctc_strides_leave_gaps_alone() -> None:
    plain = loss_case.ctc_case()
    plain.run("CTCLoss")
    # {N, T, V} with 2 spare elements after each frame and 5 after each sequence.
    time, batch = 6 + 2, 10 * 8 + 5
    case = loss_case.ctc_case(timeStride=time, batchStride=batch)
    storage, gradients = (
        torch.full((3 * batch,), float("nan"), dtype=torch.float64),
        torch.full((3 * batch,), 7.0, dtype=torch.float64),
    )
    view = storage.as_strided((10, 3, 6), (time, batch, 1))
    view.copy_(plain.data["activations"])
    for name in ("targets", "frameLengths", "targetLengths"):
        case.data[name] = plain.data[name]
    case.run("CTCLoss", activations=storage, gradients=gradients)
    assert torch.equal(case.data["costs"], plain.data["costs"])
    strided = gradients.as_strided((10, 3, 6), (time, batch, 1))
    assert torch.equal(strided, plain.data["gradients"])
    strided.fill_(7.0)
    assert (gradients == 7).all()


@pytest.mark.parametrize("name", ["CTCLoss", "RNNTLoss", "CTCAlign", "RNNTAlign", "MutualInformation"])
def test_spaces_are_neither_overrun_nor_wanted_larger(name: str) -> None:
    """Exactly the size asked for, between guard bytes."""
    if name == "MutualInformation":
        case = loss_case.mutual_information_case()
    else:
        case = loss_case.ctc_case() if name.startswith("CTC") else loss_case.rnnt_case()
    size = case.size(f"Get{name}WorkspaceSize")
    if name.endswith("Loss"):
        size += case.size(f"Get{name}ReserveSize")
    guarded = torch.full((size + 128,), 171, dtype=torch.uint8)
    case.run(name, workspace=guarded.data_ptr() + 64, workspaceSizeInBytes=size)
    assert (guarded[:64] == 171).all()
    assert (guarded[-64:] == 171).all()


def test_calls_without_targets_take_null() -> None:
    for case, name in (
        (loss_case.ctc_case(maxTargets=0), "CTCLoss"),
        (loss_case.rnnt_case(maxTargets=0), "RNNTLoss"),
    ):
        case.data["targetLengths"].zero_()
        case.run(name, targets=None)
        assert torch.isfinite(case.data["costs"]).all()
        align = name.replace("Loss", "Align")
        nothing = {"begins": None, "ends": None} if name == "CTCLoss" else {"frames": None}
        case.run(align, targets=None, **nothing)
        torch.testing.assert_close(case.data["scores"], -case.data["costs"])


def test_gathered_takes_no_targets() -> None:
    case = loss_case.rnnt_case(input=loss_case.GATHERED, classes=2)
    case.run("RNNTLoss", targets=None)
    assert torch.isfinite(case.data["costs"]).all()


def test_pruned_alignment_stays_in_the_kept_cells() -> None:
    case = loss_case.rnnt_case(layout=loss_case.RNNT_PRUNED)
    case.run("RNNTAlign")
    begins = case.data["rangeBegins"]
    for i, t in enumerate(case.data["frames"][0].tolist()):
        assert begins[0, t] <= i <= begins[0, t] + 2
    case.run("RNNTLoss")
    assert (case.data["scores"] <= -case.data["costs"]).all()


@pytest.mark.parametrize("data_type", [capi.FLOAT, capi.DOUBLE])
@pytest.mark.parametrize("kind", [loss_case.REGULAR, loss_case.MODIFIED])
def test_mutual_information_agrees_with_python(data_type: int, kind: int) -> None:
    case = loss_case.mutual_information_case(dataType=data_type, type=kind)
    data = case.data
    case.run("MutualInformation")
    scores, gradients = prnn.mutual_information_recursion(data["px"], data["py"], data["boundary"], return_grad=True)
    assert torch.equal(data["scores"], scores)
    assert torch.equal(data["pxGradients"], gradients[0])
    assert torch.equal(data["pyGradients"], gradients[1])
    case.run("RNNTPruneRanges", pruneRange=3)
    ranges = prnn.get_rnnt_prune_ranges(*gradients, data["boundary"], 3)
    assert torch.equal(data["rangeBegins"], ranges[:, :, 0].int())
    case.reset()
    case.run("MutualInformation", pxGradients=None, pyGradients=None, boundary=None)
    assert torch.equal(data["scores"], prnn.mutual_information_recursion(data["px"], data["py"]))
    assert (data["pyGradients"] == case.UNTOUCHED).all()


@pytest.mark.parametrize("create", ["CreateCPU", "Create"])
@pytest.mark.parametrize("data_type", [capi.HALF, capi.BFLOAT16])
def test_the_recursion_of_scores_takes_no_half(data_type: int, create: str) -> None:
    """The kernels would read halves as floats."""
    if create == "Create" and not torch.cuda.is_available():
        pytest.skip("needs a GPU")
    handle, out = capi.Object(create, "Destroy"), ctypes.c_size_t()
    options = loss_case.MutualInformationOptions(data_type, loss_case.REGULAR, 2, 4, 6)
    name, arguments = "GetMutualInformationWorkspaceSize", {"options": loss_case.address(options)}
    status = capi.call(name, handle=handle.pointer, sizeInBytes=ctypes.byref(out), **arguments)
    assert status == capi.NOT_SUPPORTED
    assert "scores of a lattice are PRNN_DATA_FLOAT or PRNN_DATA_DOUBLE" in capi.message(handle.pointer)


@pytest.mark.parametrize(
    ("loss", "struct", "instead"),
    [
        ("JointRNNTLoss", loss_case.JointOptions, "prnnRNNTLoss"),
        ("JointTDTLoss", loss_case.JointTdtOptions, "prnnDurationRNNTLoss"),
    ],
)
def test_the_joiner_is_for_cuda_handles(loss: str, struct: type[ctypes.Structure], instead: str) -> None:
    """Its options start from zeros, and a CPU handle is told what to do instead."""
    options = struct.from_buffer_copy(b"\x01" * ctypes.sizeof(struct))
    capi.check(f"Init{loss}Options", options=loss_case.address(options))
    assert not any(bytes(options))
    assert capi.call(f"Init{loss}Options", options=None) == capi.BAD_PARAM
    handle = capi.cpu_handle()
    for size in ("WorkspaceSize", "ReserveSize"):
        status = capi.call(
            f"Get{loss}{size}", handle=handle.pointer, options=loss_case.address(options), sizeInBytes=None
        )
        assert status == capi.NOT_SUPPORTED
        assert f"prnn{loss} needs a CUDA handle; on a CPU make the logits and call {instead}" in capi.message(
            handle.pointer
        )


def large(make: Callable[[], loss_case.LossCase]) -> loss_case.LossCase:
    """With enough work for several threads."""
    case = make()
    classes = 4000
    shape = (*case.data["activations"].shape[:-1], classes)
    case.options.classes = classes
    for name in ("activations", "gradients"):
        case.data[name] = torch.randn(shape, dtype=case.data["activations"].dtype)
    case.reset()
    return case


THREADED = {
    "ctc": (loss_case.ctc_case, ("CTCLoss", "CTCLossForward", "CTCAlign")),
    "ctc-large": (lambda: large(loss_case.ctc_case), ("CTCLoss", "CTCLossForward")),
    "rnnt": (loss_case.rnnt_case, ("RNNTLoss", "RNNTLossForward", "RNNTAlign")),
    "rnnt-large": (lambda: large(loss_case.rnnt_case), ("RNNTLoss", "RNNTLossForward")),
    "durations": (loss_case.duration_case, ("DurationRNNTLoss", "DurationRNNTLossForward")),
    "mutual-information": (loss_case.mutual_information_case, ("MutualInformation",)),
}


CALLS = pytest.mark.parametrize(
    ("make", "call"),
    [pytest.param(make, call, id=f"{name}-{call}") for name, (make, calls) in THREADED.items() for call in calls],
)


@CALLS
def test_less_than_the_workspace_that_was_asked_for_is_refused(
    make: Callable[[], loss_case.LossCase], call: str
) -> None:
    """Whatever the number of threads of the query and of the call."""
    family = call.removesuffix("Forward")
    case, sizes = make(), []
    for count in (1, 2, 3):
        with loss_case.threads(count):
            size = case.size(f"Get{family}WorkspaceSize")
            sizes.append(size + (case.size(f"Get{family}ReserveSize") if call.endswith("Loss") else 0))
    assert len(set(sizes)) == 1
    for count in (1, 3):
        with loss_case.threads(count):
            assert case.call(call, workspaceSizeInBytes=sizes[0] - 256) == capi.BAD_PARAM
            message = capi.message(case.handle.pointer)
            assert message.startswith(f"workspace has {sizes[0] - 256} bytes; it needs {sizes[0]}"), message
    assert case.untouched()


@pytest.mark.parametrize("asked", [1, 2])
@CALLS
def test_a_workspace_asked_for_with_fewer_threads_serves_more(
    make: Callable[[], loss_case.LossCase], call: str, asked: int
) -> None:
    """The number of threads may change between a query and the call: OMP_NUM_THREADS, omp_set_num_threads."""
    family = call.removesuffix("Forward")
    with loss_case.threads(asked):
        case = make()
        size = case.size(f"Get{family}WorkspaceSize")
        if call.endswith("Loss"):  # with gradients
            size += case.size(f"Get{family}ReserveSize")
        case.run(call)
        expected = {name: case.data[name].clone() for name in case.outputs}
        case.reset()
    guarded = torch.full((size + 128,), 171, dtype=torch.uint8)
    with loss_case.threads(3):
        case.run(call, workspace=guarded.data_ptr() + 64, workspaceSizeInBytes=size)
    for name, value in expected.items():
        assert torch.equal(case.data[name], value), name
    assert (guarded[:64] == 171).all()
    assert (guarded[-64:] == 171).all()
