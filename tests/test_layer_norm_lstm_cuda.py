"""prnn.nn.LayerNormLSTM on the GPU: both engines against torch operations in float64."""

import itertools

import pytest
import torch
from layer_norm_lstm_case import Case, call_layer, compare, plan_of, results
from masked_layer_case import (
    check_autocast_on_gpu,
    check_each_replay_draws_masks,
    check_graph_keeps_lengths_of_the_host,
    check_graph_reads_lengths_anew,
    check_packed_sequences_on_gpu,
)
from reference.layer_norm_lstm import layer_norm_lstm as reference
from test_rnn_cuda import why_not

import prnn

pytestmark = pytest.mark.skipif(bool(why_not()), reason=f"needs a GPU: {why_not()}")

KINDS = ["gates", "products", "none"]
OPTIONS = pytest.mark.parametrize(
    "options",
    [
        {"reverse": True},
        {"states": False},
        {"zoneout": 0.25},
        {"masks": True},
        {"steps": 1},
        {"steps": 2},
        {"has_lengths": True},
        {"has_lengths": True, "reverse": True, "masks": True},
    ],
)
# Tolerances relative to the largest element of each result.
TOLERANCES = {torch.float64: 1e-11, torch.float32: 3e-5, torch.float16: 1e-2, torch.bfloat16: 8e-2}
HALVES = (torch.float16, torch.bfloat16)
FLOATS = (torch.float32, *HALVES)


def engines_of(case: Case, dtype: torch.dtype) -> tuple[str, str]:
    device = torch.device("cuda", torch.cuda.current_device())
    return plan_of(device, None, dtype, case.normalize, case.batch, case.hidden)[:2]


def engine_of(case: Case, dtype: torch.dtype) -> str:
    """Returns the engine of both passes."""
    forward, backward = engines_of(case, dtype)
    assert forward == backward
    return forward


@pytest.mark.parametrize("normalize", KINDS)
@pytest.mark.parametrize(("hidden", "batch"), [(7, 1), (33, 3), (600, 2), (1100, 2)])
def test_steps_in_float64(hidden: int, batch: int, normalize: str) -> None:
    case = Case(5, batch, hidden, normalize)
    assert engine_of(case, torch.float64) == "steps"
    compare(case, torch.float64, TOLERANCES[torch.float64], "cuda")


# One unit a thread, two, and more.
STEPS_SIZES = [(600, 110), (1024, 65), (1300, 40), (2048, 34), (2100, 1), (2100, 3)]


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("normalize", KINDS)
@pytest.mark.parametrize(("hidden", "batch"), STEPS_SIZES)
def test_steps(hidden: int, batch: int, normalize: str, dtype: torch.dtype) -> None:
    case = Case(6, batch, hidden, normalize)
    assert engine_of(case, dtype) == "steps"
    compare(case, dtype, TOLERANCES[dtype], "cuda")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("normalize", KINDS)
@pytest.mark.parametrize(("hidden", "batch"), [(600, 110), (1300, 40), (2100, 3)])
@OPTIONS
def test_options_of_steps(
    options: dict[str, object], hidden: int, batch: int, normalize: str, dtype: torch.dtype
) -> None:
    case = Case(**{"steps": 4, "batch": batch, "hidden": hidden, "normalize": normalize, **options})
    assert engine_of(case, dtype) == "steps"
    compare(case, dtype, TOLERANCES[dtype], "cuda")


GRID_SIZES = [(torch.float32, 513, 1), (torch.float32, 770, 3), (torch.float32, 1024, 12), (torch.float32, 640, 32)]
GRID_SIZES += itertools.product(HALVES, (513, 1024), (1, 9))
GRID_SIZES += [(torch.float16, 1300, 1), (torch.bfloat16, 640, 24), (torch.bfloat16, 2048, 8)]
GRID_SIZES += [(torch.bfloat16, 2048, 9), (torch.float16, 1930, 16)]  # two launches backward


@pytest.mark.parametrize("normalize", KINDS)
@pytest.mark.parametrize(("dtype", "hidden", "batch"), GRID_SIZES)
def test_grid(hidden: int, batch: int, normalize: str, dtype: torch.dtype) -> None:
    case = Case(6, batch, hidden, normalize)
    assert engine_of(case, dtype) == "grid"
    compare(case, dtype, TOLERANCES[dtype], "cuda")


@pytest.mark.parametrize(("dtype", "hidden", "batch"), [(torch.bfloat16, 1930, 11), (torch.float32, 900, 45)])
@OPTIONS
def test_options_of_two_launches(dtype: torch.dtype, hidden: int, batch: int, options: dict[str, object]) -> None:
    case = Case(**{"steps": 4, "batch": batch, "hidden": hidden, "normalize": "none", **options})
    assert engines_of(case, dtype) == ("grid", "steps" if dtype == torch.float32 else "grid")
    compare(case, dtype, TOLERANCES[dtype], "cuda")


MIXED_SIZES = [(torch.float32, 770, 33), (torch.float32, 1024, 48), (torch.float32, 1024, 64)]
MIXED_SIZES += [(torch.float16, 1024, 32), (torch.bfloat16, 600, 48), (torch.float16, 1920, 16)]
MIXED_SIZES += [(torch.bfloat16, 768, 30), (torch.bfloat16, 1300, 9)]


@pytest.mark.parametrize("normalize", KINDS)
@pytest.mark.parametrize(("dtype", "hidden", "batch"), MIXED_SIZES)
def test_forward_on_grid_and_backward_on_steps(dtype: torch.dtype, hidden: int, batch: int, normalize: str) -> None:
    case = Case(6, batch, hidden, "none" if dtype == torch.float32 else normalize)
    assert engines_of(case, dtype) == ("grid", "steps")
    compare(case, dtype, TOLERANCES[dtype], "cuda")


@pytest.mark.parametrize("normalize", ["gates", "products"])
@OPTIONS
def test_options_of_two_engines(normalize: str, options: dict[str, object]) -> None:
    case = Case(**{"steps": 4, "batch": 30, "hidden": 768, "normalize": normalize, **options})
    assert engines_of(case, torch.float16) == ("grid", "steps")
    compare(case, torch.float16, TOLERANCES[torch.float16], "cuda")


SIZES = [*itertools.product((64, 128, 130, 256, 300, 511, 512), (1, 9))]
SIZES += [(512, 64), (512, 57), (512, 90), (512, 91), (512, 8), (256, 130), (31, 5)]
SIZES += [(100, 60), (256, 40), (300, 20), (512, 28)]  # 3 and 4 sequences a cluster
SIZES += [(300, 57), (512, 100), (512, 112), (512, 113), (401, 130)]  # two column tiles, in one round and in two


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("normalize", KINDS)
@pytest.mark.parametrize(("hidden", "batch"), SIZES)
def test_cluster(hidden: int, batch: int, normalize: str, dtype: torch.dtype) -> None:
    case = Case(6, batch, hidden, normalize)
    assert engine_of(case, dtype) == "cluster"
    compare(case, dtype, TOLERANCES[dtype], "cuda")


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16], ids=str)
@pytest.mark.parametrize("normalize", KINDS)
@pytest.mark.parametrize("hidden", [72, 530])
@OPTIONS
def test_options(options: dict[str, object], hidden: int, normalize: str, dtype: torch.dtype) -> None:
    case = Case(**{"steps": 7, "batch": 3, "hidden": hidden, "normalize": normalize, **options})
    compare(case, dtype, TOLERANCES[dtype], "cuda")


@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("normalize", KINDS)
def test_blocks_of_many_units(normalize: str, dtype: torch.dtype) -> None:
    device = torch.device("cuda", torch.cuda.current_device())
    assert plan_of(device, None, dtype, normalize, 64, 512)[3] == 8
    compare(Case(7, 64, 512, normalize, True, masks=True, has_lengths=True), dtype, TOLERANCES[dtype], "cuda")
    compare(Case(7, 60, 512, normalize, states=False, zoneout=0.25), dtype, TOLERANCES[dtype], "cuda")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
@pytest.mark.parametrize("normalize", ["gates", "products"])
@pytest.mark.parametrize(("hidden", "batch"), [(300, 59), (512, 100)])
@OPTIONS
def test_options_of_two_column_tiles(
    options: dict[str, object], hidden: int, batch: int, normalize: str, dtype: torch.dtype
) -> None:
    """The last cluster has fewer sequences than one tile, or than two."""
    case = Case(**{"steps": 7, "batch": batch, "hidden": hidden, "normalize": normalize, **options})
    compare(case, dtype, TOLERANCES[dtype], "cuda")


@pytest.mark.parametrize("dtype", [torch.float64, *FLOATS], ids=str)
@pytest.mark.parametrize("normalize", KINDS)
@pytest.mark.parametrize("hidden", [72, 530])
def test_zoneout_keeps_every_bit(hidden: int, normalize: str, dtype: torch.dtype) -> None:
    case = Case(9, 4, hidden, normalize, masks=True)
    arrays = case.arrays(dtype, "cuda")
    y = call_layer(*arrays, *case.numbers())[0]
    before = torch.cat([arrays[1][None], y[:-1]])
    kept = arrays[8] == 1
    assert torch.equal(y[kept], before[kept])


@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_a_large_mean_costs_no_digits(dtype: torch.dtype) -> None:
    # x is a multiple of 1 there, so that only the moments can lose anything.
    case = Case(4, 3, 256, offset=512.0)
    compare(case, torch.float32, 3e-3, "cuda")
    ours, theirs = (results(case, dtype, "cuda", use_reference) for use_reference in (False, True))
    assert (ours["y"] - theirs["y"]).abs().max() < 0.02


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(("hidden", "batch"), [(160, 17), (1024, 17), (512, 110)])
def test_results_are_reproducible(hidden: int, batch: int, dtype: torch.dtype) -> None:
    case = Case(20, batch, hidden, masks=True)
    first, second = (results(case, dtype, "cuda", False) for _ in range(2))
    assert all(torch.equal(first[name], second[name]) for name in first)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16], ids=str)
def test_each_replay_of_a_graph_draws_masks(dtype: torch.dtype) -> None:
    module = prnn.nn.LayerNormLSTM(8, 64, 2, zoneout=0.3, recurrent_dropout=0.2, device="cuda", dtype=dtype)
    check_each_replay_draws_masks(module, dtype)


@pytest.mark.parametrize("hidden", [64, 600])
def test_a_graph_reads_lengths_anew(hidden: int) -> None:
    check_graph_reads_lengths_anew(prnn.nn.LayerNormLSTM(8, hidden, 2, device="cuda"))


@pytest.mark.parametrize("lengths", [(5, 1, 3), (2, 4), (5, 5)], ids=str)
@pytest.mark.parametrize("hidden", [64, 600])
def test_a_graph_keeps_lengths_of_the_host(hidden: int, lengths: tuple[int, ...]) -> None:
    check_graph_keeps_lengths_of_the_host(prnn.nn.LayerNormLSTM(8, hidden, 2, device="cuda"), lengths)


def test_packed_sequences() -> None:
    check_packed_sequences_on_gpu(prnn.nn.LayerNormLSTM(8, 600, 2, bidirectional=True, device="cuda"))


def test_autocast() -> None:
    check_autocast_on_gpu(prnn.nn.LayerNormLSTM(8, 64, device="cuda"))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16], ids=str)
def test_padding_does_not_count(dtype: torch.dtype) -> None:
    module = prnn.nn.LayerNormLSTM(8, 64, 2, bidirectional=True, device="cuda", dtype=dtype)
    x = torch.randn(5, 3, 8, device="cuda", dtype=dtype)
    lengths = torch.tensor([3, 5, 1], device="cuda")
    first, _ = module(x, lengths=lengths)
    for n, length in enumerate((3, 5, 1)):
        x[length:, n] = torch.nan
    x.requires_grad_()
    second, (h, c) = module(x, lengths=lengths)
    assert torch.equal(second, first)
    (second.sum() + h.sum() + c.sum()).backward()
    assert all(torch.isfinite(p.grad).all() for p in (x, *module.parameters()))


@pytest.mark.parametrize("dtype", TOLERANCES, ids=str)
@pytest.mark.parametrize("normalize", ["gates", "products"])
@pytest.mark.parametrize("hidden", [64, 600])
def test_reset(hidden: int, normalize: str, dtype: torch.dtype) -> None:
    """Against the same in float64 on the CPU."""
    module = prnn.nn.LayerNormLSTM(8, hidden, 2, normalize=normalize, bidirectional=True, device="cuda", dtype=dtype)
    exact = prnn.nn.LayerNormLSTM(8, hidden, 2, normalize=normalize, bidirectional=True, dtype=torch.float64)
    exact.load_state_dict(module.state_dict())
    x = torch.randn(7, 3, 8, device="cuda", dtype=dtype)
    states = torch.randn(4, 4, 3, hidden, device="cuda", dtype=dtype)
    reset = torch.rand(7, 3) < 0.4
    found = []
    for layer, input, given in ((module, x, states), (exact, x.double().cpu(), states.double().cpu())):
        input, given = input.clone().requires_grad_(), given.clone().requires_grad_()
        flags = reset.to(input.device)
        output, (h, c) = layer(input, (given[0], given[1]), reset=flags, reset_hx=(given[2], given[3]))
        (output.sin().sum() + h.cos().sum() + c.sin().sum()).backward()
        found.append([output, h, c, input.grad, given.grad, *(p.grad for p in layer.parameters())])
    for ours, expected in zip(*found, strict=True):
        error = (ours.double().cpu() - expected).abs().max() / expected.abs().max().clamp_min(1e-3)
        assert error <= TOLERANCES[dtype]


def test_a_graph_has_resets_of_one_timestep() -> None:
    """An agent acts: nothing is cut, which a graph could not wait for."""
    module = prnn.nn.LayerNormLSTM(8, 64, device="cuda", zoneout=0.2).eval()
    x, reset = torch.randn(1, 3, 8, device="cuda"), torch.rand(1, 3, device="cuda") < 0.3
    states = torch.randn(1, 3, 64, device="cuda"), torch.randn(1, 3, 64, device="cuda")
    with torch.no_grad():
        module(x, states, reset=reset)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            output, _ = module(x, states, reset=reset)
            with pytest.raises(ValueError, match="reset is on cuda:0, and a CUDA graph is being captured"):
                module(x.expand(6, -1, -1), states, reset=reset.expand(6, -1))
        reset.logical_not_()
        graph.replay()
        torch.cuda.synchronize()
        assert torch.equal(output, module(x, states, reset=reset)[0])


@pytest.mark.parametrize(("hidden", "batch"), [(128, 2), (512, 100)])
def test_long_sequences_do_not_drift(hidden: int, batch: int) -> None:
    case = Case(400, batch, hidden)
    compare(case, torch.float16, 2e-2, "cuda")


def test_the_largest_layer() -> None:
    hidden = 9642
    with pytest.raises(prnn.NotSupportedError, match=f"hiddenSize is {hidden + 1}; a timestep has room for {hidden} "):
        engine_of(Case(1, 1, hidden + 1), torch.float16)
    x = torch.randn(2, 1, 4 * hidden, device="cuda").half().requires_grad_()
    recurrent = torch.zeros(4 * hidden, hidden, device="cuda", dtype=torch.float16)
    gains = [torch.ones(4 * hidden, device="cuda").half(), torch.zeros(4 * hidden, device="cuda").half()]
    gains += [gain[:hidden] for gain in gains]
    y, _ = call_layer(x, None, None, recurrent, *gains, None, None, None, 0, False, 1e-5, 0.0)
    y.sum().backward()
    expected, _ = reference(x.detach().float(), None, None, recurrent.float(), *(gain.float() for gain in gains))
    assert (y.float() - expected).abs().max() < 0.01
    assert torch.isfinite(x.grad).all()


def one_element_further(array: torch.Tensor) -> torch.Tensor:
    memory = torch.empty(array.numel() + 1, device=array.device, dtype=array.dtype)
    return memory[1:].view(array.shape).copy_(array)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("normalize", KINDS)
@pytest.mark.parametrize(("hidden", "batch"), [(600, 110), (2100, 3)])
def test_steps_load_packs_of_four_where_arrays_allow(
    hidden: int, batch: int, normalize: str, dtype: torch.dtype
) -> None:
    case = Case(3, batch, hidden, normalize, masks=True)
    aligned = results(case, dtype, "cuda", False)
    apart = results(case, dtype, "cuda", False, moves=one_element_further)
    for name, expected in aligned.items():
        error = (apart[name] - expected).abs().max() / expected.abs().max()
        assert error <= TOLERANCES[dtype] / 4, name
