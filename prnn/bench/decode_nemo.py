"""NeMo's greedy label looping on the predictor and the joiner of `prnn bench decode`."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from prnn.transducer import Joiner, RecurrentPredictor

_LOOPING = "nemo.collections.asr.parts.submodules.transducer_decoding"
_State = tuple[Tensor, Tensor]  # h and c, each (layers, N, H)


class _Prediction(nn.Module):
    """An LSTM predictor with the methods that NeMo's search calls; its layers are torch.nn.LSTM's."""

    def __init__(self, predictor: RecurrentPredictor) -> None:
        super().__init__()
        own, weight = predictor.rnn, predictor.embedding.weight
        self.embedding = predictor.embedding
        self.lstm = nn.LSTM(own.input_size, own.hidden_size, own.num_layers, device=weight.device, dtype=weight.dtype)
        self.lstm.load_state_dict(own.state_dict())

    def initialize_state(self, y: Tensor) -> _State:
        zeros = self.embedding.weight.new_zeros(self.lstm.num_layers, len(y), self.lstm.hidden_size)
        return zeros, zeros.clone()

    def predict(
        self, y: Tensor | None, state: _State | None = None, add_sos: bool = False, batch_size: int | None = None
    ) -> tuple[Tensor, _State]:
        assert y is not None
        assert not add_sos
        out, after = self.lstm(self.embedding(y).transpose(0, 1), state)
        return out.transpose(0, 1), after

    @staticmethod
    def batch_replace_states_mask(
        src_states: _State, dst_states: _State, mask: Tensor, other_src_states: _State | None = None
    ) -> None:
        others = dst_states if other_src_states is None else other_src_states
        for new, old, to in zip(src_states, others, dst_states, strict=True):
            torch.where(mask[None, :, None], new, old, out=to)

    @staticmethod
    def batch_replace_states_all(src_states: _State, dst_states: _State, batch_size: int | None = None) -> None:
        for new, to in zip(src_states, dst_states, strict=True):
            to[:, :batch_size].copy_(new[:, :batch_size])

    @staticmethod
    def clone_state(state: _State) -> _State:
        return state[0].clone(), state[1].clone()


class _Joint(nn.Module):
    """A joiner with the methods that NeMo's search calls."""

    def __init__(self, joiner: Joiner) -> None:
        super().__init__()
        self.joiner = joiner
        self.num_classes_with_blank = joiner.vocab_size + joiner.durations

    def project_encoder(self, encoder_output: Tensor) -> Tensor:
        projected: Tensor = self.joiner.encoder_proj(encoder_output)
        return projected

    def project_prednet(self, prednet_output: Tensor) -> Tensor:
        projected: Tensor = self.joiner.predictor_proj(prednet_output)
        return projected

    def joint_after_projection(self, f: Tensor, g: Tensor) -> Tensor:
        logits: Tensor = self.joiner.output(self.joiner.activate(f[:, :, None] + g[:, None]))
        return logits


def nemo_search(
    predictor: nn.Module, joiner: Joiner, blank: int, durations: tuple[int, ...], max_symbols: int
) -> Callable[[Tensor], list[list[int]]] | None:
    """NeMo's search, with its CUDA graphs on a GPU: encoder frames (N, T, E) to the symbols of each utterance, on the
    host. None where NeMo is not installed, or the predictor has no LSTM."""
    if importlib.util.find_spec("nemo") is None or getattr(predictor, "cell", None) != "lstm":
        return None
    assert isinstance(predictor, RecurrentPredictor)
    name, kind = ("tdt", "TDT") if durations else ("rnnt", "RNNT")
    module = importlib.import_module(f"{_LOOPING}.{name}_label_looping")
    options: dict[str, Any] = {"durations": list(durations)} if durations else {}
    search = getattr(module, f"GreedyBatched{kind}LabelLoopingComputer")(
        _Prediction(predictor), _Joint(joiner), blank_index=blank, max_symbols_per_step=max_symbols, **options
    )

    def find(frames: Tensor) -> list[list[int]]:
        lengths = torch.full((len(frames),), frames.shape[1], dtype=torch.int64, device=frames.device)
        with torch.inference_mode():
            found = search(frames, lengths)[0]
        rows = zip(found.transcript.tolist(), found.current_lengths.tolist(), strict=True)
        return [row[:count] for row, count in rows]

    return find
