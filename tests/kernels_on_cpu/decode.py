"""Transducer searches with the kernels on the CPU."""

from __future__ import annotations

import pathlib
import struct
import subprocess
import tempfile
from typing import Any

import torch
from decode_case import BeamFound, BeamOptions, DecodeCase, Options, beam_found, beam_options
from kernels_on_cpu.build import unordered_in
from reference.transducer_search import Found
from torch import Tensor

OUTPUTS = ("symbols", "counts", "frames", "durations", "logProbs", "confidences", "scores")
STATE = ("ahead", "h", "c", "context", "node")
BEAM_STATE = (*STATE, "score", "hash")


def _bytes(tensor: Tensor | None) -> bytes:
    return b"" if tensor is None else tensor.contiguous().view(torch.uint8).numpy().tobytes()


def search(
    program: pathlib.Path,
    case: DecodeCase,
    frames: Tensor,
    lengths: list[int] | None = None,
    max_symbols: int = 8,
    state: dict[str, Tensor] | None = None,
    bias: tuple[Tensor, Tensor] | None = None,
    slots: list[int] | None = None,
    unordered: list[tuple[str, str]] | None = None,
    **options: Any,
) -> list[Found]:
    """Runs run_decode with its `options`, returns what it finds, and writes the state. `unordered` takes what
    find_unordered() gives, of a program that follows the order of accesses."""
    batch, count, _ = frames.shape
    room = (batch, count * max_symbols)
    out = {name: torch.full(room, -9, dtype=torch.int32) for name in ("symbols", "frames", "durations")}
    out |= {name: torch.full(room, -9.0) for name in ("logProbs", "confidences")}
    out |= {"counts": torch.zeros(batch, dtype=torch.int32), "scores": torch.zeros(batch, dtype=torch.float64)}
    written = [(state or {}).get(name) for name in STATE] + [out[name] for name in OUTPUTS]
    _run(program, case, Options(batch, count, max_symbols), frames, lengths, bias, slots, written, unordered, options)
    columns = [out[name] for name in ("symbols", "frames", "durations", "logProbs", "confidences")]
    counts = out["counts"].tolist()
    for column in columns:
        for row, count_of_row in zip(column, counts, strict=True):
            assert (row[count_of_row:] == -9).all(), "written beyond the symbols"
    return [
        Found(*(column[n, :count_of_row].tolist() for column in columns), float(out["scores"][n]))
        for n, count_of_row in enumerate(counts)
    ]


def beam_search(
    program: pathlib.Path,
    case: DecodeCase,
    frames: Tensor,
    lengths: list[int] | None = None,
    beam: int = 4,
    state: dict[str, Tensor] | None = None,
    bias: tuple[Tensor, Tensor] | None = None,
    slots: list[int] | None = None,
    unordered: list[tuple[str, str]] | None = None,
    max_symbols: int | None = None,
    **options: Any,
) -> list[list[BeamFound]]:
    """Runs run_beam as `search` runs run_decode."""
    batch, count, _ = frames.shape
    sizes = beam_options(batch, count, beam, max_symbols)
    out = case.beam_outputs(batch, count * sizes.maxSymbols, beam)
    written = [(state or {}).get(name) for name in BEAM_STATE] + list(out.values())
    _run(program, case, sizes, frames, lengths, bias, slots, written, unordered, options)
    return beam_found(out)


def _run(
    program: pathlib.Path,
    case: DecodeCase,
    structure: Options | BeamOptions,
    frames: Tensor,
    lengths: list[int] | None,
    bias: tuple[Tensor, Tensor] | None,
    slots: list[int] | None,
    written: list[Tensor | None],
    unordered: list[tuple[str, str]] | None,
    options: dict[str, Any],
) -> None:
    """Runs a program with a call; `written` are the arrays of the state and of the outputs, in their order."""
    layers = [*case.layer_weights, {}, {}][:2]
    names = ("inputWeights", "recurrentWeights", "inputBiases", "recurrentBiases")
    arrays = [case.weights["embedding"], *(layer.get(name) for layer in layers for name in names)]
    arrays += [case.weights[name] for name in ("predictorWeight", "predictorBias", "outputWeight", "outputBias")]
    arrays += [frames, None if lengths is None else torch.tensor(lengths, dtype=torch.int32)]
    arrays += [None, None] if bias is None else list(bias)
    arrays += [None if slots is None else torch.tensor(slots, dtype=torch.int32)]
    call = [bytes(case.model), bytes(structure), *map(_bytes, arrays), *map(_bytes, written)]
    with tempfile.TemporaryDirectory() as folder:
        given, found = pathlib.Path(folder, "call.bin"), pathlib.Path(folder, "found.bin")
        given.write_bytes(b"".join(struct.pack("<q", len(part)) + part for part in call))
        words = [f"{name}={value}" for name, value in options.items()]
        done = subprocess.run([program, *words, given, found], capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, f"{words}: exit status {done.returncode}\n{done.stdout}{done.stderr}"
        if unordered is not None:
            unordered += unordered_in(program, done.stdout)
        data, at = found.read_bytes(), 0
    for tensor in written:
        (size,) = struct.unpack_from("<q", data, at)
        at += 8
        if tensor is not None:
            values = torch.frombuffer(bytearray(data[at : at + size]), dtype=tensor.dtype)
            tensor.copy_(values.reshape(tensor.shape))
        at += size
