"""prnn.nn's modules on a GPU: against themselves in float64 on the CPU; autocast, torch.compile and lengths there."""

import copy
import gc
import io
import itertools
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from nn_pairs import CELLS, Result, flat, make, make_pair, make_states, train_step
from torch.utils.checkpoint import checkpoint

import prnn
from prnn._ops import _handles, _segments
from prnn._ops.rnn import Config
from prnn.cli import main


def why_not() -> str:
    if not torch.cuda.is_available():
        return "no CUDA device"
    try:
        prnn._C.Handle.cuda()
    except (prnn.NotSupportedError, RuntimeError) as error:
        return str(error)
    return ""


pytestmark = pytest.mark.skipif(bool(why_not()), reason=f"needs a GPU: {why_not()}")

TOLERANCE = {torch.float32: 1e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}  # of the norm
CUDA_CELLS = [cell for cell in CELLS if cell != "RNN_RELU"]  # at relu's kink rounding decides about a gradient


def on_gpu(module: torch.nn.Module, dtype: torch.dtype) -> torch.nn.Module:
    return copy.deepcopy(module).to("cuda", dtype)


def moved(value: Any, dtype: torch.dtype) -> Any:
    """Tensors on the GPU, as leaves of their own."""
    if isinstance(value, torch.Tensor):
        return value.detach().to("cuda", dtype).requires_grad_()
    return None if value is None else tuple(moved(item, dtype) for item in value)


def assert_near(found: Result, expected: Result, dtype: torch.dtype) -> None:
    assert found.keys() == expected.keys()
    for name, wanted in expected.items():
        error = ((found[name].double().cpu() - wanted).norm() / wanted.norm().clamp_min(1e-6)).item()
        assert error < TOLERANCE[dtype], f"{name}: relative error {error:.2e}"


@pytest.mark.parametrize("cell", CUDA_CELLS)
@pytest.mark.parametrize(("hidden", "batch"), [(40, 3), (64, 20), (256, 4), (512, 40), (1024, 4), (1024, 64)])
@pytest.mark.parametrize("scale", [1e-4, 1e-8])
def test_small_values_keep_their_digits(cell: str, hidden: int, batch: int, scale: float) -> None:
    """tanh near zero: bfloat16 has as many digits there as anywhere."""
    torch.manual_seed(2)
    module = make(prnn.nn, cell, 64, hidden, bias=False, dtype=torch.float64)
    ours = on_gpu(module, torch.bfloat16)
    ours.backend = "persistent"
    module.load_state_dict({name: value.double() for name, value in ours.cpu().state_dict().items()})
    x = (torch.randn(6, batch, 64) * scale).bfloat16()
    expected = module(x.double())[0]
    found = ours.cuda()(x.cuda())[0].cpu().double()
    assert ((found - expected).norm() / expected.norm()).item() < TOLERANCE[torch.bfloat16] / 3


@pytest.mark.parametrize("cell", CUDA_CELLS)
@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("options", [{}, {"num_layers": 2, "bidirectional": True, "batch_first": True, "bias": False}])
@pytest.mark.parametrize("lengths", [None, [9, 3, 12, 1]])
def test_equals_float64_on_the_cpu(
    cell: str, dtype: torch.dtype, options: dict[str, Any], lengths: list[int] | None
) -> None:
    _, ours = make_pair(cell, 24, 40, **options)
    ours.to(dtype).double()  # the weights of both are then the same numbers
    x = torch.randn((4, 12, 24) if ours.batch_first else (12, 4, 24)).to(dtype).double().requires_grad_()
    states = make_states(ours, 4)
    for state in flat(states):
        state.data = state.data.to(dtype).double()
    expected = train_step(ours, dict(ours.named_parameters()), x, states, lengths=lengths)
    gpu = on_gpu(ours, dtype)
    found = train_step(gpu, dict(gpu.named_parameters()), moved(x, dtype), moved(states, dtype), lengths=lengths)
    assert_near(found, expected, dtype)


@pytest.mark.parametrize("cell", CUDA_CELLS)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_autocast(cell: str, dtype: torch.dtype) -> None:
    module = make(prnn.nn, cell, 24, 40, device="cuda")
    x = torch.randn(12, 4, 24, device="cuda")
    with torch.autocast("cuda", dtype=dtype):
        found = flat(module(x))
    assert all(tensor.dtype == dtype for tensor in found)
    for tensor, wanted in zip(found, flat(module(x)), strict=True):
        assert ((tensor.float() - wanted).norm() / wanted.norm()).item() < TOLERANCE[dtype]
    found[0].float().sum().backward()
    assert all(parameter.grad.dtype == torch.float32 for parameter in module.parameters())


def test_compile() -> None:
    module = prnn.nn.LSTM(24, 40, num_layers=2, device="cuda")
    torch.compiler.reset()
    run, parameters = torch.compile(module, fullgraph=True, backend="aot_eager"), dict(module.named_parameters())
    for steps in (12, 5, 30):
        x = torch.randn(steps, 4, 24, device="cuda", requires_grad=True)
        found, expected = train_step(run, parameters, x), train_step(module, parameters, x)
        assert all(torch.equal(found[name], expected[name]) for name in expected)


def test_dropout_follows_torchs_seed() -> None:
    module = prnn.nn.GRU(24, 40, num_layers=2, dropout=0.5, device="cuda")
    x = torch.randn(12, 4, 24, device="cuda")
    torch.manual_seed(1)
    first, other = module(x)[0], module(x)[0]
    torch.manual_seed(1)
    assert torch.equal(module(x)[0], first)
    assert not torch.equal(other, first)


def test_side_stream() -> None:
    module = prnn.nn.LSTM(24, 40, device="cuda")
    x = torch.randn(12, 4, 24, device="cuda")
    expected = module(x)[0]
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        found = module(x)[0]
    torch.cuda.current_stream().wait_stream(stream)
    assert torch.equal(found, expected)


def test_mixed_devices_are_refused() -> None:
    module = prnn.nn.LSTM(24, 40, device="cuda")
    with pytest.raises(ValueError, match="input is on cpu, but the weights are on cuda:0"):
        module(torch.zeros(12, 4, 24))
    x = torch.zeros(12, 4, 24, device="cuda")
    with pytest.raises(ValueError, match=r"hx\[1\] is on cpu, but input is on cuda:0"):
        module(x, (torch.zeros(1, 4, 40, device="cuda"), torch.zeros(1, 4, 40)))


@pytest.mark.parametrize("cell", CUDA_CELLS)
def test_twenty_thousand_steps_do_not_drift(cell: str) -> None:
    """The last thousand outputs are as near to float64's as the first ones, and so are the gradients."""
    steps = 20_000
    _, ours = make_pair(cell, 16, 64)
    ours.float().double()
    x = torch.randn(steps, 2, 16).double().requires_grad_()
    expected = train_step(ours, dict(ours.named_parameters()), x)
    gpu = on_gpu(ours, torch.float32)
    found = train_step(gpu, dict(gpu.named_parameters()), moved(x, torch.float32))
    for name in ("output0", "grad of input"):
        for part in (slice(0, 1000), slice(steps - 1000, steps)):
            wanted = expected[name][part]
            error = ((found[name][part].double().cpu() - wanted).norm() / wanted.norm()).item()
            assert error < TOLERANCE[torch.float32], f"{name} {part}: relative error {error:.2e}"
    assert_near(found, expected, torch.float32)


def results_of(
    module: torch.nn.Module, x: torch.Tensor, lengths: torch.Tensor | list[int] | None = None
) -> list[torch.Tensor]:
    """Output and gradients of a training step."""
    output = module(x, lengths=lengths)[0]
    return [output, *torch.autograd.grad(output.sum(), [x, *module.parameters()])]


@pytest.fixture
def resident_layers() -> list[tuple[torch.nn.Module, torch.Tensor]]:
    """Three layers, each of which takes most of an H200, and their inputs."""
    return [
        (
            make(prnn.nn, cell, 64, 1024, device="cuda", dtype=torch.float16, backend="persistent"),
            torch.randn(200, 8, 64, device="cuda", dtype=torch.float16, requires_grad=True),
        )
        for cell in CUDA_CELLS
    ]


def test_streams_with_resident_kernels_at_once(resident_layers: list[tuple[torch.nn.Module, torch.Tensor]]) -> None:
    """All finish, and the results have the same bits as one after the other."""
    expected = [results_of(*layer) for layer in resident_layers]
    streams = [torch.cuda.Stream() for _ in resident_layers]
    torch.cuda.synchronize()
    for _ in range(5):
        found = []
        for layer, stream in zip(resident_layers, streams, strict=True):
            with torch.cuda.stream(stream):
                found.append(results_of(*layer))
        torch.cuda.synchronize()
        for mine, wanted in zip(found, expected, strict=True):
            assert all(torch.equal(a, b) for a, b in zip(mine, wanted, strict=True))


def test_products_on_streams_at_once() -> None:
    """Matrix products of one thread's calls on two streams do not share what cuBLAS keeps while they run."""
    layers = [
        (
            make(prnn.nn, "GRU", 256, 256, device="cuda", backend="persistent"),
            torch.randn(512, 64, 256, device="cuda", requires_grad=True),
        )
        for _ in range(2)
    ]
    expected = [results_of(*layer) for layer in layers]
    streams = [torch.cuda.Stream() for _ in layers]
    torch.cuda.synchronize()
    for _ in range(10):
        found = []
        for stream in streams:
            with torch.cuda.stream(stream):
                torch.cuda._sleep(10_000_000)  # so that the streams begin together
        for layer, stream in zip(layers, streams, strict=True):
            with torch.cuda.stream(stream):
                found.append(results_of(*layer))
        torch.cuda.synchronize()
        for mine, wanted in zip(found, expected, strict=True):
            assert all(torch.equal(a, b) for a, b in zip(mine, wanted, strict=True))


def test_the_same_bits_under_load(resident_layers: list[tuple[torch.nn.Module, torch.Tensor]]) -> None:
    expected = [results_of(*layer) for layer in resident_layers]
    a, other = torch.randn(2048, 2048, device="cuda"), torch.cuda.Stream()
    torch.cuda.synchronize()
    under_load = 0
    for _ in range(3):
        for layer, wanted in zip(resident_layers, expected, strict=True):
            with torch.cuda.stream(other):
                for _ in range(100):
                    a = torch.tanh(a @ a)
            found = results_of(*layer)
            torch.cuda.current_stream().synchronize()
            under_load += not other.query()
            assert all(torch.equal(a, b) for a, b in zip(found, wanted, strict=True))
    assert under_load > 0, "the load always ended before the layer did"
    torch.cuda.synchronize()


@pytest.mark.parametrize(
    ("cell", "hidden", "options"),
    [
        ("RNN", 260, {"bidirectional": True}),
        ("GRU", 260, {"bidirectional": True}),
        ("GRU", 256, {}),
        ("LSTM", 260, {"bidirectional": True}),
        ("LSTM", 256, {}),
        ("LSTM", 256, {"proj_size": 40}),
    ],
)
def test_gradients_of_many_rows_in_tf32(
    cell: str, hidden: int, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """From 4096 rows and 256 units on the products with the gates' matrices are of transposed ones."""
    theirs = make(torch.nn, cell, 40, hidden, num_layers=2, dtype=torch.float64, **options)
    ours = make(prnn.nn, cell, 40, hidden, num_layers=2, device="cuda", backend="persistent", **options)
    ours.load_state_dict(theirs.state_dict())
    x = torch.randn(65, 64, 40)
    expected = train_step(theirs, dict(theirs.named_parameters()), x.double().requires_grad_())
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", True)
    found = train_step(ours, dict(ours.named_parameters()), x.cuda().requires_grad_())
    for name, wanted in expected.items():
        error = (found[name].double().cpu() - wanted).norm() / wanted.norm()
        assert error < 2e-3, name


def graph_of(step: Callable[[], list[torch.Tensor]]) -> tuple[torch.cuda.CUDAGraph, list[torch.Tensor]]:
    """A graph of the step, captured after it has run once, and the tensors that a replay fills."""
    stream, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        step()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph, stream=stream):
        captured = step()
    # On that stream torch has written the generator's state, which a replay overwrites on its own stream.
    stream.synchronize()
    return graph, captured


@pytest.mark.parametrize("backend", ["persistent", "cudnn"])
def test_graph_of_a_training_step(backend: str) -> None:
    module = prnn.nn.LSTM(24, 40, num_layers=2, bidirectional=True, device="cuda", backend=backend)
    x = torch.randn(12, 4, 24, device="cuda", requires_grad=True)
    graph, captured = graph_of(lambda: results_of(module, x))
    for _ in range(3):
        with torch.no_grad():
            x.normal_()
        graph.replay()
        torch.cuda.synchronize()
        assert all(torch.equal(a, b) for a, b in zip(captured, results_of(module, x), strict=True))


@pytest.mark.parametrize("backend", ["persistent", "cudnn"])
@pytest.mark.parametrize("cell", CUDA_CELLS)
def test_replays_of_a_graph_draw_masks_of_their_own(cell: str, backend: str) -> None:
    """Outputs and gradients of a replay are those of a call that finds torch's generator in the same state, so that a
    replay's gradients have its own masks."""
    module = make(prnn.nn, cell, 64, 64, num_layers=3, dropout=0.5, device="cuda", backend=backend)
    x = torch.randn(12, 4, 64, device="cuda", requires_grad=True)
    graph, captured = graph_of(lambda: [*results_of(module, x), *results_of(module, x)])
    half = len(captured) // 2

    def step(run: Callable[[], Any]) -> list[torch.Tensor]:
        run()
        return [tensor.clone() for tensor in captured]

    torch.manual_seed(3)
    replays = [step(graph.replay) for _ in range(3)]
    outputs = [outputs for replay in replays for outputs in (replay[0], replay[half])]
    for index, output in enumerate(outputs):
        assert not any(torch.equal(output, other) for other in outputs[:index])
    torch.manual_seed(3)
    calls = [[*results_of(module, x), *results_of(module, x)] for _ in replays]
    differing = [
        (number, index)
        for number, (replay, call) in enumerate(zip(replays, calls, strict=True))
        for index, (ours, expected) in enumerate(zip(replay, call, strict=True))
        if not torch.equal(ours, expected)
    ]
    assert not differing, f"(replay, result) of {half} for each of two calls"
    torch.manual_seed(3)
    assert all(torch.equal(a, b) for a, b in zip(step(graph.replay), replays[0], strict=True))


@pytest.mark.parametrize("backend", ["persistent", "cudnn"])
def test_a_retained_graph_keeps_its_masks(backend: str) -> None:
    """Also where its second backward pass computes the layers once more."""
    module = prnn.nn.LSTM(64, 64, num_layers=3, dropout=0.5, device="cuda", backend=backend)
    output = module(torch.randn(12, 4, 64, device="cuda"))[0]
    first, second, third = (
        torch.autograd.grad(output.sum(), list(module.parameters()), retain_graph=True) for _ in range(3)
    )
    assert all(torch.equal(a, b) and torch.equal(a, c) for a, b, c in zip(first, second, third, strict=True))


@pytest.mark.parametrize("lengths", [None, [9, 3, 12, 1]])
def test_dropout_and_lengths_wait_for_nothing(lengths: list[int] | None) -> None:
    module = prnn.nn.LSTM(64, 64, num_layers=3, dropout=0.5, device="cuda")
    x = torch.randn(12, 4, 64, device="cuda", requires_grad=True)
    results_of(module, x, lengths)
    torch.cuda.set_sync_debug_mode("error")
    try:
        results_of(module, x, lengths)
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("backend", ["persistent", "cudnn"])
@pytest.mark.parametrize("lengths", [[9, 3, 12, 1], [12, 9, 9, 2]])  # to be sorted, and sorted
def test_lengths_are_constants_of_a_graph(lengths: list[int], backend: str) -> None:
    module = prnn.nn.LSTM(24, 40, num_layers=2, bidirectional=True, device="cuda", backend=backend)
    x = torch.randn(12, 4, 24, device="cuda", requires_grad=True)
    graph, captured = graph_of(lambda: results_of(module, x, torch.tensor(lengths)))
    for _ in range(2):
        with torch.no_grad():
            x.normal_()
        graph.replay()
        torch.cuda.synchronize()
        assert all(torch.equal(a, b) for a, b in zip(captured, results_of(module, x, lengths), strict=True))


def test_lengths_on_the_gpu_are_refused_in_a_graph() -> None:
    module = prnn.nn.GRU(24, 40, device="cuda")
    x, lengths = torch.randn(12, 2, 24, device="cuda"), torch.tensor([12, 5], device="cuda")
    module(x, lengths=lengths)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph), pytest.raises(ValueError, match="lengths is on cuda:0, and a CUDA graph is being"):
        module(x, lengths=lengths)


def test_checkpointing_repeats_the_masks() -> None:
    module = prnn.nn.LSTM(24, 40, num_layers=2, dropout=0.5, device="cuda")
    x = torch.randn(12, 4, 24, device="cuda", requires_grad=True)
    grads = []
    for run in (module, lambda x: checkpoint(module, x, use_reentrant=False)):
        torch.manual_seed(5)
        grads.append(torch.autograd.grad(run(x)[0].sum(), [x, *module.parameters()]))
    torch.testing.assert_close(*grads, rtol=0, atol=0)


@pytest.mark.filterwarnings("ignore:prnn. not the persistent kernels")  # of double
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("cell", CUDA_CELLS)
def test_vmap_over_an_ensemble(cell: str, dtype: torch.dtype) -> None:
    """Gradients with resets: float64's are of cuDNN, which runs the pieces between them."""
    members = [make(prnn.nn, cell, 24, 40, device="cuda", dtype=dtype) for _ in range(3)]
    parameters, _ = torch.func.stack_module_state(members)
    x = torch.randn(3, 12, 4, 24, device="cuda", dtype=dtype)
    reset = torch.rand(12, 4, device="cuda") < 0.2

    def loss(parameters: dict[str, torch.Tensor], x: torch.Tensor) -> torch.Tensor:
        return torch.func.functional_call(members[0], parameters, (x,), {"reset": reset})[0].float().square().sum()

    found = torch.func.vmap(torch.func.grad(loss))(parameters, x)
    for index, member in enumerate(members):
        loss(dict(member.named_parameters()), x[index]).backward()
        for name, parameter in member.named_parameters():
            error = (found[name][index] - parameter.grad).norm() / parameter.grad.norm().clamp_min(1e-6)
            assert error < TOLERANCE.get(dtype, 1e-6), f"{name}: relative error {error:.2e}"


@pytest.mark.parametrize("dtypes", [(torch.float32, torch.float64), (torch.float64, torch.float32)])
def test_autocast_mixes_float64_with_nothing(dtypes: tuple[torch.dtype, torch.dtype]) -> None:
    dtype, other = dtypes
    module = prnn.nn.GRU(3, 4, device="cuda", dtype=dtype)
    x, state = torch.randn(5, 2, 3, device="cuda", dtype=dtype), torch.zeros(1, 2, 4, device="cuda", dtype=other)
    for trained in (False, True):
        module.requires_grad_(trained)
        with torch.autocast("cuda"), pytest.raises(ValueError, match=f"has dtype {other}, but input has {dtype}"):
            module(x, state)


@pytest.mark.parametrize("cell", CUDA_CELLS)
def test_transforms_under_autocast(cell: str) -> None:
    module, x = make(prnn.nn, cell, 24, 40, device="cuda"), torch.randn(12, 4, 24, device="cuda")
    parameters = dict(module.named_parameters())

    def loss(parameters: dict[str, torch.Tensor]) -> torch.Tensor:
        with torch.autocast("cuda", torch.bfloat16):
            output = torch.func.functional_call(module, parameters, (x,))[0]
        assert output.dtype == torch.bfloat16
        return output.float().square().sum()

    found = torch.func.grad(loss)({name: parameter.detach() for name, parameter in parameters.items()})
    grads = torch.autograd.grad(loss(parameters), list(parameters.values()))
    for name, expected in zip(parameters, grads, strict=True):
        torch.testing.assert_close(found[name], expected, rtol=1e-2, atol=1e-2, msg=name)


def test_parameters_moved_under_inference_mode_can_be_trained() -> None:
    module = prnn.nn.LSTM(24, 40, device="cuda")
    module.weight_hh_l0 = torch.nn.Parameter(torch.randn(160, 40, device="cuda"))
    with torch.inference_mode():
        module.load_state_dict(module.state_dict())
    module(torch.randn(12, 4, 24, device="cuda"))[0].sum().backward()
    assert module.weight_hh_l0.grad.any()


def test_compile_with_dropout() -> None:
    module = prnn.nn.LSTM(24, 40, num_layers=2, dropout=0.5, device="cuda")
    torch.compiler.reset()
    run = torch.compile(module, fullgraph=True, backend="aot_eager")
    x = torch.randn(12, 4, 24, device="cuda")
    results = []
    for function in (run, run, module):
        torch.manual_seed(1)
        results.append(function(x)[0])
    assert torch.equal(results[0], results[1])
    assert torch.equal(results[0], results[2])
    assert not torch.equal(run(x)[0], results[0])


@pytest.mark.filterwarnings("ignore:prnn. not the persistent kernels")  # of double
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16], ids=str)
def test_compile_to_graphs_with_dropout(dtype: torch.dtype, training: bool) -> None:
    """Nothing of a call outlives it, in a memory pool that replays share; each draws masks of its own."""
    torch.compiler.reset()
    module = prnn.nn.LSTM(24, 64, num_layers=2, dropout=0.5, device="cuda", dtype=dtype)
    run = torch.compile(module, mode="reduce-overhead")
    x = torch.randn(9, 3, 24, device="cuda", dtype=dtype)
    outputs = []
    for _ in range(5):
        module.zero_grad()  # gradients are outputs of a graph, which the next call overwrites
        with torch.set_grad_enabled(training):
            output = run(x)[0]
            if training:
                output.sum().backward()
            outputs.append(output.detach().clone())
    assert all(not torch.equal(a, b) for a, b in itertools.pairwise(outputs))
    assert not training or module.weight_ih_l0.grad.isfinite().all()


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize(("cell", "options"), [("GRU", {}), ("LSTM", {"bidirectional": True, "num_layers": 2})])
def test_compile_to_graphs_with_lengths_on_the_host(cell: str, options: dict[str, Any], training: bool) -> None:
    """Which a graph cannot read: the layer's call is between two."""
    torch.compiler.reset()
    module = make(prnn.nn, cell, 24, 64, device="cuda", **options).requires_grad_(training)
    around = torch.nn.Linear(24, 24, device="cuda")

    def call(x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        return module(around(x).relu(), lengths=lengths)[0].sin()

    run = torch.compile(call, mode="reduce-overhead")
    for lengths in ([9, 2, 5], [9, 2, 5], [3, 9, 1], [9, 2, 5]):
        x = torch.randn(9, 3, 24, device="cuda")
        found = []
        for function in (run, call):
            around.zero_grad()
            with torch.set_grad_enabled(training):
                output = function(x, torch.tensor(lengths))
                if training:
                    output.sum().backward()
            found.append((output.detach().clone(), around.weight.grad.clone() if training else output.sum()))
        torch.testing.assert_close(*found, rtol=1e-3, atol=1e-3)


@pytest.mark.skipif(not _segments.ASKS_WHILE_COMPILING, reason="torch before 2.11 breaks the graph at resets on a GPU")
@pytest.mark.parametrize(
    ("cell", "hidden", "dtype", "zoneout"),
    [
        ("GRU", 32, torch.float32, 0.0),
        ("GRU", 32, torch.float32, 0.2),
        ("LSTM", 32, torch.float32, 0.2),
        ("LSTM", 1024, torch.bfloat16, 0.0),
    ],
    ids=str,
)
def test_compile_with_resets_that_kernels_read(cell: str, hidden: int, dtype: torch.dtype, zoneout: float) -> None:
    """In one graph, whether the layer was called before or not."""
    torch.compiler.reset()
    module = make(prnn.nn, cell, 24, hidden, zoneout=zoneout, device="cuda", dtype=dtype).eval()
    run = torch.compile(module, fullgraph=True)
    for batch in (3, 5):
        x = torch.randn(9, batch, 24, device="cuda", dtype=dtype, requires_grad=True)
        reset = torch.rand(9, batch, device="cuda") < 0.3
        found, expected = (call(x, reset=reset)[0] for call in (run, module))
        assert torch.equal(found, expected)
        assert torch.equal(*(torch.autograd.grad(y.sum(), x)[0] for y in (found, expected)))


def test_handles_of_threads_that_ended_serve_others(monkeypatch: pytest.MonkeyPatch) -> None:
    made = []
    make_library = _handles._cuda_library
    monkeypatch.setattr(_handles, "_spare", {})
    monkeypatch.setattr(_handles, "_cuda_library", lambda: made.append(make_library()) or made[-1])
    module, x = prnn.nn.LSTM(24, 40, device="cuda"), torch.randn(12, 4, 24, device="cuda")
    outputs = []

    def call() -> None:
        with torch.inference_mode(), torch.cuda.stream(torch.cuda.Stream()):
            outputs.append(module(x)[0].cpu())

    for _ in range(5):
        thread = threading.Thread(target=call)
        thread.start()
        thread.join()
    gc.collect()
    assert len(made) == 1
    assert all(torch.equal(output, outputs[0]) for output in outputs)


def test_more_timesteps_than_cudnn_takes() -> None:
    """Which the resident kernels then serve, whoever is faster; in training, too."""
    module = prnn.nn.GRU(8, 64, device="cuda")
    twin = prnn.nn.GRU(8, 64, device="cuda", backend="persistent")
    twin.load_state_dict(module.state_dict())
    x = torch.randn(65536, 2, 8, device="cuda", requires_grad=True)
    outputs = [layer(x)[0] for layer in (module, twin)]
    assert torch.equal(*outputs)
    assert torch.equal(*(torch.autograd.grad(output.sum(), x)[0] for output in outputs))
    with torch.no_grad():
        assert torch.equal(module(x)[0], outputs[0])


@pytest.fixture
def filled_memory() -> Iterator[None]:
    """Memory that nobody has written to is the same in every run, as opcheck compares the reserve space whole. cuDNN's,
    which `best` takes for so few timesteps, differs all the same."""
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


@pytest.mark.usefixtures("filled_memory")
@pytest.mark.parametrize("lengths", [None, [5, 2, 3]])
@pytest.mark.parametrize(("cell", "dropout"), [("LSTM", 0.0), ("GRU", 0.0), ("LSTM", 0.5)])
def test_opcheck(cell: str, dropout: float, lengths: list[int] | None) -> None:
    module = make(prnn.nn, cell, 24, 40, num_layers=2, bidirectional=True, device="cuda")
    states = [torch.randn(4, 3, 40, device="cuda", requires_grad=True) for _ in range(2 if cell == "LSTM" else 1)]
    config = Config(prnn._ops.rnn.MODES[cell], 40, 0, 2, True, dropout, prnn._ops.rnn.BACKENDS["persistent"])
    arguments = (
        torch.randn(5, 3, 24, device="cuda", requires_grad=True),
        states[0],
        states[1] if cell == "LSTM" else None,
        [getattr(module, name) for name in module._packed_names],
        None,
        None if lengths is None else torch.tensor(lengths),
        None,
        [],
        torch.tensor([11, 3], device="cuda") if dropout else None,
        None,
        *config,
        False,
    )
    torch.library.opcheck(prnn._ops.rnn.rnn, arguments)


def test_info_names_the_row_and_its_largest_layers(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["info"]) == 0
    text = capsys.readouterr().out
    query = prnn._C.Rnn(prnn._C.LSTM, prnn._C.HALF, 256, 1, 256, False).query(prnn._C.Handle.cuda(), 4)
    assert f"GPU: {torch.cuda.get_device_name()}, planned as {query['device']}" in text
    (line,) = [line for line in text.splitlines() if line.startswith(f"* {query['device']} ")]
    assert f" {query['largest_hidden_size']} / " in line


def test_parameters_lie_together_each_in_a_storage_of_its_own() -> None:
    module = prnn.nn.LSTM(64, 64, num_layers=3).to("cuda", torch.bfloat16)
    parameters = [getattr(module, name) for name in module._packed_names]
    ends = [parameter.data_ptr() + parameter.nbytes for parameter in parameters]
    assert [parameter.data_ptr() for parameter in parameters[1:]] == ends[:-1]
    for parameter in parameters:
        stored = io.BytesIO()
        torch.save(parameter, stored)
        assert len(stored.getvalue()) < parameter.nbytes + 4096
    expected = module.state_dict()
    before = torch.cuda.memory_allocated()
    weight, copied = module.weight_hh_l1, module.weight_hh_l1.detach().clone()
    del module, parameters, parameter, expected
    gc.collect()
    others = [torch.zeros(3 * 64 * 64 * 8, device="cuda", dtype=torch.bfloat16) for _ in range(4)]
    assert torch.equal(weight, copied)  # it keeps the buffer
    del weight, others
    gc.collect()
    assert torch.cuda.memory_allocated() < before
