"""The configuration of prnn train: a YAML file and the command line, the same options with the same checks."""

import dataclasses
import json
from pathlib import Path

import pytest
import yaml
from asr_data import write_corpus

from prnn._fields import field_docs
from prnn.asr.configuration import DERIVED, NESTED, SECTIONS, parse
from prnn.asr.folder import last_checkpoint
from prnn.asr.options import TrainingOptions
from prnn.asr.training import train
from prnn.cli import main

REQUIRED = ["--manifest", "a.jsonl", "--valid", "b.jsonl"]


def fields() -> list[str]:
    """The names of all options in a configuration."""
    names = [name for section in SECTIONS.values() for name in section]
    for prefix, cls in NESTED.items():
        names += [f"{prefix}.{field.name}" for field in dataclasses.fields(cls) if field.name not in DERIVED]
    return names


def printed(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    with pytest.raises(SystemExit) as stopped:
        main(["train", *arguments])
    assert stopped.value.code == 0
    return capsys.readouterr().out


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """The reason, of a command that is refused in two lines."""
    with pytest.raises(SystemExit) as stopped:
        main(["train", *arguments])
    assert stopped.value.code == 2
    output = capsys.readouterr()
    usage, reason = output.err.splitlines()
    assert output.out == ""
    assert usage.startswith("usage: prnn train ")
    return reason.removeprefix("prnn train: error: ")


def test_every_field_is_an_option_with_a_description(capsys: pytest.CaptureFixture[str]) -> None:
    assert sorted(name for section in SECTIONS.values() for name in section) == sorted(
        field.name for field in dataclasses.fields(TrainingOptions) if field.name not in NESTED
    )
    help_ = printed(capsys, "--help")
    for name in fields():
        assert f"--{name if '.' in name else name.replace('_', '-')} " in help_
    for cls in (TrainingOptions, *NESTED.values()):
        assert field_docs(cls).keys() == {field.name for field in dataclasses.fields(cls)}
    assert "at least 0 and less than 1" in " ".join(help_.split())
    assert "along a cosine to 1 % (" in " ".join(help_.split())


def test_the_printed_configuration_is_complete_and_is_read_again(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    changes = [
        "--layers",
        "3",
        "--model.sigma",
        "0.1",
        "--lr",
        "1e-4",
        "--features.num_mel_bins",
        "40",
        "--mask-bins=9",
    ]
    text = printed(capsys, *REQUIRED, *changes, "--print_config")
    tree = yaml.safe_load(text)
    for name in fields():
        value = tree
        for part in name.split("."):
            value = value[part]
    file = tmp_path / "config.yaml"
    file.write_text(text)
    options, restart, progress = parse(["--config", str(file)])
    assert options == parse([*REQUIRED, *changes])[0]
    assert (options.model["encoder_layers"], options.lr, options.augmentation.frequency_width) == (3, 1e-4, 9)
    assert (options.features.num_mel_bins, options.model["sigma"]) == (40, 0.1)
    assert (restart, progress) == (False, True)
    assert parse(["--config", str(file), "--restart", "--no-progress"])[1:] == (True, False)


def test_what_comes_later_holds(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text("manifest: a\nvalid: b\nlr: 0.5\nepochs: 7\nmodel:\n  encoder_layers: 5\n")
    assert parse(["--config", str(file), "--lr", "0.25"])[0].lr == 0.25
    options = parse(["--lr", "0.25", "--layers", "4", "--config", str(file)])[0]
    assert (options.lr, options.epochs, options.model["encoder_layers"]) == (0.5, 7, 5)
    assert options.model["encoder_hidden"] == 512


def test_defaults() -> None:
    """They fit together: the encoder bears the rate, the dropout and the masks."""
    options = parse(REQUIRED)[0]
    assert options.output == Path("prnn-train")
    assert (options.lr, options.batch_size, options.epochs) == (2e-3, 16, 40)
    assert parse([*REQUIRED, "--cell", "lstm"])[0].lr == 1e-3
    assert parse([*REQUIRED, "--cell", "gru", "--lr", "0.002"])[0].lr == 2e-3
    model = options.transducer(17, 80)
    assert (model.frame_stack, model.frame_stride, model.encoder_layers, model.encoder_hidden) == (8, 4, 4, 512)
    assert (model.encoder_cell, model.dropout) == ("layer_norm_lstm", 0.2)
    assert (model.predictor, model.predictor_hidden, model.predictor_embedding) == ("stateless", 256, 256)
    assert (model.joiner_dim, model.ctc_weight) == (256, 0.3)
    assert parse([*REQUIRED, "--predictor-hidden", "64"])[0].transducer(17, 80).predictor_embedding == 64
    assert parse([*REQUIRED, "--model.predictor_embedding", "32"])[0].transducer(17, 80).predictor_embedding == 32


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("layer: 3", "Option 'layer' is not accepted"),
        ("model: {encoder_layer: 3}", "Option 'model.encoder_layer' is not accepted"),
        ("augmentation: {gain: 3}", "Option 'augmentation.gain' is not accepted"),
        ("model: {vocab_size: 3}", "Option 'model.vocab_size' is not accepted"),
        ("augmentation: {speeds: 0.9}", "augmentation.speeds is 0.9; it must be a list such as [0.9, 1.0, 1.1]"),
        ("model: {durations: [a]}", "model.durations is a; it must be a list such as [0, 1, 2]"),
        ("features: {high_freq: top}", "features.high_freq is top; it must be a number"),
        ("augmentation: {noise: [1]}", "augmentation.noise is [1]; it must be a path"),
        ("manifest: [a, b]", "manifest must be a path"),
        ("- layer", "a configuration must be a mapping of options to values"),
        ("model: 3", "model is 3; it must be a mapping"),
        ("model: null", "model"),
        ("augmentation: [1]", "augmentation"),
        ("epochs: 2.5", "epochs: 2.5 is not a whole number of at least 1"),
        ("epochs: true", "epochs: True is not a whole number of at least 1"),
        ("epochs: [1]", "epochs: [1] is not a whole number of at least 1"),
        ("lr: .nan", "lr: nan is not a number of more than 0"),
        ("model: {dropout: 2}", "model.dropout: 2 is not a number of at least 0 and less than 1"),
        ("lr: fast", "lr: 'fast' is not a number of more than 0"),
        ("model: {encoder_cell: cnn}", "'cnn' not among choices"),
        ("model: {encoder_residual: 2}", "model.encoder_residual is 2; it must be a bool"),
        ("model: {durations: [0, 0]}", "durations is (0, 0)"),
        ("model: {frame_stride: 9}", "frame_stride is 9; it must be at most frame_stack, 8"),
        ("features: {high_freq: 9000}", "high_freq is 9000"),
        ("manifest: 3", "manifest must be a path"),
        ("lr: 0.1\nepochs: 3\nlr: 0.2", "config.yaml: lr is there twice"),
        ("model: {dropout: 0.1, joiner_dim: 8, dropout: 0.2}", "model.dropout is there twice"),
        ("{", "expected node content"),
        ("a: !!python/object:os.system {}", "could not determine a constructor"),
        pytest.param("a: " + "[" * 8_000 + "]" * 8_000, "nested too deep", id="deep"),
        pytest.param("a: " + "[" * 200_000 + "]" * 200_000, "400003 bytes; a configuration has at most", id="deeper"),
        pytest.param("\ud800", "can't decode", id="no text"),
    ],
)
def test_a_configuration_that_cannot_be_used(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, text: str, message: str
) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(text, errors="surrogatepass")
    assert message in refused(capsys, *REQUIRED, "--config", str(file))


def test_the_file_is_named_and_the_command_line_is_not(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text("augmentation: {speeds: 0.9}")
    reason = "augmentation.speeds is 0.9; it must be a list such as [0.9, 1.0, 1.1]"
    assert refused(capsys, *REQUIRED, "--config", str(file)) == f"{file}: {reason}"
    file.write_text("augmentation: {speeds: [0.9]}")
    assert refused(capsys, *REQUIRED, "--config", str(file), "--augmentation.speeds", "0.9") == reason


def test_a_tilde_is_the_home_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    file = tmp_path / "config.yaml"
    file.write_text("manifest: ~/train.jsonl\nvalid: ~nosuchuser/b\naugmentation: {noise: ~/noise}\n")
    options = parse(["--config", str(file)])[0]
    assert options.manifest == tmp_path / "train.jsonl"
    assert options.valid == Path("~nosuchuser/b")
    assert options.augmentation.noise == tmp_path / "noise"


def test_a_configuration_that_is_no_file(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    missing = tmp_path / "none.yaml"
    assert refused(capsys, *REQUIRED, "--config", str(missing)) == f"{missing}: the configuration does not exist"
    assert refused(capsys, *REQUIRED, "--config", str(tmp_path)) == f"{tmp_path}: the configuration is not a file"
    assert "unrecognized arguments: --colour red" in refused(capsys, *REQUIRED, "--colour", "red")
    assert "required: valid" in refused(capsys, "--manifest", "a")


def test_a_folder_of_before_there_were_configurations(tmp_path: Path) -> None:
    """Its options.json has the model's options that the command line had then, and none of those added since."""
    manifest = write_corpus(tmp_path / "data", "tones", ["ab", "c"])
    small = ["--hidden", "4", "--layers", "1", "--joiner", "4", "--predictor-hidden", "4", "--accelerator", "cpu"]
    command = ["--manifest", str(manifest), "--valid", str(manifest), "--output", str(tmp_path / "out"), *small]
    options = parse([*command, "--epochs", "1"])[0]
    train(options, progress=False)
    record = tmp_path / "out" / "options.json"
    plain = json.loads(record.read_text())
    assert parse(["--config", str(record)])[0] == options
    old = ("encoder_cell", "encoder_layers", "encoder_hidden", "frame_stack", "frame_stride", "predictor", "joiner_dim",
           "predictor_hidden", "predictor_embedding", "dropout", "loss", "ctc_weight")  # fmt: skip
    plain["model"] = {name: plain["model"][name] for name in old}
    del plain["features"]
    record.write_text(json.dumps(plain))
    written = last_checkpoint(options.output).stat().st_mtime_ns
    train(options, progress=False)
    assert last_checkpoint(options.output).stat().st_mtime_ns == written


def test_aliases_that_stand_for_too_much(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Nine of nine of nine ...: a reader that writes them out does not end."""
    lines = ["m0: &m0 [1,1,1,1,1,1,1,1,1]"]
    lines += [f"m{level}: &m{level} [{','.join([f'*m{level - 1}'] * 9)}]" for level in range(1, 12)]
    for text, message in (
        ("\n".join(lines), "its aliases stand for too much; a configuration has at most 2000 values"),
        ("model: &model {x: *model}", "an alias stands for something that it is in"),
        ("&a [*a]", "an alias stands for something that it is in"),
    ):
        (tmp_path / "a.yaml").write_text(text)
        with pytest.raises(SystemExit):
            parse(["--config", str(tmp_path / "a.yaml")])
        assert capsys.readouterr().err.endswith(f"prnn train: error: {tmp_path / 'a.yaml'}: {message}\n")
    (tmp_path / "a.yaml").write_text("manifest: &same a.jsonl\nvalid: *same\n")
    options, *_ = parse(["--config", str(tmp_path / "a.yaml")])
    assert options.valid == options.manifest == Path("a.jsonl")


def test_a_path_with_a_zero_byte(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.yaml").write_text('manifest: a\nvalid: b\noutput: "a\\0b"\n')
    with pytest.raises(SystemExit):
        parse(["--config", str(tmp_path / "a.yaml")])
    message = r"output is 'a\x00b'; it must be a path, which has no zero byte"
    assert capsys.readouterr().err.endswith(f"prnn train: error: {message}\n")
