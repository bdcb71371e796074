"""prnn.nn layers with heads= on a GPU: outputs and all gradients beside the same layers on the CPU in float64."""

import copy

import pytest
import torch

import prnn

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")

TOLERANCE = {torch.float32: 2e-5, torch.float16: 3e-3, torch.bfloat16: 2e-2}
HALF, BFLOAT16, FLOAT = torch.float16, torch.bfloat16, torch.float32


def error(found: torch.Tensor, expected: torch.Tensor) -> float:
    return ((found.double().cpu() - expected.double().cpu()).norm() / expected.norm().clamp_min(1e-6).cpu()).item()


def train_step(
    layer: torch.nn.RNNBase, x: torch.Tensor, states: list[torch.Tensor], weights: list[torch.Tensor], **options: object
) -> dict[str, torch.Tensor]:
    """Outputs, last states and all gradients, by name."""
    is_lstm = isinstance(layer, prnn.nn.LSTM)
    leaves = [tensor.clone().requires_grad_() for tensor in (x, *states)]
    output, last = layer(leaves[0], tuple(leaves[1:]) if is_lstm else leaves[1], **options)
    results = [output, *(last if is_lstm else [last])]
    torch.autograd.backward(results, weights)
    named = dict(zip(("output", "hy", "cy"), results, strict=False))
    named |= {name: leaf.grad for name, leaf in zip(("dx", "dhx", "dcx"), leaves, strict=False)}
    return named | {name: parameter.grad for name, parameter in layer.named_parameters()}


def compare(layer: torch.nn.RNNBase, batch: int, steps: int, lengths: list[int] | None = None) -> None:
    """One training step and one inference."""
    dtype = layer.weight_hh_l0.dtype
    directions = 2 if layer.bidirectional else 1
    twin = copy.deepcopy(layer).double().cpu()
    torch.manual_seed(5)
    x = torch.randn(steps, batch, layer.input_size).to(dtype)
    count = 2 if isinstance(layer, prnn.nn.LSTM) else 1
    shape = (layer.num_layers * directions, batch, layer.hidden_size)
    states = [torch.randn(shape).to(dtype) / 2 for _ in range(count)]
    weights = [torch.randn(steps, batch, directions * layer.hidden_size), *(torch.randn(shape) for _ in range(count))]
    weights = [weight.to(dtype) for weight in weights]
    options = {} if lengths is None else {"lengths": lengths}
    if lengths is not None:
        weights[0] *= (torch.arange(steps)[:, None] < torch.tensor(lengths))[:, :, None]

    expected = train_step(twin, x.double(), [s.double() for s in states], [w.double() for w in weights], **options)
    x, states = x.cuda(), [state.cuda() for state in states]
    found = train_step(layer, x, states, [weight.cuda() for weight in weights], **options)
    for name, wanted in expected.items():
        assert error(found[name], wanted) < TOLERANCE[dtype], name
    with torch.no_grad():
        again = layer(x, tuple(states) if count == 2 else states[0], **options)[0]
    assert torch.equal(again, found["output"])


@pytest.mark.parametrize("dtype", [HALF, BFLOAT16, FLOAT], ids=str)
@pytest.mark.parametrize(("layers", "bidirectional"), [(1, False), (2, True)])
@pytest.mark.parametrize(("heads", "size", "batch"), [(3, 40, 5), (2, 64, 33), (20, 16, 2)])
@pytest.mark.parametrize("cell", ["LSTM", "GRU", "RNN"])
def test_training_step(
    cell: str, heads: int, size: int, batch: int, layers: int, bidirectional: bool, dtype: torch.dtype
) -> None:
    torch.manual_seed(1)
    options = {"heads": heads, "bidirectional": bidirectional, "backend": "persistent"}
    with torch.backends.cudnn.flags(allow_tf32=False):
        layer = getattr(prnn.nn, cell)(24, heads * size, layers, **options, device="cuda", dtype=dtype)
        compare(layer, batch, 6)


# The sizes of every engine: clusters, mma, wgmma, split-K, in one launch and in several, and in passes.
@pytest.mark.parametrize(
    ("cell", "heads", "size", "batch", "dtype"),
    [
        ("LSTM", 8, 512, 16, BFLOAT16),
        ("GRU", 8, 512, 16, HALF),
        ("RNN", 8, 512, 16, BFLOAT16),
        ("LSTM", 8, 128, 4, BFLOAT16),
        ("LSTM", 4, 640, 4, HALF),
        ("GRU", 3, 800, 24, HALF),
        ("LSTM", 2, 1024, 32, BFLOAT16),
        ("LSTM", 2, 2048, 8, HALF),
        ("LSTM", 8, 256, 8, FLOAT),
        ("GRU", 4, 256, 2, FLOAT),
    ],
    ids=str,
)
def test_engines(cell: str, heads: int, size: int, batch: int, dtype: torch.dtype) -> None:
    torch.manual_seed(2)
    options = {"heads": heads, "backend": "persistent"}
    with torch.backends.cudnn.flags(allow_tf32=False):
        compare(getattr(prnn.nn, cell)(64, heads * size, **options, device="cuda", dtype=dtype), batch, 5)


@pytest.mark.parametrize("cell", ["LSTM", "GRU"])
def test_lengths(cell: str) -> None:
    torch.manual_seed(3)
    layer = getattr(prnn.nn, cell)(24, 4 * 96, 2, heads=4, bidirectional=True, device="cuda", dtype=HALF)
    compare(layer, 6, 7, lengths=[3, 7, 1, 5, 7, 2])


def test_reset_cuts_every_head() -> None:
    torch.manual_seed(4)
    layer = prnn.nn.GRU(24, 4 * 64, heads=4, device="cuda", dtype=HALF)
    x = torch.randn(9, 3, 24, device="cuda", dtype=HALF)
    reset = torch.zeros(9, 3, dtype=torch.bool, device="cuda")
    reset[4, 1] = reset[7] = True
    output, _ = layer(x, reset=reset)
    with torch.no_grad():
        assert error(output[4:7, 1:2], layer(x[4:7, 1:2])[0].double().cpu()) < TOLERANCE[HALF]
        assert error(output[7:], layer(x[7:])[0].double().cpu()) < TOLERANCE[HALF]


def test_a_graph_replays() -> None:
    layer = prnn.nn.LSTM(64, 4 * 128, heads=4, device="cuda", dtype=HALF)
    x = torch.randn(8, 4, 64, device="cuda", dtype=HALF)
    with torch.no_grad():
        expected = layer(x)[0]
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            output = layer(x)[0]
        graph.replay()
    assert torch.equal(output, expected)


def test_what_has_no_kernel_is_refused() -> None:
    x = torch.randn(2, 1, 8, device="cuda", dtype=torch.float64)
    for backend in ("best", "cudnn"):
        layer = prnn.nn.LSTM(8, 16, heads=2, device="cuda", dtype=torch.float64, backend=backend)
        with pytest.raises(prnn.NotSupportedError, match="cuDNN has no heads"):
            layer(x)
