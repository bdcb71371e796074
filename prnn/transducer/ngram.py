"""N-gram language models, as ARPA files have them, that a search adds to the model's probabilities."""

from __future__ import annotations

import gzip
import math
import re
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TextIO

import torch
from torch import Tensor

from prnn._fields import shown
from prnn.transducer.biasing import LARGEST_TABLE, SymbolBias
from prnn.transducer.checks import require_at_least

_BEGIN, _END, _UNKNOWN = "<s>", "</s>", "<unk>"
_LN10 = math.log(10.0)
_SPACES = re.compile(r"[ \t]+")  # a symbol may be another of Unicode's
_GZIP = b"\x1f\x8b"
_KENLM_BINARY = b"mmap lm http://kheafield.com/code"
_LONGEST_LINE = 1 << 20  # characters: what a small gzipped file may hold fits no memory

Context = tuple[int, ...]


class NgramBias(SymbolBias):
    """An n-gram language model over a model's symbols (shallow fusion).

    Every symbol adds `weight` times its natural log-probability after the symbols before it, as the ARPA file gives it
    or by backing off, and `bonus`; a blank adds nothing, so that without a bonus a large weight makes a search leave
    out symbols. The end of an utterance adds `weight` times the log-probability of `</s>`, if the file has one.

    Args:
        path: an ARPA file, as KenLM, SRILM and others write it, gzipped or not.
        symbols: the name that each symbol has in the file: a list in the order of the symbols, or a mapping from names
            to symbols. N-grams that hold other names are left out; a symbol without an n-gram has the probability of
            `<unk>`.
        vocab_size: number of symbols V, blank included.
        blank: index of the blank, whose name does not matter.
        weight: of the log-probabilities, positive.
        bonus: in nats, for each symbol.

    Attributes:
        covered: how many symbols have a 1-gram in the file.

    Raises:
        ValueError, TypeError: naming the argument and its value, or the line of the file.
        OSError: the file cannot be read.
    """

    def __init__(
        self,
        path: str | Path,
        symbols: Sequence[str] | Mapping[str, int],
        vocab_size: int,
        blank: int = 0,
        weight: float = 0.3,
        bonus: float = 0.0,
    ) -> None:
        require_at_least("vocab_size", vocab_size, 2)
        require_at_least("blank", blank, 0)
        if blank >= vocab_size:
            raise ValueError(f"blank is {blank}; it must be below vocab_size, {vocab_size}")
        for name, value, positive in (("weight", weight, True), ("bonus", bonus, False)):
            number = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
            if not number or (positive and value <= 0):
                raise ValueError(f"{name} is {shown(value)}; it must be a {'positive ' if positive else ''}number")
        names = dict(symbols) if isinstance(symbols, Mapping) else {name: i for i, name in enumerate(symbols)}
        for name, symbol in names.items():
            if not isinstance(name, str) or type(symbol) is not int or not 0 <= symbol < vocab_size:
                raise ValueError(f"symbols has {shown(name)}: {shown(symbol)}; symbols are 0 to {vocab_size - 1}")
        names = {name: symbol for name, symbol in names.items() if symbol != blank}
        model = _read(Path(path), names, vocab_size)
        self.covered = len({ngram for ngram in model.log_probs if len(ngram) == 1 and ngram[0] < vocab_size})
        tables = model.tables(vocab_size, blank, float(weight), float(bonus))
        missing = torch.isinf(tables[1]).any(0).nonzero()
        if len(missing):
            own = [name for name, symbol in names.items() if symbol == int(missing[0])]
            which = f"{shown(own[0])}, symbol" if own else "symbol"
            raise ValueError(f"{path} has no 1-gram of {which} {int(missing[0])}, and no {_UNKNOWN}")
        super().__init__(vocab_size, blank, tables)


class _Ngrams:
    """The contents of a file: natural log-probabilities of n-grams, and of contexts the logarithm of what backing off
    costs. The beginning of an utterance is symbol V, its end V + 1."""

    def __init__(self, path: Path, begin: int) -> None:
        self.path = path
        self.begin = begin
        self.log_probs: dict[Context, float] = {}
        self.backoffs: dict[Context, float] = {}
        self.unknown: float | None = None

    def tables(self, vocab_size: int, blank: int, weight: float, bonus: float) -> tuple[Tensor, Tensor, Tensor]:
        """The automaton's next nodes (S, V), gains (S, V), and what the end adds (S,); a node for each context."""
        end = self.begin + 1
        contexts = {*self.backoffs, *(ngram[:-1] for ngram in self.log_probs)}
        contexts = {context[:length] for context in contexts for length in range(len(context) + 1)} | {()}
        start = (self.begin,) if (self.begin,) in contexts else ()
        # Node 0 is the beginning of an utterance. The others by length, so that suffixes come first.
        order = sorted(contexts, key=len)
        order = [start, *(context for context in order if context != start)]
        node = {context: place for place, context in enumerate(order)}
        if len(order) * vocab_size > LARGEST_TABLE:
            entries = len(order) * vocab_size
            raise ValueError(f"{self.path} makes a table of {entries} entries; it must be at most {LARGEST_TABLE}")

        def suffix(context: Context) -> Context:
            while (context := context[1:]) not in node:
                pass
            return context

        followers: dict[Context, list[int]] = {context: [] for context in order}
        for ngram in self.log_probs:
            followers[ngram[:-1]].append(ngram[-1])
        longer: dict[Context, list[Context]] = {context: [] for context in order}
        for context in order:
            if context:
                longer[context[:-1]].append(context)
        log_probs = torch.empty(len(order), vocab_size + 2, dtype=torch.float64, device="cpu")
        after = torch.zeros(len(order), vocab_size + 2, dtype=torch.int64, device="cpu")
        for context in sorted(order, key=len):
            row = node[context]
            if context:
                shorter = suffix(context)
                log_probs[row] = log_probs[node[shorter]] + self.backoffs.get(context, 0.0)
                after[row] = after[node[shorter]]
            else:
                log_probs[row] = -math.inf if self.unknown is None else self.unknown
                after[row] = node[()]
            found = followers[context]
            if found:
                places = torch.tensor(found, device="cpu")
                values = [self.log_probs[(*context, symbol)] for symbol in found]
                log_probs[row, places] = torch.tensor(values, dtype=torch.float64, device="cpu")
            for next_context in longer[context]:
                after[row, next_context[-1]] = node[next_context]
        gains = weight * log_probs[:, :vocab_size] + bonus
        gains[:, blank] = 0.0
        after = after[:, :vocab_size].clone()
        after[:, blank] = torch.arange(len(order), device="cpu")
        has_end = (end,) in self.log_probs
        final = weight * log_probs[:, end] if has_end else torch.zeros(len(order), dtype=torch.float64, device="cpu")
        return after, gains, final


def _read(path: Path, names: Mapping[str, int], vocab_size: int) -> _Ngrams:
    """The n-grams of a file that hold known names alone."""
    ngrams = _Ngrams(path, vocab_size)
    known = {**names, _BEGIN: vocab_size, _END: vocab_size + 1}
    order = 0
    with _open(path) as file:
        for number, line in _lines(path, file):
            if line.startswith("\\"):
                head = line[1:].partition("-")[0]
                if line == "\\end\\":
                    break
                if line == "\\data\\" or not head.isdigit():
                    continue
                order = int(head)
                continue
            if order == 0:  # the counts
                continue
            fields = _SPACES.split(line)
            if len(fields) not in (order + 1, order + 2):
                raise ValueError(f"{path}, line {number}: {shown(line)} is no {order}-gram")
            try:
                log_prob = float(fields[0]) * _LN10
                backoff = float(fields[order + 1]) * _LN10 if len(fields) > order + 1 else 0.0
            except ValueError:
                raise ValueError(f"{path}, line {number}: {shown(line)} has no number where one must be") from None
            if math.isnan(log_prob) or math.isnan(backoff) or math.inf in (log_prob, backoff):
                raise ValueError(f"{path}, line {number}: {shown(line)} has a number that is not finite")
            words = fields[1 : order + 1]
            if words == [_UNKNOWN]:
                ngrams.unknown = log_prob
            if not all(word in known for word in words):
                continue
            ngram = tuple(known[word] for word in words)
            if ngram[-1] != ngrams.begin:  # its own probability is never asked for
                ngrams.log_probs[ngram] = log_prob
            if backoff and ngram[-1] != vocab_size + 1:
                ngrams.backoffs[ngram] = backoff
    if order == 0:
        raise ValueError(f"{path} is no ARPA file: it has no section of n-grams")
    if not any(ngram[-1] < vocab_size for ngram in ngrams.log_probs):
        raise ValueError(f"{path} has no n-gram of the symbols")
    return ngrams


def _open(path: Path) -> TextIO:
    with path.open("rb") as file:
        head = file.read(len(_KENLM_BINARY))
    if head == _KENLM_BINARY:
        raise ValueError(f"{path} is a binary file of KenLM; take the ARPA file that it was made of")
    return gzip.open(path, "rt", encoding="utf-8") if head.startswith(_GZIP) else path.open(encoding="utf-8")


def _lines(path: Path, file: TextIO) -> Iterator[tuple[int, str]]:
    """Lines that are not blank, with their numbers."""
    number = 0
    try:
        while line := file.readline(_LONGEST_LINE):
            number += 1
            if len(line) == _LONGEST_LINE:
                raise ValueError(f"{path}, line {number}: it is longer than any of an ARPA file")
            if stripped := line.strip(" \t\n"):
                yield number, stripped
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}, line {number + 1}: it is not UTF-8: {error.reason}") from None
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise ValueError(f"{path}: after line {number} the gzipped file is damaged: {error}") from None
