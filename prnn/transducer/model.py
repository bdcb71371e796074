"""The transducer: encoder, predictor, joiner, loss, search, streaming."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from prnn._options_text import options_text
from prnn.losses import ctc_loss
from prnn.transducer.biasing import SymbolBias, check_bias
from prnn.transducer.checks import (
    check_features,
    check_targets,
    kind,
    require_at_least,
    require_choice,
    require_number,
    require_searchable,
)
from prnn.transducer.config import LOSSES, TransducerConfig, require_durations
from prnn.transducer.encoder import Encoder
from prnn.transducer.greedy import greedy_search
from prnn.transducer.hypothesis import Decoder, Hypothesis, best_lists, found_hypotheses
from prnn.transducer.inference import in_eval_mode
from prnn.transducer.joiner import Joiner
from prnn.transducer.loss import SimpleJoiner, duration_loss, joiner_loss
from prnn.transducer.predictor import Predictor, build_predictor
from prnn.transducer.stacking import StreamingEncoder
from prnn.transducer.streaming import (
    MAX_SYMBOLS,
    SearchOptions,
    StreamState,
    search,
    stream_advance,
    stream_begin,
)


class LossParts(NamedTuple):
    """The losses that a training step logs, each a mean over utterances.

    Attributes:
        total: what to minimise: transducer + simple_weight * simple + ctc_weight * ctc.
        transducer: the transducer loss, full, pruned or tdt.
        simple: the simple loss that found the pruning bounds; None unless the loss is pruned.
        ctc: the auxiliary CTC loss; None if its weight is 0.
    """

    total: Tensor
    transducer: Tensor
    simple: Tensor | None
    ctc: Tensor | None


class Transducer(nn.Module):
    """A recurrent neural network transducer (Graves 2012).

    Args:
        encoder: an `Encoder`, or a module that does as `StreamingEncoder` says.
        predictor: a `RecurrentPredictor` or `StatelessPredictor`, or a module that does as `Predictor` says.
        joiner: a `Joiner` of their output sizes.
        blank: index of the blank.
        loss: "full", the exact loss over all lattice cells, or "pruned", that of the cells which a simple joiner finds
            probable (Kuang et al. 2022, "Pruned RNN-T for fast, memory-efficient ASR training"), or "tdt", that of a
            token-and-duration transducer (Xu et al. 2023), whose joiner has a logit for each of `durations` besides.
        ctc_weight: weight of an auxiliary CTC loss on the encoder, which gets a linear layer of its own; 0 is none.
        fastemit: FastEmit's lambda, for the full loss and tdt.
        prune_range: symbols kept per frame by the pruned loss.
        simple_weight: weight of the simple loss beside the pruned one.
        durations: the encoder frames that each duration of a tdt model stands for.
        sigma: logit under-normalisation of the tdt loss.
        omega: share of the RNN-T loss of the symbols alone in the tdt loss.

    Raises:
        ValueError, TypeError: naming the argument and its value.
    """

    config: TransducerConfig | None = None

    def __init__(
        self,
        encoder: StreamingEncoder,
        predictor: Predictor,
        joiner: Joiner,
        blank: int = 0,
        loss: str = "full",
        ctc_weight: float = 0.0,
        fastemit: float = 0.0,
        prune_range: int = 5,
        simple_weight: float = 0.5,
        durations: tuple[int, ...] = (0, 1, 2, 3, 4),
        sigma: float = 0.05,
        omega: float = 0.1,
    ) -> None:
        super().__init__()
        require_at_least("blank", blank, 0)
        if blank >= joiner.vocab_size:
            raise ValueError(f"blank is {blank}; it must be below the joiner's vocab_size, {joiner.vocab_size}")
        for name, part, layer in (
            ("encoder", encoder, joiner.encoder_proj),
            ("predictor", predictor, joiner.predictor_proj),
        ):
            if part.output_dim != layer.in_features:
                raise ValueError(
                    f"the {name}'s output_dim is {part.output_dim}, but the joiner's {name}_dim is {layer.in_features}"
                )
        require_choice("loss", loss, LOSSES)
        numbers = {
            "ctc_weight": ctc_weight,
            "fastemit": fastemit,
            "simple_weight": simple_weight,
            "sigma": sigma,
            "omega": omega,
        }
        for name, value in numbers.items():
            require_number(name, value, below_one=False)
        require_durations(durations)
        wanted = len(durations) if loss == "tdt" else 0
        if joiner.durations != wanted:
            raise ValueError(f"the joiner's durations is {joiner.durations}; with the {loss} loss it must be {wanted}")
        require_at_least("prune_range", prune_range, 2)
        if fastemit and loss == "pruned":
            raise ValueError(f"fastemit is {fastemit}; the {loss} loss does not have it")
        self.encoder = encoder
        self.predictor = predictor
        self.joiner = joiner
        self.blank = blank
        self.loss = loss
        self.ctc_weight = ctc_weight
        self.fastemit = fastemit
        self.prune_range = prune_range
        self.simple_weight = simple_weight
        self.durations = durations if loss == "tdt" else ()
        self.sigma = sigma
        self.omega = omega
        vocab_size = joiner.vocab_size
        self.ctc_output = nn.Linear(encoder.output_dim, vocab_size) if ctc_weight else None
        self.simple_joiner = (
            SimpleJoiner(encoder.output_dim, predictor.output_dim, vocab_size) if loss == "pruned" else None
        )

    @classmethod
    def from_config(cls, config: TransducerConfig, encoder: StreamingEncoder | None = None) -> Transducer:
        """The model that a config describes, with random weights; `model.config` is that config.

        Args:
            config: of the model.
            encoder: where config.encoder_class names one that is not prnn's, what that class made of the config.

        Raises:
            ValueError: the config names such a class, and no encoder is given, or the other way round.
        """
        if (encoder is None) != (config.encoder_class is None):
            given = "no encoder is given" if encoder is None else "an encoder is given"
            raise ValueError(f"encoder_class is {config.encoder_class}, but {given}")
        encoder = Encoder.from_config(config) if encoder is None else encoder
        predictor = build_predictor(config)
        joiner = Joiner(
            encoder.output_dim,
            predictor.output_dim,
            config.joiner_dim,
            config.vocab_size,
            config.joiner_activation,
            len(config.durations) if config.loss == "tdt" else 0,
        )
        model = cls(
            encoder,
            predictor,
            joiner,
            config.blank,
            config.loss,
            config.ctc_weight,
            config.fastemit,
            config.prune_range,
            config.simple_weight,
            config.durations,
            config.sigma,
            config.omega,
        )
        model.config = config
        return model

    def extra_repr(self) -> str:
        return options_text(self, without=() if self.loss == "tdt" else ("durations",))

    def forward(self, features: Tensor, feature_lengths: Tensor, targets: Tensor, target_lengths: Tensor) -> Tensor:
        """The loss to minimise, a scalar: `loss_parts(...).total`."""
        return self.loss_parts(features, feature_lengths, targets, target_lengths).total

    def loss_parts(
        self, features: Tensor, feature_lengths: Tensor, targets: Tensor, target_lengths: Tensor
    ) -> LossParts:
        """The losses of a batch of utterances.

        On a GPU, leave lengths and targets on the CPU, where they are checked: nothing then waits for the GPU, and the
        loss computes no padding. `DistributedDataParallel` with device_ids would move them; without, it does not.

        Args:
            features: (N, T, F), float.
            feature_lengths: (N,), integer, 1 to T.
            targets: (N, U), integer, symbols without blanks; what lies beyond a length never matters.
            target_lengths: (N,), integer, 0 to U.

        Raises:
            ValueError, TypeError: naming the argument and its value.
        """
        feature_lengths = check_features(
            "features", features, self.encoder.feature_dim, "feature_lengths", feature_lengths, 1
        )
        targets, target_lengths = check_targets(
            targets, target_lengths, features.shape[0], self.joiner.vocab_size, self.blank
        )
        targets = targets.to(features.device, non_blocking=True)
        # The predictor first, so that its backward is last: the encoder's gradients can be on their way to other GPUs.
        predictor_out = self.predictor(targets)
        encoder_out, lengths = self.encoder(features, feature_lengths)
        simple = None
        parts = (self.joiner, encoder_out, lengths, predictor_out, targets, target_lengths, self.blank)
        if self.simple_joiner is not None:
            simple, ranges = self.simple_joiner.loss_and_ranges(*parts[1:], self.prune_range)
            transducer = joiner_loss(*parts, self.fastemit, ranges)
            total = transducer + self.simple_weight * simple
        elif self.durations:
            total = transducer = duration_loss(*parts, self.fastemit, self.durations, self.sigma, self.omega)
        else:
            total = transducer = joiner_loss(*parts, self.fastemit)
        ctc = None
        if self.ctc_output is not None:
            logits = self.ctc_output(encoder_out).transpose(0, 1)
            costs = ctc_loss(
                logits, targets, lengths, target_lengths, blank=self.blank, reduction="none", zero_infinity=True
            )
            ctc = costs.mean()
            total = total + self.ctc_weight * ctc
        return LossParts(total, transducer, simple, ctc)

    def greedy_search(
        self,
        features: Tensor,
        feature_lengths: Tensor | None = None,
        max_symbols: int = MAX_SYMBOLS,
        bias: SymbolBias | None = None,
    ) -> list[Hypothesis]:
        """Recognise whole utterances, taking the most probable symbol at every step, and of a tdt model the most
        probable duration.

        Args:
            features: (N, T, F), float.
            feature_lengths: (N,), integer, 0 to T; None means all T.
            max_symbols: most symbols in one encoder frame. The last of them ends the frame, without a blank.
            bias: phrases to prefer, or a language model.

        Returns:
            N hypotheses; score is the log-probability of the path taken, blanks included, and what the bias gave.

        Raises:
            ValueError, TypeError: naming the argument and its value.
        """
        require_at_least("max_symbols", max_symbols, 1)
        self._check_bias(bias)
        with torch.no_grad():
            model, encoder_out, lengths = self._encode(features, feature_lengths)
            decoder = model._decoder(bias)
            found, state = greedy_search(decoder, encoder_out, lengths, max_symbols, returns_state=bias is not None)
            if bias is not None and state is not None:
                found = found._replace(scores=bias.settled(found.scores, state.predictor[-1]))
            return found_hypotheses(found)

    def beam_search(
        self,
        features: Tensor,
        feature_lengths: Tensor | None = None,
        beam: int = 4,
        mode: str = "modified",
        nbest: int = 1,
        max_symbols: int = MAX_SYMBOLS,
        length_norm: bool = False,
        bias: SymbolBias | None = None,
    ) -> list[list[Hypothesis]]:
        """Recognise whole utterances, keeping the `beam` most probable hypotheses; paths that spell the same are added.

        Args:
            features: (N, T, F), float.
            feature_lengths: (N,), integer, 0 to T; None means all T.
            beam: hypotheses kept per utterance.
            mode: "modified": at most one symbol in an encoder frame, which it ends; "standard": up to `max_symbols` and
                then a blank. `modified_frame` and `standard_frame` of prnn.transducer.beam define them, and
                `durations_frame` for a tdt model.
            nbest: hypotheses returned per utterance, at most `beam`.
            max_symbols: most symbols in one encoder frame, "standard" only.
            length_norm: order the hypotheses by score / (symbols + 1) instead of by score.
            bias: phrases to prefer, or a language model.

        Returns:
            N lists, best hypothesis first; score is the log of the sum of the probabilities of the paths found, and
            what the bias gave it.

        Raises:
            ValueError, TypeError: naming the argument and its value.
        """
        require_choice("mode", mode, ("modified", "standard"))
        options = SearchOptions.checked(mode, beam, max_symbols)
        require_at_least("nbest", nbest, 1)
        if nbest > beam:
            raise ValueError(f"nbest is {nbest}; it must be at most beam, {beam}")
        self._check_bias(bias)
        with torch.no_grad():
            model, encoder_out, lengths = self._encode(features, feature_lengths)
            return best_lists(search(model._decoder(bias), options, encoder_out, lengths), nbest, length_norm)

    def stream_init(
        self,
        batch: int = 1,
        search: str = "greedy",
        beam: int = 4,
        max_symbols: int = MAX_SYMBOLS,
        bias: SymbolBias | None = None,
    ) -> StreamState:
        """The state of `batch` streams before their first frame.

        Args:
            batch: number of streams N.
            search: "greedy", "modified" or "standard".
            beam: hypotheses kept per stream, unless greedy.
            max_symbols: most symbols in one encoder frame, unless modified.
            bias: phrases to prefer, or a language model.

        Raises:
            ValueError, TypeError: naming the argument and its value.
        """
        require_at_least("batch", batch, 1)
        self._check_device("the model", self.joiner.output.weight)
        options = SearchOptions.checked(search, beam, max_symbols)
        self._check_bias(bias)
        model = in_eval_mode(self)
        with torch.no_grad():
            return stream_begin(model._decoder(bias), options, model.encoder.initial_state(batch), batch)

    def stream_step(
        self, chunk: Tensor, state: StreamState, chunk_lengths: Tensor | None = None
    ) -> tuple[list[list[int]], StreamState]:
        """Recognise more frames. However they are cut into chunks, the result is that of the whole utterance.

        Args:
            chunk: (N, C, F), float, C from 0 up.
            state: from `stream_init` or the step before; it stays as it is.
            chunk_lengths: (N,), integer, 0 to C, the real frames of each stream; None means all C.

        Returns:
            For each stream the symbols that have become certain (with a beam: those that all hypotheses share; `best()`
            of the state has the others), and the state after the chunk.

        Raises:
            ValueError, TypeError: naming the argument and its value.
        """
        self._check_device("chunk", chunk)
        chunk_lengths = check_features("chunk", chunk, self.encoder.feature_dim, "chunk_lengths", chunk_lengths, 0)
        chunk_lengths = chunk_lengths.to(chunk.device)
        self._check_state(state)
        if chunk.shape[0] != len(state.frames):
            raise ValueError(f"chunk has {chunk.shape[0]} rows; the state has {len(state.frames)} streams")
        model = in_eval_mode(self)
        with torch.no_grad():
            out, lengths, encoder = model.encoder.step(chunk, chunk_lengths, state.encoder)
            return stream_advance(model._decoder(state.bias), state, encoder, out, lengths, finish=False)

    def stream_finish(self, state: StreamState) -> tuple[list[list[int]], StreamState]:
        """Recognise what still waits for frames, now that no more come.

        Returns:
            For each stream the remaining symbols of its best hypothesis, and the last state, with `best` and `nbest`.

        Raises:
            ValueError: if the streams have ended already.
        """
        self._check_state(state)
        model = in_eval_mode(self)
        with torch.no_grad():
            out, lengths, encoder = model.encoder.finish(state.encoder)
            return stream_advance(model._decoder(state.bias), state, encoder, out, lengths, finish=True)

    def _encode(self, features: Tensor, lengths: Tensor | None) -> tuple[Transducer, Tensor, Tensor]:
        """The model in eval mode, the encoder's frames of whole utterances and how many each has."""
        self._check_device("features", features)
        lengths = check_features("features", features, self.encoder.feature_dim, "feature_lengths", lengths, 0)
        model = in_eval_mode(self)
        encoder_out, out_lengths = model.encoder(features, lengths.to(features.device))
        return model, encoder_out, out_lengths

    def _decoder(self, bias: SymbolBias | None) -> Decoder:
        return Decoder.of(self.predictor, self.joiner, self.blank, self.durations, bias)

    def _check_bias(self, bias: SymbolBias | None) -> None:
        check_bias(bias, self.joiner.vocab_size, self.blank)

    def _check_state(self, state: StreamState) -> None:
        if not isinstance(state, StreamState):
            raise TypeError(f"state is {kind(state)}; it must be the StreamState of stream_init or stream_step")
        if state.finished:
            raise ValueError("state is of streams that have ended; begin others with stream_init")
        self._check_device("state", state.frames)

    def _check_device(self, name: str, tensor: Tensor) -> None:
        if isinstance(tensor, Tensor):
            require_searchable(name, tensor, self.joiner.output.weight.device)
