"""In the place of NeMo, for tests of prnn.compat.nemo: modules of its names with a joint that computes the logits of a
part of the batch at a time, and greedy searches of one utterance after the other."""

import dataclasses
import functools
from types import ModuleType, SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

VOCABULARY, SIZE, DURATIONS = 7, 6, [0, 1, 2, 4]
LOOPING = "nemo.collections.asr.parts.submodules.transducer_decoding"


class LSTMDropout(nn.Module):
    def __init__(self, layers: int) -> None:
        super().__init__()
        self.lstm = nn.LSTM(SIZE, SIZE, layers)

    def forward(self, x: Tensor, state: Any = None) -> Any:
        return self.lstm(x, state)


class RNNTDecoder(nn.Module):
    blank_as_pad = True

    def __init__(self, layers: int = 1) -> None:
        super().__init__()
        embed = nn.Embedding(VOCABULARY + 1, SIZE, padding_idx=VOCABULARY)
        self.prediction = nn.ModuleDict({"embed": embed, "dec_rnn": LSTMDropout(layers)})

    def is_adapter_available(self) -> bool:
        return False

    def predict(self, y: Tensor, state: Any = None, add_sos: bool = False, batch_size: int | None = None) -> Any:
        assert not add_sos
        out, state = self.prediction["dec_rnn"](self.prediction["embed"](y).transpose(0, 1), state)
        return out.transpose(0, 1), state


class RNNTJoint(nn.Module):
    temperature, masking_prob, fused_batch_size = 1.0, -1.0, 2

    def __init__(self, durations: int, activation: nn.Module, dropout: float = 0.0) -> None:
        super().__init__()
        self.enc, self.pred = nn.Linear(SIZE, SIZE), nn.Linear(SIZE, SIZE)
        dropped = [nn.Dropout(dropout)] if dropout else []
        self.joint_net = nn.Sequential(activation, *dropped, nn.Linear(SIZE, VOCABULARY + 1 + durations))
        self.num_classes_with_blank = VOCABULARY + 1 + durations
        self.fuse_loss_wer, self.calls = True, 0
        self.loss: Any = None
        self.wer: Any = SimpleNamespace(updates=0)

    def is_adapter_available(self) -> bool:
        return False

    def project_encoder(self, x: Tensor) -> Tensor:
        found: Tensor = self.enc(x)
        return found

    def project_prednet(self, x: Tensor) -> Tensor:
        found: Tensor = self.pred(x)
        return found

    def joint_after_projection(self, f: Tensor, g: Tensor) -> Tensor:
        logits: Tensor = self.joint_net(f[:, :, None] + g[:, None])
        return logits.log_softmax(-1)

    def forward(
        self,
        encoder_outputs: Tensor,
        decoder_outputs: Tensor | None,
        encoder_lengths: Tensor | None = None,
        transcripts: Tensor | None = None,
        transcript_lengths: Tensor | None = None,
        compute_wer: bool = False,
        keep_hypotheses: bool = False,
    ) -> Any:
        """As NeMo: of each two sequences, what their lengths leave; (loss, WER, its errors and words)."""
        if not self.fuse_loss_wer:
            f, g = self.enc(encoder_outputs.transpose(1, 2)), self.pred(decoder_outputs.transpose(1, 2))
            return self.joint_after_projection(f, g)
        losses = []
        for rows in torch.arange(len(encoder_outputs)).split(self.fused_batch_size):
            frames, symbols = encoder_lengths[rows], transcript_lengths[rows]
            if decoder_outputs is not None:
                self.calls += 1
                f = self.enc(encoder_outputs[rows, :, : frames.max()].transpose(1, 2))
                g = self.pred(decoder_outputs[rows, :, : symbols.max() + 1].transpose(1, 2))
                logits = self.joint_after_projection(f, g)
                losses.append(self.loss(logits, transcripts[rows, : symbols.max()], frames, symbols))
            if compute_wer:
                self.wer.updates += 1
        loss = self.loss.reduce(torch.cat(losses), transcript_lengths) if losses else None
        return loss, *([self.wer.updates] * 3 if compute_wer else [None] * 3)


class RNNTLoss:
    def __init__(self, loss: nn.Module) -> None:
        self._loss = loss

    def __call__(self, logits: Tensor, targets: Tensor, frames: Tensor, symbols: Tensor) -> Tensor:
        costs: Tensor = self._loss(acts=logits, labels=targets, act_lens=frames, label_lens=symbols)
        return costs

    def reduce(self, losses: Tensor, lengths: Tensor) -> Tensor:
        return losses.sum() / lengths.sum()


class BatchedHyps:
    def __init__(
        self,
        batch_size: int,
        init_length: int,
        blank_id: int,
        logits_dim: int,
        device: Any = None,
        float_dtype: Any = None,
        with_durations: bool = False,
    ) -> None:
        assert init_length > 0
        shape, self.with_durations = (batch_size, init_length), with_durations
        zeros = functools.partial(torch.zeros, dtype=torch.long, device=device)
        self.current_lengths = zeros(batch_size)
        self.transcript, self.timestamps = zeros(shape), zeros(shape)
        self.token_durations = zeros(shape) if with_durations else None
        self.scores = zeros(batch_size, dtype=float_dtype)
        self.last_nb_timestamp, self.last_nb_labels = zeros(batch_size) - 1, zeros(batch_size) - 1
        self.last_nb_timestamp_lasts = zeros(batch_size)

    def get_last_labels(self, pad_id: int) -> Tensor:
        return torch.where(self.last_nb_labels != -1, self.last_nb_labels, pad_id)


@dataclasses.dataclass
class BatchedLabelLoopingState:
    predictor_states: Any
    predictor_outputs: Tensor
    labels: Tensor
    decoded_lengths: Tensor
    time_jumps: Tensor | None = None


class GreedyBatchedRNNTLabelLoopingComputer:
    preserve_logits = preserve_step_confidence = False
    include_duration = True

    def __init__(self, decoder: RNNTDecoder, joint: RNNTJoint, max_symbols: int | None) -> None:
        self.decoder, self.joint, self.max_symbols, self._blank_index = decoder, joint, max_symbols, VOCABULARY
        self.calls = 0

    def has_fusion_models(self) -> bool:
        return False

    def choose(self, row: Tensor) -> tuple[int, int, int]:
        """Symbol, by how many frames it goes on, and what is recorded of that."""
        symbol = int(row.argmax())
        return symbol, int(symbol == VOCABULARY), 0

    @torch.no_grad()
    def __call__(
        self, x: Tensor, out_len: Tensor, prev_batched_state: Any = None, multi_biasing_ids: Any = None
    ) -> Any:
        """Steps (symbol, frame, duration, score) of each utterance, and what its state is at the end."""
        self.calls += 1
        found = []
        for frames, length in zip(self.joint.enc(x), out_len.tolist(), strict=True):
            out, state = self.decoder.predict(torch.tensor([[VOCABULARY]]))
            steps: list[tuple[int, int, int, float]] = []
            at = here = 0
            while at < length:
                row = self.joint.joint_after_projection(frames[None, at : at + 1], self.joint.pred(out))[0, 0, 0]
                symbol, ahead, recorded = self.choose(row)
                if symbol != VOCABULARY:
                    here += 1
                    steps.append((symbol, at, recorded, float(row[symbol])))
                    out, state = self.decoder.predict(torch.tensor([[symbol]]), state)
                    ahead = max(ahead, int(here == self.max_symbols))
                here = 0 if ahead else here
                at += ahead
            found.append((steps, self.joint.pred(out)[0], [part[:, 0] for part in state], at - length))
        return found


class GreedyBatchedTDTLabelLoopingComputer(GreedyBatchedRNNTLabelLoopingComputer):
    durations = torch.tensor(DURATIONS)

    def choose(self, row: Tensor) -> tuple[int, int, int]:
        symbol, duration = int(row[: VOCABULARY + 1].argmax()), DURATIONS[int(row[VOCABULARY + 1 :].argmax())]
        return symbol, max(duration, int(symbol == VOCABULARY)), duration


def make() -> dict[str, ModuleType]:
    """The modules, with new classes of those whose methods are replaced."""
    joint = ModuleType("nemo.collections.asr.modules.rnnt")
    joint.RNNTJoint = type("RNNTJoint", (RNNTJoint,), {"forward": RNNTJoint.forward})  # type: ignore[attr-defined]
    made = {joint.__name__: joint}
    for name, kind in (
        ("rnnt_label_looping", GreedyBatchedRNNTLabelLoopingComputer),
        ("tdt_label_looping", GreedyBatchedTDTLabelLoopingComputer),
    ):
        module = ModuleType(f"{LOOPING}.{name}")
        own = type(kind.__name__, (kind,), {"__module__": module.__name__})
        vars(module).update({kind.__name__: own, "BatchedHyps": BatchedHyps})
        vars(module)["BatchedLabelLoopingState"] = BatchedLabelLoopingState
        made[module.__name__] = module
    return made
