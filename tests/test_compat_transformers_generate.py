"""`generate()` of Transformers' models by prnn's search, against one step after the other."""

import functools
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn
from transformers_case import Joint

from prnn.compat import _transformers_search as search

VOCABULARY, BLANK, PAD, SIZE, DURATIONS = 7, 6, 5, 4, [0, 1, 2, 4]


class ParakeetRNNTGenerateOutput(NamedTuple):
    sequences: Tensor
    durations: Tensor


class Model(nn.Module):
    """A model with the parts that the search reads, and `generate` as Transformers does it, without padding."""

    def __init__(self, durations: list[int], seed: int, bias: bool = True) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.config = SimpleNamespace(vocab_size=VOCABULARY, blank_token_id=BLANK, durations=durations)
        self.generation_config = SimpleNamespace(
            do_sample=False, num_beams=1, max_new_tokens=None, decoder_start_token_id=BLANK, pad_token_id=PAD
        )
        self.decoder = nn.Module()
        self.decoder.embedding = nn.Embedding(VOCABULARY, SIZE)
        self.decoder.lstm = nn.LSTM(SIZE, SIZE, 2, batch_first=True)
        self.decoder.decoder_projector = nn.Linear(SIZE, SIZE)
        self.joint = Joint(VOCABULARY + len(durations), nn.ReLU())
        self.joint.head.weight.data *= 4
        self.joint.head.bias.data[BLANK] += 1
        if 0 in durations:  # seldom, or the model stays in a frame for ever
            self.joint.head.bias.data[VOCABULARY + durations.index(0)] -= 3
        self.max_symbols_per_step = 8 if durations else 3
        self.calls = 0
        self.eval()

    def get_audio_features(self, input_features: Tensor, attention_mask: Tensor | None, **_: Any) -> Any:
        return SimpleNamespace(pooler_output=input_features, attention_mask=attention_mask)

    @torch.no_grad()
    def generate(self, inputs: Tensor | None = None, generation_config: Any = None, **kwargs: Any) -> Any:
        self.calls += 1
        features = kwargs["input_features"] if inputs is None else inputs
        mask = kwargs.get("attention_mask")
        rows = []
        for n, frames in enumerate(features):
            length = len(frames) if mask is None else int(mask[n].sum())
            state, token, at, here, row = None, BLANK, 0, 0, [(BLANK, 0)]
            limit = self.max_symbols_per_step * features.shape[1]
            out = None
            while at < length and len(row) < limit:
                if out is None or token != BLANK:
                    embedded = self.decoder.embedding(torch.tensor([[token]]))
                    out, state = self.decoder.lstm(embedded, state)
                logits = self.joint(self.decoder.decoder_projector(out), frames[None, at : at + 1])[0, 0]
                token = int(logits[:VOCABULARY].argmax())
                if self.config.durations:
                    duration = self.config.durations[int(logits[VOCABULARY:].argmax())]
                    duration = max(duration, 1) if token == BLANK else duration
                else:
                    here = 0 if token == BLANK else here + 1
                    duration = int(token == BLANK or here == self.max_symbols_per_step)
                    here = 0 if duration else here
                row.append((token, duration))
                at += duration
            rows.append(row)
        longest = max(map(len, rows))
        steps = torch.tensor([row + [(PAD, 0)] * (longest - len(row)) for row in rows])
        return ParakeetRNNTGenerateOutput(steps[..., 0], steps[..., 1])


class Replaced(Model):
    generate = search.generates(Model.generate)


@pytest.mark.parametrize("durations", [[], DURATIONS, [1, 2]], ids=str)
@pytest.mark.parametrize("seed", range(5))
def test_generates_the_same(durations: list[int], seed: int) -> None:
    one, other = Model(durations, seed), Replaced(durations, seed)
    features = 2 * torch.randn(3, 11, SIZE)
    mask = torch.arange(11) < torch.tensor([[11], [4], [1]])
    wanted = one.generate(input_features=features, attention_mask=mask)
    for _ in range(2):
        found = other.generate(input_features=features, attention_mask=mask)
        assert type(found) is ParakeetRNNTGenerateOutput
        assert torch.equal(found.sequences, wanted.sequences)
        assert torch.equal(found.durations, wanted.durations)
    assert other.calls == 0 or (0 in durations and other.calls == 2)
    assert torch.equal(other.generate(features).sequences, one.generate(features).sequences)


def test_the_searches_are_not_all_the_original() -> None:
    calls = 0
    for seed in range(5):
        model = Replaced(DURATIONS, seed)
        model.generate(2 * torch.randn(3, 11, SIZE))
        calls += model.calls
    assert calls < 3


class Streaming(Model):
    """As Nemotron: options of the encoder, features in chunks, and an output class of its own."""

    given: dict[str, Any]

    def get_audio_features(self, input_features: Tensor, attention_mask: Tensor | None, **options: Any) -> Any:
        self.given = options
        return super().get_audio_features(input_features, attention_mask)

    @functools.partial(search.generates, encoder_options=frozenset({"num_lookahead_tokens"}))
    def generate(self, inputs: Any = None, generation_config: Any = None, **kwargs: Any) -> Any:
        self.calls += 1


def test_nemotron(monkeypatch: pytest.MonkeyPatch) -> None:
    own = type("NemotronAsrStreamingGenerateOutput", (ParakeetRNNTGenerateOutput,), {})
    monkeypatch.setitem(globals(), own.__name__, own)
    features = torch.randn(1, 5, SIZE)
    model = Streaming([], 0)
    found = model.generate(features, num_lookahead_tokens=3)
    assert type(found) is own
    assert torch.equal(found.sequences, Replaced([], 0).generate(features).sequences)
    assert model.given["num_lookahead_tokens"] == 3
    assert model.calls == 0
    model.generate(chunk for chunk in [features])
    model.generate(features, prompt_ids=torch.tensor([1]))
    assert model.calls == 2


@pytest.mark.parametrize("durations", [[], [1, 2]], ids=str)
def test_the_first_steps_alone(durations: list[int]) -> None:
    features = 2 * torch.randn(3, 11, SIZE)
    model = Replaced(durations, 0)
    whole = model.generate(features)
    longest = whole.sequences.shape[1]
    for most in (1, 4, longest - 1):
        found = model.generate(features, max_new_tokens=most, do_sample=False, num_beams=1)
        assert torch.equal(found.sequences, whole.sequences[:, : most + 1])
        assert torch.equal(found.durations, whole.durations[:, : most + 1])
    assert model.calls == 0


def test_what_is_generated_by_the_original() -> None:
    features = torch.randn(1, 5, SIZE)
    others = [{"max_new_tokens": 0}, {"max_length": 3}, {"do_sample": True}, {"num_beams": 2}]
    for options in (*others, {"generation_config": SimpleNamespace()}):
        model = Replaced([], 0)
        model.generate(features, **options)
        assert model.calls == 1
    model = Replaced([], 0)
    model.train().generate(features)
    model.eval().joint.activation = nn.SiLU()
    model.generate(features)
    assert model.calls == 2


def test_changed_weights_and_types_are_seen() -> None:
    model = Replaced([], 1)
    features = 2 * torch.randn(1, 11, SIZE)
    model.generate(features)
    with torch.no_grad():
        model.joint.head.bias[BLANK] += 100
    assert (model.generate(features).sequences == BLANK).all()
    assert model.double().generate(features.double()).sequences.shape == (1, 12)


def test_blanks_that_pass_over_a_symbol_are_left_to_transformers() -> None:
    """Their durations are computed once more, and may be rounded otherwise than in the search."""
    for blank, expected in (2, [(BLANK, 2), (1, 1), (BLANK, 1), (BLANK, 1)]), (3, None):
        assert search._steps(5, [1], [2], [1], [blank, 1, 1, 1, 1], BLANK, 10) == expected
