"""prnn.transducer_search: by libprnn and by steps, whole and in chunks, against a slow search."""

from __future__ import annotations

import contextlib
import itertools
import math
import types
from typing import Any

import pytest
import torch
from reference.transducer_search import Found, greedy
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import prnn
from prnn.transducer import Joiner, PhraseBias, RecurrentPredictor, StatelessPredictor, capture
from prnn.transducer.hypothesis import Decoder, map_tensors
from prnn.transducer.resident import _dtype, resident
from prnn.transducer.steps import Steps, search_by_steps

V, D = 13, 9
PREDICTORS = ("lstm", "gru", "stateless")
DURATIONS: dict[str, tuple[int, ...]] = {"rnn-t": (), "tdt": (0, 1, 2, 4)}


class OtherRecurrent(RecurrentPredictor):
    """A class that libprnn does not know, and so may be anything."""


class OtherStateless(StatelessPredictor):
    """The same."""


def modules(
    predictor: str,
    durations: tuple[int, ...] = (),
    known: bool = True,
    dtype: torch.dtype = torch.float64,
    blank: int = 0,
    layers: int = 1,
    seed: int = 0,
) -> dict[str, Any]:
    """Arguments of transducer_search."""
    torch.manual_seed(seed)
    made: RecurrentPredictor | StatelessPredictor
    if predictor == "stateless":
        made = (StatelessPredictor if known else OtherStateless)(V, 10, 2, blank, dropout=0.5)
    else:
        made = (RecurrentPredictor if known else OtherRecurrent)(V, 6, 10, layers, predictor, blank, dropout=0.5)
    joiner = Joiner(D, 10, 11, V, ("tanh", "relu")[seed % 2], len(durations))
    with torch.no_grad():
        for module in (made, joiner):
            module.to(dtype)
            for parameter in module.parameters():
                parameter.mul_(3.0)
    return {"predictor": made, "joiner": joiner, "blank": blank, "durations": durations}


def frames(batch: int, count: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(batch, count, D, generator=torch.Generator().manual_seed(1), dtype=torch.float64).to(dtype)


@torch.no_grad()
def slow(encoder_out: Tensor, parts: dict[str, Any], max_symbols: int = 8, bias: PhraseBias | None = None) -> Found:
    """One utterance, (T, D)."""
    predictor, joiner = parts["predictor"].eval(), parts["joiner"]

    def predict(symbol: int, state: Any) -> tuple[Tensor, Any]:
        before = predictor.initial_state(1) if state is None else state
        out, after = predictor.step(torch.tensor([symbol]), before)
        return out[0], after

    def join(frame: Tensor, out: Tensor) -> Tensor:
        logits: Tensor = joiner(frame[None, None], out[None, None])[0, 0, 0]
        return logits

    def gains(symbols: list[int]) -> Tensor:
        assert bias is not None
        after, gain, _ = bias.tables(torch.device("cpu"))
        node = 0
        for symbol in symbols:
            node = int(after[node, symbol])
        return gain[node]

    given = None if bias is None else gains
    return greedy(encoder_out, predict, join, parts["blank"], parts["durations"], max_symbols, given)


def rows(result: Any) -> list[Found]:
    columns = (result.symbols, result.frames, result.durations, result.log_probs, result.confidences)
    return [
        Found(*([] if c is None else c[n, :count].tolist() for c in columns), score)
        for n, (count, score) in enumerate(zip(result.counts.tolist(), result.scores.tolist(), strict=True))
    ]


def assert_close(found: Found, expected: Found, tolerance: float = 1e-9) -> None:
    assert (found.symbols, found.frames) == (expected.symbols, expected.frames)
    assert found.durations in ([], expected.durations)
    assert found.log_probs == pytest.approx(expected.log_probs, abs=tolerance)
    assert found.confidences == pytest.approx(expected.confidences, abs=tolerance)
    assert found.score == pytest.approx(expected.score, abs=10 * tolerance)


@pytest.mark.parametrize("known", [True, False], ids=["libprnn", "steps"])
@pytest.mark.parametrize("durations", DURATIONS)
@pytest.mark.parametrize("predictor", PREDICTORS)
@pytest.mark.parametrize("max_symbols", [1, 3])
def test_as_the_slow_search(predictor: str, durations: str, known: bool, max_symbols: int) -> None:
    for seed in range(3):
        parts = modules(predictor, DURATIONS[durations], known, blank=5 * seed, layers=1 + seed % 2, seed=seed)
        decoder = Decoder.of(parts["predictor"], parts["joiner"], 0, parts["durations"], None)
        assert (resident(decoder, False) is not None) is known
        lengths = torch.tensor([15, 0, 1, 9])
        found = rows(prnn.transducer_search(frames(4, 15), lengths, max_symbols=max_symbols, **parts))
        assert sum(len(f.symbols) for f in found) > 3
        for n, length in enumerate(lengths.tolist()):
            assert_close(found[n], slow(frames(4, 15)[n, :length], parts, max_symbols))


@pytest.mark.parametrize("known", [True, False], ids=["libprnn", "steps"])
@pytest.mark.parametrize("durations", DURATIONS)
@pytest.mark.parametrize("predictor", PREDICTORS)
def test_chunks_give_the_whole(predictor: str, durations: str, known: bool) -> None:
    parts = modules(predictor, DURATIONS[durations], known, torch.float32)
    x = frames(3, 20, torch.float32)
    whole = rows(prnn.transducer_search(x, **parts))
    state, parted = None, [Found([], [], [], [], [], 0.0) for _ in range(3)]
    for begin, end in ((0, 0), (0, 3), (3, 4), (4, 4), (4, 15), (15, 20)):
        result = prnn.transducer_search(x[:, begin:end], state=state, **parts)
        if state is not None:
            kept = [t.clone() for t in state.search.predictor]
            prnn.transducer_search(x[:, begin:end], state=state, **parts)
            assert all(torch.equal(a, b) for a, b in zip(kept, state.search.predictor, strict=True))
        state = result.state
        for n, found in enumerate(rows(result)):
            for column, more in zip(parted[n], found, strict=True):
                if isinstance(column, list):
                    column += more
            parted[n] = parted[n]._replace(score=found.score)
    for found, expected in zip(parted, whole, strict=True):
        assert found.symbols == expected.symbols
        assert found.frames == expected.frames
        assert found.durations == expected.durations
        if known:  # a matrix library may round a row in another way among others
            assert (found.log_probs, found.confidences) == (expected.log_probs, expected.confidences)
            assert found.score == expected.score
        assert found.score == pytest.approx(expected.score, abs=1e-4)
    assert state is not None
    assert state.frames.tolist() == [20] * 3


def test_streams_are_selected_and_gone_on_from() -> None:
    parts = modules("lstm", (0, 1, 9))
    x = frames(3, 20)
    state = prnn.transducer_search(x[:, :11], **parts).state
    order = torch.tensor([2, 0])
    found = prnn.transducer_search(x[order, 11:], state=state.select(order).to("cpu"), **parts).hypotheses()
    for n, hypothesis in zip(order.tolist(), found, strict=True):
        whole = slow(x[n], parts)
        late = [place for place, frame in enumerate(whole.frames) if frame >= 11]
        assert hypothesis.tokens == [whole.symbols[place] for place in late]
        assert hypothesis.timestamps == [whole.frames[place] for place in late]


@pytest.mark.parametrize("known", [True, False], ids=["libprnn", "steps"])
@pytest.mark.parametrize("durations", DURATIONS)
def test_phrases(durations: str, known: bool) -> None:
    parts = modules("lstm", DURATIONS[durations], known, blank=3)
    bias = PhraseBias([[1, 2], [2, 2, 5], [7]], [4.0, 6.0, 1.0], V, blank=3)
    x = frames(3, 15)
    found = rows(prnn.transducer_search(x, bias=bias, **parts))
    assert [f.symbols for f in found] != [f.symbols for f in rows(prnn.transducer_search(x, **parts))]
    for n in range(3):
        assert_close(found[n], slow(x[n], parts, bias=bias))
    first = prnn.transducer_search(x[:, :7], bias=bias, **parts)
    second = prnn.transducer_search(x[:, 7:], bias=bias, state=first.state, **parts)
    for n, (a, b) in enumerate(zip(rows(first), rows(second), strict=True)):
        assert a.symbols + b.symbols == found[n].symbols


@pytest.mark.parametrize("known", [True, False], ids=["libprnn", "steps"])
@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("row", [3, -1])
def test_scores_that_are_not_numbers(value: float, row: int, known: bool) -> None:
    """A class: its frames are blanks of duration 1; a duration: it is 1."""
    parts = modules("lstm", (0, 2), known)
    with torch.no_grad():
        parts["joiner"].output.bias[row] = value
    x = frames(2, 9)
    for n, found in enumerate(rows(prnn.transducer_search(x, **parts))):
        expected = slow(x[n], parts)
        assert (found.symbols, found.frames, found.durations) == expected[:3]
        assert found.score == -math.inf


def test_weights_may_change_between_searches() -> None:
    """Also in ways that no version counter tells of."""
    parts = modules("lstm")
    x = frames(2, 15)
    for change in (
        lambda weight: weight.data.mul_(-1.0),
        lambda weight: weight.detach().add_(1.0),
        lambda weight: setattr(weight, "data", weight.data.flip(0)),
    ):
        prnn.transducer_search(x, **parts)
        change(parts["joiner"].output.weight)
        for n, found in enumerate(rows(prnn.transducer_search(x, **parts))):
            assert_close(found, slow(x[n], parts))
    state = prnn.transducer_search(x[:, :5], **parts).state
    with torch.no_grad():
        parts["predictor"].rnn.weight_hh_l0.zero_()
    again = prnn.transducer_search(x[:, 5:], state=state, **parts).hypotheses()
    fresh = modules("lstm")
    for name in ("predictor", "joiner"):
        fresh[name].load_state_dict(parts[name].state_dict())
    assert again == prnn.transducer_search(x[:, 5:], state=state, **fresh).hypotheses()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_weights_of_16_bits_on_a_cpu(dtype: torch.dtype) -> None:
    """They are searched with in float32."""
    parts, wide = modules("gru", dtype=dtype), modules("gru", dtype=dtype)
    for name in ("predictor", "joiner"):
        wide[name].float()
    x = frames(2, 9, dtype)
    assert rows(prnn.transducer_search(x, **parts)) == rows(prnn.transducer_search(x.float(), **wide))


@pytest.mark.parametrize("durations", DURATIONS)
@pytest.mark.parametrize("predictor", PREDICTORS)
def test_steps_beyond_the_end_change_nothing(predictor: str, durations: str) -> None:
    """On a GPU several are made before the host looks."""
    parts = modules(predictor, DURATIONS[durations])
    decoder = Decoder.of(parts["predictor"].eval(), parts["joiner"], 0, parts["durations"], None)
    x, lengths = frames(3, 12), torch.tensor([12, 0, 5])
    begun = prnn.transducer_search(x[:, :0], **parts).state.search
    with torch.no_grad():
        steps = Steps(decoder, parts["joiner"].project_encoder(x), lengths, 3, begun)
        for _ in range(50):
            steps.run_predictor(steps.step())
        assert bool(steps.finished())
        found, after = steps.result()
        _, expected = search_by_steps(decoder, parts["joiner"].project_encoder(x), lengths, 3, begun)
    for n, row in enumerate(rows(found)):
        assert_close(row, slow(x[n, : lengths[n]], parts, 3))
    for a, b in zip(after.predictor, expected.predictor, strict=True):
        torch.testing.assert_close(a, b)
    assert torch.equal(after.ahead, expected.ahead)


def test_the_type_of_a_gpus_search_follows_autocast() -> None:
    weights = [torch.empty(1, dtype=dtype, device="meta") for dtype in (torch.float32, torch.float16)]
    before = torch.get_autocast_dtype("cuda")
    torch.set_autocast_dtype("cuda", torch.bfloat16)
    torch.set_autocast_enabled("cuda", True)
    try:
        assert [_dtype(weight) for weight in weights] == [torch.bfloat16, torch.float16]
    finally:
        torch.set_autocast_enabled("cuda", False)
        torch.set_autocast_dtype("cuda", before)
    assert _dtype(weights[0]) == torch.float32


WAITS = ("_local_scalar_dense", "nonzero", "masked_select", "equal", "unique")


class Graph(TorchDispatchMode):
    """A CUDA graph on the CPU: what is called between capture_begin() and capture_end(), with the same tensors again
    in each replay(). A call for which the host would wait is refused."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[Any, Any, Any, Any]] = []

    def __torch_dispatch__(self, func: Any, kinds: Any, args: Any = (), kwargs: Any = None) -> Any:
        assert func.overloadpacket.__name__ not in WAITS
        out = func(*args, **(kwargs or {}))
        self.calls.append((func, args, kwargs or {}, out))
        return out

    def capture_begin(self, memory: None, capture_error_mode: str) -> None:
        assert capture_error_mode == "thread_local"
        self.__enter__()

    def capture_end(self) -> None:
        self.__exit__(None, None, None)

    def replay(self) -> None:
        for func, args, kwargs, out in self.calls:
            found = func(*args, **kwargs)
            for old, new in zip(*(tree_leaves(tree) for tree in (out, found)), strict=True):
                if isinstance(old, Tensor) and old.data_ptr() != new.data_ptr():
                    old.copy_(new)


@pytest.mark.parametrize("biased", [False, True], ids=["", "biased"])
@pytest.mark.parametrize("durations", DURATIONS)
@pytest.mark.parametrize("predictor", PREDICTORS)
def test_captured_steps(predictor: str, durations: str, biased: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """They look at no number, and keep what goes from one step to the next in the same tensors."""
    stream = types.SimpleNamespace(wait_stream=lambda _: None)
    for name, fake in ("CUDAGraph", Graph), ("current_stream", lambda _: stream), ("stream", contextlib.nullcontext):
        monkeypatch.setattr(torch.cuda, name, fake)
    monkeypatch.setattr(capture, "_capture_stream", lambda _: stream)
    parts = modules(predictor, DURATIONS[durations])
    bias = PhraseBias([[1, 2], [3, 3]], 3.0, V) if biased else None
    decoder = Decoder.of(parts["predictor"].eval(), parts["joiner"], 0, parts["durations"], bias)
    x, lengths = frames(3, 40), torch.tensor([40, 0, 31])
    with torch.no_grad():
        begun = prnn.transducer_search(x[:, :0], bias=bias, **parts).state.search
        steps = Steps(decoder, parts["joiner"].project_encoder(x), lengths, 3, begun)
        steps.run()
        carried = [value for value in vars(steps).values() if isinstance(value, Tensor) and value is not steps.symbol]
        map_tensors(lambda value: carried.append(value) or value, steps.state)
        before = [value.clone() for value in carried]
        graph = steps.captured()
        for value, kept in zip(carried, before, strict=True):
            value.copy_(kept)  # a capture computes nothing
        replays = 0
        while not bool(steps.finished()):
            graph.replay()
            replays += 1
        found, after = steps.result()
        expected, expected_after = search_by_steps(decoder, steps.encoder, lengths, 3, begun)
    assert replays > 0
    for n, row in enumerate(rows(found)):
        assert_close(row, slow(x[n, : lengths[n]], parts, 3, bias))
    assert_close(rows(found)[0], rows(expected)[0])
    for a, b in zip(after.predictor, expected_after.predictor, strict=True):
        torch.testing.assert_close(a, b)


def test_modules_in_training_mode_drop_nothing() -> None:
    parts = modules("lstm", known=False)
    parts["predictor"].train()
    x = frames(2, 9)
    found = rows(prnn.transducer_search(x, **parts))
    assert parts["predictor"].training
    for n in range(2):
        assert_close(found[n], slow(x[n], parts))


def test_layers_of_other_kinds_are_not_taken_for_the_librarys() -> None:
    def is_known(**changes: Any) -> bool:
        parts = modules("lstm")
        for name, value in changes.items():
            part, _, attribute = name.partition("_")
            setattr(parts[part], attribute, value)
        return resident(Decoder.of(parts["predictor"], parts["joiner"], 0, (), None), False) is not None

    assert is_known()
    assert is_known(predictor_rnn=torch.nn.LSTM(6, 10, 2, batch_first=True).double())
    assert not is_known(predictor_rnn=prnn.nn.LSTM(6, 10, 3, batch_first=True).double())
    assert not is_known(predictor_rnn=prnn.nn.LSTM(6, 10, batch_first=True, zoneout=0.1).double())
    assert not is_known(predictor_rnn=torch.nn.GRU(6, 10, batch_first=True).double())
    assert not is_known(predictor_rnn=torch.nn.LSTM(6, 20, proj_size=10, batch_first=True).double())
    assert not is_known(predictor_embedding=torch.nn.Embedding(V, 6, max_norm=1.0).double())
    assert not is_known(joiner_output=torch.nn.Sequential())
    hooked = torch.nn.Embedding(V, 6).double()
    hooked.register_forward_hook(lambda *_: None)
    assert not is_known(predictor_embedding=hooked)
    assert not is_known(predictor_embedding=torch.nn.Embedding(V, 6))  # of another type than the others


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "type": ({"encoder_out": torch.zeros(2, 3, D).long()}, "encoder_out is a tensor of torch.int64"),
    "shape": ({"encoder_out": frames(2, 3)[0]}, "encoder_out has shape"),
    "no row": ({"encoder_out": frames(2, 3)[:0]}, "N at least 1"),
    "size": ({"encoder_out": frames(2, 3)[..., 1:]}, "encoder_out has 8 features; the joiner's encoder_dim is 9"),
    "lengths": ({"lengths": torch.tensor([4, 0])}, r"lengths\[0\] is 4; it must be in \[0, 3\]"),
    "lengths of floats": ({"lengths": torch.tensor([1.0, 0.0])}, "lengths is a tensor of torch.float32"),
    "blank": ({"blank": V}, f"blank is {V}; it must be below the joiner's vocab_size"),
    "negative blank": ({"blank": -1}, "blank is -1; it must be at least 0"),
    "durations": ({"durations": (1, 2)}, "durations has 2 numbers; the joiner's durations is 0"),
    "max_symbols": ({"max_symbols": 0}, "max_symbols is 0; it must be at least 1"),
    "bias": ({"bias": 3}, "bias is a int; it must be a PhraseBias"),
    "bias's size": ({"bias": PhraseBias([[1]], 1.0, V + 1)}, "bias has a vocab_size of 14; the model's is 13"),
    "state": ({"state": 3}, "state is a int; it must be that of an earlier result"),
    "no blank": ({"blank": None}, "blank is None; it must be an int"),
    "predictor": ({"predictor": 3}, "predictor is a int, which has no initial_state; it must have initial_state, step"),
    "joiner": ({"joiner": max}, "joiner is a builtin_function_or_method, which has no project_encoder"),
    "symbols": (
        {"predictor": RecurrentPredictor(V - 2, 6, 10, 2).double()},
        r"the predictor's embedding has shape \(11, 6\); beside a joiner of 13 outputs and .* it must be \(13, 6\)",
    ),
    "hidden size": (
        {"predictor": RecurrentPredictor(V, 6, 9, 2).double()},
        r"weight_ih of the predictor's layer 0 has shape \(36, 6\); beside .* it must be \(40, 6\)",
    ),
    "stateless size": (
        {"predictor": StatelessPredictor(V, 9).double()},
        r"the predictor's embedding has shape \(13, 9\); beside .* it must be \(13, 10\)",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_arguments_are_named(case: str) -> None:
    changes, message = WRONG[case]
    arguments: dict[str, Any] = {"encoder_out": frames(2, 3), **modules("lstm"), **changes}
    with pytest.raises((ValueError, TypeError), match=message):
        prnn.transducer_search(**arguments)


def test_states_of_other_batches_are_refused() -> None:
    parts = modules("lstm")
    state = prnn.transducer_search(frames(3, 2), **parts).state
    with pytest.raises(ValueError, match="state is of 3 streams on cpu; encoder_out has 2 on cpu"):
        prnn.transducer_search(frames(2, 2), state=state, **parts)


@pytest.mark.parametrize(
    "other",
    [
        RecurrentPredictor(V, 6, 10, 1),
        RecurrentPredictor(V, 6, 10, 2, "gru"),
        StatelessPredictor(V, 10, 2),
        StatelessPredictor(V, 10, 3),
    ],
    ids=["layer", "gru", "stateless", "context"],
)
def test_states_of_other_predictors_are_refused(other: torch.nn.Module) -> None:
    """The library would read and write beyond their ends."""
    parts, x = modules("lstm", layers=2), frames(2, 2)
    predictors = [parts["predictor"], other.double(), StatelessPredictor(V, 10, 4).double()]
    states = [prnn.transducer_search(x, **{**parts, "predictor": predictor}).state for predictor in predictors]
    for predictor, state in itertools.permutations(range(3), 2):
        with pytest.raises(ValueError, match="state has a predictor's state of shapes"):
            prnn.transducer_search(x, state=states[state], **{**parts, "predictor": predictors[predictor]})


def test_a_stream_keeps_its_bias() -> None:
    """The state names a node of its automaton."""
    parts, x = modules("lstm"), frames(2, 2)
    bias, other = PhraseBias([[1, 2, 3]], 1.0, V), PhraseBias([[2]], 1.0, V)
    biased, plain = (prnn.transducer_search(x, bias=one, **parts).state for one in (bias, None))
    prnn.transducer_search(x, state=biased.select(torch.tensor([1, 0])).to("cpu"), bias=bias, **parts)
    for state, wrong in ((biased, other), (biased, None), (plain, bias)):
        with pytest.raises(ValueError, match="bias is another one than that of the state"):
            prnn.transducer_search(x, state=state, bias=wrong, **parts)


def test_the_meta_device_is_refused() -> None:
    parts = modules("lstm")
    with pytest.raises(prnn.NotSupportedError, match="encoder_out is on the meta device"):
        prnn.transducer_search(frames(2, 2).to("meta"), **parts)
