"""prnn.nn.LayerNormLSTM and its operator on the CPU: values and gradients against torch operations in float64, what the
module takes, refuses and loads."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from layer_norm_lstm_case import Case, call_layer, check_operator, compare, plan_of, results
from masked_layer_case import check_lengths, check_masks_follow_torchs_generator, check_packed_sequences
from reference.layer_norm_lstm import TorchaudioLSTM
from reference.layer_norm_lstm import layer_norm_lstm as reference
from torch.nn.utils import prune
from torch.nn.utils.rnn import pack_sequence

import prnn
from prnn import _layer_norm_stack
from prnn._ops._sequences import sequences_of

KINDS = ["gates", "products", "none"]
CASES = [
    Case(5, 3, 4),
    Case(1, 1, 1, states=False),
    Case(7, 1, 33),
    Case(4, 17, 20, reverse=True),
    Case(6, 2, 9, zoneout=0.25),
    Case(6, 5, 13, masks=True),
    Case(3, 2, 6, masks=True, reverse=True, states=False),
    Case(20, 49, 70, epsilon=0.1),
    Case(6, 8, 9, has_lengths=True),
    Case(6, 8, 9, has_lengths=True, reverse=True, masks=True),
]


@pytest.mark.parametrize("normalize", KINDS)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_equals_torch(case: Case, normalize: str) -> None:
    case = Case(**{**vars(case), "normalize": normalize})
    compare(case, torch.float64, 1e-11)
    if case.hidden > 1:  # LN of one element divides rounding by sqrt(epsilon)
        compare(case, torch.float32, 3e-5)


def test_a_large_mean_costs_no_digits() -> None:
    # E[x^2] - E[x]^2 would lose 6 of float32's 7 digits here.
    compare(Case(4, 2, 32, offset=1000.0), torch.float32, 3e-3)


@pytest.mark.parametrize("normalize", KINDS)
@pytest.mark.parametrize("reverse", [False, True])
def test_gradcheck(normalize: str, reverse: bool) -> None:
    case = Case(3, 2, 3, normalize, reverse, masks=True)
    arrays = [None if a is None else a.requires_grad_(i < 8) for i, a in enumerate(case.arrays(torch.float64))]

    def run(*tensors: Any) -> tuple[torch.Tensor, ...]:
        return call_layer(*tensors, *case.numbers())

    assert torch.autograd.gradcheck(run, arrays)


@pytest.mark.parametrize("normalize", KINDS)
def test_operator_is_well_behaved(normalize: str) -> None:
    case = Case(3, 2, 4, normalize, masks=True)
    arrays = [None if a is None else a.requires_grad_(i < 8) for i, a in enumerate(case.arrays(torch.float64))]
    check_operator(*arrays, *case.numbers())


def test_bits_depend_on_neither_batch_nor_threads() -> None:
    case = Case(6, 5, 40)
    arrays = case.arrays(torch.float32)
    whole = call_layer(*arrays, *case.numbers())[0]
    own = [arrays[0][:, 2:3].contiguous(), arrays[1][2:3], arrays[2][2:3], *arrays[3:]]
    assert torch.equal(call_layer(*own, *case.numbers())[0], whole[:, 2:3])
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        assert torch.equal(call_layer(*arrays, *case.numbers())[0], whole)
    finally:
        torch.set_num_threads(threads)


def test_backward_may_be_repeated_and_only_once_differentiated() -> None:
    case = Case(3, 2, 4)
    x, *rest = case.arrays(torch.float64)
    x.requires_grad_()
    y = call_layer(x, *rest, *case.numbers())[0]
    (first,) = torch.autograd.grad(y.sum(), x, retain_graph=True)
    (second,) = torch.autograd.grad(y.sum(), x, retain_graph=True)
    assert torch.equal(first, second)
    (gradient,) = torch.autograd.grad(y.square().sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="first derivatives alone"):
        gradient.sum().backward()


def test_state_gradients_only() -> None:
    case = Case(3, 2, 4)
    arrays = case.arrays(torch.float64)
    arrays[2].requires_grad_()
    _y, cy = call_layer(*arrays, *case.numbers())
    cy.sum().backward()  # y has no gradient
    expected = case.arrays(torch.float64)
    expected[2].requires_grad_()
    reference(*expected, **case.named())[1].sum().backward()
    torch.testing.assert_close(arrays[2].grad, expected[2].grad)


def run_written_out(module: prnn.nn.LayerNormLSTM, input: torch.Tensor, hx: Any = None) -> Any:
    """The module's evaluation from the reference's one layer."""
    last_h, last_c = [], []
    for layer in range(module.num_layers):
        outputs = []
        for direction in range(2 if module.bidirectional else 1):
            end = f"_l{layer}{'_reverse' if direction else ''}"
            p = {name.removesuffix(end): value for name, value in module.named_parameters() if name.endswith(end)}
            x = input @ p["weight_ih"].t()
            gain, bias = p.get("norm_gates_weight"), p.get("norm_gates_bias")
            if module.normalize == "products":
                x = torch.nn.functional.layer_norm(x, x.shape[-1:], p["norm_input_weight"], None, module.eps)
                gain, bias = p["norm_hidden_weight"], p["bias"]
            index = len(last_h)
            states = (None, None) if hx is None else (hx[0][index], hx[1][index])
            parameters = (p["weight_hh"], gain, bias, p["norm_cell_weight"], p["norm_cell_bias"])
            options = {"normalize": module.normalize, "epsilon": module.eps, "zoneout": module.zoneout}
            y, c = reference(x, *states, *parameters, reverse=bool(direction), **options)
            outputs.append(y)
            last_h.append(y[0 if direction else -1])
            last_c.append(c)
        input = torch.cat(outputs, -1)
    return input, (torch.stack(last_h), torch.stack(last_c))


@pytest.mark.parametrize("normalize", KINDS[:2])
@pytest.mark.parametrize("bidirectional", [False, True])
def test_module_equals_its_formulas(normalize: str, bidirectional: bool) -> None:
    options = {"normalize": normalize, "bidirectional": bidirectional, "zoneout": 0.1, "dtype": torch.float64}
    module = prnn.nn.LayerNormLSTM(5, 6, 2, dropout=0.5, forget_bias=0.7, eps=1e-3, **options).eval()
    for parameter in module.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    input = torch.randn(4, 3, 5, dtype=torch.float64, requires_grad=True)
    states = 4 if bidirectional else 2
    hx = tuple(torch.randn(states, 3, 6, dtype=torch.float64, requires_grad=True) for _ in range(2))
    leaves = [input, *hx, *module.parameters()]
    gradients = []
    for run in (module, lambda *inputs: run_written_out(module, *inputs)):
        output, (h, c) = run(input, hx)
        loss = output.sin().sum() + h.cos().sum() + c.square().sum()
        gradients.append((output, h, c, *torch.autograd.grad(loss, leaves)))
    for ours, theirs in zip(*gradients, strict=True):
        torch.testing.assert_close(ours, theirs)
    output, (h, c) = module(input)
    expected = run_written_out(module, input)
    torch.testing.assert_close((output, h, c), (expected[0], *expected[1]))


def test_layouts() -> None:
    module = prnn.nn.LayerNormLSTM(3, 4, 2)
    input = torch.randn(5, 2, 3)
    output, (h, c) = module(input)
    first = copy.deepcopy(module)
    first.batch_first = True
    other, states = first(input.transpose(0, 1))
    assert torch.equal(other.transpose(0, 1), output)
    assert torch.equal(states[0], h)
    alone, (h1, c1) = module(input[:, 1])
    assert torch.equal(alone, output[:, 1])
    assert torch.equal(h1, h[:, 1])
    assert torch.equal(c1, c[:, 1])
    again, _ = module(input[2:, 1], tuple(x.clone() for x in module(input[:2, 1])[1]))
    torch.testing.assert_close(again, alone[2:])  # torch's products of 3 rows and of 5 may differ in the last bit


@pytest.mark.parametrize("batch_first", [False, True])
@pytest.mark.parametrize("normalize", KINDS[:2])
def test_lengths(normalize: str, batch_first: bool) -> None:
    options = {"bidirectional": True, "batch_first": batch_first, "dtype": torch.float64}
    check_lengths(prnn.nn.LayerNormLSTM(3, 4, 2, normalize=normalize, **options))


@pytest.mark.parametrize("batch_first", [False, True])
@pytest.mark.parametrize("enforce_sorted", [False, True])
def test_packed_sequences(enforce_sorted: bool, batch_first: bool) -> None:
    options = {"bidirectional": True, "batch_first": batch_first, "dtype": torch.float64}
    check_packed_sequences(prnn.nn.LayerNormLSTM(3, 4, 2, **options), enforce_sorted)


def test_loads_torchaudio() -> None:
    theirs = TorchaudioLSTM(6, 8)
    for parameter in theirs.parameters():
        torch.nn.init.normal_(parameter, std=0.4)
    ours = prnn.nn.LayerNormLSTM(6, 8)
    ours.load_state_dict(theirs.state_dict())
    input, h, c = torch.randn(5, 3, 6), torch.randn(3, 8), torch.randn(3, 8)
    output, (hy, cy) = ours(input, (h[None], c[None]))
    torch.testing.assert_close((output, hy[0], cy[0]), theirs(input, h, c))
    # Inside a model, and its own state_dict.
    model = torch.nn.ModuleDict({"layers": torch.nn.ModuleList([prnn.nn.LayerNormLSTM(6, 8)])})
    model.load_state_dict({f"layers.0.{name}": value for name, value in theirs.state_dict().items()})
    assert torch.equal(model["layers"][0].weight_hh_l0, theirs.p2g.weight)
    model["layers"][0].load_state_dict(ours.state_dict())


@pytest.mark.parametrize("options", [{"normalize": "products"}, {"num_layers": 2}, {"bidirectional": True}])
def test_refuses_torchaudios_parameters_where_they_do_not_fit(options: dict[str, Any]) -> None:
    with pytest.raises(RuntimeError, match=r"x2g\.weight is of torchaudio's LSTM"):
        prnn.nn.LayerNormLSTM(6, 8, **options).load_state_dict(TorchaudioLSTM(6, 8).state_dict())


def test_refuses_torchaudios_layer_without_layer_norm() -> None:
    theirs = {"x2g.weight": torch.zeros(32, 6), "x2g.bias": torch.zeros(32), "p2g.weight": torch.zeros(32, 8)}
    with pytest.raises(RuntimeError, match="if it has layer norm"):
        prnn.nn.LayerNormLSTM(6, 8).load_state_dict(theirs)


def test_initial_parameters() -> None:
    module = prnn.nn.LayerNormLSTM(6, 16, 2, forget_bias=1.5)
    assert module.weight_ih_l0.abs().max() <= 0.25
    assert module.weight_hh_l1.std() > 0.1
    assert torch.equal(module.norm_gates_weight_l0, torch.ones(64))
    assert torch.equal(module.norm_gates_bias_l1.view(4, 16)[1], torch.full((16,), 1.5))
    assert module.norm_gates_bias_l1.sum() == 24
    assert module.norm_cell_bias_l0.sum() == 0
    module = prnn.nn.LayerNormLSTM(6, 16, normalize="products", forget_bias=-1)
    assert module.bias_l0.sum() == -16
    assert module.norm_input_weight_l0.sum() == 64
    assert "normalize='products', forget_bias=-1" in repr(module)


@pytest.mark.parametrize("name", ["zoneout", "recurrent_dropout", "dropout"])
def test_masks_follow_torchs_generator(name: str) -> None:
    check_masks_follow_torchs_generator(prnn.nn.LayerNormLSTM(3, 16, 2, **{name: 0.5}))


@pytest.mark.parametrize("normalize", KINDS)
def test_zoneout_keeps_every_bit(normalize: str) -> None:
    arrays = Case(9, 4, 50, normalize, masks=True).arrays(torch.float32)
    y = call_layer(*arrays, *Case(9, 4, 50, normalize).numbers())[0]
    before = torch.cat([arrays[1][None], y[:-1]])
    kept = arrays[8] == 1
    assert torch.equal(y[kept], before[kept])


def test_zoneout_keeps_states() -> None:
    module = prnn.nn.LayerNormLSTM(3, 200, zoneout=0.3)
    output, _ = module(torch.randn(9, 4, 3))
    kept = (output[1:] == output[:-1]).double().mean().item()
    assert 0.27 < kept < 0.33
    assert (output[0] == 0).any()


def test_recurrent_dropout_has_one_mask_for_all_timesteps() -> None:
    case = Case(8, 2, 12, masks=True)
    arrays = case.arrays(torch.float64)
    arrays[8] = None
    y = call_layer(*arrays, *case.numbers())[0]
    torch.testing.assert_close(y, reference(*arrays, **case.named())[0])


@pytest.mark.parametrize("normalize", ["gates", "products"])
def test_weights_that_are_no_parameters(normalize: str) -> None:
    """Parametrised, pruned, a tensor in the place of a parameter; and parameters that a subclass adds."""
    module = MODULE(3, 4, 2, normalize=normalize, dtype=torch.float64)
    x = torch.randn(5, 2, 3, dtype=torch.float64)
    expected = module(x)[0]
    torch.nn.utils.parametrizations.weight_norm(module, "weight_hh_l0")
    prune.identity(module, "weight_ih_l1")
    matrix = module.weight_hh_l1.detach()
    del module.weight_hh_l1
    module.weight_hh_l1 = matrix
    module.scale = torch.nn.Linear(1, 1)
    found = module(x)[0]
    torch.testing.assert_close(found, expected)
    found.sum().backward()
    assert module.weight_ih_l1_orig.grad.any()
    assert module.parametrizations.weight_hh_l0.original1.grad.any()
    module.reset_parameters()
    assert module.weight_ih_l0.abs().max() <= 0.5
    assert module.parametrizations.weight_hh_l0.original1.any()


def test_compiles() -> None:
    module = prnn.nn.LayerNormLSTM(3, 4, 2, zoneout=0.2).eval()
    compiled = torch.compile(module, fullgraph=True, backend="aot_eager")
    input = torch.randn(5, 2, 3, requires_grad=True)
    expected, got = module(input)[0], compiled(input)[0]
    torch.testing.assert_close(got, expected)
    (theirs,) = torch.autograd.grad(expected.sum(), input)
    (ours,) = torch.autograd.grad(got.sum(), input)
    torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("lengths", [[0, 5], [5, 6], [2**32 + 1, 5], [-1, 5]])
def test_compiled_functions_look_at_lengths(lengths: list[int]) -> None:
    torch.compiler.reset()
    compiled = torch.compile(prnn.nn.LayerNormLSTM(3, 4), fullgraph=True, backend="aot_eager")
    assert compiled(torch.randn(5, 2, 3), lengths=torch.tensor([1, 5]))[0][1:, 0].abs().max() == 0
    with pytest.raises(RuntimeError, match="lengths must be 1 to the number of timesteps of input"):
        compiled(torch.randn(5, 2, 3), lengths=torch.tensor(lengths))


PACKED = pack_sequence([torch.zeros(1, 3), torch.zeros(2, 3)], enforce_sorted=False)
MODULE = prnn.nn.LayerNormLSTM
BAD: list[tuple[Callable[[], object], type[Exception], str]] = [
    (lambda: MODULE(0, 4), ValueError, "input_size is 0; it must be at least 1"),
    (lambda: MODULE(3, 4.0), TypeError, "hidden_size is 4.0; it must be an int"),
    (lambda: MODULE(3, 4, bidirectional="no"), TypeError, "bidirectional is 'no'; it must be True or False"),
    (lambda: MODULE(3, 4, num_layers=0), ValueError, "num_layers is 0"),
    (lambda: MODULE(3, 4, normalize="all"), ValueError, "normalize is 'all'; it must be one of 'gates', 'products'"),
    (lambda: MODULE(3, 4, zoneout=1.0), ValueError, "zoneout is 1.0; it must be at least 0 and less than 1"),
    (lambda: MODULE(3, 4, recurrent_dropout=-0.5), ValueError, "recurrent_dropout is -0.5"),
    (lambda: MODULE(3, 4, dropout="no"), TypeError, "dropout is 'no'; it must be a number"),
    (lambda: MODULE(3, 4, eps=-1.0), ValueError, "eps is -1.0; it must be a positive normal number of float32"),
    (lambda: MODULE(3, 4, eps=0.0), ValueError, "eps is 0.0; it must be a positive normal number of float32"),
    (lambda: MODULE(3, 4, eps=1e-46), ValueError, "eps is 1e-46; it must be a positive normal number of float32"),
    (lambda: MODULE(3, 4)([1]), TypeError, "input is a list; it must be a tensor"),
    (lambda: MODULE(3, 4)(torch.zeros(2, 2, 3).to_sparse()), TypeError, "input has the layout torch.sparse_coo"),
    (
        lambda: MODULE(3, 4)(torch.nested.nested_tensor([torch.zeros(2, 3)], layout=torch.jagged)),
        TypeError,
        "input is a nested tensor; it must be padded",
    ),
    (lambda: MODULE(3, 4, dtype=torch.complex64), TypeError, "dtype is torch.complex64; it must be one of torch.float"),
    (
        lambda: MODULE(3, 4).to(torch.float8_e4m3fn)(torch.zeros(2, 2, 3).to(torch.float8_e4m3fn)),
        TypeError,
        "the weights have dtype torch.float8_e4m3fn; it must be one of torch.float",
    ),
    (lambda: MODULE(3, 4)(torch.zeros(2, 2, 5)), ValueError, r"input has 5 features .*input_size is 3"),
    (lambda: MODULE(3, 4)(torch.zeros(3)), ValueError, "input has 1 dimensions"),
    (lambda: MODULE(3, 4)(torch.zeros(0, 2, 3)), ValueError, "input has 0 timesteps; it must have at least 1"),
    (lambda: MODULE(3, 4, batch_first=True)(torch.zeros(2, 0, 3)), ValueError, "input has 0 timesteps"),
    (lambda: MODULE(3, 4)(torch.zeros(2, 0, 3), lengths=[1]), ValueError, r"lengths has shape \(1,\)"),
    (lambda: MODULE(3, 4)(torch.zeros(2, 2, 3).double()), ValueError, "input has dtype torch.float64"),
    (lambda: MODULE(3, 4)(torch.zeros(2, 2, 3), torch.zeros(1, 2, 4)), TypeError, "hx is a Tensor; it must be the"),
    (lambda: MODULE(3, 4)(torch.zeros(2, 2, 3), (torch.zeros(1, 2, 4),) * 3), TypeError, "hx is a tuple of 3; it must"),
    (lambda: MODULE(3, 4)(torch.zeros(2, 2, 3), (torch.zeros(1, 2, 4), None)), TypeError, "c of hx is a NoneType"),
    (lambda: MODULE(3, 4)(PACKED, torch.zeros(1, 2, 4)), TypeError, "hx is a Tensor; it must be the"),
    (
        lambda: MODULE(3, 4)(torch.zeros(2, 2, 3), (torch.zeros(1, 2, 4), torch.zeros(1, 1, 4))),
        ValueError,
        r"c of hx has shape \(1, 1, 4\); it must be \(1, 2, 4\)",
    ),
    (
        lambda: MODULE(3, 4)(torch.zeros(2, 2, 3), (torch.zeros(1, 2, 4).double(), torch.zeros(1, 2, 4))),
        ValueError,
        "h of hx has dtype torch.float64",
    ),
    (lambda: MODULE(3, 4)(torch.zeros(2, 2, 3), lengths=[3, 1]), ValueError, r"lengths\[0\] is 3; it must lie bet"),
    (lambda: MODULE(3, 4)(torch.zeros(2, 2, 3), lengths=[2, 0]), ValueError, r"lengths\[1\] is 0"),
    (lambda: MODULE(3, 4)(torch.zeros(2, 2, 3), lengths=[1.5, 1]), TypeError, "lengths is .*; it must hold integers"),
    (lambda: MODULE(3, 4)(torch.zeros(2, 2, 3), lengths=[True, True]), TypeError, "lengths is .*must hold integers"),
    (lambda: MODULE(3, 4)(torch.zeros(2, 2, 3), lengths=[2**70, 1]), ValueError, r"lengths\[0\] is 1180591620717"),
    (lambda: MODULE(3, 4)(torch.zeros(2, 2, 3), lengths=torch.ones(2)), TypeError, "lengths has dtype torch.float32"),
    (lambda: MODULE(3, 4)(torch.zeros(2, 2, 3), lengths=[1]), ValueError, r"lengths has shape \(1,\)"),
    (lambda: MODULE(3, 4)(torch.zeros(2, 3), lengths=[2]), ValueError, "lengths is given, but input has 2 dimensions"),
    (
        lambda: MODULE(3, 4)(pack_sequence([torch.zeros(2, 3)]), lengths=[2]),
        ValueError,
        "lengths is given, but input is a PackedSequence, which has its own",
    ),
    (
        lambda: MODULE(3, 4)(PACKED, (torch.zeros(1, 3, 4), torch.zeros(1, 2, 4))),
        ValueError,
        r"h of hx has shape \(1, 3, 4\); it must be \(1, 2, 4\)",
    ),
    (lambda: MODULE(5, 4)(PACKED), ValueError, "input has 3 features .*input_size is 5"),
    (lambda: MODULE(3, 4)(torch.zeros(2, 2, 3, device="meta")), ValueError, "input is on meta"),
    (
        lambda: MODULE(3, 4, dtype=torch.float16)(torch.zeros(2, 2, 3).half(), (torch.zeros(1, 2, 4),) * 2),
        ValueError,
        "h of hx has dtype torch.float32, but input has torch.float16",
    ),
]


@pytest.mark.parametrize(("call", "error", "message"), BAD)
def test_bad_arguments(call: Callable[[], object], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call()


@pytest.mark.parametrize(
    ("gpu", "dtype", "batch", "hidden", "plan"),
    [
        (None, torch.float64, 3, 16, ("cpu", "cpu", 1, None)),
        ("H200", torch.float16, 1, 512, ("cluster", "cluster", 1, 16)),
        ("H200", torch.bfloat16, 8, 512, ("cluster", "cluster", 4, 16)),
        ("h200", torch.bfloat16, 56, 512, ("cluster", "cluster", 7, 16)),
        ("H200", torch.bfloat16, 57, 512, ("cluster", "cluster", 15, 8)),
        ("H200", torch.bfloat16, 64, 512, ("cluster", "cluster", 13, 8)),
        ("H200", torch.float16, 90, 512, ("cluster", "cluster", 15, 8)),
        ("H200", torch.float16, 91, 512, ("cluster", "cluster", 7, 16)),
        ("H200", torch.float16, 64, 511, ("cluster", "cluster", 7, 16)),
        ("H200", torch.float32, 57, 512, ("cluster", "cluster", 7, 16)),
        ("H200", torch.float32, 64, 512, ("cluster", "cluster", 7, 16)),
        ("H200", torch.float32, 112, 300, ("cluster", "cluster", 7, 16)),
        ("H200", torch.float32, 113, 512, ("cluster", "cluster", 13, 16)),
        ("H200", torch.bfloat16, 224, 512, ("cluster", "cluster", 14, 16)),
        ("H200", torch.float32, 225, 512, ("steps", "steps", 1, 0)),
        ("H200", torch.float16, 130, 256, ("cluster", "cluster", 17, 8)),
        ("H200", torch.float16, 64, 100, ("cluster", "cluster", 13, 8)),
        ("H200", torch.float16, 300, 512, ("steps", "steps", 1, 0)),
        ("H200", torch.float16, 8, 513, ("grid", "grid", 1, 68)),
        ("H200", torch.float32, 32, 1024, ("grid", "grid", 1, 128)),
        ("H200", torch.float32, 33, 1024, ("steps", "steps", 1, 0)),
        ("H200", torch.bfloat16, 16, 1024, ("grid", "grid", 2, 64)),
        ("H200", torch.bfloat16, 17, 1024, ("grid", "steps", 2, 64)),
        ("H200", torch.float32, 8, 1025, ("steps", "steps", 1, 0)),
        ("H200", torch.bfloat16, 16, 1920, ("grid", "steps", 1, 120)),
        ("H200", torch.bfloat16, 17, 1920, ("steps", "steps", 1, 0)),
        ("H200", torch.bfloat16, 8, 2048, ("grid", "grid", 1, 128)),
        ("H200", torch.bfloat16, 9, 2048, ("grid", "grid", 1, 128)),
        ("H200", torch.bfloat16, 17, 2048, ("steps", "steps", 1, 0)),
        ("H200", torch.bfloat16, 8, 2049, ("steps", "steps", 1, 0)),
        ("H200", torch.float64, 8, 600, ("steps", "steps", 1, 0)),
        ("A100", torch.float16, 8, 600, ("steps", "steps", 1, 0)),
        ("H200", torch.float32, 8, 64, ("cluster", "cluster", 8, 8)),
        ("H200", torch.float64, 8, 64, ("steps", "steps", 1, 0)),
        ("A100", torch.float16, 8, 64, ("steps", "steps", 1, 0)),
    ],
)
def test_plan(gpu: str | None, dtype: torch.dtype, batch: int, hidden: int, plan: tuple[str, str, int, int]) -> None:
    """The copies of the weights and the blocks of each; on the CPU its threads."""
    *found, blocks = plan_of(torch.device("cpu"), gpu, dtype, "gates", batch, hidden)
    assert (*found, None if gpu is None else blocks) == plan


def test_plan_without_normalisation() -> None:
    """One column tile: nothing orders the exchanges of two."""
    for batch, clusters in ((56, 7), (64, 8), (112, 14), (113, 15)):
        plan = plan_of(torch.device("cpu"), "H200", torch.float32, "none", batch, 512)
        assert plan == ("cluster", "cluster", clusters, 16)


def test_plan_of_two_engines(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two forward launches win in float32 alone, and without normalisation; more column tiles lose in tf32 with it."""

    def plan(normalize: str, batch: int, hidden: int) -> tuple[str, str]:
        return plan_of(torch.device("cpu"), "H200", torch.float32, normalize, batch, hidden)[:2]

    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    assert plan("none", 33, 1024) == plan("none", 64, 770) == ("grid", "steps")
    assert plan("none", 65, 1024) == plan("none", 33, 768) == plan("gates", 33, 1024) == ("steps", "steps")
    (found,) = prnn.explain(prnn.nn.LayerNormLSTM(8, 1024), 17, gpu="h200", dtype=torch.bfloat16).layers
    assert (found.forward, found.backward) == ("grid", "steps")
    assert found.notes == ("two launches a timestep backward: see docs/layer_norm_lstm.md",)
    assert plan("gates", 32, 1024) == ("grid", "grid")
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", True)
    assert plan("none", 33, 1024) == plan("gates", 17, 640) == ("steps", "steps")
    assert plan("none", 32, 1024) == plan("gates", 16, 640) == ("grid", "grid")


def test_explain() -> None:
    model = torch.nn.Sequential(prnn.nn.LayerNormLSTM(80, 512, 2, bidirectional=True), torch.nn.GRU(8, 8))
    first, second = prnn.explain(model, 4, gpu="h200", dtype=torch.float16).layers
    assert first.module == "LayerNormLSTM 80 -> 512, 2 layers, both directions"
    assert (first.name, first.forward, first.backward, first.device) == ("0", "cluster", "cluster", "H200")
    assert (first.replicas, first.blocks, first.supported, first.notes) == (4, 16, True, ())
    assert second.module == "GRU 8 -> 8"
    (steps,) = prnn.explain(model[0], 4, gpu="A100").layers
    assert steps.forward == "steps"
    assert "two launches a timestep: see docs/layer_norm_lstm.md" in steps.notes
    (cpu,) = prnn.explain(model[0], 4).layers
    assert cpu.forward == "cpu"
    assert cpu.device.startswith("CPU")
    (half,) = prnn.explain(model[0], 4, dtype=torch.float16).layers
    assert (half.forward, half.dtype, half.notes) == ("cpu", torch.float16, ("computed in float32",))


def test_results_are_reproducible() -> None:
    case = Case(9, 4, 30, masks=True)
    first, second = (results(case, torch.float32, "cpu", False) for _ in range(2))
    assert all(torch.equal(first[name], second[name]) for name in first)


@pytest.mark.parametrize("lengths", [[5, 1, 3], [2, 4], [5, 5], [1], []], ids=str)
def test_lengths_that_are_constants_of_a_graph(lengths: list[int]) -> None:
    """A capture on a GPU makes lengths such constants."""
    input = torch.zeros(5, len(lengths), 2)
    sequences = sequences_of(input, None, torch.tensor(lengths, dtype=torch.int64))
    found = _layer_norm_stack._constant_lengths(sequences, input)
    assert found.dtype == torch.int32
    assert found.tolist() == lengths
