"""Stacks on a GPU whose lowest layers train nothing: the same bits as if all did, by each way to run a stack."""

import copy
from typing import Any

import pytest
import torch
from nn_pairs import make
from test_frozen_layers import freeze
from test_rnn_cuda import why_not

import prnn

pytestmark = [
    pytest.mark.skipif(bool(why_not()), reason=f"needs a GPU: {why_not()}"),
    pytest.mark.filterwarnings("ignore:prnn. not the persistent kernels"),
]

HALF = torch.float16
# Cell, units, layers, sequences, timesteps, options; where layers run together on compute capability 9.0, the engine
# of their backward pass.
STACKS: dict[str, tuple[str, int, int, int, int, dict[str, Any], str]] = {
    "chunks": ("LSTM", 1024, 5, 4, 140, {"dtype": HALF, "dropout": 0.3}, "wavefront-chunked"),
    "chunks of GRUs": ("GRU", 1024, 4, 4, 140, {"dtype": torch.bfloat16}, "wavefront-chunked"),
    "chunks, projected": ("LSTM", 1024, 5, 4, 140, {"dtype": HALF, "proj_size": 512}, "wavefront-chunked"),
    "wavefront": ("LSTM", 512, 4, 4, 33, {"dtype": HALF, "dropout": 0.3}, "wavefront-mma"),
    "side by side": ("LSTM", 1024, 5, 16, 40, {"dtype": HALF, "dropout": 0.3}, "wgmma-split-k"),
    "float32": ("LSTM", 256, 4, 8, 33, {}, ""),
    "projected": ("LSTM", 512, 3, 4, 33, {"dtype": HALF, "proj_size": 256}, ""),
    "both directions": ("GRU", 320, 3, 5, 33, {"dtype": HALF, "bidirectional": True}, ""),
    "cuDNN": ("LSTM", 64, 3, 5, 33, {"dtype": torch.float64, "dropout": 0.3}, ""),
}


@pytest.mark.parametrize("stack", STACKS.values(), ids=STACKS)
def test_same_bits(stack: tuple[Any, ...]) -> None:
    cell, hidden, layers, batch, steps, options, engine = stack
    module = make(prnn.nn, cell, 48, hidden, num_layers=layers, device="cuda", **options)
    plan = prnn.explain(module, batch).layers[0]
    if engine and torch.cuda.get_device_capability() == (9, 0):
        assert plan.backward == engine
        assert plan.layers_together > 1
    x = torch.randn(steps, batch, 48, device="cuda", dtype=options.get("dtype"))
    kinds: list[dict[str, Any]] = [{}, {"lengths": torch.randint(1, steps + 1, (batch,))}]
    kinds[1]["lengths"][0] = steps

    def gradients(module: Any, **given: Any) -> dict[str, torch.Tensor]:
        torch.manual_seed(3)
        output, states = module(x, **given)
        loss = output.float().square().sum() + sum(state.float().sin().sum() for state in states)
        trained = {name: value for name, value in module.named_parameters() if value.requires_grad}
        return dict(zip(trained, torch.autograd.grad(loss, list(trained.values())), strict=True))

    for given in kinds:
        expected = gradients(freeze(copy.deepcopy(module), 0), **given)
        for frozen in range(1, layers):
            found = gradients(freeze(module, frozen), **given)
            assert len(found) == len(expected) * (layers - frozen) // layers
            for name, gradient in found.items():
                assert torch.equal(gradient, expected[name]), (frozen, name)


def test_captured_and_compiled() -> None:
    module = freeze(prnn.nn.LSTM(48, 256, 3, device="cuda", dtype=HALF), 2)
    x = torch.randn(20, 4, 48, device="cuda", dtype=HALF)

    def step(module: Any) -> None:
        module.zero_grad()
        module(x)[0].float().square().sum().backward()

    step(module)
    expected = [parameter.grad for parameter in module.parameters() if parameter.requires_grad]
    graph, side = torch.cuda.CUDAGraph(), torch.cuda.Stream()
    with torch.cuda.stream(side):
        step(module)
        module.zero_grad()
        with torch.cuda.graph(graph, stream=side):
            step(module)
    graph.replay()
    torch.cuda.synchronize()
    captured = [parameter.grad for parameter in module.parameters() if parameter.requires_grad]
    for found, wanted in zip(captured, expected, strict=True):
        assert torch.equal(found, wanted)
    compiled = torch.compile(module, mode="reduce-overhead")
    for _ in range(3):
        step(compiled)
        for parameter, wanted in zip((p for p in module.parameters() if p.requires_grad), expected, strict=True):
            assert torch.equal(parameter.grad, wanted)
