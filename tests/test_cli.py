"""The command line: help, what it prints, and, for input that cannot be used, one sentence and exit status 2."""

import argparse
import json
import os
import re
import struct
import sys
import wave
from collections.abc import Sequence
from pathlib import Path

import forked
import numpy as np
import pytest
import soundfile
import torch
from asr_data import small_checkpoint, write_corpus
from reference import transducer as slow
from torch.nn.modules.module import register_module_forward_hook

from prnn._extras import install_command
from prnn.asr import Recogniser, compute_features
from prnn.asr.audio import read_audio
from prnn.bench.json_rows import rows_printed, write_rows
from prnn.cli import build_parser, main


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    path = tmp_path / "model.ckpt"
    torch.save(small_checkpoint(), path)
    return path


@pytest.fixture
def wav(tmp_path: Path) -> Path:
    path = tmp_path / "noise.wav"
    soundfile.write(path, 0.1 * np.random.default_rng(0).standard_normal(12000), 16000)
    return path


def refused(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    """Runs a command that must be refused; returns its one sentence."""
    assert main([str(argument) for argument in arguments]) == 2
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err.count("\n") == 1
    assert output.err.startswith("prnn: ")
    return output.err.removeprefix("prnn: ").strip()


COMMANDS = ["tokenizer", "train", "transcribe", "evaluate", "export", "info", "selftest", "bench", "run", "completion"]


@pytest.mark.parametrize("command", COMMANDS)
def test_help_of_every_command(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in ([command, "--help"], ["--help"]):
        with pytest.raises(SystemExit) as stopped:
            main(arguments)
        assert stopped.value.code == 0
        assert command in capsys.readouterr().out


def help_of(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """As one line."""
    with pytest.raises(SystemExit, match="0"):
        main([*arguments, "--help"])
    return " ".join(capsys.readouterr().out.split())


def test_help_says_what_a_newcomer_needs(capsys: pytest.CaptureFixture[str]) -> None:
    top = help_of(capsys)
    assert top.endswith("prnn COMMAND --help describes a command and its options.")
    train = help_of(capsys, "train")
    assert train.startswith("usage: prnn train [--config FILE] --manifest FILE --valid FILE [OPTION ...] Train ")
    assert "training manifest (required, type: a path)" in train
    assert help_of(capsys, "run").startswith("usage: prnn run [-h] [--compat NAME[,NAME ...]] [--log] ")
    assert "a multiple of 40 (160)" in help_of(capsys, "export")
    bench = help_of(capsys, "bench")
    assert "prnn bench rnn --help lists both" in bench
    assert "timesteps (100)" in help_of(capsys, "bench", "--accelerator", "cpu", "rnn")
    assert "utterances in a batch (12)" in help_of(capsys, "bench", "--accelerator", "cpu", "train")
    for command in COMMANDS:
        assert "<class" not in help_of(capsys, command)


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (MemoryError(), "not enough memory; take a smaller model, batch or beam"),
        (OSError(28, "No space left on device"), "no space left on device"),
        (OSError(28, "No space left on device", "out"), "out: no space left on device"),
        (
            ModuleNotFoundError("", name="onnx"),
            "the package onnx is not installed; pip install onnx brings it",
        ),
        (
            RuntimeError("unable to resize file </torch_1_2> to the right size: File too large (27)"),
            "/dev/shm has no room",
        ),
        (RuntimeError("unable to allocate shared memory(shm)"), "/dev/shm has no room for the batches that --workers"),
    ],
    ids=str,
)
def test_an_error_names_the_program_once(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, error: Exception, message: str
) -> None:
    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr("prnn.commands.info._plan", fail)
    assert refused(capsys, "info", "--cell", "lstm").startswith(message)


@pytest.mark.parametrize(
    ("modules", "in_place", "installed"),
    [
        (["onnx.checker"], "pip install onnx", "pip install 'prnn[export]'"),
        (["yaml", "kaldi_native_fbank"], "pip install PyYAML kaldi-native-fbank", "pip install 'prnn[asr]'"),
        (["espeakng_loader"], "pip install espeakng-loader", "pip install 'prnn[digits]'"),
        (["jax.numpy"], "pip install jax", "pip install 'prnn[jax]'"),
        (["sherpa_onnx"], "pip install sherpa-onnx", "pip install sherpa-onnx"),  # which no extra has
    ],
)
def test_what_installs_a_missing_package(
    monkeypatch: pytest.MonkeyPatch, modules: list[str], in_place: str, installed: str
) -> None:
    monkeypatch.setattr("prnn._extras.is_installed", lambda distribution: False)
    assert install_command(*modules) == in_place
    monkeypatch.setattr("prnn._extras.is_installed", lambda distribution: True)
    assert install_command(*modules) == installed


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "the following arguments are required: COMMAND"),
        (["fly"], "invalid choice: 'fly'"),
        (["train"], "the following arguments are required: manifest, valid"),
        (["train", "--manifest", "a", "--valid", "b", "--epochs", "0"], "'0' is not a whole number of at least 1"),
        (["train", "--manifest", "a", "--valid", "b", "--lr", "0"], "'0' is not a number of more than 0"),
        (["train", "--manifest", "a", "--valid", "b", "--dropout", "nan"], "'nan' is not a number of at least 0"),
        (["train", "--manifest", "a", "--valid", "b", "--cell", "cnn"], "invalid choice: 'cnn'"),
        (["transcribe", "m.ckpt", "a.wav", "--chunk-ms", "-1"], "'-1' is not a number of more than 0"),
        (["transcribe", "m.ckpt", "a.wav", "--beam", "two"], "'two' is not a whole number of at least 1"),
        (["bench", "sort"], "invalid choice: 'sort'"),
        (["bench", "--device", "cpu", "rnn", "--hidden", "0"], "'0' is not a whole number of at least 1"),
        (["bench", "--device", "cpu", "rnn", "--cells", "LSTM", "QRNN"], "invalid choice: 'QRNN'"),
        (["bench", "--device", "cpu", "rnn", "--seconds", "nan"], "'nan' is not a number of more than 0"),
        (["bench", "--device", "cpu", "loss", "--repeats", "0"], "'0' is not a whole number of at least 1"),
        (["bench", "--device", "cpu", "loss", "--repeats=--"], "argument --repeats: expected one argument"),
        (["bench", "--device", "cpu", "train", "--threads", "0"], "'0' is not a whole number of at least 1"),
        (["bench", "--device", "gpu", "loss", "--only", "rnnt,hat"], "argument --only: 'hat' is none of rnnt, ctc,"),
        (["info", "--cell", "lstm", "--layers", "100000"], "'100000' is not a whole number of at least 1 and at most"),
        (["run", "--cudnn=--", "true"], "argument --cudnn: expected one argument"),
    ],
)
def test_options_that_cannot_work(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(arguments)
    assert stopped.value.code == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("suffix", ["wav", "flac"])
@pytest.mark.parametrize("rate", [8000, 44100])
@pytest.mark.parametrize("channels", [1, 2])
def test_transcribe_whole_and_streamed_agree(
    checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], suffix: str, rate: int, channels: int
) -> None:
    audio = tmp_path / f"a.{suffix}"
    soundfile.write(audio, 0.2 * np.random.default_rng(1).standard_normal((rate // 2, channels)), rate)
    assert main(["transcribe", str(checkpoint), str(audio)]) == 0
    text = capsys.readouterr().out.strip()
    assert re.fullmatch("[abc]*", text)
    assert main(["transcribe", str(checkpoint), str(audio), "--stream", "--chunk-ms", "100"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1].strip() == text
    assert [line.split()[0] for line in lines[1:6]] == ["0.10", "0.20", "0.30", "0.40", "0.50"]
    assert "6 chunks of 100 ms" in lines[-2]
    found = {text}
    for search in (["--beam", "2"], ["--max-symbols", "1"], ["--beam", "2", "--max-symbols", "1"]):
        for extra in ([], ["--stream"]):
            assert main(["transcribe", str(checkpoint), str(audio), *search, *extra]) == 0
        lines = capsys.readouterr().out.splitlines()
        assert lines[0] == lines[-1]
        found.add(lines[0])
    assert len(found) > 1


def test_recordings_before_and_behind_options() -> None:
    parser = build_parser()
    for words in (["m", "a", "b", "--beam", "2"], ["m", "--beam", "2", "a", "b"], ["m", "a", "--beam", "2", "b"]):
        arguments = parser.parse_args(["transcribe", *words])
        assert (str(arguments.checkpoint), [str(path) for path in arguments.audio]) == ("m", ["a", "b"])
    with pytest.raises(SystemExit):
        parser.parse_args(["transcribe", "m", "--beam", "2", "a", "--bogus"])


def test_transcribe_audio_that_cannot_be_read(
    checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "empty.wav").touch()
    (tmp_path / "text.flac").write_text("no recording")
    with wave.open(str(tmp_path / "header.wav"), "wb") as file:
        file.setparams((1, 2, 16000, 0, "NONE", "not compressed"))
    for name, message in (
        ("none.wav", "no such file"),
        ("empty.wav", "the file is empty"),
        ("text.flac", "not a recording that libsndfile can read"),
        ("header.wav", "the recording has no samples"),
    ):
        path = tmp_path / name
        assert refused(capsys, "transcribe", checkpoint, path).startswith(f"{path}: {message}")
        assert refused(capsys, "transcribe", checkpoint, path, "--stream").startswith(f"{path}: {message}")


def test_transcribe_a_recording_of_one_sample(
    checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for rate in (8000, 16000, 48000):
        soundfile.write(tmp_path / "short.wav", np.zeros(1), rate)
        for extra in ([], ["--stream"], ["--beam", "2"]):
            assert main(["transcribe", str(checkpoint), str(tmp_path / "short.wav"), *extra]) == 0
    assert "Traceback" not in capsys.readouterr().err


def test_a_checkpoint_that_cannot_be_used(wav: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def saved(name: str, contents: object) -> Path:
        torch.save(contents, tmp_path / name)
        return tmp_path / name

    good = small_checkpoint()
    description = good["prnn"]
    assert isinstance(description, dict)
    empty, text, cut = tmp_path / "empty.ckpt", tmp_path / "text.ckpt", tmp_path / "cut.ckpt"
    empty.touch()
    text.write_text("no checkpoint")
    cut.write_bytes(saved("good.ckpt", good).read_bytes()[:2000])
    for path, message in (
        (tmp_path / "none.ckpt", "no such file"),
        (tmp_path, "a folder, not a checkpoint"),
        (empty, "not a checkpoint, or a damaged one"),
        (text, "not a checkpoint, or a damaged one"),
        (cut, "not a checkpoint, or a damaged one"),
        (wav, "not a checkpoint, or a damaged one"),
        (saved("tensor.ckpt", torch.zeros(3)), "a torch file, but not a checkpoint of prnn train"),
        (saved("other.ckpt", {"state_dict": {}}), "a torch file, but not a checkpoint of prnn train"),
        (
            saved("later.ckpt", {**good, "prnn": {**description, "format": 2, "version": "9.1.0"}}),
            "a checkpoint of format 2, written by prnn 9.1.0; prnn ",
        ),
        (saved("bare.ckpt", {"prnn": {"format": 1}, "state_dict": {}}), "a damaged checkpoint"),
        (saved("weightless.ckpt", {**good, "state_dict": {}}), "a damaged checkpoint"),
        (saved("odd.ckpt", {**good, "prnn": {**description, "model": {"vocab_size": 4, "x": 1}}}), "a damaged ch"),
    ):
        assert refused(capsys, "transcribe", path, wav).startswith(f"{path}: {message}")


def test_the_folder_of_a_training_for_its_checkpoint(
    checkpoint: Path, wav: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "my-model"
    folder.mkdir()
    checkpoint.rename(folder / "model.ckpt")
    message = refused(capsys, "transcribe", folder, wav)
    assert message == f"{folder}: a folder, not a checkpoint; it has one, {folder / 'model.ckpt'}"


class Evil:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return (print, ("code of the checkpoint has run",))


def test_code_in_a_checkpoint_is_not_run(wav: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    torch.save({"prnn": Evil()}, tmp_path / "evil.ckpt")
    assert "not a checkpoint" in refused(capsys, "transcribe", tmp_path / "evil.ckpt", wav)


def edits(reference: Sequence[str], hypothesis: Sequence[str]) -> int:
    """The fewest substitutions, deletions and insertions from one to the other."""
    row = list(range(len(hypothesis) + 1))
    for i, expected in enumerate(reference, 1):
        above, row = row, [i]
        for j, found in enumerate(hypothesis, 1):
            row.append(min(above[j] + 1, row[j - 1] + 1, above[j - 1] + (expected != found)))
    return row[-1]


@pytest.mark.parametrize(("beam", "max_symbols"), [(1, 8), (1, 1), (3, 8), (3, 2)])
def test_evaluate(tmp_path: Path, capsys: pytest.CaptureFixture[str], beam: int, max_symbols: int) -> None:
    """Against a search of one utterance and one symbol at a time, and edit distances of the tests' own."""
    texts = ["ab", "c", "cab", "b ac", "bb", "a b c"]
    manifest = write_corpus(tmp_path, "tones", texts)
    contents = small_checkpoint(" abc")
    weights = contents["state_dict"]
    assert isinstance(weights, dict)
    for name in ("encoder_proj", "predictor_proj"):
        weights[f"model.joiner.{name}.weight"] *= 4  # decisions that depend on what is heard and said
    torch.save(contents, tmp_path / "model.ckpt")
    out = tmp_path / "out.jsonl"
    command = ["evaluate", str(tmp_path / "model.ckpt"), str(manifest), "--output", str(out), "--beam", str(beam)]
    command += [] if max_symbols == 8 else ["--max-symbols", str(max_symbols)]
    assert main(command) == 0
    printed = capsys.readouterr().out

    recogniser = Recogniser.load(tmp_path / "model.ckpt")
    entries = [json.loads(line) for line in out.read_text().splitlines()]
    words = characters = 0
    for index, (entry, text) in enumerate(zip(entries, texts, strict=True)):
        assert entry["text"] == text
        assert entry["audio_filepath"] == str(tmp_path / f"tones-{index}.wav")
        frames = slow.encode(recogniser.model, compute_features(*read_audio(entry["audio_filepath"])))
        if beam == 1:
            expected = slow.greedy(recogniser.model, frames, max_symbols)
        else:
            expected = slow.beam_search(recogniser.model, frames, beam, max_symbols, False)[0]
        assert entry["recognised"] == recogniser.tokenizer.decode(expected.tokens).strip()
        words += edits(text.split(), entry["recognised"].split())
        characters += edits(text, entry["recognised"].strip())
    assert any(entry["recognised"] for entry in entries)
    wer = 100 * words / sum(len(text.split()) for text in texts)
    cer = 100 * characters / sum(map(len, texts))
    assert printed == f"6 utterances: WER {wer:.2f} %, CER {cer:.2f} %\n"
    assert main([*command, "--json"]) == 0
    rates = json.loads(capsys.readouterr().out)
    assert rates == {"utterances": 6, "wer": pytest.approx(wer / 100), "cer": pytest.approx(cer / 100)}


@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed"])
def test_train_in_a_precision(tmp_path: Path, precision: str) -> None:
    """The products of the joiner are in the precision asked for, weights and sums in float32."""
    manifest = write_corpus(tmp_path, "tones", ["ab", "c"])
    seen = set()
    hook = register_module_forward_hook(
        lambda module, _, output: seen.add(output.dtype) if isinstance(module, torch.nn.Linear) else None
    )
    command = f"""train --manifest {manifest} --valid {manifest} --output {tmp_path / "out"} --epochs 2 --hidden 8
        --layers 1 --accelerator cpu --no-progress --pictures 0 --precision {precision}"""
    try:
        assert main(command.split()) == 0
    finally:
        hook.remove()
    assert seen == {torch.float32 if precision == "32-true" else torch.bfloat16}
    checkpoint = torch.load(tmp_path / "out" / "last.ckpt", weights_only=True)
    assert {tensor.dtype for tensor in checkpoint["state_dict"].values()} == {torch.float32}
    assert checkpoint["global_step"] == 2
    recorded = json.loads((tmp_path / "out" / "options.json").read_text())
    assert recorded["precision"] == precision


def test_train_in_float16_needs_a_gpu(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    manifest = write_corpus(tmp_path, "tones", ["ab"])
    command = ["train", "--manifest", manifest, "--valid", manifest, "--output", tmp_path / "out"]
    message = refused(capsys, *command, "--accelerator", "cpu", "--precision", "16-mixed")
    assert message == "the precision is 16-mixed, which needs a GPU; on the CPU, take bf16-mixed or 32-true"
    assert not (tmp_path / "out").exists()


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
@pytest.mark.parametrize("option", ["--accelerator", "--device"])
@pytest.mark.parametrize("value", ["cuda", "gpu"])
def test_no_gpu_to_recognise_on(
    checkpoint: Path, wav: Path, capsys: pytest.CaptureFixture[str], option: str, value: str
) -> None:
    manifest = write_corpus(wav.parent, "tones", ["ab"])
    train = ["train", "--manifest", manifest, "--valid", manifest, "--output", wav.parent / "out"]
    for command in (["transcribe", checkpoint, wav], ["evaluate", checkpoint, manifest], train):
        message = refused(capsys, *command, option, value)
        assert message == f"the accelerator is {value}, but torch can use no GPU here"


def test_a_bad_manifest(checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    good = write_corpus(tmp_path, "tones", ["ab", "c"])
    bad = tmp_path / "bad.jsonl"
    bad.write_text(good.read_text() + '{"audio_filepath": "tones-0.wav", "duration": "long", "text": "ab"}\n')
    damaged = tmp_path / "damaged.jsonl"
    (tmp_path / "damaged.wav").write_bytes(b"RIFF" + struct.pack("<I", 4) + b"WAVE")
    damaged.write_text(good.read_text().replace("tones-1.wav", "damaged.wav"))
    train = ["train", "--epochs", "1", "--output", tmp_path / "out", "--accelerator", "cpu"]
    wrong = f'{bad}, line 3: "duration" is "long"; it must be a number of seconds, at least 0.001 and at most 1000000'
    assert refused(capsys, "evaluate", checkpoint, bad) == wrong
    assert refused(capsys, *train, "--manifest", bad, "--valid", good) == wrong
    assert refused(capsys, *train, "--manifest", good, "--valid", bad) == wrong
    assert (
        refused(capsys, *train, "--manifest", good, "--valid", tmp_path / "none")
        == f"{tmp_path / 'none'}: no such file"
    )
    assert main([*map(str, train), "--manifest", str(damaged), "--valid", str(good)]) == 2
    (message,) = capsys.readouterr().err.splitlines()
    assert message.startswith(f"prnn: {damaged}, line 2: {tmp_path / 'damaged.wav'}: ")


def test_train_refuses_what_it_cannot_write_or_run_on(
    checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    good = write_corpus(tmp_path, "tones", ["ab", "c"])
    train = ["train", "--epochs", "1", "--manifest", good, "--valid", good, "--output", checkpoint]
    assert refused(capsys, *train, "--accelerator", "cpu") == f"{checkpoint}: not a folder"
    if not torch.cuda.is_available():
        message = "the accelerator is gpu, but torch can use no GPU here"
        assert refused(capsys, *train, "--accelerator", "gpu") == message
    nowhere = tmp_path / "nowhere" / "out.jsonl"
    message = refused(capsys, "evaluate", checkpoint, good, "--output", nowhere)
    assert message == f"{nowhere}: no such file or directory"


def test_info(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["info", "--batch", "8"]) == 0
    output = capsys.readouterr().out
    assert re.search(r"^prnn \d+\.\d+\.\d+, torch ", output)
    assert re.search(r"^built for (CPU|CUDA \d+\.\d: \d+\.\d.*)$", output, re.MULTILINE)
    assert re.search(r"^CPU [^:]+: \d+ cores, \d+ threads", output, re.MULTILINE)
    assert "GTX 1080" not in output  # which nothing is compiled for
    for gpu in ("H200", "A100", "L40"):
        assert re.search(rf"^[ *] \S*.*{gpu} .* / \d+(?:  \+)?$", output, re.MULTILINE), gpu
    assert re.search(r"^  B200 .*  \+$", output, re.MULTILINE)
    assert re.search(r"^  H100 .*\d$", output, re.MULTILINE)
    assert "nobody has run these plans on one" in output


def test_info_as_json(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("prnn._C.BUILT_FOR", "CPU")
    monkeypatch.setattr("prnn.commands.info._version", lambda package: None if package == "jiwer" else "1.0")
    assert main(["info", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["built_for"], found["for_training"]["jiwer"]) == ("CPU", None)
    h200 = found["gpus"][0]
    assert (h200["name"], h200["was_run"], h200["largest_hidden_size"]["lstm"]["16"]) == ("H200", True, 2432)
    assert main(["info"]) == 0
    text = capsys.readouterr().out
    assert "\nbuilt for CPU\n" in text
    assert "jiwer missing\n                pip install jiwer brings what is missing\n" in text
    assert main(["info", "--json", "--cell", "gru", "--gpu", "A100", "--batch", "3"]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert (plan["batch"], plan["layers"][0]["dtype"], plan["layers"][0]["device"]) == (3, "float32", "A100")


def test_info_of_a_projection(capsys: pytest.CaptureFixture[str]) -> None:
    layer = ("info", "--cell", "lstm", "--hidden", "4096", "--proj-size", "512", "--dtype", "bfloat16")
    assert main([*layer, "--gpu", "H200"]) == 0
    assert "LSTM 4096 -> 4096 (512)" in (printed := capsys.readouterr().out)
    assert "projected" in printed
    for option, message in ((("--cell", "gru"), "--cell is gru"), (("--hidden", "512"), "must be below --hidden, 512")):
        assert message in refused(capsys, *layer, *option)


def test_info_of_a_layer(capsys: pytest.CaptureFixture[str]) -> None:
    layer = ("info", "--cell", "lstm", "--hidden", "512", "--input", "80", "--layers", "5", "--batch", "32")
    assert main([*layer, "--dtype", "float16", "--gpu", "h200"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "N = 32"
    assert "LSTM 80 -> 512, 5 layers  float16  H200  wavefront-wgmma  cluster" in lines[2]
    assert lines[3].startswith("    not together: backward: layers of hidden size 512 run together for up to 16 ")
    assert len(lines) == 4
    assert main([*layer, "--bidirectional", "--steps", "3"]) == 0
    last = capsys.readouterr().out.splitlines()[-1]
    assert torch.cuda.is_available() or re.match(r"training over 3 timesteps: workspace \d+ bytes, reserve", last)
    assert refused(capsys, *layer, "--gpu", "Voodoo 2").startswith("--gpu is 'Voodoo 2'; the table has H200, ")
    assert refused(capsys, "info", "--gpu", "H200") == "--gpu is of use with --cell only"
    assert refused(capsys, "info", "--proj-size", "8", "--batch", "1") == "--proj-size is of use with --cell only"


@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU has room for weights of some size only")
def test_info_of_a_layer_that_no_memory_holds(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["info", "--cell", "gru", "--hidden", "1048576", "--batch", "1"]) == 0
    assert "GRU 1048576 -> 1048576" in capsys.readouterr().out


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
@pytest.mark.parametrize(
    "family",
    ["rnn", "loss", "train", "compat", "memory", "backends", "eager", "heads", "reset", "flashrnn"],
)
def test_bench_of_a_gpu_needs_one(capsys: pytest.CaptureFixture[str], family: str) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["bench", "--device", "gpu", family])
    assert "this program measures a GPU, but torch can use none here" in capsys.readouterr().err


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("arguments", [["info"], ["info", "--help"]])
def test_output_that_nothing_takes(arguments: list[str], unbuffered: str) -> None:
    command, environment = ["-m", "prnn", *arguments], {**os.environ, "PYTHONUNBUFFERED": unbuffered}
    with open("/dev/full", "w") as full:
        done = forked.Process(*command, stdout=full, env=environment)
    if arguments == ["info"] or not unbuffered:  # argparse looks away from what it cannot print
        assert (done.wait(), done.errors()) == (2, "prnn: the output cannot be written: no space left on device\n")
    reader, writer = os.pipe()
    os.close(reader)
    with open(writer, "w") as nobody:
        done = forked.Process(*command, stdout=nobody, env=environment)
    assert (done.wait(), done.errors()) == (0, "")


@pytest.mark.parametrize("device", ["cpu", "gpu", "cuda"])
@pytest.mark.parametrize("family", ["rnn", "loss", "train", "compat", "memory"])
def test_bench_has_a_program_of_each_kind(capsys: pytest.CaptureFixture[str], family: str, device: str) -> None:
    with pytest.raises(SystemExit, match="0"):
        main(["bench", "--device", device, family, "--help"])
    usage = f"usage: prnn bench --accelerator cpu {family} " if device == "cpu" else f"usage: prnn bench {family} "
    assert capsys.readouterr().out.count(usage) == 1
    assert main(["bench", family, "--help"]) == 0
    both = capsys.readouterr().out
    assert f"usage: prnn bench --accelerator cpu {family} " in both
    assert f"usage: prnn bench {family} " in both


@pytest.mark.parametrize("family", ["backends", "regret", "eager", "heads", "reset", "flashrnn"])
def test_bench_of_gpus_has_a_program(capsys: pytest.CaptureFixture[str], family: str) -> None:
    with pytest.raises(SystemExit, match="0"):
        main(["bench", family, "--help"])
    assert f"usage: prnn bench {family} " in capsys.readouterr().out


@pytest.mark.parametrize("table", ["--modules", "--tune", "--layer-norm"])
def test_bench_refuses_json_of_tables_without(capsys: pytest.CaptureFixture[str], table: str) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["bench", "--device", "gpu", "rnn", table, "--json", "rows.json"])
    assert "--json has the rows beside cuDNN" in capsys.readouterr().err


def test_bench_offers_what_its_programs_know() -> None:
    """Choices stand in the command lines, which are made without torch, and what they are in the programs."""
    from prnn.bench import command_lines, decode, rnn_backends, rnn_heads, train_gpu

    def choices(parser: argparse.ArgumentParser, option: str) -> list[str]:
        (action,) = (action for action in parser._actions if option in action.option_strings)
        return sorted(action.choices or ())

    assert choices(command_lines.decode(), "--dtype") == sorted(decode._DTYPES)
    assert choices(command_lines.rnn_backends(), "--types") == sorted(rnn_backends.TYPES)
    assert choices(command_lines.rnn_backends(), "--cells") == sorted(rnn_backends.MODES)
    assert choices(command_lines.rnn_heads(), "--cells") == sorted(rnn_heads.GATES)
    assert choices(command_lines.rnn_heads(), "--only") == sorted(rnn_heads.RUNS)
    assert choices(command_lines.train_gpu(), "--encoder") == sorted(train_gpu.ENCODERS)
    assert choices(command_lines.train_gpu(), "--precision") == sorted(train_gpu.DTYPES)


@pytest.mark.parametrize(
    ("arguments", "rows"),
    [
        ("rnn --threads 1 --steps 2 --seconds 0.01 --cells LSTM --hidden 8 --batch 1 --what inference", 1),
        ("train --threads 1 --seconds 0.01 --batch 1 --hidden 8", 1),
        ("loss --quick --repeats 1 --ctc-costs", None),
    ],
)
def test_bench_writes_json(tmp_path: Path, arguments: str, rows: int | None) -> None:
    command = ["-m", "prnn", "bench", "--device", "cpu", *arguments.split(), "--json", str(tmp_path / "rows.json")]
    assert forked.run(*command).returncode == 0
    found = json.loads((tmp_path / "rows.json").read_text())
    assert found["device"].startswith("CPU ")
    assert found["command"].startswith(f"prnn bench {arguments.split()[0]} ")
    assert len(found["rows"]) == rows if rows else found["rows"]
    for row in found["rows"]:
        times = [value for name, value in row.items() if isinstance(value, float)]
        assert times
        assert min(times) > 0


def test_bench_prints_json(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Standard output has the rows, each once, and nothing else."""
    monkeypatch.setattr(sys, "argv", ["prnn"])
    threads = ["--threads", str(torch.get_num_threads())]
    options = "--steps 2 --seconds 0.01 --cells LSTM --hidden 8 --batch 1 2 --what inference --json -"
    assert main(["bench", "--device", "cpu", "rnn", *threads, *options.split()]) == 0
    printed, table = capsys.readouterr()
    assert [row["batch"] for row in json.loads(printed)["rows"]] == [1, 2]
    assert "| cell | H | N |" in table


def test_summary_of_eager_calls(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """The table of a file, and the same as JSON."""
    measured = tmp_path / "eager.csv"
    first = "cell,input,hidden,layers,directions,batch,steps,kind,torch,prnn"
    rows = ["LSTM,64,64,1,1,16,8,inference,100.0,50.0", "LSTM,64,64,1,1,16,16,inference,100.0,200.0"]
    measured.write_text("\n".join(["# NVIDIA H200, torch 2.11.0", first, *rows]))
    assert main(["bench", "eager", "--summary", str(measured), "--json", "-"]) == 0
    printed, table = capsys.readouterr()
    assert "| LSTM | inference | 2 | 1.00 | 2.00 | 1 |" in table
    found = json.loads(printed)
    assert found["device"] == "NVIDIA H200, torch 2.11.0"
    assert found["rows"] == [
        {"cell": "LSTM", "kind": "inference", "points": 2, "prnn_share": 1.0, "largest": 2.0, "behind": 1}
    ]


def test_bench_prints_rows_before_a_failure(capsys: pytest.CaptureFixture[str]) -> None:
    def measures() -> None:
        with rows_printed(["--json=-"]):
            write_rows("-", [1], "CPU")
            write_rows("-", [1, 2], "CPU")
            raise ValueError("a later row")

    with pytest.raises(ValueError, match="a later row"):
        measures()
    assert json.loads(capsys.readouterr().out)["rows"] == [1, 2]
