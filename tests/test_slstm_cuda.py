"""The sLSTM's resident kernels on a GPU: values and all gradients beside float64 on the CPU."""

import pytest
import torch
from reference import slstm as reference
from slstm_case import Case, as_stored, config_of

from prnn._ops import rnn as ops
from prnn._ops._handles import handle
from prnn._ops._layer import layer

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")

HALF, BFLOAT16, FLOAT = torch.float16, torch.bfloat16, torch.float32
TOLERANCE = {FLOAT: 2e-5, HALF: 3e-3, BFLOAT16: 2e-2}


def compare(case: Case, engine: str, used: tuple[int, ...] = (0, 1, 2), tolerance: float | None = None) -> None:
    """Relative errors of outputs, last states and gradients; that inference gives the same; and what runs."""
    case.device = "cuda"
    case.smooth = case.dtype != FLOAT or tolerance is not None
    device = torch.device("cuda", torch.cuda.current_device())
    config = config_of(case.stack, has_reset=case.resets)
    plan = layer(config, case.dtype, case.stack.input_size, device)
    plan.follow_precision()
    info = plan.rnn.query(handle(device), case.batch_sizes)
    assert (info["forward_engine"], info["supported"]) == (engine, True)
    expected, found = case.expected(used), case.found(used)
    expected["cy"] = as_stored(expected["cy"], found["cy"])
    for name, wanted in expected.items():
        error = (found[name] - wanted).norm() / wanted.norm().clamp_min(1e-6)
        assert error < (tolerance or TOLERANCE[case.dtype]), f"{name}: {error:.2e}"


@pytest.fixture(autouse=True)
def exact(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)


@pytest.mark.parametrize("resets", [False, True], ids=["", "resets"])
@pytest.mark.parametrize("dtype", [HALF, BFLOAT16], ids=str)
@pytest.mark.parametrize(
    ("hidden", "heads", "batch"), [(512, 4, 16), (512, 1, 3), (1024, 8, 40), (96, 2, 9), (40, 1, 1)]
)
def test_clusters(hidden: int, heads: int, batch: int, dtype: torch.dtype, resets: bool) -> None:
    sizes = [batch] * 9 + [max(1, batch // 2)] * 7 + [1] * 3
    compare(Case(reference.Stack(24, hidden, heads), sizes, dtype, resets=resets), "cluster")


@pytest.mark.parametrize("with_states", [False, True], ids=["zeros", "states"])
@pytest.mark.parametrize("dtype", [HALF, BFLOAT16], ids=str)
def test_stacks_directions_and_input_of_the_gates(dtype: torch.dtype, with_states: bool) -> None:
    for stack in (
        reference.Stack(24, 128, 4, layers=3, sigmoid=False),
        reference.Stack(24, 128, 2, layers=2, directions=2),
        reference.Stack(0, 128, 4, layers=2, directions=2, gates_input=True),
        reference.Stack(0, 100, 2, gates_input=True),
    ):
        compare(Case(stack, [6, 6, 6, 6, 4, 4, 2], dtype, with_states=with_states), "cluster")


@pytest.mark.parametrize("used", [(0,), (1,), (2,)], ids=str)
def test_gradients_of_each_output_alone(used: tuple[int, ...]) -> None:
    for sigmoid in (True, False):
        case = Case(reference.Stack(24, 128, 2, sigmoid=sigmoid), [5, 5, 5, 3, 3], FLOAT)
        compare(case, "mma", used)
        compare(Case(case.stack, [2, 2, 2, 2, 1], FLOAT), "simt", used)


@pytest.mark.parametrize("resets", [False, True], ids=["", "resets"])
@pytest.mark.parametrize(("hidden", "heads", "engine"), [(128, 2, "simt"), (256, 1, "simt"), (384, 1, "simt")])
def test_float32_of_few_sequences(hidden: int, heads: int, engine: str, resets: bool) -> None:
    compare(Case(reference.Stack(24, hidden, heads), [2, 2, 2, 2, 1, 1, 1], FLOAT, resets=resets), engine)


@pytest.mark.parametrize("resets", [False, True], ids=["", "resets"])
def test_tf32(monkeypatch: pytest.MonkeyPatch, resets: bool) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", True)
    for hidden in (512, 1024):
        case = Case(reference.Stack(24, hidden, 4), [16, 16, 16, 9, 9, 1], FLOAT, resets=resets)
        compare(case, "cluster", tolerance=TOLERANCE[HALF])


@pytest.mark.parametrize("resets", [False, True], ids=["", "resets"])
@pytest.mark.parametrize(
    ("dtype", "hidden"), [(FLOAT, 96), (FLOAT, 600), (BFLOAT16, 1024), (HALF, 1056), (BFLOAT16, 1280)], ids=str
)
def test_other_layers(dtype: torch.dtype, hidden: int, resets: bool) -> None:
    engine = "mma-large" if hidden > 1100 or (resets and dtype != FLOAT) else "mma"
    compare(Case(reference.Stack(24, hidden), [11, 11, 11, 9, 9, 1], dtype, resets=resets), engine)


@pytest.mark.parametrize("dtype", [HALF, BFLOAT16], ids=str)
def test_gates_of_any_size(dtype: torch.dtype) -> None:
    """Gates of +-10,000, where exponentials overflow without m."""
    torch.manual_seed(0)
    for sigmoid in (True, False):
        stack = reference.Stack(0, 64, heads=2, sigmoid=sigmoid, gates_input=True)
        x = torch.randint(-1, 2, (40, 3, 256)) * 1e4
        data = x.to("cuda", dtype).requires_grad_()
        shapes = reference.weight_shapes(stack)
        weights = [torch.zeros(shape, dtype=dtype, device="cuda", requires_grad=True) for shape in shapes]
        y, hy, cy, _ = ops.call(data, None, None, weights, None, None, None, [], None, None, config_of(stack))
        zeros = [torch.zeros(2, 3, 32, dtype=torch.float64), torch.zeros(6, 3, 32, dtype=torch.float64)]
        doubles = [torch.zeros(shape, dtype=torch.float64) for shape in shapes]
        given = x.to(dtype).double().flatten(0, 1)
        expected, *_ = reference.forward(stack, given, [3] * 40, doubles, *zeros)
        torch.testing.assert_close(y.flatten(0, 1).double().cpu(), expected, atol=2e-2, rtol=2e-2)
        gradients = torch.autograd.grad((y, hy, cy), [data, *weights], [torch.ones_like(t) for t in (y, hy, cy)])
        assert all(gradient.isfinite().all() for gradient in (y, hy, *gradients))


def test_padding_is_not_read_and_inference_gives_the_same() -> None:
    stack = reference.Stack(24, 128, heads=4)
    torch.manual_seed(0)
    weights = [(torch.randn(shape) * 0.3).to("cuda", BFLOAT16) for shape in reference.weight_shapes(stack)]
    x, lengths = torch.randn(6, 3, 24), torch.tensor([2, 6, 4])
    for n, length in enumerate(lengths):
        x[length:, n] = float("nan")
    data = x.to("cuda", BFLOAT16).requires_grad_()
    arguments = (weights, None, lengths, None, [], None, None, config_of(stack))
    y, hy, cy, _ = ops.call(data, None, None, *arguments)
    (dx,) = torch.autograd.grad((y, hy, cy), [data], [torch.ones_like(t) for t in (y, hy, cy)])
    assert not any(found.isnan().any() for found in (y, hy, cy, dx))
    with torch.no_grad():
        again = ops.call(data, None, None, *arguments)
    assert all(a.equal(b) for a, b in zip(again[:3], (y, hy, cy), strict=True))


def test_recurrent_masks_and_dropout_between_layers() -> None:
    """Beside the CPU, which draws the same masks."""
    stack = reference.Stack(24, 128, heads=2, layers=2)
    config = config_of(stack)._replace(mask_kinds=2, dropout=0.25)
    torch.manual_seed(0)
    x, mask, seed = torch.randn(9, 5, 24), (torch.rand(4, 5, 64) > 0.3) / 0.7, torch.tensor([3, 4])
    weights = [torch.randn(shape) * shape[-1] ** -0.5 for shape in reference.weight_shapes(stack)]
    results = []
    for device, dtype in (("cpu", torch.float64), ("cuda", BFLOAT16)):
        leaves = [tensor.to(BFLOAT16).to(device, dtype).requires_grad_() for tensor in (x, *weights)]
        masks = [None, mask.to(BFLOAT16).to(device, dtype)]
        y, *_ = ops.call(leaves[0], None, None, leaves[1:], None, None, None, masks, seed.to(device), None, config)
        results.append([y, *torch.autograd.grad(y, leaves, torch.ones_like(y))])
    for wanted, found in zip(*results, strict=True):
        assert (found.double().cpu() - wanted).norm() / wanted.norm() < TOLERANCE[BFLOAT16]
