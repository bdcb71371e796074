"""N-gram language models in searches: tables against backing off by definition, greedy, beam and streams."""

from __future__ import annotations

import gzip
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from reference import transducer as slow

from prnn.transducer import NgramBias

NAMES = ["<blank>", "a", "b", "c", "d"]
ARPA = r"""
\data\
ngram 1=7
ngram 2=6
ngram 3=3

\1-grams:
-1.1	<unk>
-99	<s>	-0.4
-0.9	</s>
-0.7	a	-0.3
-0.6	b	-0.2
-1.3	c
-2.0	other	-0.5

\2-grams:
-0.2	<s> a	-0.1
-0.8	a b	-0.6
-0.5	b b
-0.4	b c	-0.7
-0.3	c </s>
-0.1	other a	-0.2

\3-grams:
-0.25	<s> a b
-0.35	a b c
-0.15	b c </s>

\end\
"""


@pytest.fixture
def arpa(tmp_path: Path) -> Path:
    path = tmp_path / "model.arpa"
    path.write_text(ARPA)
    return path


def entries() -> dict[tuple[str, ...], tuple[float, float]]:
    """Natural log-probability and backoff of each n-gram."""
    found = {}
    for line in ARPA.splitlines():
        fields = line.split("\t")
        if len(fields) > 1:
            values = [float(fields[0]), float(fields[2]) if len(fields) > 2 else 0.0]
            found[tuple(fields[1].split())] = tuple(math.log(10) * value for value in values)
    return found  # type: ignore[return-value]


def log_prob(word: str, history: tuple[str, ...]) -> float:
    """By definition: of the longest n-gram that there is, with the costs of backing off to it."""
    table, cost = entries(), 0.0
    for begin in range(max(len(history) - 2, 0), len(history) + 1):
        context = history[begin:]
        if (*context, word) in table:
            return cost + table[*context, word][0]
        if not context:
            return cost + table["<unk>",][0]
        cost += table.get(context, (0.0, 0.0))[1]
    raise AssertionError


def score(symbols: list[int], weight: float, bonus: float, ends: bool) -> float:
    history: tuple[str, ...] = ("<s>",)
    total = 0.0
    for symbol in symbols:
        total += weight * log_prob(NAMES[symbol], history) + bonus
        history = (*history, NAMES[symbol])
    return total + weight * log_prob("</s>", history) * ends


def test_tables_back_off_by_definition(arpa: Path) -> None:
    bias = NgramBias(arpa, NAMES, 5, weight=0.7, bonus=0.1)
    after, gains, final = bias.tables(torch.device("cpu"))
    assert gains.isfinite().all()
    generator = torch.Generator().manual_seed(0)
    for _ in range(50):
        symbols = torch.randint(1, 5, (7,), generator=generator).tolist()
        node, total = 0, 0.0
        for symbol in symbols:
            assert (int(after[node, 0]), float(gains[node, 0])) == (node, 0.0)
            total += float(gains[node, symbol])
            node = int(after[node, symbol])
        assert total + float(final[node]) == pytest.approx(score(symbols, 0.7, 0.1, True), abs=1e-12)


@pytest.mark.parametrize("durations", [False, True], ids=["rnn-t", "tdt"])
def test_greedy_search_adds_it(arpa: Path, durations: bool) -> None:
    changes: dict[str, Any] = {"loss": "tdt", "durations": (0, 1, 2)} if durations else {}
    model = slow.tiny_model(3, **changes)
    bias = NgramBias(arpa, NAMES, 5, weight=1.5, bonus=1.0)
    features = torch.randn(3, 30, 4, dtype=torch.float64)
    found = model.greedy_search(features, bias=bias)
    plain = model.greedy_search(features)
    assert [h.tokens for h in found] != [h.tokens for h in plain]
    state = model.stream_init(3, bias=bias)
    tokens: list[list[int]] = [[], [], []]
    for chunk in features.split(7, dim=1):
        certain, state = model.stream_step(chunk, state)
        tokens = [before + new for before, new in zip(tokens, certain, strict=True)]
    certain, state = model.stream_finish(state)
    assert [a + b for a, b in zip(tokens, certain, strict=True)] == [h.tokens for h in found]
    assert [h.score for h in state.best()] == pytest.approx([h.score for h in found], abs=1e-9)
    assert [h.log_probs for h in state.best()] == [pytest.approx(h.log_probs, abs=1e-9) for h in found]


@pytest.mark.parametrize("mode", ["modified", "standard"])
def test_beam_scores_hold_it(arpa: Path, mode: str) -> None:
    """With a beam that holds every transcript."""
    bias = NgramBias(arpa, NAMES[:3], 3, weight=0.6, bonus=0.2)
    features = torch.randn(6, 4, dtype=torch.float64)
    model = slow.tiny_model(0, vocab_size=3, gain=1.0)
    modified = mode == "modified"
    plain = slow.exhaustive(model, slow.encode(model, features), 1 if modified else 2, modified)
    expected = {tuple(tokens): total + score(tokens, 0.6, 0.2, True) for total, tokens in plain}
    (found,) = model.beam_search(features[None], beam=150, mode=mode, nbest=150, max_symbols=2, bias=bias)
    assert {tuple(h.tokens): pytest.approx(h.score, abs=1e-9) for h in found} == expected


def test_the_next_utterance_of_a_stream_begins_anew(arpa: Path) -> None:
    model = slow.tiny_model(3)
    bias = NgramBias(arpa, NAMES, 5, weight=1.5, bonus=1.0)
    features = torch.randn(1, 40, 4, dtype=torch.float64)
    for search in ("greedy", "standard"):
        _, state = model.stream_step(features, model.stream_init(1, search, bias=bias))
        _, state = state.take_best()
        assert state.hypotheses.scores[0, 0] == 0.0


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"weight": 0.0}, "weight is 0.0; it must be a positive number"),
        ({"bonus": math.nan}, "bonus is nan; it must be a number"),
        ({"symbols": ["x", "a", "b", "c", "d", "e"]}, "symbols has 'e': 5; symbols are 0 to 4"),
        ({"symbols": {"a": -1}}, "symbols has 'a': -1"),
        ({"symbols": ["x", "y"]}, "has no n-gram of the symbols"),
        ({"blank": 5}, "blank is 5; it must be below vocab_size, 5"),
        ({"vocab_size": 2**24}, "model.arpa makes a table of"),
    ],
)
def test_bad_arguments(arpa: Path, changes: dict[str, Any], message: str) -> None:
    arguments = {"path": arpa, "symbols": NAMES, "vocab_size": 5, **changes}
    with pytest.raises((ValueError, TypeError), match=message):
        NgramBias(**arguments)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is no ARPA file"),
        ("hello world", "is no ARPA file"),
        ("\\data\\\n\\1-grams:\n-1.0\ta b c\n", "line 3: .* is no 1-gram"),
        ("\\data\\\n\\1-grams:\nx\ta\n", "line 3: .* has no number where one must be"),
        ("\\data\\\n\\1-grams:\nnan\ta\n", "line 3: .* is not finite"),
        ("\\data\\\n\\1-grams:\n-1\ta\n\\end\\\n", "has no 1-gram of 'b', symbol 2, and no <unk>"),
    ],
)
def test_bad_files(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "model.arpa"
    path.write_text(text)
    with pytest.raises(ValueError, match=message):
        NgramBias(path, NAMES, 5)


def test_a_file_that_is_not_text(tmp_path: Path) -> None:
    path = tmp_path / "model.arpa"
    path.write_bytes(b"\\data\\\n\\1-grams:\n-1\t\xff\xfe\n")
    with pytest.raises(ValueError, match="it is not UTF-8"):
        NgramBias(path, NAMES, 5)


def test_a_gzipped_file(arpa: Path, tmp_path: Path) -> None:
    path = tmp_path / "model.arpa.gz"
    path.write_bytes(gzip.compress(arpa.read_bytes()))
    plain, packed = NgramBias(arpa, NAMES, 5), NgramBias(path, NAMES, 5)
    tables = [bias.tables(torch.device("cpu")) for bias in (plain, packed)]
    assert all(torch.equal(a, b) for a, b in zip(*tables, strict=True))
    whole = path.read_bytes()
    for damaged in (whole[: len(whole) // 2], whole[:20] + bytes(20) + whole[40:], whole[:4]):
        path.write_bytes(damaged)
        with pytest.raises(ValueError, match=r"model\.arpa\.gz.*the gzipped file is damaged: "):
            NgramBias(path, NAMES, 5)
    path.write_bytes(gzip.compress(b"\\data\\\n" + b"a" * (1 << 22)))
    with pytest.raises(ValueError, match=r"model\.arpa\.gz, line 2: it is longer than any of an ARPA file"):
        NgramBias(path, NAMES, 5)


def test_a_binary_of_kenlm(tmp_path: Path) -> None:
    path = tmp_path / "model.bin"
    path.write_bytes(b"mmap lm http://kheafield.com/code format version 5\n\0" + bytes(100))
    with pytest.raises(ValueError, match="is a binary file of KenLM; take the ARPA file"):
        NgramBias(path, NAMES, 5)
