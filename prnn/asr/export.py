"""Export of a recogniser to a folder that sherpa-onnx's OnlineRecognizer runs. docs/export.md is the guide.

Needs the package of the extra ``export``: ``pip install "prnn[export]"``.
"""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path

from prnn._errors import NotSupportedError
from prnn._fields import shown
from prnn.transducer import Transducer
from prnn.transducer.encoder import Encoder
from prnn.transducer.predictor import StatelessPredictor
from prnn.transducer.recurrent import with_cell_state

from .errors import InputError
from .feature_config import FeatureConfig
from .folder import replacing
from .onnx_graphs import decoder_graph, encoder_graph, joiner_graph
from .recogniser import Recogniser
from .tokenizer import SPACE, CharTokenizer, PieceTokenizer, Tokenizer

FRAME_MS = 40  # of an encoder frame, by which sherpa-onnx counts
_STRIDE = 4
_LARGEST = 2**31 - 2**20  # bytes of a file of ONNX, with room for what is not weights


def _model_reasons(model: Transducer) -> Iterator[str]:
    encoder, predictor = model.encoder, model.predictor
    if not isinstance(encoder, Encoder):
        yield f"the encoder is a {type(encoder).__name__}; it must be an Encoder"
    else:
        if not with_cell_state(encoder.cell):
            yield f"encoder_cell is {encoder.cell!r}; it must be 'lstm' or 'layer_norm_lstm', with states h and c"
        if encoder.frame_stride != _STRIDE:
            yield f"frame_stride is {encoder.frame_stride}; it must be {_STRIDE}, by which sherpa-onnx counts time"
        size = 4 * sum(parameter.numel() for parameter in encoder.parameters())
        if size > _LARGEST:
            yield f"the encoder has {size} bytes of weights; a file of ONNX holds {_LARGEST}"
    if not isinstance(predictor, StatelessPredictor):
        cell = f"predictor is {getattr(predictor, 'cell', type(predictor).__name__)!r}"
        yield f"{cell}; it must be 'stateless', since the decoder carries no state but the last symbols"
    if model.durations:
        yield "loss is 'tdt'; the search there takes one frame after the other, and knows no durations"
    if model.blank != 0:
        yield f"blank is {model.blank}; it must be 0"


def _feature_reasons(features: FeatureConfig) -> Iterator[str]:
    expected = FeatureConfig()
    for name in (field.name for field in fields(FeatureConfig)):
        value, wanted = getattr(features, name), getattr(expected, name)
        if value != wanted:
            yield f"{name} is {shown(value)}; it must be {wanted}, which is what sherpa-onnx computes"


def _token_reasons(tokenizer: Tokenizer) -> Iterator[str]:
    if isinstance(tokenizer, CharTokenizer) and SPACE in tokenizer.characters:
        yield f"the character {SPACE} stands for a space in tokens.txt"
    for character in sorted(set("".join(tokenizer.symbols)) & set(" \t\n\v\f\r")):
        yield f"tokens.txt cannot hold the character {character!r}"
    # sherpa-onnx's test for byte-level pieces, whose alphabet ends with a character of this first byte.
    if max("".join(tokenizer.symbols).replace(SPACE, "").encode()) == 0xC6:
        yield "sherpa-onnx takes characters that end in U+0180 to U+01BF for pieces of a byte-level tokenizer"


def check_exportable(recogniser: Recogniser) -> None:
    """Raises NotSupportedError with every reason for which sherpa-onnx could not run the recogniser."""
    reasons = [
        *_model_reasons(recogniser.model),
        *_feature_reasons(recogniser.features),
        *_token_reasons(recogniser.tokenizer),
    ]
    if reasons:
        raise NotSupportedError("sherpa-onnx cannot run this model: " + "; ".join(reasons))


@contextmanager
def _new_folder(folder: Path) -> Iterator[Path]:
    """A folder to fill, which takes its place once all has been written.

    Raises:
        InputError: there is something in its place.
    """
    if folder.exists() and not (folder.is_dir() and not any(folder.iterdir())):
        raise InputError(f"{folder}: there is something already; take another folder")
    partial = folder.absolute().with_name(f"{folder.absolute().name}.{secrets.token_hex(8)}.partial")
    try:
        partial.mkdir(parents=True)
        yield partial
        os.replace(partial, folder)
    except BaseException as error:
        shutil.rmtree(partial, ignore_errors=True)
        if isinstance(error, OSError):
            raise OSError(error.errno, error.strerror, str(folder)) from error
        raise


def export(recogniser: Recogniser, folder: str | Path, int8: bool = False, chunk_ms: int = 160) -> list[Path]:
    """Writes a recogniser as ``encoder.onnx``, ``decoder.onnx``, ``joiner.onnx`` and ``tokens.txt``; for word
    pieces also ``bpe.model``, and ``bpe.vocab``, by which sherpa-onnx spells hotwords.

    Args:
        recogniser: with LSTM layers in the encoder, normalised ones too, a stateless predictor, 4 frames a step and the
            default features.
        folder: new, or empty. It is written whole or not at all.
        int8: write ``encoder.int8.onnx``, ``decoder.int8.onnx`` and ``joiner.int8.onnx``, too, with 8-bit weights.
        chunk_ms: milliseconds that a call of the encoder advances, a multiple of 40.

    Returns:
        The files.

    Raises:
        prnn.NotSupportedError: sherpa-onnx cannot run the recogniser, and why.
        InputError: there is something at ``folder`` already.
        ValueError: ``chunk_ms`` is no multiple of 40 from 40 to 2000.
    """
    if chunk_ms % FRAME_MS or not FRAME_MS <= chunk_ms <= 2000:
        raise ValueError(f"chunk_ms is {chunk_ms}; it must be a multiple of {FRAME_MS} from {FRAME_MS} to 2000")
    check_exportable(recogniser)
    folder = Path(folder)
    model = recogniser.model
    assert isinstance(model.encoder, Encoder)
    assert isinstance(model.predictor, StatelessPredictor)
    lines = (f"{token} {number}\n" for number, token in enumerate(recogniser.tokenizer.symbols))
    with _new_folder(folder) as partial:
        with replacing(partial / "tokens.txt") as file:
            file.write("".join(lines).encode())
        if isinstance(pieces := recogniser.tokenizer, PieceTokenizer):
            for name, contents in (("bpe.model", pieces.model), ("bpe.vocab", pieces.vocab())):
                with replacing(partial / name) as file:
                    file.write(contents)
        for suffix in (".onnx", ".int8.onnx") if int8 else (".onnx",):
            is_int8 = suffix != ".onnx"
            graphs = {
                "encoder": encoder_graph(model.encoder, model.joiner, chunk_ms // FRAME_MS, is_int8),
                "decoder": decoder_graph(model.predictor, model.joiner, is_int8),
                "joiner": joiner_graph(model.joiner, is_int8),
            }
            for name, graph in graphs.items():
                with replacing(partial / f"{name}{suffix}") as file:
                    file.write(graph.SerializeToString())
        names = sorted(path.name for path in partial.iterdir())
    return [folder / name for name in names]
