"""Preferences of a search besides the model: phrases, and in ngram.py a language model."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from prnn._fields import shown
from prnn.transducer.checks import kind, require_at_least
from prnn.transducer.joiner import Joiner
from prnn.transducer.predictor import Predictor, State

LARGEST_TABLE = 2**26  # entries


class SymbolBias:
    """Scores that a search adds to the symbols' log-probabilities: a deterministic automaton that reads the transcript,
    from node 0 on.

    Args:
        vocab_size: number of symbols V, blank included.
        blank: index of the blank, which changes no node and is given nothing.
        tables: the next node (S, V), int64, what each symbol is given (S, V), float64, and what the end of an utterance
            is given (S,).
    """

    def __init__(self, vocab_size: int, blank: int, tables: tuple[Tensor, Tensor, Tensor]) -> None:
        self.vocab_size = vocab_size
        self.blank = blank
        self._built = tables
        self._tables: dict[torch.device, tuple[Tensor, Tensor, Tensor]] = {}
        self._library_tables: dict[tuple[torch.device, torch.dtype], tuple[Tensor, Tensor]] = {}

    def tables(self, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
        """The automaton on a device, where it stays."""
        if device not in self._tables:
            after, gain, final = self._built
            self._tables[device] = after.to(device), gain.to(device), final.to(device)
        return self._tables[device]

    def library_tables(self, device: torch.device, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """The next node (S, V), int32, and what a symbol is given (S, V), as include/prnn_decode.h wants them."""
        key = (device, dtype)
        if key not in self._library_tables:
            after, gain, _ = self._built
            self._library_tables[key] = after.to(device, torch.int32), gain.to(device, dtype)
        return self._library_tables[key]

    def gains(self, node: Tensor) -> Tensor:
        """Returns the gain of each symbol at nodes (...), (..., V)."""
        return self.tables(node.device)[1][node]

    def settled(self, scores: Tensor, node: Tensor) -> Tensor:
        """Scores of hypotheses that have ended."""
        return scores + self.tables(node.device)[2][node]

    def carried(self, node: Tensor) -> Tensor:
        """Returns the nodes at which an utterance begins that follows another one, which has ended at nodes (...)."""
        return torch.zeros_like(node, dtype=torch.float64)


class PhraseBias(SymbolBias):
    """Phrases, each with a score in nats that every occurrence in a transcript adds to its log-probability.

    While a phrase is being spelled, a hypothesis has the share of the score that it has spelled of the phrase, of the
    phrase for which that is most; the share is taken back if something else follows (shallow fusion with an
    Aho-Corasick automaton, as in Pundak et al. 2018, "Deep context").

    Args:
        phrases: the symbols of each, without blanks.
        scores: of each phrase, or one for all; positive.
        vocab_size: number of symbols V, blank included.
        blank: index of the blank.

    Raises:
        ValueError, TypeError: naming the argument and its value.
    """

    def __init__(
        self, phrases: Sequence[Sequence[int]], scores: float | Sequence[float], vocab_size: int, blank: int = 0
    ) -> None:
        require_at_least("vocab_size", vocab_size, 2)
        require_at_least("blank", blank, 0)
        if not isinstance(phrases, (list, tuple)) or not all(isinstance(phrase, (list, tuple)) for phrase in phrases):
            raise TypeError(f"phrases is {shown(phrases)}; it must be a list of lists of symbols")
        values = list(scores) if isinstance(scores, Sequence) else [scores] * len(phrases)
        if len(values) != len(phrases):
            raise ValueError(f"scores has {len(values)} numbers; there are {len(phrases)} phrases")
        for place, value in enumerate(values):
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < math.inf:
                raise ValueError(f"scores[{place}] is {shown(value)}; it must be a positive number")
        for place, phrase in enumerate(phrases):
            if not len(phrase):
                raise ValueError(f"phrases[{place}] is empty")
            for symbol in phrase:
                if type(symbol) is not int or not 0 <= symbol < vocab_size or symbol == blank:
                    raise ValueError(
                        f"phrases[{place}] holds {shown(symbol)}; "
                        f"its symbols must be ints of 0 to {vocab_size - 1}, and not the blank, {blank}"
                    )
        entries = (1 + sum(map(len, phrases))) * vocab_size
        if entries > LARGEST_TABLE:
            raise ValueError(f"phrases makes a table of up to {entries} entries; it must be at most {LARGEST_TABLE}")
        super().__init__(vocab_size, blank, _phrase_tables(phrases, values, vocab_size, blank))

    def carried(self, node: Tensor) -> Tensor:
        """The share of the phrase begun, which `settled` takes back."""
        return -self.tables(node.device)[2][node]


def _phrase_tables(
    phrases: Sequence[Sequence[int]], scores: Sequence[float], vocab_size: int, blank: int
) -> tuple[Tensor, Tensor, Tensor]:
    """The automaton of phrases; its end takes back the share of a phrase that was begun."""
    children: list[dict[int, int]] = [{}]
    share, ended = [0.0], [0.0]
    for phrase, score in zip(phrases, scores, strict=True):
        node = 0
        for depth, symbol in enumerate(phrase, start=1):
            if symbol not in children[node]:
                children[node][symbol] = len(children)
                children.append({})
                share.append(0.0)
                ended.append(0.0)
            node = children[node][symbol]
            if depth < len(phrase):
                share[node] = max(share[node], score * depth / len(phrase))
        ended[node] += score

    # Breadth first: the longest proper suffix of a node that is a node too comes before it.
    after = torch.zeros(len(children), vocab_size, dtype=torch.int64, device="cpu")
    suffix, order = [0] * len(children), [0]
    for node in order:
        if node:
            after[node] = after[suffix[node]]
            ended[node] += ended[suffix[node]]
            share[node] = max(share[node], share[suffix[node]])
        for symbol, child in children[node].items():
            suffix[child] = int(after[suffix[node], symbol]) if node else 0
            after[node, symbol] = child
            order.append(child)
    shares, ends = torch.tensor([share, ended], dtype=torch.float64, device="cpu")
    gain = ends[after] + shares[after] - shares[:, None]
    after[:, blank] = torch.arange(len(children), device="cpu")
    gain[:, blank] = 0.0
    return after, gain, -shares


def check_bias(bias: object, vocab_size: int, blank: int) -> None:
    """Raise TypeError unless `bias` is a SymbolBias or None, ValueError unless it is of such a model."""
    if bias is None:
        return
    if not isinstance(bias, SymbolBias):
        raise TypeError(f"bias is {kind(bias)}; it must be a PhraseBias or an NgramBias")
    for name, value, own in (("vocab_size", bias.vocab_size, vocab_size), ("blank", bias.blank, blank)):
        if value != own:
            raise ValueError(f"bias has a {name} of {value}; the model's is {own}")


class BiasedPredictor:
    """A predictor whose state and output end with the automaton's node."""

    def __init__(self, predictor: Predictor, bias: SymbolBias) -> None:
        self.predictor = predictor
        self.bias = bias
        self.output_dim = predictor.output_dim + 1

    def initial_state(self, batch: int) -> State:
        """The predictor's, and the root."""
        state = self.predictor.initial_state(batch)
        return (*state, torch.zeros(batch, dtype=torch.int64, device=state[0].device))

    def step(self, symbols: Tensor, state: State) -> tuple[Tensor, State]:
        """As the predictor's; outputs are in float64, which holds every node."""
        out, after = self.predictor.step(symbols, state[:-1])
        node = self.bias.tables(symbols.device)[0][state[-1], symbols]
        return torch.cat([out.double(), node[:, None].double()], dim=1), (*after, node)

    def __call__(self, targets: Tensor) -> Tensor:
        raise NotImplementedError("a search calls step alone")


class BiasedJoiner:
    """A joiner that adds what the automaton gives to the symbols' log-probabilities."""

    def __init__(self, joiner: Joiner, bias: SymbolBias) -> None:
        self.joiner = joiner
        self.bias = bias
        self.output = joiner.output
        self.encoder_proj = joiner.encoder_proj
        self.project_encoder = joiner.project_encoder

    def project_predictor(self, predictor_out: Tensor) -> Tensor:
        """(..., predictor_dim + 1) to (..., J + 1), in float64."""
        weight = self.joiner.predictor_proj.weight
        projected = self.joiner.project_predictor(predictor_out[..., :-1].to(weight.dtype))
        return torch.cat([projected.double(), predictor_out[..., -1:]], dim=-1)

    def log_probs(self, encoder_projection: Tensor, predictor_projection: Tensor) -> Tensor:
        """As the joiner's, biased."""
        return self.all_log_probs(encoder_projection, predictor_projection)[0]

    def all_log_probs(self, encoder_projection: Tensor, predictor_projection: Tensor) -> tuple[Tensor, Tensor]:
        """As the joiner's, biased."""
        projection = predictor_projection[..., :-1].to(encoder_projection.dtype)
        symbols, durations = self.joiner.all_log_probs(encoder_projection, projection)
        return symbols + self.bias.gains(predictor_projection[..., -1].long()), durations
