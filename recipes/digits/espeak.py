"""Speech from text with espeak-ng, through the library and voices that the espeakng-loader package carries."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any

import numpy as np

from prnn._extras import install_command

try:
    import espeakng_loader
except ModuleNotFoundError as error:
    command = install_command("espeakng_loader")
    raise SystemExit(f"recipes.digits needs the package {error.name}: {command} brings it") from error

# Values of speak_lib.h, espeak-ng's public header.
_AUDIO_OUTPUT_SYNCHRONOUS = 2
_POS_CHARACTER = 1
_CHARS_UTF8 = 1
_RATE, _PITCH, _RANGE, _WORD_GAP = 1, 3, 4, 7
_EE_OK = 0

_Callback = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(ctypes.c_short), ctypes.c_int, ctypes.c_void_p)


@dataclass(frozen=True)
class Speaker:
    """One way of speaking: an accent of English, a voice variant, and how it talks.

    Args:
        accent: an espeak-ng language, such as ``en-us``.
        variant: a voice variant, such as ``f2``.
        rate: words per minute, 80 to 450.
        pitch: 0 to 100, 50 is the variant's own.
        pitch_range: 0 (monotone) to 100.
        word_gap: extra pause between words in units of 10 ms.
    """

    accent: str
    variant: str
    rate: int = 160
    pitch: int = 50
    pitch_range: int = 50
    word_gap: int = 0

    @property
    def voice(self) -> str:
        """The name that espeak-ng knows: accent+variant."""
        return f"{self.accent}+{self.variant}"


class Synthesizer:
    """espeak-ng in this process. The library has one global state, so make one instance a process."""

    def __init__(self) -> None:
        self._library = ctypes.CDLL(espeakng_loader.get_library_path())
        data = str(espeakng_loader.get_data_path()).encode()
        self.sample_rate: int = self._library.espeak_Initialize(_AUDIO_OUTPUT_SYNCHRONOUS, 0, data, 0)
        if self.sample_rate <= 0:
            raise RuntimeError(f"espeak-ng could not start with the voices in {data.decode()}")
        self._pieces: list[np.ndarray] = []
        self._callback = _Callback(self._receive)  # kept: the library holds only its address
        self._library.espeak_ng_SetRandSeed(ctypes.c_long(1))
        self._library.espeak_SetSynthCallback(self._callback)

    def _receive(self, samples: Any, count: int, events: int | None) -> int:
        if samples and count > 0:
            self._pieces.append(np.ctypeslib.as_array(samples, (count,)).copy())
        return 0

    def speak(self, text: str, speaker: Speaker) -> np.ndarray:
        """Returns the samples (float32, mono, -1 to 1) of ``text`` at ``self.sample_rate`` hertz."""
        library = self._library
        if library.espeak_SetVoiceByName(speaker.voice.encode()) != _EE_OK:
            raise ValueError(f"espeak-ng has no voice {speaker.voice!r}")
        for parameter, value in (
            (_RATE, speaker.rate),
            (_PITCH, speaker.pitch),
            (_RANGE, speaker.pitch_range),
            (_WORD_GAP, speaker.word_gap),
        ):
            library.espeak_SetParameter(parameter, value, 0)
        self._pieces.clear()
        data = text.encode()
        size = ctypes.c_size_t(len(data) + 1)
        status = library.espeak_Synth(data, size, 0, _POS_CHARACTER, 0, _CHARS_UTF8, None, None)
        library.espeak_Synchronize()
        if status != _EE_OK or not self._pieces:
            raise RuntimeError(f"espeak-ng could not speak {text!r} with voice {speaker.voice!r} (status {status})")
        return np.concatenate(self._pieces).astype(np.float32) / 32768.0
