"""Characters as output symbols."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from prnn._fields import shown


class CharTokenizer:
    """Maps texts to label numbers and back. Number 0 is blank and belongs to no character.

    Args:
        characters: the characters in the order of their numbers, from 1 on; each once.
    """

    blank = 0

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
        self._numbers = {character: number for number, character in enumerate(characters, start=1)}

    @classmethod
    def from_texts(cls, texts: Iterable[str]) -> CharTokenizer:
        """The characters that occur in ``texts``, sorted."""
        return cls(sorted(set().union(*texts)))

    def __len__(self) -> int:
        """Symbols including blank: the number of outputs a model needs."""
        return len(self.characters) + 1

    def __eq__(self, other: object) -> bool:
        return isinstance(other, CharTokenizer) and self.characters == other.characters

    def __hash__(self) -> int:
        return hash(self.characters)

    def encode(self, text: str) -> list[int]:
        """Returns the label numbers of ``text``. Raises ValueError that names a character which has none."""
        unknown = [character for character in text if character not in self._numbers]
        if unknown:
            known = "".join(self.characters)
            raise ValueError(f"the text has {unknown[0]!r}, which is not among the characters {known!r}")
        return [self._numbers[character] for character in text]

    def decode(self, labels: Iterable[int]) -> str:
        """Returns the text of label numbers. Raises ValueError for a number that has no character."""
        result = []
        for label in labels:
            if not 1 <= label <= len(self.characters):
                raise ValueError(f"label {label} is not between 1 and {len(self.characters)}")
            result.append(self.characters[label - 1])
        return "".join(result)
