"""NeMo's fused joint (`fuse_loss_wer`) without logits, and its batched greedy search by prnn.transducer_search."""

import functools
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

import prnn
from prnn.compat._parts import ACTIVATIONS, Layers, parts_of

_ROWS = 4096  # logits rows at a time, when hypotheses are scored


def _output_layers(joint: Any) -> tuple[nn.Module, float, Any] | None:
    """Activation, dropout and output layer of an RNNTJoint that computes nothing besides; else None."""
    own = type(joint).__name__ == "RNNTJoint" and not joint.is_adapter_available() and joint.temperature == 1.0
    net = joint.joint_net
    if not own or type(net) is not nn.Sequential or not 2 <= len(net) <= 3 or joint.masking_prob > 0:
        return None
    dropout = net[1].p if len(net) == 3 and type(net[1]) is nn.Dropout else 0.0
    is_plain = (len(net) == 2 or type(net[1]) is nn.Dropout) and type(net[-1]) is nn.Linear
    return (net[0], dropout, net[-1]) if is_plain and type(net[0]) in ACTIVATIONS else None


# ---- The joint with its loss ----


def fuses_loss(
    original: Callable[..., Any], costs_of: Callable[[Any], Callable[..., Tensor] | None]
) -> Callable[..., Any]:
    """`RNNTJoint.forward`, whose fused step computes the whole batch's loss without logits.

    Args:
        original: of NeMo; computes the word error rate of the fused step, and all that is not fused here.
        costs_of: of a loss module, the function that computes its costs from what a
            prnn.joint_..._loss takes, up to activation and dropout; or None.
    """

    @functools.wraps(original)
    def forward(
        self: Any,
        encoder_outputs: Tensor,
        decoder_outputs: Tensor | None,
        encoder_lengths: Tensor | None = None,
        transcripts: Tensor | None = None,
        transcript_lengths: Tensor | None = None,
        compute_wer: bool = False,
        keep_hypotheses: bool = False,
    ) -> Any:
        rest: dict[str, Any] = {
            "encoder_lengths": encoder_lengths,
            "transcripts": transcripts,
            "transcript_lengths": transcript_lengths,
            "compute_wer": compute_wer,
            "keep_hypotheses": keep_hypotheses,
        }
        layers = costs = None
        if self.fuse_loss_wer and self.loss is not None and self.wer is not None and self.fused_batch_size is not None:
            layers, costs = _output_layers(self), costs_of(getattr(self.loss, "_loss", None))
        if (
            layers is None
            or costs is None
            or decoder_outputs is None
            or encoder_lengths is None
            or transcripts is None
            or transcript_lengths is None
        ):
            return original(self, encoder_outputs=encoder_outputs, decoder_outputs=decoder_outputs, **rest)
        activation, dropout, output = layers
        # With lengths on the CPU the loss computes real cells alone. NeMo waits for the GPU here, too.
        lengths, symbols = encoder_lengths.long().cpu(), transcript_lengths.long().cpu()
        most = int(symbols.max())
        frames = self.project_encoder(encoder_outputs.transpose(1, 2))[:, : int(lengths.max())]
        before = self.project_prednet(decoder_outputs.transpose(1, 2))[:, : most + 1]
        loss = costs(
            frames.to(output.weight.dtype),
            before.to(output.weight.dtype),
            output.weight,
            output.bias,
            transcripts[:, :most].long(),
            lengths,
            symbols,
            activation=ACTIVATIONS[type(activation)],
            dropout=dropout if self.training else 0.0,
        )
        # Without decoder outputs the original computes no loss.
        _, *errors = original(self, encoder_outputs=encoder_outputs, decoder_outputs=None, **rest)
        return self.loss.reduce(loss, transcript_lengths), *errors

    return forward


# ---- The greedy search ----


def searches(original: Callable[..., Any]) -> Callable[..., Any]:
    """`__call__` of a label-looping computer. Utterances from their beginning, without language models, alignments and
    confidences, are searched by prnn.transducer_search; everything else is the original's."""

    @functools.wraps(original)
    def call(
        self: Any,
        x: Tensor,
        out_len: Tensor,
        prev_batched_state: Any = None,
        multi_biasing_ids: Tensor | None = None,
    ) -> Any:
        layers = _search_layers(self) if prev_batched_state is None and len(x) > 0 and x.shape[1] > 0 else None
        if layers is None:
            return original(self, x, out_len, prev_batched_state, multi_biasing_ids)
        with torch.no_grad(), torch.autocast(x.device.type, enabled=False):
            return _search(self, layers, x, out_len)

    return call


def _search_layers(computer: Any) -> Layers | None:
    decoder, joint = computer.decoder, computer.joint
    plain = not (computer.preserve_logits or computer.preserve_step_confidence or computer.has_fusion_models())
    plain = plain and computer.max_symbols is not None and type(decoder).__name__ == "RNNTDecoder"
    output = _output_layers(joint)
    if not plain or output is None or decoder.is_adapter_available() or not decoder.blank_as_pad:
        return None
    rnn = decoder.prediction["dec_rnn"]
    if type(rnn).__name__ != "LSTMDropout":
        return None
    layers = Layers(decoder.prediction["embed"], rnn.lstm, joint.pred, output[0], output[2])
    return layers if layers.can_search() and not (decoder.training or joint.training) else None


def _search(computer: Any, layers: Layers, x: Tensor, out_len: Tensor) -> tuple[Any, Any]:
    """Hypotheses and state as the original gives them, in its classes."""
    blank = computer._blank_index
    durations = getattr(computer, "durations", None)
    steps = () if durations is None else tuple(durations.tolist())
    predictor, joiner = parts_of(layers, layers.head.out_features - len(steps), blank)
    frames = computer.joint.project_encoder(x)
    lengths = out_len.long()
    found = prnn.transducer_search(
        frames,
        lengths,
        predictor=predictor,
        joiner=joiner,
        blank=blank,
        durations=steps,
        max_symbols=computer.max_symbols,
    )
    batch, counts = len(x), found.counts.long()
    longest = int(counts.max())
    own = torch.arange(longest, device=x.device) < counts[:, None]
    symbols = found.symbols[:, :longest].long().masked_fill(~own, blank)
    times = found.frames[:, :longest].long().masked_fill(~own, 0)
    history = torch.cat([symbols.new_full((batch, 1), blank), symbols], dim=1)
    outputs, _ = computer.decoder.predict(history, None, add_sos=False, batch_size=batch)
    outputs = computer.joint.project_prednet(outputs)
    scores, chosen = _scores(computer.joint, frames, outputs[:, :-1], symbols, times, len(steps))

    theirs = sys.modules[type(computer).__module__]
    hypotheses = theirs.BatchedHyps(
        batch_size=batch,
        blank_id=blank,
        logits_dim=computer.joint.num_classes_with_blank,
        init_length=max(longest, 1),
        device=x.device,
        float_dtype=frames.dtype,
        with_durations=bool(steps) and computer.include_duration,
    )
    hypotheses.current_lengths.copy_(counts)
    hypotheses.transcript[:, :longest] = symbols.masked_fill(~own, 0)
    hypotheses.timestamps[:, :longest] = times
    hypotheses.scores.copy_(scores.masked_fill(~own, 0).sum(-1))
    if (
        durations is not None and hypotheses.with_durations
    ):  # as chosen: the search's own are 1 where the limit of symbols ends a frame
        hypotheses.token_durations[:, :longest] = durations.to(x.device)[chosen].masked_fill(~own, 0)
    if longest > 0:
        last = (counts - 1).clamp(min=0)[:, None]
        at = times.gather(1, last)
        is_there = counts > 0
        hypotheses.last_nb_timestamp.copy_(torch.where(is_there, at[:, 0], -1))
        hypotheses.last_nb_timestamp_lasts.copy_(((times == at) & own).sum(-1))
        hypotheses.last_nb_labels.copy_(torch.where(is_there, symbols.gather(1, last)[:, 0], -1))
    search = found.state.search
    state = theirs.BatchedLabelLoopingState(
        predictor_states=tuple(part.transpose(0, 1).contiguous() for part in search.predictor),
        predictor_outputs=outputs.gather(1, counts[:, None, None].expand(-1, -1, outputs.shape[-1])),
        labels=hypotheses.get_last_labels(pad_id=blank),
        decoded_lengths=out_len.clone(),
        time_jumps=search.ahead if steps else None,
    )
    return hypotheses, state


def _scores(
    joint: Any, frames: Tensor, outputs: Tensor, symbols: Tensor, times: Tensor, durations: int
) -> tuple[Tensor, Tensor]:
    """Returns the joint's scores of each symbol (N, U) in its frame, logits, or log-probabilities where NeMo takes
    these; and the indices of the durations that are chosen with them."""
    at = frames.gather(1, times[..., None].expand(-1, -1, frames.shape[-1])).flatten(0, 1)
    before, wanted = outputs.flatten(0, 1), symbols.flatten()
    scores, chosen = frames.new_zeros(len(wanted)), wanted.new_zeros(len(wanted))
    for begin in range(0, len(wanted), _ROWS):
        rows = slice(begin, begin + _ROWS)
        logits = joint.joint_after_projection(at[rows, None], before[rows, None])[:, 0, 0]
        scores[rows] = logits.gather(1, wanted[rows, None])[:, 0]
        if durations > 0:
            chosen[rows] = logits[:, -durations:].argmax(-1)
    return scores.view(symbols.shape), chosen.view(symbols.shape)
