"""Which validated model is the best one, and that the end of a training is validated."""

import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from asr_data import write_corpus
from test_interrupted_training import small

from prnn.asr import task
from prnn.asr.checkpoint import read_checkpoint
from prnn.asr.folder import averaged_checkpoint, best_checkpoint, last_checkpoint
from prnn.asr.metrics import ErrorCounts, has_words
from prnn.asr.options import TrainingOptions
from prnn.asr.training import train

WORDS, NO_WORDS = ["ab ca", "b", "acc ab", "c a"], ["abca", "b", "accab", "c a"]


def options(folder: Path, texts: list[str], **changes: object) -> TrainingOptions:
    return small(write_corpus(folder / "data", "tones", texts), folder / "out", pictures=0, batch_size=4, **changes)


def scripted(monkeypatch: pytest.MonkeyPatch, errors: list[tuple[int, int]]) -> None:
    """Validations find so many errors in 100 words and 100 characters, one after the other."""
    counts = iter(ErrorCounts(words, 100, characters, 100) for words, characters in errors)
    monkeypatch.setattr(task, "count_errors", lambda *_: next(counts))


def best_step(opts: TrainingOptions) -> int:
    """The step of the best model, of a training of a step an epoch."""
    train(opts, progress=False)
    return int(read_checkpoint(best_checkpoint(opts.output))["global_step"])


@pytest.mark.parametrize(
    ("texts", "errors", "best"),
    [
        (WORDS, [(90, 50), (80, 60), (85, 40)], 2),  # WER comes first
        (WORDS, [(100, 90), (100, 80), (100, 85)], 2),  # then CER
        (NO_WORDS, [(90, 50), (80, 60), (85, 40)], 3),  # here CER does
        (NO_WORDS, [(100, 50), (90, 50), (95, 50)], 2),  # then WER
    ],
)
def test_by_error_rates(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, texts: list[str], errors: list[tuple[int, int]], best: int
) -> None:
    scripted(monkeypatch, errors)
    assert best_step(options(tmp_path, texts, epochs=3)) == best


@pytest.mark.parametrize(("change", "best"), [(-1.0, 3), (1.0, 1)])
def test_then_by_loss(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: float, best: int) -> None:
    scripted(monkeypatch, [(100, 90)] * 3)
    step = task.TransducerTask.validation_step

    def changing(self: task.TransducerTask, *arguments: object) -> None:
        step(self, *arguments)  # type: ignore[arg-type]
        self._loss_sum += 1000 * change * self.global_step

    monkeypatch.setattr(task.TransducerTask, "validation_step", changing)
    assert best_step(options(tmp_path, WORDS, epochs=3)) == best


@pytest.mark.parametrize(
    ("texts", "errors", "steps"),
    [
        (WORDS, [(90, 20), (70, 60), (90, 30), (90, 15)], [2, 4]),
        (NO_WORDS, [(90, 20), (70, 60), (90, 10), (90, 60)], [1, 3]),
    ],
)
def test_the_mean_is_of_the_best_models(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, texts: list[str], errors: list[tuple[int, int]], steps: list[int]
) -> None:
    scripted(monkeypatch, [*errors, (0, 0)])
    opts = options(tmp_path, texts, epochs=4, average=2)
    train(opts, progress=False)
    assert read_checkpoint(averaged_checkpoint(opts.output))["mean_of"] == steps


@pytest.mark.parametrize("old", [{"best": [1.0, 0.0, 0.0]}, {"lowest_wer": 1.0}])
def test_a_training_goes_on_from_its_best_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, old: dict[str, object]
) -> None:
    """Checkpoints that know WER alone, too: there a model of equal WER is the better one."""
    opts = options(tmp_path, WORDS, epochs=1, average=1)
    scripted(monkeypatch, [(100, 90), (100, 90), (100, 80), (0, 0)])
    train(opts, progress=False)
    best_checkpoint(opts.output).unlink()
    checkpoint = read_checkpoint(last_checkpoint(opts.output))
    (state,) = (state for state in checkpoint["callbacks"].values() if "validated" in state)
    state.pop("best")
    state.update(old)
    if "lowest_wer" in old:
        state.update(validated=[[1.0, 1.0]], kept=[[1.0, 1.0]])
    with last_checkpoint(opts.output).open("wb") as file:
        torch.save(checkpoint, file)
    train(replace(opts, epochs=2), progress=False)
    assert best_checkpoint(opts.output).exists() == ("lowest_wer" in old)
    assert read_checkpoint(averaged_checkpoint(opts.output))["mean_of"] == [2]


def test_has_words() -> None:
    assert has_words(WORDS)
    assert not has_words(NO_WORDS)
    assert has_words(["ab ca", "ja", "", "", ""])
    assert not has_words(["今天天气很好", "OK 没问题", "我们走吧"])


@pytest.mark.parametrize(("every", "validated"), [(3, [3, 4]), (2, [2, 4]), (9, [4])])
def test_the_end_is_validated(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], every: int, validated: list[int]
) -> None:
    opts = options(tmp_path, WORDS, epochs=4, valid_every=every)
    train(opts, progress=False)
    assert re.findall(r"^epoch (\d+), ", capsys.readouterr().out, re.MULTILINE) == [str(epoch) for epoch in validated]
    train(replace(opts, epochs=5), progress=False)  # goes on
    assert re.findall(r"^epoch (\d+), ", capsys.readouterr().out, re.MULTILINE) == ["5"]


def test_the_end_is_validated_after_an_interruption_in_the_last_epoch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    opts = options(tmp_path, WORDS, epochs=2, valid_every=5, checkpoint_every=1)
    opts = replace(opts, batch_size=1)
    step = task.TransducerTask.training_step

    def interrupted(self: task.TransducerTask, *arguments: object) -> torch.Tensor:
        if self.global_step == 6:
            raise KeyboardInterrupt
        return step(self, *arguments)  # type: ignore[arg-type]

    with monkeypatch.context() as patch:
        patch.setattr(task.TransducerTask, "training_step", interrupted)
        with pytest.raises(KeyboardInterrupt):
            train(opts, progress=False)
    assert "epoch" not in capsys.readouterr().out
    train(opts, progress=False)
    assert re.findall(r"^epoch (\d+), step (\d+)", capsys.readouterr().out, re.MULTILINE) == [("2", "8")]
    assert best_checkpoint(opts.output).exists()
