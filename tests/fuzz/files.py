"""Commands on files and options that are wrong."""

from __future__ import annotations

import argparse
import io
import json
import os
from functools import cache
from pathlib import Path
from typing import Any

import asr_data
import torch

from fuzz.case import Case
from fuzz.commands import copy_training, materials, run_command, train_arguments, workplace
from fuzz.mutations import TEXTS, junk, mutated_bytes, mutated_tree, mutated_weights, recording
from prnn.asr import PieceTokenizer
from prnn.asr.configuration import train_parser
from prnn.asr.tokenizer import train_pieces
from prnn.cli import build_parser

TRAINING = 0.1  # of the cases that may train: it takes as long as twenty others
WORDS = (
    "0", "1", "-1", "2", "3", "1.5", "-0.5", "1e308", "1e-320", "1e400", "nan", "inf", "-inf", "", " ", "x", "0x10",
    "1_0", "９", " 3 ", "99999999999999999999", "4294967296", "1" * 400, "--", "-", "\udc80", "\x1b[31m",
    "~", "cpu",
)  # fmt: skip
SLOW_IF_LARGE = ("--epochs", "--layers", "--devices", "--workers")  # what is asked for then takes its time


@cache
def pieces() -> PieceTokenizer:
    return train_pieces(["ab c", "cab", "ab"], 7)


def recognise(case: Case, checkpoint: Path, audio: Path, about: str) -> None:
    random = case.random
    extra = random.choice(
        (
            [],
            ["--stream"],
            ["--beam", "2", "--format", "jsonl", "--nbest", "2"],
            ["--endpoint-silence", "0.1", "--format", random.choice(("ctm", "srt"))],
            ["--stream", "--beam", "3", "--chunk-ms", "100"],
        )
    )
    run_command(case, ["transcribe", str(checkpoint), str(audio), *extra], about)


def run_checkpoint(case: Case) -> None:
    random, folder = case.random, materials()
    checkpoint: dict[str, Any] = asr_data.small_checkpoint()
    how = random.choice(("tree", "tree", "tree", "description", "description", "weights", "bytes", "pieces", "other"))
    about, contents = how, None
    if how in ("tree", "description"):
        under = ("prnn",) if how == "tree" else ("prnn", random.choice(("features", "model", "characters")))
        checkpoint, about = mutated_tree(random, checkpoint, under)
    elif how == "weights":
        checkpoint["state_dict"], about = mutated_weights(random, checkpoint["state_dict"])
    elif how == "pieces":
        checkpoint = asr_data.small_checkpoint(tokenizer=pieces())
        checkpoint["prnn"]["sentencepiece"] = mutated_bytes(random, pieces().model)
    elif how == "other":
        checkpoint = random.choice((junk(random), {"prnn": junk(random)}, {**checkpoint, "state_dict": junk(random)}))
    file = io.BytesIO()
    try:
        torch.save(checkpoint, file)
    except (RecursionError, UnicodeEncodeError):
        return
    contents = file.getvalue()
    if how == "bytes":
        contents = mutated_bytes(random, contents)
    with workplace() as place:
        path = Path(place) / "m.ckpt"
        path.write_bytes(contents)
        if random.random() < 0.2:
            run_command(case, ["evaluate", str(path), str(folder / "tones.jsonl"), "--beam", "2"], about)
        else:
            recognise(case, path, folder / "tones-0.wav", about)


def run_recording(case: Case) -> None:
    contents, about, suffix = recording(case.random)
    with workplace() as place:
        path = Path(place) / (f"a.{suffix}" if suffix else "a")
        path.write_bytes(contents)
        if case.random.random() < 0.15:
            entry = {
                "audio_filepath": str(path),
                "duration": 0.5,
                "text": "ab",
                "offset": case.random.choice((0, 0.01, 1)),
            }
            manifest = Path(place) / "m.jsonl"
            manifest.write_text(json.dumps(entry) + "\n")
            run_command(case, ["evaluate", str(materials() / "model.ckpt"), str(manifest)], about)
        else:
            recognise(case, materials() / "model.ckpt", path, about)


def manifest_line(case: Case) -> bytes:
    """A line that is no utterance, or an odd one."""
    random = case.random
    entry: dict[str, Any] = {"audio_filepath": str(materials() / "tones-1.wav"), "duration": 0.24, "text": "c"}
    if random.random() < 0.5:
        entry["offset"] = 0.01
    how = random.choice(("value", "value", "value", "text", "path", "line", "bytes", "encoding"))
    if how == "value":
        entry[random.choice(list(entry))] = junk(random)
    elif how == "text":
        entry["text"] = random.choice((*TEXTS, "abc" * 1000, "a", "ä", "\u0000"))
    elif how == "path":
        own = str(materials())
        entry["audio_filepath"] = random.choice(
            (*TEXTS, own, f"{own}/tones.jsonl", f"{own}/model.ckpt", "~/x", "a/" * 3000)
        )
    text = json.dumps(entry, ensure_ascii=random.random() < 0.7)
    if how == "line":
        digits = "9" * random.choice((400, 5000))
        lines = (
            "[]",
            "null",
            "3",
            '"x"',
            "{}",
            "{",
            "[" * 100000,
            '{"a":' * 5000,
            text[:-1],
            text * 2,
            text.replace("0.24", digits),
        )
        text = random.choice((*lines, text.replace("0.24", f"1e{digits}"), text.replace("0.24", "NaN")))
    line = text.encode("utf-8", "surrogatepass")
    if how == "bytes":
        line = mutated_bytes(random, line)
    elif how == "encoding":
        encoding = random.choice(("utf-16", "utf-32", "latin-1", "utf-8-sig", "cp037"))
        line = text.encode(encoding, "replace")
    return line


def run_manifest(case: Case) -> None:
    random, folder = case.random, materials()
    good = (folder / "tones.jsonl").read_bytes().splitlines()
    good = [line.replace(b'"tones', b'"' + os.fsencode(folder) + b"/tones") for line in good]
    lines = [*good[: random.randrange(len(good) + 1)], manifest_line(case), *good[:1] * random.randrange(2)]
    contents = random.choice((b"\n", b"\r\n", b"\n\n")).join(lines) + random.choice((b"", b"\n"))
    about = ascii(contents[-600:])
    with workplace() as place:
        path = Path(place) / "m.jsonl"
        path.write_bytes(contents)
        if random.random() < TRAINING:
            arguments = train_arguments(Path(place) / "output")
            arguments[arguments.index(random.choice(("--manifest", "--valid"))) + 1] = str(path)
            run_command(case, arguments, about)
        else:
            run_command(case, ["evaluate", str(folder / "model.ckpt"), str(path)], about)


def options_of(command: str) -> list[argparse.Action]:
    """The options of a command, as its parser has them."""
    if command == "train":
        return [a for a in train_parser()._actions if a.option_strings and not isinstance(a, argparse._HelpAction)]
    groups = build_parser()._subparsers
    assert groups is not None
    (commands,) = (action for action in groups._group_actions if isinstance(action, argparse._SubParsersAction))
    return [
        a for a in commands.choices[command]._actions if a.option_strings and not isinstance(a, argparse._HelpAction)
    ]


def option(case: Case, action: argparse.Action) -> list[str]:
    """An option with some value."""
    name = action.option_strings[0]
    if action.nargs == 0:
        return [name]
    words = [str(choice) for choice in action.choices or ()] + [str(action.default)]
    word = case.random.choice(words if case.random.random() < 0.2 else WORDS)
    if name in SLOW_IF_LARGE and word.strip().isdecimal() and int(word) > 1:
        word = "1"
    return [f"{name}={word}"] if case.random.random() < 0.5 else [name, word]


def run_command_line(case: Case) -> None:
    random, folder = case.random, materials()
    checkpoint, audio, manifest = (str(folder / name) for name in ("model.ckpt", "tones-0.wav", "tones.jsonl"))
    with workplace() as place:
        usual = {
            "tokenizer": ["tokenizer", "--manifest", manifest, "--out", str(Path(place) / "p.model"), "--vocab", "6"],
            "train": train_arguments(Path(place) / "output"),
            "transcribe": ["transcribe", checkpoint, audio],
            "evaluate": ["evaluate", checkpoint, manifest],
            "export": ["export", checkpoint, str(Path(place) / "exported")],
            "info": ["info"],
            "bench": ["bench"],
        }
        command = random.choice((*usual, "train", "transcribe"))
        arguments = usual[command]
        if command == "bench":
            arguments = [*arguments, *random.choices([word for word in WORDS if word != "--"], k=random.randint(1, 3))]
        else:
            for _ in range(random.randint(1, 3)):
                arguments = [*arguments, *option(case, random.choice(options_of(command)))]
        if random.random() < 0.25:
            index = random.randrange(len(arguments))
            arguments[index : index + random.randrange(2)] = [random.choice(WORDS)]
        if random.random() < 0.1:
            arguments = arguments[: random.randrange(len(arguments))]
        run_command(case, [argument for argument in arguments if "\x00" not in argument])


def run_training(case: Case) -> None:
    """A training gone on with from a folder that is not as it was left."""
    random = case.random
    with workplace() as place:
        output = copy_training(Path(place))
        options, last = output / "options.json", output / "last.ckpt"
        how = random.choice(
            ("options tree", "options tree", "options bytes", "last tree", "last bytes", "gone", "other")
        )
        about = how
        if how == "options tree":
            changed, about = mutated_tree(random, json.loads(options.read_text()))
            if random.random() < 0.2:
                changed = junk(random)
            options.write_text(json.dumps(changed), encoding="utf-8", errors="surrogatepass")
        elif how == "options bytes":
            options.write_bytes(mutated_bytes(random, options.read_bytes()))
        elif how == "last tree":
            checkpoint = torch.load(last, weights_only=True)
            under = random.choice((("loops",), ("prnn",), ("optimizer_states",), ("lr_schedulers",), ()))
            changed, about = mutated_tree(random, checkpoint, under)
            torch.save(changed, last)
        elif how == "last bytes":
            last.write_bytes(mutated_bytes(random, last.read_bytes()))
        elif how == "gone":
            random.choice((options, last, output / "model.ckpt")).unlink()
        else:
            random.choice((options, last)).write_bytes(random.randbytes(random.choice((0, 1, 1000))))
        extra = random.choice(([], [], ["--restart"], ["--checkpoint-every", "1"], ["--lr", "1e30", "--restart"]))
        run_command(case, [*train_arguments(output), *extra], about)
