"""Tokenizers: texts to label numbers and back, by characters or by the pieces of a sentencepiece model."""

from __future__ import annotations

import codecs
import io
import re
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from prnn._fields import shown

from .errors import InputError

SPACE = "\u2581"  # how a symbol writes a space, as sentencepiece and tokens.txt do
BLANK_SYMBOL = "<blk>"
_LARGEST_MODEL = 2**26  # bytes of a sentencepiece model


class Tokenizer(ABC):
    """Maps texts to label numbers and back. Label 0 is blank and belongs to no text; ``len(tokenizer)`` is the number
    of outputs a model needs, blank included.

    Attributes:
        symbols: the symbol of each label, blank's first, as tokens.txt of sherpa-onnx has them: ▁ stands for a space.
    """

    blank = 0
    symbols: tuple[str, ...]

    def __len__(self) -> int:
        """Labels, blank included."""
        return len(self.symbols)

    @abstractmethod
    def encode_known(self, text: str) -> tuple[list[int], str]:
        """Returns the labels of ``text``, and the characters of it that no label stands for, which were left out."""

    @abstractmethod
    def surfaces(self, labels: Sequence[int]) -> list[str]:
        """Returns what each of a transcript's labels adds to its text, spaces included.

        Raises:
            ValueError: a number is not that of a label.
        """

    @abstractmethod
    def state(self) -> dict[str, Any]:
        """This tokenizer in plain types, for `tokenizer_from_state`."""

    def encode(self, text: str) -> list[int]:
        """Returns the labels of ``text``. Raises ValueError that names a character which has none."""
        labels, unknown = self.encode_known(text)
        if unknown:
            raise ValueError(f"the text has {unknown[0]!r}, which is not among the {self}")
        return labels

    def decode(self, labels: Iterable[int]) -> str:
        """Returns the text of a transcript's labels. Raises ValueError for a number that is not that of a label."""
        return "".join(self.surfaces(list(labels)))

    def _check_labels(self, labels: Sequence[int]) -> None:
        last = len(self)
        for label in labels:
            if not 1 <= label < last:
                raise ValueError(f"label {label} is not between 1 and {last - 1}")

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and self.state() == other.state()

    def __hash__(self) -> int:
        return hash(self.symbols)


class CharTokenizer(Tokenizer):
    """A label for each character.

    Args:
        characters: the characters in the order of their labels, from 1 on; each once.
    """

    def __init__(self, characters: Sequence[str]) -> None:
        if not characters:
            raise ValueError("characters is empty; at least one is needed")
        for character in characters:
            if not isinstance(character, str) or len(character) != 1:
                raise ValueError(f"characters holds {shown(character)}; each must be a string of one character")
            if 0xD800 <= ord(character) <= 0xDFFF:
                raise ValueError(f"characters holds {character!r}, half of a surrogate pair")
        if len(set(characters)) != len(characters):
            raise ValueError("characters holds a character twice")
        self.characters = tuple(characters)
        self.symbols = (BLANK_SYMBOL, *(SPACE if character == " " else character for character in characters))
        self._labels = {character: label for label, character in enumerate(characters, start=1)}

    @classmethod
    def from_texts(cls, texts: Iterable[str]) -> CharTokenizer:
        """The characters that occur in ``texts``, sorted."""
        return cls(sorted(set().union(*texts)))

    def __str__(self) -> str:
        return f"characters {''.join(self.characters)!r}"

    def encode_known(self, text: str) -> tuple[list[int], str]:
        labels = [self._labels[character] for character in text if character in self._labels]
        return labels, "".join(character for character in text if character not in self._labels)

    def surfaces(self, labels: Sequence[int]) -> list[str]:
        self._check_labels(labels)
        return [self.characters[label - 1] for label in labels]

    def state(self) -> dict[str, Any]:
        return {"characters": list(self.characters)}


class PieceTokenizer(Tokenizer):
    """The pieces of a sentencepiece model.

    The labels are the model's piece numbers if piece 0 is ``<blk>``, as in models of ``prnn tokenizer`` and of icefall;
    else the piece numbers plus 1.

    Args:
        model: the bytes of a .model file.

    Raises:
        ValueError: the bytes are not such a model.
        TypeError: ``model`` is not of type bytes.
    """

    def __init__(self, model: bytes) -> None:
        import sentencepiece

        if not isinstance(model, bytes):
            raise TypeError(f"the sentencepiece model is {shown(model)}; it must be bytes")
        processor = sentencepiece.SentencePieceProcessor()
        try:
            if not model:
                raise RuntimeError
            processor.LoadFromSerializedProto(model)
            pieces = [processor.id_to_piece(number) for number in range(processor.get_piece_size())]
            numbers = range(len(pieces))
            self._bytes = {n: bytes([int(pieces[n][1:-1], 16)]) for n in numbers if processor.is_byte(n)}
        except (RuntimeError, ValueError) as error:  # ValueError: pieces that are not UTF-8, or no bytes
            raise ValueError("not a sentencepiece model, or a damaged one") from error
        self.model = model
        self._processor = processor
        self._offset = 0 if pieces[0] == BLANK_SYMBOL else 1
        silent = {number for number in numbers if processor.is_control(number) or pieces[number] == BLANK_SYMBOL}
        unknown = {number for number in numbers if processor.is_unknown(number)}
        self._surfaces = ["" if n in silent else pieces[n].replace(SPACE, " ") for n in numbers]
        self._never = silent | unknown
        self.symbols = (BLANK_SYMBOL, *pieces[1 - self._offset :])

    @classmethod
    def load(cls, path: str | Path) -> PieceTokenizer:
        """Reads a .model file.

        Raises:
            InputError: the file is missing, or not a sentencepiece model.
        """
        path = Path(path)
        if not path.is_file():
            raise InputError(f"{path}: {'not a file' if path.exists() else 'no such file'}")
        if path.stat().st_size > _LARGEST_MODEL:
            raise InputError(f"{path}: {path.stat().st_size} bytes; a model may have at most {_LARGEST_MODEL}")
        try:
            return cls(path.read_bytes())
        except ValueError as error:
            raise InputError(f"{path}: {error}") from error

    def __str__(self) -> str:
        return f"{len(self)} symbols of the sentencepiece model"

    def encode_known(self, text: str) -> tuple[list[int], str]:
        labels, unknown = [], []
        numbers, pieces = self._processor.encode(text), self._processor.encode(text, out_type=str)
        for number, piece in zip(numbers, pieces, strict=True):  # of what it does not know, the piece is the text
            if number in self._never:
                unknown.append(piece)
            else:
                labels.append(number + self._offset)
        return labels, "".join(unknown)

    def surfaces(self, labels: Sequence[int]) -> list[str]:
        self._check_labels(labels)
        numbers = [label - self._offset for label in labels]
        result, decoder = [], codecs.getincrementaldecoder("utf-8")("replace")
        for place, number in enumerate(numbers):
            byte = self._bytes.get(number)
            if byte is None:
                result.append(self._surfaces[number])
            else:  # the character is that of its last byte
                last = place + 1 == len(numbers) or numbers[place + 1] not in self._bytes
                result.append(decoder.decode(byte, final=last))
        for place, surface in enumerate(result):  # sentencepiece begins a text with a space
            if surface:
                result[place] = surface.removeprefix(" ")
                break
        return result

    def state(self) -> dict[str, Any]:
        return {"sentencepiece": self.model}

    def vocab(self) -> bytes:
        """The pieces and their scores as a .vocab file has them."""
        numbers = range(self._processor.get_piece_size())
        pieces = ((self._processor.id_to_piece(number), self._processor.get_score(number)) for number in numbers)
        return "".join(f"{piece}\t{score:g}\n" for piece, score in pieces).encode()

    def __reduce__(self) -> tuple[type[PieceTokenizer], tuple[bytes]]:
        return PieceTokenizer, (self.model,)


def tokenizer_from_state(state: Mapping[str, Any]) -> Tokenizer:
    """The tokenizer that a checkpoint describes. Other keys are passed over.

    Raises:
        ValueError, TypeError, KeyError: naming what is wrong with it.
    """
    if "sentencepiece" in state:
        return PieceTokenizer(state["sentencepiece"])
    characters = state["characters"]
    if not isinstance(characters, list):
        raise TypeError(f"characters is {shown(characters)}; it must be a list")
    return CharTokenizer(characters)


def train_pieces(texts: Iterable[str], vocab: int, kind: str = "bpe", coverage: float = 1.0) -> PieceTokenizer:
    """Trains a sentencepiece model. The same texts give the same bytes.

    Args:
        texts: one sentence each, in the spelling that is to be recognised: nothing is normalised.
        vocab: labels, with blank and the symbol ``<unk>``, which no transcript has.
        kind: "bpe" or "unigram".
        coverage: share of all characters of the texts that pieces cover; below 1 the rarest have none.

    Raises:
        InputError: the texts have no characters, or allow no such vocabulary.
    """
    import sentencepiece

    sentences = [text for text in texts if text.strip()]
    if not sentences:
        raise InputError("the texts of the manifest are empty; there is nothing to make pieces of")
    written = io.BytesIO()
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(sentences),
            model_writer=written,
            vocab_size=vocab,
            model_type=kind,
            character_coverage=coverage,
            normalization_rule_name="identity",
            control_symbols=[BLANK_SYMBOL],
            unk_id=1,
            bos_id=-1,
            eos_id=-1,
            pad_id=-1,
            max_sentence_length=max(10, *(len(sentence.encode()) + 1 for sentence in sentences)),
            num_threads=16,
            minloglevel=2,
        )
    except RuntimeError as error:
        raise InputError(f"no vocabulary of {vocab} can be made of the texts: {_limit(str(error))}") from error
    return PieceTokenizer(written.getvalue())


def _limit(reason: str) -> str:
    """Shortens sentencepiece's error about a vocabulary's size, where its wording is known."""
    if found := re.search(r"too high .* <= (\d+)", reason):
        return f"they allow at most {found[1]}"
    if found := re.search(r"smaller than required_chars\. \d+ vs (\d+)", reason):
        return f"their characters need at least {found[1]}"
    return " ".join(reason.split())


def unknown_characters(tokenizer: Tokenizer, texts: Iterable[str]) -> Counter[str]:
    """Counts the characters of the texts that the tokenizer has no label for."""
    counts: Counter[str] = Counter()
    for text in texts:
        counts.update(tokenizer.encode_known(text)[1])
    return counts


def unknown_sentence(tokenizer: Tokenizer, counts: Counter[str]) -> str:
    """The warning about the characters that `unknown_characters` counted."""
    total = counts.total()
    most = ", ".join(
        f"{character!r} {'once' if count == 1 else f'{count} times'}" for character, count in counts.most_common(5)
    )
    them = f"{total} characters, {len(counts)} different ones, are" if total > 1 else "1 character is"
    errors = "they count as errors" if total > 1 else "it counts as an error"
    return f"{them} not among the {shown(tokenizer, str)}; {errors}: {most}{', ...' if len(counts) > 5 else ''}"
