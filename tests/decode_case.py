"""prnn_decode.h through ctypes: a model with random weights, its searches, and the same in plain torch."""

from __future__ import annotations

import ctypes
import functools
from typing import Any, NamedTuple

import capi
import pytest
import torch
from reference.transducer_search import Found, greedy
from torch import Tensor

KINDS = {"stateless": 0, "lstm": 1, "gru": 2}
TYPES = {
    torch.float32: capi.FLOAT,
    torch.float64: capi.DOUBLE,
    torch.float16: capi.HALF,
    torch.bfloat16: capi.BFLOAT16,
}
MOST_LAYERS, MOST_DURATIONS = 2, 16


class Model(ctypes.Structure):
    """prnnTransducerModel_t."""

    _fields_ = (
        ("dataType", ctypes.c_int),
        ("predictor", ctypes.c_int),
        ("layers", ctypes.c_int64),
        ("context", ctypes.c_int64),
        ("predictorRelu", ctypes.c_int),
        ("embeddingSize", ctypes.c_int64),
        ("hiddenSize", ctypes.c_int64),
        ("encoderSize", ctypes.c_int64),
        ("joinerSize", ctypes.c_int64),
        ("activation", ctypes.c_int),
        ("classes", ctypes.c_int64),
        ("blank", ctypes.c_int64),
        ("durationCount", ctypes.c_int64),
        ("durations", ctypes.c_int * MOST_DURATIONS),
    )


def _pointers(*names: str) -> tuple[tuple[str, Any], ...]:
    return tuple((name, ctypes.c_void_p) for name in names)


class Weights(ctypes.Structure):
    """prnnTransducerWeights_t."""

    _fields_ = (
        *_pointers("encoderWeight", "encoderBias", "embedding"),
        *((name, ctypes.c_void_p * MOST_LAYERS) for name in ("inputWeights", "recurrentWeights")),
        *((name, ctypes.c_void_p * MOST_LAYERS) for name in ("inputBiases", "recurrentBiases")),
        *_pointers("predictorWeight", "predictorBias", "outputWeight", "outputBias"),
    )


class Options(ctypes.Structure):
    """prnnTransducerSearchOptions_t."""

    _fields_ = tuple((name, ctypes.c_int64) for name in ("batch", "maxFrames", "maxSymbols"))


class Bias(ctypes.Structure):
    """prnnTransducerBias_t."""

    _fields_ = (("nodes", ctypes.c_int64), *_pointers("next", "gains"))


class Inputs(ctypes.Structure):
    """prnnTransducerInputs_t."""

    _fields_ = (*_pointers("frames", "lengths"), ("bias", ctypes.POINTER(Bias)))


class State(ctypes.Structure):
    """prnnTransducerState_t."""

    _fields_ = _pointers("slots", "ahead", "h", "c", "context", "node", "score")


class Outputs(ctypes.Structure):
    """prnnTransducerOutputs_t."""

    _fields_ = _pointers("symbols", "counts", "frames", "durations", "logProbs", "confidences", "scores")


class BeamOptions(ctypes.Structure):
    """prnnTransducerBeamOptions_t."""

    _fields_ = (
        *((name, ctypes.c_int64) for name in ("batch", "maxFrames", "maxSymbols", "beam")),
        ("mode", ctypes.c_int),
    )


class BeamState(ctypes.Structure):
    """prnnTransducerBeamState_t."""

    _fields_ = tuple(
        (name, ctypes.c_void_p) for name in ("slots", "ahead", "h", "c", "context", "node", "score", "hash")
    )


class BeamOutputs(ctypes.Structure):
    """prnnTransducerBeamOutputs_t."""

    _fields_ = tuple(
        (name, ctypes.c_void_p) for name in ("symbols", "counts", "origins", "frames", "confidences", "scores")
    )


class Layers(ctypes.Structure):
    """prnnStreamLayers_t."""

    _fields_ = (
        ("dataType", ctypes.c_int),
        ("mode", ctypes.c_int),
        *((name, ctypes.c_int64) for name in ("layers", "inputSize", "hiddenSize", "projectionSize")),
    )


class LayerWeights(ctypes.Structure):
    """prnnStreamLayerWeights_t."""

    _fields_ = _pointers("input", "recurrent", "inputBias", "recurrentBias", "projection")


class DecodeCase:
    """A model. Its tensors may be changed before the first search."""

    def __init__(
        self,
        predictor: str = "lstm",
        dtype: torch.dtype = torch.float64,
        layers: int = 1,
        durations: tuple[int, ...] = (),
        activation: str = "tanh",
        blank: int = 0,
        classes: int = 13,
        hidden: int = 20,
        joiner: int = 21,
        encoder: int = 9,
        context: int = 2,
        relu: bool = False,
        projected: bool = False,
        seed: int = 0,
        embedding: int = 7,
        device: str = "cpu",
    ) -> None:
        self.dtype, self.predictor, self.layers, self.relu = dtype, predictor, layers, relu
        self.activation, self.durations, self.blank, self.classes = activation, durations, blank, classes
        self.hidden, self.context = hidden, context
        self.compute = torch.float64 if dtype == torch.float64 else torch.float32
        self.device = torch.device(device)
        encoder = joiner if projected else encoder
        gates = {"lstm": 4, "gru": 3, "stateless": 0}[predictor]
        generator = torch.Generator().manual_seed(seed)

        def random(*shape: int, scale: float = 1.0) -> Tensor:
            values = torch.randn(shape, generator=generator, dtype=torch.float64)
            return (scale * values / shape[-1] ** 0.5).to(self.device, dtype)

        first = (classes, embedding) if gates else (context, classes, hidden)
        self.weights: dict[str, Tensor | None] = {
            "encoderWeight": None if projected else random(joiner, encoder, scale=2.0),
            "encoderBias": None if projected else random(joiner),
            "embedding": random(*first, scale=3.0),
            "predictorWeight": random(joiner, hidden, scale=3.0),
            "predictorBias": random(joiner),
            "outputWeight": random(classes + len(durations), joiner, scale=4.0),
            "outputBias": random(classes + len(durations)),
        }
        self.layer_weights = [
            {
                "inputWeights": random(gates * hidden, embedding if layer == 0 else hidden, scale=2.0),
                "recurrentWeights": random(gates * hidden, hidden, scale=2.0),
                "inputBiases": random(gates * hidden, scale=3.0),
                "recurrentBiases": random(gates * hidden, scale=3.0),
            }
            for layer in range(layers if gates else 0)
        ]
        self.encoder = encoder
        self.model = Model(
            TYPES[dtype],
            *(KINDS[predictor], layers, context, relu, embedding, hidden, encoder, joiner),
            *(int(activation == "relu"), classes, blank, len(durations), (ctypes.c_int * MOST_DURATIONS)(*durations)),
        )
        self.handle = capi.Object("CreateCPU" if device == "cpu" else "Create", "Destroy")
        self.prepared: Tensor | None = None

    def frames(self, batch: int, count: int, seed: int = 1) -> Tensor:
        """Random encoder frames (N, T, E)."""
        generator = torch.Generator().manual_seed(seed)
        return 2 * torch.randn(batch, count, self.encoder, generator=generator, dtype=torch.float64).to(
            self.device, self.dtype
        )

    def c_weights(self) -> Weights:
        weights = Weights(**{name: None if w is None else w.data_ptr() for name, w in self.weights.items()})
        for layer, tensors in enumerate(self.layer_weights):
            for name, tensor in tensors.items():
                getattr(weights, name)[layer] = None if tensor is None else tensor.data_ptr()
        return weights

    def call(self, name: str, **arguments: Any) -> int:
        status: int = capi.call(name, handle=self.handle.pointer, model=ctypes.byref(self.model), **arguments)
        return status

    def check(self, name: str, **arguments: Any) -> None:
        status = self.call(name, **arguments)
        assert status == capi.SUCCESS, capi.message(self.handle.pointer)

    def size(self, name: str, **arguments: Any) -> int:
        size = ctypes.c_size_t()
        self.check(name, sizeInBytes=ctypes.byref(size), **arguments)
        return size.value

    def prepare(self) -> Tensor:
        if self.prepared is None:
            size = self.size("GetTransducerPreparedSize")
            self.prepared = torch.full((size,), 0xFF, dtype=torch.uint8, device=self.device)
            self.check(
                "PrepareTransducer",
                weights=ctypes.byref(self.c_weights()),
                prepared=self.prepared.data_ptr(),
                preparedSizeInBytes=size,
            )
        return self.prepared

    def state(self, slots: int) -> dict[str, Tensor]:
        """Returns the state of so many streams that have not begun."""
        size = (slots, self.layers, self.hidden)
        where = {"device": self.device}
        state = {"ahead": torch.full((slots,), -1, dtype=torch.int32, **where)}
        state["score"] = torch.full((slots,), torch.nan, dtype=torch.float64, **where)
        if self.predictor == "stateless":
            return state | {"context": torch.full((slots, self.context), -7, dtype=torch.int32, **where)}
        state["h"] = torch.full(size, torch.nan, dtype=self.dtype, **where)
        return state | (
            {"c": torch.full(size, torch.nan, dtype=self.compute, **where)} if self.predictor == "lstm" else {}
        )

    def search(
        self,
        frames: Tensor,
        lengths: list[int] | None = None,
        max_symbols: int = 8,
        state: dict[str, Tensor] | None = None,
        bias: tuple[Tensor, Tensor] | None = None,
        workspace_size: int | None = None,
    ) -> list[Found]:
        """Returns the results of prnnTransducerSearch in each utterance."""
        frames = frames.contiguous()
        batch, count, _ = frames.shape
        room = (batch, count * max_symbols)
        where = {"device": self.device}
        out = {name: torch.full(room, -9, dtype=torch.int32, **where) for name in ("symbols", "frames", "durations")}
        out |= {name: torch.full(room, -9, dtype=self.compute, **where) for name in ("logProbs", "confidences")}
        out |= {"counts": torch.zeros(batch, dtype=torch.int32, **where)}
        out |= {"scores": torch.zeros(batch, dtype=torch.float64, **where)}
        options = Options(batch, count, max_symbols)
        if workspace_size is None:
            workspace_size = self.size("GetTransducerSearchWorkspaceSize", options=ctypes.byref(options))
        workspace = torch.full((workspace_size,), 0xFF, dtype=torch.uint8, **where)
        lengths_tensor = None if lengths is None else torch.tensor(lengths, dtype=torch.int32, **where)
        inputs = Inputs(frames.data_ptr(), None if lengths_tensor is None else lengths_tensor.data_ptr())
        if bias is not None:
            inputs.bias = ctypes.pointer(Bias(len(bias[0]), bias[0].data_ptr(), bias[1].data_ptr()))
        pool = None if state is None else State(**{name: tensor.data_ptr() for name, tensor in state.items()})
        wanted = {name: tensor.data_ptr() for name, tensor in out.items() if name != "durations" or self.durations}
        self.check(
            "TransducerSearch",
            prepared=self.prepare().data_ptr(),
            options=ctypes.byref(options),
            inputs=ctypes.byref(inputs),
            state=None if pool is None else ctypes.byref(pool),
            outputs=ctypes.byref(Outputs(**wanted)),
            workspace=workspace.data_ptr(),
            workspaceSizeInBytes=workspace_size,
        )
        columns = [out[name] for name in ("symbols", "frames", "durations", "logProbs", "confidences")]
        for column in columns:
            for row, found in zip(column, out["counts"].tolist(), strict=True):
                assert (row[found:] == -9).all(), "written beyond the symbols"
        return [
            Found(*(column[n, :found].tolist() for column in columns), float(out["scores"][n]))
            for n, found in enumerate(out["counts"].tolist())
        ]

    def beam_state(self, slots: int, beam: int) -> dict[str, Tensor]:
        """Returns the beams' state of so many streams that have not begun."""
        state = {name: tensor.repeat_interleave(beam, 0) for name, tensor in self.state(slots).items()}
        state = {name: tensor.unflatten(0, (slots, beam)) for name, tensor in state.items()}
        return state | {"hash": torch.full((slots, beam), -1, dtype=torch.int64, device=self.device)}

    def beam_outputs(self, batch: int, count: int, beam: int) -> dict[str, Tensor]:
        """Arrays of prnnTransducerBeamOutputs_t in its order."""
        where = {"device": self.device}
        room = (batch, beam, count)
        out = {name: torch.full(room, -9, dtype=torch.int32, **where) for name in ("symbols", "frames")}
        out |= {name: torch.full(room[:2], -9, dtype=torch.int32, **where) for name in ("counts", "origins")}
        out |= {"confidences": torch.full(room, -9, dtype=self.compute, **where)}
        out |= {"scores": torch.full(room[:2], -9, dtype=torch.float64, **where)}
        return {name: out[name] for name, _ in BeamOutputs._fields_}

    def beam_search(
        self,
        frames: Tensor,
        lengths: list[int] | None = None,
        beam: int = 4,
        state: dict[str, Tensor] | None = None,
        bias: tuple[Tensor, Tensor] | None = None,
        max_symbols: int | None = None,
    ) -> list[list[BeamFound]]:
        """Returns what prnnTransducerBeamSearch finds in each utterance: PRNN_BEAM_STANDARD with `max_symbols`, else
        PRNN_BEAM_MODIFIED."""
        frames = frames.contiguous()
        batch, count, _ = frames.shape
        options = beam_options(batch, count, beam, max_symbols)
        out = self.beam_outputs(batch, count * options.maxSymbols, beam)
        size = self.size("GetTransducerBeamSearchWorkspaceSize", options=ctypes.byref(options))
        workspace = torch.full((size,), 0xFF, dtype=torch.uint8, device=self.device)
        lengths_tensor = None if lengths is None else torch.tensor(lengths, dtype=torch.int32, device=self.device)
        inputs = Inputs(frames.data_ptr(), None if lengths_tensor is None else lengths_tensor.data_ptr())
        if bias is not None:
            inputs.bias = ctypes.pointer(Bias(len(bias[0]), bias[0].data_ptr(), bias[1].data_ptr()))
        pool = None if state is None else BeamState(**{name: tensor.data_ptr() for name, tensor in state.items()})
        self.check(
            "TransducerBeamSearch",
            prepared=self.prepare().data_ptr(),
            options=ctypes.byref(options),
            inputs=ctypes.byref(inputs),
            state=None if pool is None else ctypes.byref(pool),
            outputs=ctypes.byref(BeamOutputs(**{name: tensor.data_ptr() for name, tensor in out.items()})),
            workspace=workspace.data_ptr(),
            workspaceSizeInBytes=size,
        )
        return beam_found(out)

    def reference(
        self,
        frames: Tensor,
        max_symbols: int = 8,
        bias: tuple[Tensor, Tensor] | None = None,
    ) -> Found:
        """Searches one utterance (T, E) in float64."""

        def gains(symbols: list[int]) -> Tensor:
            assert bias is not None
            return self.gains(bias, symbols)

        return greedy(
            frames.double().cpu(),
            self.predict,
            self.join,
            self.blank,
            self.durations,
            max_symbols,
            None if bias is None else gains,
        )

    @functools.cached_property
    def _doubles(self) -> list[dict[str, Tensor | None]]:
        """The weights of the model and of its layers, in float64."""
        weights: list[dict[str, Tensor | None]] = [self.weights, *self.layer_weights]  # type: ignore[list-item]
        return [{name: None if t is None else t.double().cpu() for name, t in tensors.items()} for tensors in weights]

    def predict(self, symbol: int, state: Any) -> tuple[Tensor, Any]:
        """A symbol and the state before it, None at the start, to an output (H,) and the state after it, in float64."""
        w, *layers = self._doubles
        assert w["embedding"] is not None
        if self.predictor == "stateless":
            context = [*(state or [self.blank] * self.context)[1:], symbol]
            x = sum(w["embedding"][place, s] for place, s in enumerate(context))
            return (torch.relu(x) if self.relu else x), context
        x, after = w["embedding"][symbol], []
        cell = torch.lstm_cell if self.predictor == "lstm" else torch.gru_cell
        for layer, tensors in enumerate(layers):
            zeros = torch.zeros(1, self.hidden, dtype=torch.float64)
            before = state[layer] if state else (zeros, zeros)
            hidden = cell(x[None], before if self.predictor == "lstm" else before[0], *tensors.values())
            after.append(hidden if self.predictor == "lstm" else (hidden,))
            x = after[-1][0][0]
        return x, after

    def join(self, frame: Tensor, out: Tensor) -> Tensor:
        """A frame (E,) and an output of the predictor to logits (V + D,), in float64."""
        w, linear = self._doubles[0], torch.nn.functional.linear
        activate = torch.tanh if self.activation == "tanh" else torch.relu
        x = frame if w["encoderWeight"] is None else linear(frame, w["encoderWeight"], w["encoderBias"])
        g = linear(out, w["predictorWeight"], w["predictorBias"])
        return linear(activate(x + g), w["outputWeight"], w["outputBias"])

    def gains(self, bias: tuple[Tensor, Tensor], symbols: list[int]) -> Tensor:
        """Returns the gain of each class (V,) after these symbols, in float64."""
        node = 0
        for symbol in symbols:
            node = int(bias[0][node, symbol])
        row = bias[1][node].double().cpu().clone()
        row[self.blank] = 0.0
        return row


def beam_options(batch: int, count: int, beam: int, max_symbols: int | None) -> BeamOptions:
    """PRNN_BEAM_STANDARD with `max_symbols`, else PRNN_BEAM_MODIFIED."""
    return BeamOptions(batch, count, max_symbols or 1, beam, int(max_symbols is not None))


class BeamFound(NamedTuple):
    """A hypothesis of a beam search."""

    symbols: list[int]
    frames: list[int]
    confidences: list[float]
    score: float
    origin: int


def beam_found(out: dict[str, Tensor]) -> list[list[BeamFound]]:
    """The hypotheses of each utterance, the best first, without those that do not exist."""
    columns = [out[name] for name in ("symbols", "frames", "confidences")]
    counts, scores, origins = (out[name].tolist() for name in ("counts", "scores", "origins"))
    found: list[list[BeamFound]] = []
    for n, row in enumerate(counts):
        assert scores[n] == sorted(scores[n], reverse=True)
        found.append([])
        for k, count in enumerate(row):
            own = [column[n, k].tolist() for column in columns]
            assert all(value == -9 for values in own for value in values[count:]), "written beyond the symbols"
            if k == 0 or scores[n][k] > -torch.inf:
                found[n].append(BeamFound(*(values[:count] for values in own), scores[n][k], origins[n][k]))
            else:
                assert (count, origins[n][k]) == (0, 0)
    return found


def assert_beams(found: list[list[BeamFound]], expected: list[list[BeamFound]], tolerance: float) -> None:
    """Asserts the same hypotheses, whose scores and confidences differ by rounding."""
    for beams, others in zip(found, expected, strict=True):
        assert [(h.symbols, h.frames, h.origin) for h in beams] == [(h.symbols, h.frames, h.origin) for h in others]
        for h, o in zip(beams, others, strict=True):
            assert h.score == pytest.approx(o.score, abs=tolerance * (1 + len(h.symbols)))
            assert h.confidences == pytest.approx(o.confidences, abs=tolerance)


def assert_greedy(
    case: DecodeCase,
    frames: Tensor,
    found: Found,
    tolerance: float,
    max_symbols: int = 8,
    bias: tuple[Tensor, Tensor] | None = None,
) -> None:
    """Follows what was found in an utterance (T, E) in float64: all that was taken is the most probable, but for the
    tolerance, and log-probabilities are what they should be. Which duration a blank had is not known: where several are
    as good, each is tried."""

    def follow(t: int, in_frame: int, done: int, out: Tensor, state: Any, score: float) -> str:
        while t < len(frames):
            logits = case.join(frames[t].double().cpu(), out)
            classes, spans = logits[: case.classes], logits[case.classes :]
            log_probs = classes.log_softmax(0)
            given = log_probs if bias is None else log_probs + case.gains(bias, found.symbols[:done])
            emits = done < len(found.symbols) and found.frames[done] == t
            symbol = found.symbols[done] if emits else case.blank
            if given[symbol] < given.max() - tolerance:
                return f"frame {t}, {done} symbols: {symbol} has {given[symbol]}, {int(given.argmax())} {given.max()}"
            score += float(given[symbol])
            durations = [0 if emits else 1]
            if case.durations:
                score += float(spans.log_softmax(0).max())
                durations = [d for d, s in zip(case.durations, spans, strict=True) if s >= spans.max() - tolerance]
            in_frame += emits
            if not emits or in_frame == max_symbols:
                durations = sorted({max(d, 1) for d in durations})
            if emits:
                others = classes.clone()
                others[case.blank] = -torch.inf
                own = (float(log_probs[symbol]), float(others.log_softmax(0)[symbol]))
                error = max(abs(own[0] - found.log_probs[done]), abs(own[1] - found.confidences[done]))
                if error > tolerance:
                    return f"symbol {done}: {found.log_probs[done]} and {found.confidences[done]}, not {own}"
                if case.durations:  # else the library is not asked for them
                    if found.durations[done] not in durations:
                        return f"symbol {done} goes on by {found.durations[done]}, not by one of {durations}"
                    durations = [found.durations[done]]
                out, state = case.predict(symbol, state)
                done += 1
            if len(durations) > 1:
                tried = [follow(t + d, 0 if d else in_frame, done, out, state, score) for d in durations]
                return "" if "" in tried else tried[0]
            t += durations[0]
            in_frame = 0 if durations[0] else in_frame
        if done < len(found.symbols):
            return f"{len(found.symbols) - done} symbols are left"
        error = abs(score - found.score)
        return "" if error <= tolerance * (1 + len(frames)) else f"score {found.score}, not {score}"

    problem = follow(0, 0, 0, *case.predict(case.blank, None), 0.0)
    assert problem == "", problem
