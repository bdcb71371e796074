"""`generate()` of Transformers' Parakeet and Nemotron transducers by prnn.transducer_search."""

import functools
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

import prnn
from prnn.compat._parts import Layers, parts_of
from prnn.transducer import Joiner, RecurrentPredictor

_TAKEN = {"input_features", "attention_mask", "return_dict_in_generate"}
_OUTPUTS = ("NemotronAsrStreamingGenerateOutput", "ParakeetRNNTGenerateOutput")


def generates(original: Callable[..., Any], encoder_options: frozenset[str] = frozenset()) -> Callable[..., Any]:
    """The `generate` of a model class. Other arguments than features, their mask, encoder_options (those of
    `get_audio_features`), max_new_tokens and those that ask for greedy search, features in chunks, a model in training
    mode, and what the search does not find as Transformers does have the original's way."""

    @functools.wraps(original)
    def generate(self: Any, inputs: Any = None, generation_config: Any = None, **kwargs: Any) -> Any:
        found = None
        features = kwargs.get("input_features") if inputs is None else inputs
        given = {name for name, value in kwargs.items() if not _is_greedy(name, value)}
        plain = generation_config is None and given <= _TAKEN | encoder_options
        if isinstance(features, Tensor) and plain and _can_search(self):
            options = {name: kwargs[name] for name in encoder_options & kwargs.keys()}
            found = _search(self, features, kwargs.get("attention_mask"), options, kwargs.get("max_new_tokens"))
        if found is None:
            return original(self, inputs=inputs, generation_config=generation_config, **kwargs)
        sequences, durations = found
        return _output_class(self)(sequences=sequences, durations=durations)

    return generate


def _is_greedy(name: str, value: object) -> bool:
    """Whether an argument of `generate` asks for what greedy search does, at most for its first steps."""
    if name == "max_new_tokens":
        return type(value) is int and value > 0
    return (name == "do_sample" and value is False) or (name == "num_beams" and type(value) is int and value == 1)


def _output_class(model: Any) -> Any:
    """Returns the original's class of outputs, from the first module of the model's classes that has it."""
    modules = [sys.modules[kind.__module__] for kind in type(model).__mro__]
    return next(getattr(module, name) for module in modules for name in _OUTPUTS if hasattr(module, name))


def _layers(model: Any) -> Layers:
    decoder, joint = model.decoder, model.joint
    return Layers(decoder.embedding, decoder.lstm, decoder.decoder_projector, joint.activation, joint.head)


def _can_search(model: Any) -> bool:
    config = model.generation_config
    plain = config.do_sample in (None, False) and config.num_beams in (None, 1) and config.max_new_tokens is None
    return bool(
        plain
        and not model.training
        and config.decoder_start_token_id is not None
        and config.pad_token_id is not None
        and _layers(model).can_search()
    )


@torch.no_grad()
def _search(
    model: Any,
    features: Tensor,
    attention_mask: Tensor | None,
    options: dict[str, Any],
    max_new_tokens: int | None = None,
) -> tuple[Tensor, Tensor] | None:
    """Sequences and durations (N, steps) as `generate` gives them: what is taken in each step, blanks too, after the
    start token, and by how many frames it goes on; the first max_new_tokens steps if that is given. After a sequence's
    last frame the pad token and durations of 0, where Transformers goes on with the last frame of the padding. None
    where a limit of symbols in a frame is met that Transformers has not."""
    outputs = model.get_audio_features(
        input_features=features, attention_mask=attention_mask, output_attention_mask=True, **options
    )
    frames, config = outputs.pooler_output, model.config
    mask = outputs.attention_mask
    lengths = frames.new_full((len(frames),), frames.shape[1], dtype=torch.int64) if mask is None else mask.sum(-1)
    predictor, joiner = parts_of(_layers(model), config.vocab_size, config.blank_token_id)
    durations = tuple(config.durations) if joiner.durations > 0 else ()
    most = model.max_symbols_per_step
    found = prnn.transducer_search(
        frames,
        lengths,
        predictor=predictor,
        joiner=joiner,
        blank=config.blank_token_id,
        durations=durations,
        max_symbols=most,
    )
    blanks = _blank_durations(joiner, predictor, frames, found, durations) if durations else None
    rows = []
    for n, (length, count) in enumerate(zip(lengths.tolist(), found.counts.tolist(), strict=True)):
        row = _steps(
            length,
            found.symbols[n, :count].tolist(),
            found.frames[n, :count].tolist(),
            None if found.durations is None else found.durations[n, :count].tolist(),
            None if blanks is None else blanks[n],
            config.blank_token_id,
            most,
        )
        if row is None:
            return None
        rows.append([(model.generation_config.decoder_start_token_id, 0), *row])
    pad = (model.generation_config.pad_token_id, 0)
    allowed = most * frames.shape[1] if max_new_tokens is None else max_new_tokens + 1  # by Transformers
    longest = min(max(map(len, rows)), allowed)
    steps = torch.tensor([(row + [pad] * (longest - len(row)))[:longest] for row in rows], device=frames.device)
    return steps[..., 0], steps[..., 1]


def _blank_durations(
    joiner: Joiner, predictor: RecurrentPredictor, frames: Tensor, found: Any, durations: tuple[int, ...]
) -> list[list[int]]:
    """For each frame, by how many frames a blank goes on that is taken there, after all symbols until then."""
    longest = int(found.counts.max())
    symbols = found.symbols[:, :longest].long()
    own = torch.arange(longest, device=symbols.device) < found.counts[:, None]
    before = predictor(symbols.masked_fill(~own, predictor.blank))
    times = torch.arange(frames.shape[1], device=frames.device)
    emitted = ((found.frames[:, None, :longest] <= times[:, None]) & own[:, None]).sum(-1)
    context = before.gather(1, emitted[..., None].expand(-1, -1, before.shape[-1]))
    meeting = joiner.project_encoder(frames) + joiner.project_predictor(context)
    active = joiner.activate(meeting)
    rows = slice(joiner.vocab_size, None)
    logits = nn.functional.linear(active, joiner.output.weight[rows], joiner.output.bias[rows])
    result: list[list[int]] = torch.tensor(durations, device=logits.device)[logits.argmax(-1)].clamp(min=1).tolist()
    return result


def _steps(
    length: int,
    symbols: list[int],
    frames: list[int],
    durations: list[int] | None,
    blanks: list[int] | None,
    blank: int,
    most: int,
) -> list[tuple[int, int]] | None:
    """Returns the symbol of each step of a sequence and by how many frames it goes on; None where a token-and-duration
    transducer may have left a frame because of the limit of symbols, and where blanks pass over a symbol: in 16 bits a
    duration may be rounded otherwise than in the search."""
    steps: list[tuple[int, int]] = []
    at = taken = here = 0
    while at < length:
        if taken < len(symbols) and frames[taken] == at:
            here += 1
            duration = durations[taken] if durations is not None else int(here == most)
            steps.append((symbols[taken], duration))
            taken += 1
            if durations is not None and here == most:
                return None
        else:
            duration = 1 if blanks is None else blanks[at]
            steps.append((blank, duration))
        here = 0 if duration > 0 else here
        at += duration
    return steps if taken == len(symbols) else None
