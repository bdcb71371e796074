"""prnn.nn.sLSTM and the cells of other packages on a GPU: values and all gradients beside float64 on the CPU."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from nn_slstm_case import Case, both
from test_compat_slstm import Config, flash_arguments

import prnn
from prnn.compat import flashrnn, tirex, xlstm

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")

TOLERANCE = {torch.float32: 2e-5, torch.float16: 3e-3, torch.bfloat16: 2e-2}
HALF, BFLOAT16, FLOAT = torch.float16, torch.bfloat16, torch.float32


@pytest.fixture(autouse=True)
def exact(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)


def error(found: torch.Tensor, expected: torch.Tensor) -> float:
    return ((found.double().cpu() - expected).norm() / expected.norm().clamp_min(1e-6)).item()


@pytest.mark.parametrize("dtype", [HALF, BFLOAT16, FLOAT], ids=str)
@pytest.mark.parametrize(
    "case",
    [
        Case(steps=9, batch=16, inputs=24, hidden=128, heads=4, scale=0.3),
        Case(steps=9, batch=5, inputs=24, hidden=96, heads=2, layers=2, forget_gate="exponential", scale=0.3),
        Case(steps=9, batch=4, inputs=8, hidden=40, lengths=(9, 1, 4, 9), scale=0.5),
        Case(steps=9, batch=4, inputs=8, hidden=64, heads=2, lengths=(9, 1, 4, 9), reset=True, reset_states=True),
        Case(steps=1, batch=1, inputs=8, hidden=64, heads=4, states=False, scale=0.5),
    ],
    ids=str,
)
def test_equals_its_formulas(case: Case, dtype: torch.dtype) -> None:
    # Rounding decides which side of the maximum m is in near ties, on which gradients of c, n and m depend.
    ours, theirs = both(case, dtype, "cuda", of_cells=dtype == FLOAT)
    for state in "cn":  # as of the m that was rounded: c exp(m) and n exp(m) are the state
        theirs[state] = theirs[state] * torch.exp(theirs["m"] - ours["m"])
    for name, expected in theirs.items():
        assert error(ours[name], expected) < TOLERANCE[dtype], name


def test_graphs_and_compiled_functions() -> None:
    module = Case(hidden=64, heads=2).module(FLOAT).cuda()
    x = torch.randn(6, 3, 5, device="cuda")
    expected, last = module(x)
    output, states = torch.compile(module, fullgraph=True, backend="aot_eager")(x)
    for own, wanted in zip((output, *states), (expected, *last), strict=True):
        torch.testing.assert_close(own, wanted)
    graph = torch.cuda.CUDAGraph()
    with torch.no_grad():
        module(x)
        torch.cuda.synchronize()
        with torch.cuda.graph(graph):
            replayed, _ = module(x)
        x.copy_(torch.randn_like(x))
        graph.replay()
        assert torch.equal(replayed, module(x)[0])


def test_chunks_are_the_whole() -> None:
    module = Case(hidden=64, heads=2, layers=2).module(BFLOAT16).cuda()
    x = torch.randn(12, 3, 5, device="cuda", dtype=BFLOAT16)
    with torch.no_grad():
        whole, _ = module(x)
        states, outputs = None, []
        for chunk in x.split([5, 1, 6]):
            output, states = module(chunk, states)
            outputs.append(output)
    torch.testing.assert_close(torch.cat(outputs), whole, rtol=2**-6, atol=2**-6)


def test_autocast() -> None:
    module = Case(hidden=64, heads=2).module(FLOAT).cuda()
    x = torch.randn(6, 3, 5, device="cuda")
    with torch.autocast("cuda", BFLOAT16):
        output, states = module(x)
        again, _ = module(x, states)
    assert {tensor.dtype for tensor in (output, *states, again)} == {BFLOAT16}
    torch.testing.assert_close(output.float(), module(x)[0], rtol=2**-5, atol=2**-5)


def test_what_no_kernel_serves() -> None:
    with pytest.raises(prnn.NotSupportedError):
        prnn.nn.sLSTM(5, 8, device="cuda", dtype=torch.float64)(
            torch.zeros(2, 1, 5, device="cuda", dtype=torch.float64)
        )


def results(run: Any, *leaves: torch.Tensor) -> list[torch.Tensor]:
    found = run(*leaves)
    generator = torch.Generator().manual_seed(1)
    # Quarters, which every type holds exactly.
    factors = [torch.randint(-8, 9, value.shape, generator=generator).to(value) / 4 for value in found]
    loss = sum((factor * value).sum() for factor, value in zip(factors, found, strict=True))
    return [*found, *torch.autograd.grad(loss, leaves)]


def assert_near(ours: list[torch.Tensor], theirs: list[torch.Tensor]) -> None:
    for own, expected in zip(ours, theirs, strict=True):
        assert error(own, expected.double()) < TOLERANCE[BFLOAT16]


def test_cells_of_xlstm_and_tirex() -> None:
    x = torch.randn(2, 5, 48).bfloat16().float()
    exact = xlstm.sLSTMCell(Config())
    exact.load_state_dict({name: value.bfloat16().float() for name, value in exact.state_dict().items()})
    cell = xlstm.sLSTMCell(Config(backend="cuda", dtype_w="bfloat16"))
    other = tirex.sLSTMCell(SimpleNamespace(embedding_dim=12, num_heads=3), "cuda")
    expected = results(lambda x, *_: exact(x), x.requires_grad_())
    for own in (cell, other):
        own.load_state_dict(exact.state_dict())
        own.cuda()
        found = results(lambda x: own(x), x.detach().cuda().requires_grad_())  # noqa: B023
        assert_near(found, expected)


def test_flashrnn() -> None:
    exact = [argument.detach().bfloat16().double().requires_grad_() for argument in flash_arguments()]
    expected = results(lambda *a: flashrnn.flashrnn(*a, function="slstm", backend="vanilla"), *exact)
    given = [argument.detach().bfloat16().cuda().requires_grad_() for argument in exact]
    assert_near(results(lambda *a: flashrnn.flashrnn(*a, function="slstm"), *given), expected)
