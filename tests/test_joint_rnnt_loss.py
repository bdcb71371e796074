"""RNN-T with its joiner against the same loss on explicit logits."""

import math

import pytest
import torch
from joint_case import (
    DEVICES,
    TOLERANCES,
    assert_autocast,
    assert_bad_values_concern_their_own_sequence,
    assert_close_to_float64,
    assert_padding_is_not_read,
    assert_repeats_bitwise_and_in_a_graph,
    case,
    gradients,
    logits_of,
    needs_gpu,
    relative_errors,
    step_memory,
    take_another_row,
)

import prnn
from prnn import _C
from prnn._ops.joint import joint_options
from prnn._ops.rnnt import rnnt_options


def explicit(leaves, targets, frames, symbols, activation="tanh", **options):
    return prnn.rnnt_loss(logits_of(leaves, activation), targets, frames, symbols, 0, **options)


def ours_of(leaves, batch, **options):
    return prnn.joint_rnnt_loss(*leaves, *batch, 0, **options)


def explicit_of(leaves, batch, **options):
    return explicit(leaves, *batch, **options)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("block_elements", [1, 40, 200, 10**6])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"activation": "relu"},
        {"rnnt_type": "modified"},
        {"rnnt_type": "constrained"},
        {"rnnt_type": "final_blank"},
        {"fastemit_lambda": 0.1},
        {"clamp": 0.05},
        {"delay_penalty": 0.2},
    ],
    ids=str,
)
def test_equals_explicit_logits(device, block_elements, options):
    leaves, *batch = case(device)
    ours = prnn.joint_rnnt_loss(*leaves, *batch, 0, reduction="none", block_elements=block_elements, **options)
    wanted = explicit(leaves, *batch, reduction="none", **options)
    torch.testing.assert_close(ours, wanted, rtol=1e-12, atol=1e-12)
    if options.get("rnnt_type", "regular") != "regular":  # some sequences have no path: infinite costs
        ours, wanted = (torch.where(x.isfinite(), x, 0) for x in (ours, wanted))
    for one, other in zip(gradients(ours, leaves), gradients(wanted, leaves), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("device", DEVICES)
def test_lengths_on_the_device_and_no_bias(device):
    leaves, targets, frames, symbols = case(device, bias=False)
    ours = prnn.joint_rnnt_loss(*leaves, targets, frames.to(device), symbols.to(device), 0, reduction="none")
    torch.testing.assert_close(ours, explicit(leaves, targets, frames, symbols, reduction="none"))


def ranges_of(begins, kept, device="cpu"):
    """(3, T, kept) from the first position of each frame."""
    return torch.tensor(begins, device=device).expand(3, -1)[:, :, None] + torch.arange(kept, device=device)


DTYPES = [torch.float64, torch.float32, torch.bfloat16, torch.float16]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("activation", ["tanh", "relu"])
@pytest.mark.parametrize("pruned", [False, True])
@pytest.mark.parametrize("filling", [math.nan, math.inf, -math.inf])
def test_padding_is_not_read(device, dtype, activation, pruned, filling):
    leaves, targets, *_ = case(device, dtype)
    ranges = ranges_of([0, 0, 1, 1, 2, 2, 2], 3, device) if pruned else None

    def loss(leaves, batch):
        return ours_of(leaves, batch, activation=activation, ranges=ranges)

    assert_padding_is_not_read(loss, leaves, targets, filling)


@pytest.mark.parametrize("device", DEVICES)
def test_gradcheck(device):
    leaves, *batch = case(device, n=2, t=4, u=2, d=3, v=4)
    assert torch.autograd.gradcheck(lambda *x: prnn.joint_rnnt_loss(*x, *batch, 0, reduction="none"), leaves)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("activation", ["tanh", "relu"])
def test_dropout_is_the_same_forward_and_backward(device, activation):
    leaves, *batch = case(device, n=2, t=4, u=2, d=3, v=4)

    def loss(*x):
        torch.manual_seed(3)
        return prnn.joint_rnnt_loss(*x, *batch, 0, reduction="none", dropout=0.4, activation=activation)

    assert torch.autograd.gradcheck(loss, leaves)
    dropped = prnn.joint_rnnt_loss(*leaves, *batch, 0, reduction="none", dropout=0.4)
    assert not torch.equal(dropped, loss(*leaves))


@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_operators(dropout):
    leaves, targets, frames, symbols = case(n=2, t=4, u=2, d=3, v=4)
    arguments = (*leaves, targets.int(), frames.int(), symbols.int(), torch.tensor([5]) if dropout > 0 else None)
    options = (0, dropout, 100, *rnnt_options(input=_C.LOSS_LOGITS), True)
    torch.library.opcheck(torch.ops.prnn.joint_rnnt_loss_blockwise.default, (*arguments, *options))


@pytest.mark.parametrize("pruned", [False, True])
@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_compiles_and_transforms_on_the_cpu(pruned, dropout):
    leaves, *batch = case()
    ranges = ranges_of([0, 0, 1, 1, 2, 2, 2], 3) if pruned else None

    def loss(*x):
        return prnn.joint_rnnt_loss(*x, *batch, 0, reduction="sum", zero_infinity=True, ranges=ranges, dropout=dropout)

    def seeded(function):
        torch.manual_seed(3)
        return function()

    wanted = seeded(lambda: torch.autograd.grad(loss(*leaves), leaves))
    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")
    transformed = torch.func.grad(loss, argnums=(0, 1, 2, 3))
    for ours in (seeded(lambda: torch.autograd.grad(compiled(*leaves), leaves)), seeded(lambda: transformed(*leaves))):
        for one, other in zip(ours, wanted, strict=True):
            torch.testing.assert_close(one, other)


def test_module():
    torch.manual_seed(0)
    module = prnn.JointRNNTLoss(5, 6, blank=0).double()
    leaves, *batch = case()
    wanted = explicit([*leaves[:2], module.output.weight, module.output.bias], *batch)
    torch.testing.assert_close(module(*leaves[:2], *batch), wanted)
    ranges = ranges_of([0, 0, 1, 1, 2, 2, 2], 3)
    layer = module.output.weight, module.output.bias
    pruned = prnn.joint_rnnt_loss(*leaves[:2], *layer, *batch, 0, ranges=ranges)
    torch.testing.assert_close(module(*leaves[:2], *batch, ranges=ranges), pruned)
    other = prnn.JointRNNTLoss(5, 6, bias=False, device="meta", dtype=torch.float16).output
    assert (other.weight.device.type, other.weight.dtype, other.bias) == ("meta", torch.float16, None)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ((-4, 6), ValueError, "joiner_dim is -4; it must be 1 to"),
        ((5, 6.0), TypeError, r"vocab_size is 6\.0; it must be an int"),
        ((5, 6, 6), ValueError, "blank is 6; with 6 classes it must be -6 to 5"),
        ((5, 6, None), TypeError, "blank is None"),
    ],
)
def test_bad_arguments_of_the_module(arguments, error, message):
    with pytest.raises(error, match=message):
        prnn.JointRNNTLoss(*arguments)


@pytest.mark.parametrize("pruned", [False, True])
@pytest.mark.parametrize(
    ("symbol", "message"),
    [
        (6, "targets of sequence 1 hold 6 at position 1; it must be 0 to 5"),
        (-1, "targets of sequence 1 hold -1 at position 1; it must be 0 to 5"),
        (0, "targets of sequence 1 hold the blank, 0, at position 1"),
    ],
)
def test_targets_out_of_range(pruned, symbol, message):
    leaves, targets, frames, symbols = case()
    ranges = ranges_of([0, 0, 1, 1, 2, 2, 2], 3) if pruned else None
    targets[1, 1] = symbol
    with pytest.raises(ValueError, match=message):
        prnn.joint_rnnt_loss(*leaves, targets, frames, symbols, 0, ranges=ranges)
    targets[1, 1], targets[1, 2:] = 1, symbol
    assert prnn.joint_rnnt_loss(*leaves, targets, frames, symbols, 0, ranges=ranges, zero_infinity=True).isfinite()


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"activation": "gelu"}, ValueError, "activation is 'gelu'"),
        ({"dropout": 1.0}, ValueError, "dropout is 1.0"),
        ({"block_elements": 0}, ValueError, "block_elements is 0"),
        ({"predictor_out": torch.zeros(3, 5, 4, dtype=torch.float64)}, ValueError, "predictor_out has the shape"),
        ({"weight": torch.zeros(6, 5)}, TypeError, "weight is of torch.float32"),
        ({"bias": torch.zeros(5, dtype=torch.float64)}, ValueError, "bias has the shape"),
        ({"targets": torch.zeros(3, 5, dtype=torch.int64)}, ValueError, "must be U . 1, here 6"),
        ({"targets": torch.zeros(2, 4, dtype=torch.int64)}, ValueError, "targets has the shape"),
        ({"logit_lengths": torch.tensor([8, 1, 1])}, ValueError, "is 8"),
        ({"target_lengths": torch.tensor([4, -1, 1])}, ValueError, "is -1"),
        ({"blank": 6}, ValueError, "blank is 6"),
    ],
    ids=str,
)
def test_bad_input(change, error, message):
    leaves, targets, frames, symbols = case()
    names = ("encoder_out", "predictor_out", "weight", "bias")
    arguments = dict(zip(names, leaves, strict=True))
    arguments |= {"targets": targets, "logit_lengths": frames, "target_lengths": symbols, "blank": 0}
    with pytest.raises(error, match=message):
        prnn.joint_rnnt_loss(**{**arguments, **change})


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("rnnt_type", ["regular", "modified"])
@pytest.mark.parametrize("block_elements", [None, 30])
def test_ranges_limit_the_cells(device, rnnt_type, block_elements):
    leaves, targets, frames, symbols = case(device, t=8)
    begins = torch.tensor([0, 0, 1, 1, 2, 2, 2, 2], device=device).expand(3, -1)
    ranges = begins[:, :, None] + torch.arange(3, device=device)
    options = {"rnnt_type": rnnt_type, "fastemit_lambda": 0.1, "delay_penalty": 0.05, "reduction": "none"}
    frames = torch.tensor([8, 5, 3])
    ours = prnn.joint_rnnt_loss(
        *leaves, targets, frames, symbols, 0, ranges=ranges, block_elements=block_elements, **options
    )
    # The expected gradients have the logits of all other cells so that no path goes through them.
    encoder, predictor, weight, bias = leaves
    logits = torch.nn.functional.linear((encoder[:, :, None] + predictor[:, None]).tanh(), weight, bias)
    logits = logits.log_softmax(-1)
    positions = torch.arange(5, device=device)
    kept = (positions >= begins[:, :, None]) & (positions < begins[:, :, None] + 3)
    logits = torch.where(kept[..., None], logits, -torch.inf)
    wanted = prnn.rnnt_loss(logits, targets, frames, symbols, 0, fused_log_softmax=False, **options)
    assert wanted.isfinite().any()
    torch.testing.assert_close(ours, wanted, rtol=1e-12, atol=1e-12)
    ours, wanted = (torch.where(x.isfinite(), x, 0) for x in (ours, wanted))
    for one, other in zip(gradients(ours, leaves), gradients(wanted, leaves), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("pruned", [False, True])
def test_autocast_on_the_cpu_changes_nothing(pruned):
    leaves, *batch = case(dtype=torch.float32, t=8)
    ranges = torch.zeros(3, 8, 1, dtype=torch.int64) + torch.arange(5) if pruned else None
    wanted = prnn.joint_rnnt_loss(*leaves, *batch, 0, ranges=ranges)
    with torch.autocast("cpu", torch.bfloat16):
        ours = prnn.joint_rnnt_loss(*leaves, *batch, 0, ranges=ranges)
    assert torch.equal(ours, wanted)


# ---- On a GPU alone ----


@needs_gpu
@pytest.mark.parametrize("activation", ["tanh", "relu"])
@pytest.mark.parametrize(("dtype", "tolerance"), TOLERANCES)
@pytest.mark.parametrize("sizes", [{"d": 64, "v": 100}, {"d": 51, "v": 37}, {"d": 512, "v": 1030}], ids=str)
def test_types(dtype, tolerance, sizes, activation):
    leaves, *batch = case("cuda", dtype, n=3, t=40, u=12, **sizes)
    assert_close_to_float64(ours_of, explicit_of, leaves, batch, tolerance, activation=activation)


@needs_gpu
@pytest.mark.parametrize(("dtype", "tolerance"), TOLERANCES)
def test_types_without_hopper(dtype, tolerance, monkeypatch):
    leaves, *batch = case("cuda", dtype, n=3, t=40, u=12, d=51, v=37)
    with take_another_row(monkeypatch):
        assert_close_to_float64(ours_of, explicit_of, leaves, batch, tolerance, block_elements=4000)


@needs_gpu
@pytest.mark.parametrize("tf32", [False, True])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("longest", [0, 1, 2])
def test_chunks_of_padding(longest, dtype, tf32, precision_of_products):
    """Lengths on the GPU, which the host does not look at: the cells that there are lie at the front, in a few of the
    chunks. The same with the lengths on the host."""
    torch.backends.cuda.matmul.allow_tf32 = tf32
    leaves, targets, _, _ = case("cuda", dtype, n=3, t=60, u=12, d=24, v=50)
    frames, symbols = torch.tensor([5, 3, 1]), torch.tensor([4, 0, 2])
    frames[longest] = 20
    found = []
    for device in ("cpu", "cuda"):
        lengths = frames.to(device), symbols.to(device)
        loss = prnn.joint_rnnt_loss(*leaves, targets, *lengths, 0, reduction="none", block_elements=50 * 64)
        found.append(gradients(loss, leaves))
    assert max(relative_errors(*reversed(found))) < (1e-12 if dtype == torch.float64 else 1e-3)


@needs_gpu
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_gradients_are_zeros_where_no_length_is_valid(dtype):
    leaves, targets, frames, symbols = case("cuda", dtype, n=3, t=60, u=12, d=24, v=50)
    loss = prnn.joint_rnnt_loss(*leaves, targets, frames.cuda() + 1000, symbols.cuda(), 0, reduction="none")
    assert loss.isnan().all()
    assert all(not gradient.any() for gradient in gradients(loss.nan_to_num(), leaves))


@needs_gpu
@pytest.mark.parametrize(("dtype", "tolerance"), TOLERANCES)
def test_cells_that_hardly_a_path_takes_are_left_out(dtype, tolerance):
    """Most of a long lattice, whose cells lie in several chunks."""
    leaves, targets, _, _ = case("cuda", dtype, n=3, t=200, u=60, d=72, v=300)
    batch = (targets, torch.tensor([200, 130, 61]), torch.tensor([60, 60, 7]))
    assert_close_to_float64(ours_of, explicit_of, leaves, batch, tolerance, block_elements=300 * 1100)


@needs_gpu
@pytest.mark.parametrize(("dtype", "tolerance"), TOLERANCES)
@pytest.mark.parametrize(
    "sizes",
    [{"n": 2, "t": 20, "u": 290, "d": 40}, {"n": 1, "t": 1500, "u": 2, "d": 72}, {"n": 130, "t": 4, "u": 3, "d": 9}],
    ids=str,
)
def test_more_symbols_frames_and_sequences_than_a_block_takes(dtype, tolerance, sizes):
    """Sequences of the same lengths, in chunks that end anywhere."""
    leaves, targets, _, _ = case("cuda", dtype, v=30, **sizes)
    lengths = torch.full((sizes["n"],), sizes["t"]), torch.full((sizes["n"],), sizes["u"])
    for block_elements in (30 * 1700, None):
        assert_close_to_float64(ours_of, explicit_of, leaves, (targets, *lengths), tolerance, block_elements)


@needs_gpu
@pytest.mark.parametrize(
    "options",
    [
        {"rnnt_type": "modified"},
        {"rnnt_type": "constrained"},
        {"rnnt_type": "final_blank"},
        {"fastemit_lambda": 0.1},
        {"clamp": 0.05},
        {"delay_penalty": 0.2},
    ],
    ids=str,
)
def test_options_in_float32(options):
    leaves, *batch = case("cuda", torch.float32, n=3, t=40, u=12, d=40, v=30)
    assert_close_to_float64(ours_of, explicit_of, leaves, batch, 1e-5, block_elements=30 * 300, **options)


@needs_gpu
def test_ranges_in_float32():
    leaves, targets, frames, symbols = case("cuda", torch.float32, n=3, t=40, u=12, d=40, v=30)
    begins = (torch.arange(40, device="cuda") // 4).clamp(max=9).expand(3, -1)
    ranges = begins[:, :, None] + torch.arange(4, device="cuda")
    exact = [leaf.detach().double().requires_grad_() for leaf in leaves]
    options = {"ranges": ranges, "reduction": "none"}
    ours = prnn.joint_rnnt_loss(*leaves, targets, frames, symbols, 0, **options)
    wanted = prnn.joint_rnnt_loss(*exact, targets, frames, symbols, 0, **options)
    assert wanted.isfinite().any()
    torch.testing.assert_close(ours.double(), wanted, rtol=1e-5, atol=0)
    ours, wanted = (torch.where(x.isfinite(), x, 0) for x in (ours, wanted))
    errors = relative_errors(gradients(ours, leaves), gradients(wanted, exact))
    assert max(errors) < 1e-5, errors


@needs_gpu
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_ranges_that_begin_beyond_the_targets(dtype):
    """These frames have no cells, of which unwritten memory would be read."""
    leaves, targets, frames, symbols = case("cuda", dtype, n=2, t=9, u=5)
    symbols[1] = 1
    begins = (torch.arange(9, device="cuda") // 2).expand(2, -1)
    ranges = begins[:, :, None] + torch.arange(2, device="cuda")
    poison = torch.full((1 << 22,), math.nan, device="cuda")
    del poison  # so that the workspace lies there
    costs = prnn.joint_rnnt_loss(
        *leaves, targets, frames, symbols, 0, ranges=ranges, reduction="none", zero_infinity=True
    )
    assert costs.isfinite().all()
    assert costs[1] == 0
    found = gradients(costs, leaves)
    assert all(x.isfinite().all() for x in found)
    assert not found[0][1].any()


@needs_gpu
@pytest.mark.parametrize("scale", [1e-6, 1e4])
def test_float32_at_extreme_scales(scale):
    """Halves have a narrow range, which the products' scales must hide: inputs and gradients of any size."""
    leaves, *batch = case("cuda", torch.float32, n=3, t=20, u=6, d=40, v=30)
    with torch.no_grad():
        leaves[0] *= scale
        leaves[1] *= scale
        leaves[2] /= scale
    exact = [leaf.detach().double().requires_grad_() for leaf in leaves]
    ours = prnn.joint_rnnt_loss(*leaves, *batch, 0, activation="relu", reduction="none")
    wanted = explicit(exact, *batch, activation="relu", reduction="none")
    torch.testing.assert_close(ours.double(), wanted, rtol=1e-5, atol=0)
    ours = torch.autograd.grad((ours * 1e-20).sum(), leaves)
    wanted = torch.autograd.grad((wanted * 1e-20).sum(), exact)
    errors = relative_errors(ours, wanted)
    assert max(errors) < 1e-5, errors


@needs_gpu
@pytest.mark.parametrize("switch", ["set_float32_matmul_precision", "allow_tf32", "fp32_precision", "all products"])
def test_tf32_where_torch_allows_it(switch):
    matmul = torch.backends.cuda.matmul
    settings = {
        "set_float32_matmul_precision": (lambda: torch.set_float32_matmul_precision("high")),
        "allow_tf32": (lambda: setattr(matmul, "allow_tf32", True)),
        "fp32_precision": (lambda: setattr(matmul, "fp32_precision", "tf32")),
        "all products": (lambda: setattr(torch.backends, "fp32_precision", "tf32")),
    }
    if switch == "all products":
        matmul.fp32_precision = "none"  # follows the switch of all products; a test before may have set it
    leaves, *batch = case("cuda", torch.float32, n=3, t=40, u=12, d=64, v=100)
    exact = [leaf.detach().double().requires_grad_() for leaf in leaves]
    wanted = gradients(explicit(exact, *batch), exact)
    before = torch.backends.fp32_precision, matmul.fp32_precision

    def errors():
        return max(relative_errors(gradients(prnn.joint_rnnt_loss(*leaves, *batch, 0), leaves), wanted))

    assert errors() < 1e-5
    settings[switch]()
    try:
        assert 1e-6 < errors() < 2e-3
    finally:
        torch.set_float32_matmul_precision("highest")
        torch.backends.fp32_precision, matmul.fp32_precision = before


@needs_gpu
def test_autocast():
    leaves, *batch = case("cuda", torch.float32, n=3, t=40, u=12, d=64, v=100)
    assert_autocast(ours_of, explicit_of, leaves, batch)


@needs_gpu
def test_bad_lengths_and_symbols_concern_their_own_sequence():
    leaves, targets, *_ = case("cuda")
    assert_bad_values_concern_their_own_sequence(ours_of, leaves, targets, 1e-13, (1e-10, 1e-13))


@needs_gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_repeats_bitwise_and_in_a_graph(dtype):
    assert_repeats_bitwise_and_in_a_graph(ours_of, *case("cuda", dtype, n=3, t=40, u=12, d=64, v=100))


@needs_gpu
def test_dropout_in_a_graph_is_drawn_anew():
    leaves, targets, frames, symbols = case("cuda", torch.float32, n=3, t=40, u=12, d=64, v=100)
    frames, symbols = frames.cuda(), symbols.cuda()
    with torch.no_grad():
        prnn.joint_rnnt_loss(*leaves, targets, frames, symbols, 0, dropout=0.5)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            loss = prnn.joint_rnnt_loss(*leaves, targets, frames, symbols, 0, dropout=0.5)
    losses = set()
    for _ in range(3):
        graph.replay()
        losses.add(float(loss))
    assert len(losses) == 3


@needs_gpu
def test_dropout_in_a_graph_is_the_same_backward():
    """One unit a frame: the cost tells how many frames kept it, and so does the gradient of its weight."""
    frames, unit = 64, math.tanh(0.5) / 0.5
    encoder = torch.full((1, frames, 1), 0.5, device="cuda")
    predictor = torch.zeros(1, 1, 1, device="cuda")
    weight = torch.tensor([[0.0], [0.3]], device="cuda", requires_grad=True)
    lengths = torch.full((1,), frames, device="cuda"), torch.zeros(1, dtype=torch.int64, device="cuda")
    nothing = torch.zeros(1, 0, dtype=torch.int32, device="cuda")

    def step():
        loss = prnn.joint_rnnt_loss(encoder, predictor, weight, None, nothing, *lengths, 0, dropout=0.5)
        return loss, *torch.autograd.grad(loss, weight)

    step()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        loss, gradient = step()
    counts = []
    for _ in range(6):
        graph.replay()
        each = math.log1p(math.exp(0.3 * unit)) - math.log(2)
        counts.append(round((float(loss.detach()) - frames * math.log(2)) / each))
        slope = unit / (1 + math.exp(-0.3 * unit))
        assert abs(float(gradient[1, 0]) - counts[-1] * slope) < 1e-3
    assert len(set(counts)) > 1


@needs_gpu
def test_dropout_keeps_the_mean_of_the_activations():
    """With a weight that picks one activation, logits are those of dropout: 0, or 2 tanh."""
    n, t, d = 1, 4000, 8
    encoder = torch.full((n, t, d), 0.5, device="cuda", requires_grad=True)
    predictor = torch.zeros(n, 1, d, device="cuda")
    weight = torch.zeros(2, d, device="cuda")
    weight[1, 3] = 1
    nothing = torch.zeros(1, 0, dtype=torch.int32, device="cuda")
    loss = prnn.joint_rnnt_loss(encoder, predictor, weight, None, nothing, [t], [0], 0, reduction="sum", dropout=0.25)
    (gradient,) = torch.autograd.grad(loss, encoder)
    kept = (gradient[0, :, 3] != 0).float().mean()
    assert abs(float(kept) - 0.75) < 0.03
    assert not gradient[0, :, :3].any()


@needs_gpu
@pytest.mark.parametrize(("dtype", "most"), [(torch.float32, 400), (torch.bfloat16, 260)])
def test_memory_is_bounded_by_the_lattice(dtype, most):
    """Logits would be 21 x 200 x 101 x 2000: 3.4 GB in float32."""
    leaves, *batch = case("cuda", dtype, n=21, t=200, u=100, d=256, v=2000)
    batch[1:] = [torch.full((21,), 200), torch.full((21,), 100)]
    assert step_memory(ours_of, leaves, batch) < most


@needs_gpu
def test_operators_on_a_gpu():
    leaves, targets, frames, symbols = case("cuda", n=2, t=4, u=2, d=3, v=4)
    lengths = (frames.int().cuda(), symbols.int().cuda())
    arguments = (*leaves, targets.int(), *lengths, None, None, torch.stack((frames, symbols)))
    options = (0, *joint_options(), True)
    torch.library.opcheck(torch.ops.prnn.joint_rnnt_loss.default, (*arguments, *options))


@needs_gpu
def test_compiles():
    leaves, targets, frames, symbols = case("cuda", torch.float32)
    batch = (targets, frames.cuda(), symbols.cuda())

    def loss(*x):
        return prnn.joint_rnnt_loss(*x, *batch, 0)

    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")
    for one, other in zip(gradients(compiled(*leaves), leaves), gradients(loss(*leaves), leaves), strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("ranges", [False, True])
def test_a_bias_of_another_type(ranges):
    leaves, *batch = case("cpu", torch.float32, n=2, t=5, u=3, d=4, v=6)
    begins = torch.arange(2).expand(2, 5, 2).contiguous() if ranges else None
    expected = prnn.joint_rnnt_loss(*leaves, *batch, 0, ranges=begins)
    leaves[-1] = leaves[-1].detach().double().requires_grad_()
    found = prnn.joint_rnnt_loss(*leaves, *batch, 0, ranges=begins)
    torch.testing.assert_close(found, expected)
    found.backward()
    assert leaves[-1].grad.dtype == torch.float64
