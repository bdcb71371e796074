"""Files made wrong: bytes, values inside nested data, and the fields of recordings."""

from __future__ import annotations

import copy
import io
import math
import struct
from random import Random
from typing import Any

import numpy as np
import soundfile
import torch

NUMBERS: tuple[Any, ...] = (
    0, -1, 1, 2, 3, 7, 255, 65536, 2**31 - 1, 2**31, 2**63, -(2**63), 10**30, 10**399, 0.0, -0.0, 0.5, -1.5, 1e-320,
    1e-10, 1e10, 1e308, math.nan, math.inf, -math.inf, True, False,
)  # fmt: skip
TEXTS = (
    "",
    " ",
    "x",
    "0",
    "nan",
    "\x00",
    "a\nb",
    "\u202e",
    "日本",
    "~nosuchuser/x",
    "x" * 5000,
    "/dev/null",
    "..",
    "\ud800",
)


def mutated_bytes(random: Random, data: bytes, first: int = 0) -> bytes:
    """Some bytes changed, left out, doubled, or the end cut off. first > 0: among the first so many alone, mostly."""
    changed = bytearray(data)
    for _ in range(random.choice((1, 1, 2, 5, 20))):
        if not changed:
            break
        reach = min(len(changed), first) if first and random.random() < 0.8 else len(changed)
        place, length = random.randrange(max(1, reach)), random.choice((1, 1, 2, 4, 8, 100))
        how = random.choice(("flip", "flip", "set", "field", "delete", "double", "insert", "cut", "zero"))
        if how == "flip":
            changed[place] ^= 1 << random.randrange(8)
        elif how == "set":
            changed[place] = random.choice((0, 1, 0x7F, 0x80, 0xFF, random.randrange(256)))
        elif how == "field":
            value = random.choice((0, 1, 2**16 - 1, 2**31 - 1, 2**31, 2**32 - 1, random.getrandbits(32)))
            changed[place : place + 4] = value.to_bytes(4, random.choice(("little", "big")))
        elif how == "delete":
            del changed[place : place + length]
        elif how == "double":
            changed[place:place] = changed[place : place + length]
        elif how == "insert":
            changed[place:place] = random.randbytes(length)
        elif how == "cut":
            del changed[random.choice((place, random.randrange(len(changed)))) :]
        else:
            changed[place : place + length] = bytes(len(changed[place : place + length]))
    return bytes(changed)


def junk(random: Random, depth: int = 0) -> Any:
    """Any plain value."""
    kind = random.choice(("number", "number", "number", "text", "none", "list", "dict", "deep"))
    if kind == "number":
        return random.choice(NUMBERS)
    if kind == "text":
        return random.choice(TEXTS)
    if kind == "deep" and depth == 0:
        value: Any = 1
        for _ in range(random.choice((3, 100, 400))):
            value = [value] if random.random() < 0.5 else {"a": value}
        return value
    if kind in ("list", "dict") and depth < 2:
        values = [junk(random, depth + 1) for _ in range(random.randrange(4))]
        return values if kind == "list" else {f"k{index}": value for index, value in enumerate(values)}
    return None


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The paths of all values inside nested dictionaries and lists."""
    found = [path] if path else []
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        found += places(item, (*path, key))
    return found


def mutated_tree(random: Random, tree: Any, under: tuple[Any, ...] = ()) -> tuple[Any, str]:
    """Nested data with a value changed, left out or added, and what was done. under: only below this path."""
    changed = copy.deepcopy(tree)
    paths = [path for path in places(changed) if path[: len(under)] == under]
    path = random.choice(paths)
    holder = changed
    for key in path[:-1]:
        holder = holder[key]
    how = random.choice(("replace", "replace", "replace", "replace", "delete", "add", "near"))
    if how == "replace":
        holder[path[-1]] = junk(random)
    elif how == "delete":
        del holder[path[-1]]
    elif how == "add" and isinstance(holder, dict):
        holder[random.choice(("extra", "", 7, None, *TEXTS))] = junk(random)
    else:
        old = holder[path[-1]]
        if isinstance(old, bool) or not isinstance(old, int | float):
            holder[path[-1]] = [old]
        else:
            holder[path[-1]] = random.choice((old + 1, old - 1, -old, old * 1000, float(old), str(old), old / 1000))
    return changed, f"{how} {path}: {str(holder)[:300]!a}"


def mutated_weights(random: Random, weights: dict[str, torch.Tensor]) -> tuple[dict[Any, Any], str]:
    """A state dict with a tensor that is not as it was."""
    changed: dict[Any, Any] = dict(weights)
    name = random.choice(list(changed))
    tensor = changed[name]
    ways: dict[str, Any] = {
        "nan": torch.full_like(tensor, math.nan),
        "infinite": torch.full_like(tensor, math.inf),
        "large": tensor * 1e30,
        "half": tensor.half(),
        "double": tensor.double(),
        "integer": tensor.long(),
        "complex": tensor.to(torch.complex64),
        "longer": torch.cat((tensor, tensor)),
        "deeper": tensor[None],
        "empty": tensor[:0],
        "expanded": torch.zeros(1).expand(tensor.shape),
        "number": 3,
        "nothing": None,
        "meta": tensor.to("meta"),
        "sparse": tensor.to_sparse(),
    }
    how = random.choice(list(ways))
    changed[name] = ways[how]
    return changed, f"{name} {how}"


def recording(random: Random) -> tuple[bytes, str, str]:
    """A recording, what is odd about it, and its suffix."""
    rate = random.choice((16000, 16000, 8000, 44100, 1, 2, 100, 192000, 10**7, 2**31 - 1))
    channels = random.choice((1, 1, 2, 3, 64, 1000))
    frames = random.choice((1, 2, 100, 1600, 8000)) if channels < 64 else 20
    samples = 0.3 * np.random.default_rng(random.getrandbits(32)).standard_normal((frames, channels))
    odd = random.choice(("", "", "nan", "infinite", "1e30", "silent", "denormal", "clipped"))
    with np.errstate(all="ignore"):
        factor = {
            "nan": math.nan,
            "infinite": math.inf,
            "1e30": 1e30,
            "silent": 0.0,
            "denormal": 1e-40,
            "clipped": 100.0,
        }
        some = slice(None) if random.random() < 0.5 else slice(frames // 2, frames // 2 + 1)
        samples[some] *= factor.get(odd, 1.0)
    formats = (
        ("WAV", "PCM_16"),
        ("WAV", "FLOAT"),
        ("WAV", "DOUBLE"),
        ("WAV", "PCM_24"),
        ("WAV", "ULAW"),
        ("FLAC", "PCM_16"),
    )
    formats += (("AIFF", "PCM_16"), ("OGG", "VORBIS"), ("AU", "FLOAT"), ("CAF", "PCM_32"), ("W64", "PCM_16"))
    kind, subtype = random.choice(formats)
    file = io.BytesIO()
    # libsndfile's encoders end the process on what is odd, but for plain floats.
    if kind not in ("WAV", "AU"):
        rate, channels, samples = 16000, 1, samples[:, :1]
    if subtype not in ("FLOAT", "DOUBLE"):
        odd, samples = "", np.nan_to_num(samples).clip(-1, 1)
    try:
        soundfile.write(file, samples, rate, subtype, format=kind)
    except (soundfile.SoundFileError, ValueError):  # a format that does not have this rate or these channels
        file = io.BytesIO()
        kind, subtype, rate, channels = "WAV", "PCM_16", 16000, 1
        soundfile.write(file, np.nan_to_num(samples[:, 0]), rate, subtype, format=kind)
    data = file.getvalue()
    about = f"{kind} {subtype}, {rate} Hz, {channels} channels, {frames} frames {odd}"
    if random.random() < 0.6:
        data = mutated_bytes(random, data, first=64)
        about += ", bytes changed"
    elif kind == "WAV" and random.random() < 0.5:
        place, size, value = random.choice(
            (
                (24, 4, random.choice((0, 1, 10**7, 2**31, 2**32 - 1))),
                (22, 2, random.choice((0, 64, 1024, 65535))),
                (40, 4, random.choice((0, 1, 2**31, 2**32 - 1))),
                (34, 2, random.choice((0, 1, 7, 64, 65535))),
                (4, 4, 0),
            )
        )
        data = data[:place] + struct.pack({2: "<H", 4: "<I"}[size], value) + data[place + size :]
        about += f", {value} at {place}"
    elif kind == "FLAC" and random.random() < 0.5:
        # STREAMINFO: the last 36 of these 64 bits say how many samples there are.
        field = int.from_bytes(data[18:26], "big")
        data = data[:18] + (field | random.choice((2**36 - 1, 2**35))).to_bytes(8, "big") + data[26:]
        about += ", 2^35 samples or more claimed"
    suffix = random.choice((kind.lower(), kind.lower(), "wav", "raw", "", "mp3"))
    return data, about, suffix
