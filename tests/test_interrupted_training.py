"""A training that is interrupted: killed at any point and run again, it gives the weights of none; what stops it by
itself (a full disk, another training, gradients that are no numbers) leaves its checkpoints as they were."""

import errno
import json
import os
import re
import signal
from dataclasses import replace
from pathlib import Path

import forked
import pytest
import torch
from asr_data import write_corpus
from lhotse import CutSet, MonoCut, Recording, SupervisionSegment

from prnn.asr import InputError
from prnn.asr.augment import Augmentation
from prnn.asr.checkpoint import read_checkpoint
from prnn.asr.folder import best_checkpoint, last_checkpoint
from prnn.asr.options import TrainingOptions
from prnn.asr.task import TransducerTask
from prnn.asr.training import train
from prnn.cli import main

TEXTS = ["ab ca", "cab", "b", "acc ab"]


class Killed(BaseException):
    """Nothing of the product catches it: what a kill leaves is on the disk."""


class Killer:
    """Counts the points at which a training may be killed, and kills it at one of them."""

    def __init__(self) -> None:
        self.points = 0
        self.fatal: int | None = None

    def point(self) -> None:
        self.points += 1
        if self.points == self.fatal:
            raise Killed

    def arm(self, fatal: int | None) -> None:
        self.points, self.fatal = 0, fatal


@pytest.fixture
def killer(monkeypatch: pytest.MonkeyPatch) -> Killer:
    """Points: before and after each step, in validation, before a checkpoint's write, in its midst, before the new file
    takes the old one's place, and after that."""
    killer = Killer()
    step, valid, save, move = TransducerTask.training_step, TransducerTask.validation_step, torch.save, os.replace

    def training_step(self: TransducerTask, *arguments: object) -> torch.Tensor:
        killer.point()
        return step(self, *arguments)  # type: ignore[arg-type]

    def validation_step(self: TransducerTask, *arguments: object) -> None:
        killer.point()
        valid(self, *arguments)  # type: ignore[arg-type]

    def half_saved(contents: object, file: object) -> None:
        killer.point()
        file.write(b"half")  # type: ignore[attr-defined]
        killer.point()
        file.seek(0)  # type: ignore[attr-defined]
        save(contents, file)  # type: ignore[arg-type]
        killer.point()

    def moved(*names: object) -> None:
        move(*names)  # type: ignore[arg-type]
        killer.point()

    monkeypatch.setattr(TransducerTask, "training_step", training_step)
    monkeypatch.setattr(TransducerTask, "validation_step", validation_step)
    monkeypatch.setattr(torch, "save", half_saved)
    monkeypatch.setattr(os, "replace", moved)
    return killer


@pytest.fixture(scope="module")
def manifest(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_corpus(tmp_path_factory.mktemp("data"), "tones", TEXTS)


def small(manifest: Path, output: Path, **changes: object) -> TrainingOptions:
    """Two steps an epoch, three epochs, dropout."""
    model = {"encoder_hidden": 8, "encoder_layers": 2, "predictor": "stateless", "predictor_hidden": 4, "joiner_dim": 8,
             "frame_stack": 4, "dropout": 0.2, "ctc_weight": 0.3}  # fmt: skip
    options = TrainingOptions(
        manifest, manifest, output, model=model, accelerator="cpu", batch_size=2, lr=1e-2, epochs=3, checkpoint_every=1,
        pictures=0,        augmentation=Augmentation(gain_db=3.0),
    )  # fmt: skip
    return replace(options, **changes)  # type: ignore[arg-type]


def run(options: TrainingOptions) -> None:
    train(options, progress=False)


def assert_same_training(one: Path, two: Path) -> None:
    for checkpoint in (last_checkpoint, best_checkpoint):
        first, second = (read_checkpoint(checkpoint(folder)) for folder in (one, two))
        assert first["global_step"] == second["global_step"]
        assert first["epoch"] == second["epoch"]
        for name, tensor in first["state_dict"].items():
            assert torch.equal(tensor, second["state_dict"][name]), name
    assert not list(two.glob("*.partial"))


def kills(killer: Killer, options: TrainingOptions, points: list[int | None]) -> int:
    """Runs a training until it ends, killing each run at the next of the points; returns how many were killed."""
    for count, fatal in enumerate(points):
        killer.arm(fatal)
        try:
            run(options)
        except Killed:
            continue
        return count
    raise AssertionError("the points have ended before the training")


@pytest.mark.parametrize("every", [1, 2, 3, 100])
def test_killed_at_every_point_once(killer: Killer, manifest: Path, tmp_path: Path, every: int) -> None:
    """Each run comes a point further than the one before: kills while nothing has been saved, in the midst of epochs,
    at their ends, in validations, in the midst of saving, after one resumption and after many."""
    straight = small(manifest, tmp_path / "straight", checkpoint_every=every)
    killer.arm(None)
    run(straight)
    killed = replace(straight, output=tmp_path / "killed")
    count = kills(killer, killed, [*range(2, killer.points + 1, 1 if every == 1 else 3), None])
    assert count > (6 if every == 1 else 3)
    assert_same_training(straight.output, killed.output)


@pytest.mark.parametrize("first", range(2, 12, 3))
def test_killed_ten_times(killer: Killer, manifest: Path, tmp_path: Path, first: int) -> None:
    straight = small(manifest, tmp_path / "straight", valid_every=3)
    killer.arm(None)
    run(straight)
    killed = replace(straight, output=tmp_path / "killed")
    assert kills(killer, killed, [first, *[6, 5, 7, 3] * 2, 2, None]) > 3
    assert_same_training(straight.output, killed.output)


def test_with_processes_that_prepare_batches(killer: Killer, manifest: Path, tmp_path: Path) -> None:
    straight = small(manifest, tmp_path / "straight")
    killer.arm(None)
    run(straight)
    killed = replace(straight, output=tmp_path / "killed", workers=2)
    assert kills(killer, killed, [9, None]) == 1
    assert_same_training(straight.output, killed.output)


@pytest.mark.parametrize("kind", ["tones.jsonl", "cuts.jsonl.gz"])
def test_other_utterances_are_refused(tmp_path: Path, kind: str) -> None:
    """Where the training would go on; not where it begins anew, nor for recordings in another place."""
    lines = write_corpus(tmp_path, "tones", ["ab", "ca", "b", "c ab"]).read_text().splitlines()

    def write(texts: list[str], durations: list[float] | None = None) -> Path:
        entries = [json.loads(line) for line in lines]
        changed = [
            {**entry, "text": text, "duration": duration}
            for entry, text, duration in zip(
                entries, texts, durations or [e["duration"] for e in entries], strict=False
            )
        ]
        path = tmp_path / kind
        if path.suffix == ".gz":
            cuts = []
            for number, entry in enumerate(changed):
                recording = Recording.from_file(tmp_path / entry["audio_filepath"], recording_id=str(number))
                said = SupervisionSegment(str(number), str(number), 0, entry["duration"], text=entry["text"])
                cuts.append(MonoCut(str(number), 0, entry["duration"], 0, recording=recording, supervisions=[said]))
            CutSet.from_cuts(cuts).to_file(path)
        else:
            path.write_text("".join(json.dumps(entry) + "\n" for entry in changed))
        return path

    texts = ["ab", "ca", "b", "c ab"]
    options = small(write(texts), tmp_path / "out", epochs=1)
    train(options, progress=False)
    longer = replace(options, epochs=2)
    durations = [json.loads(line)["duration"] for line in lines]
    changed = f"durations or texts of {options.manifest} have changed"
    for others, times, message in (
        ([*texts[:3], "c a"], durations, changed),
        (["ca", "ab", "b", "c ab"], durations, changed),
        (texts, [*durations[:3], durations[3] - 0.01], changed),
        (["ab", "ca", "c ab"], durations, f"{options.manifest} has 3 now"),
    ):
        write(others, times)
        with pytest.raises(InputError, match=re.escape(f"holds a training on 4 utterances, and {message}: take")):
            train(longer, progress=False)
    write(texts)
    train(longer, progress=False)


def test_interrupted_from_the_keyboard(manifest: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.getsignal(signal.SIGINT)
    monkeypatch.setattr(TransducerTask, "validation_step", interrupted)
    command = f"train --manifest {manifest} --valid {manifest} --output {tmp_path / 'out'} --hidden 4 --accelerator cpu"
    assert main(command.split()) == 130
    assert signal.getsignal(signal.SIGINT) is before


def saved(output: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in output.glob("*.ckpt")}


def holder(output: Path) -> forked.Process:
    """Another process that holds the lock of a training."""
    code = f"""
import signal
from pathlib import Path
from prnn.asr.folder import locked
with locked(Path({str(output)!r})):
    print("locked", flush=True)
    signal.pause()
"""
    process = forked.Process("-c", code)
    assert process.stdout.readline() == "locked\n"
    return process


def test_one_training_a_folder(manifest: Path, tmp_path: Path) -> None:
    options = small(manifest, tmp_path / "out", epochs=1)
    run(options)
    before = saved(options.output)
    process = holder(options.output)
    for restart in (False, True):
        with pytest.raises(InputError, match=rf"^{options.output}: another training is running there"):
            train(options, restart=restart, progress=False)
    assert saved(options.output) == before
    os.kill(process.pid, signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    run(options)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO])
def test_a_full_disk_leaves_the_old_checkpoint(
    manifest: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    options = small(manifest, tmp_path / "out", epochs=2, checkpoint_every=2)
    run(options)
    before = saved(options.output)
    options = replace(options, epochs=4, output=tmp_path / "more")
    save, writes = torch.save, []

    def full(contents: object, file: object) -> None:
        writes.append(0)
        if len(writes) > 2:
            save({"much": torch.zeros(1000)}, Full(file))  # type: ignore[arg-type]
        save(contents, file)  # type: ignore[arg-type]

    class Full:
        def __init__(self, file: object) -> None:
            self._file = file

        def write(self, data: bytes) -> int:
            if self._file.tell() > 100:  # type: ignore[attr-defined]
                raise OSError(number, os.strerror(number))
            return self._file.write(data)  # type: ignore[attr-defined]

        def flush(self) -> None:
            pass

    monkeypatch.setattr(torch, "save", full)
    with pytest.raises(OSError, match=os.strerror(number)) as caught:
        run(options)
    assert caught.value.filename in (str(options.output / "last.ckpt"), str(options.output / "model.ckpt"))
    assert len(before) == 2
    assert not list(options.output.glob("*.partial"))
    monkeypatch.undo()
    run(options)
    straight = replace(options, output=tmp_path / "straight")
    run(straight)
    assert_same_training(straight.output, options.output)


def test_a_disk_that_is_full_is_a_sentence(manifest: Path, tmp_path: Path) -> None:
    """Files may have 20 kB: the first checkpoint does not fit."""
    command = f"""train --manifest {manifest} --valid {manifest} --output {tmp_path / "out"} --epochs 2 --batch-size 2
        --hidden 64 --layers 1 --checkpoint-every 1 --accelerator cpu --no-progress"""
    # Python would leave the first 20 kB of modules that it compiles, for others to stumble over.
    program = """
import resource, sys
import prnn.cli
sys.dont_write_bytecode = True
resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
sys.exit(prnn.cli.main(sys.argv[1:]))
"""
    result = forked.run("-c", program, *command.split())
    assert result.stderr == f"prnn: {tmp_path / 'out' / 'last.ckpt'}: file too large\n"
    assert result.returncode == 2
    assert saved(tmp_path / "out") == {}


def test_a_log_that_cannot_be_written_is_a_sentence(
    manifest: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tensorboard.summary.writer import record_writer

    def full(self: object, data: bytes) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(record_writer.RecordWriter, "write", full)
    options = small(manifest, tmp_path / "out", epochs=20)
    with pytest.raises(OSError, match="No space left on device") as caught:
        run(options)
    assert caught.value.filename == str(options.output)


def test_a_training_that_diverges_stops_and_keeps_its_checkpoints(manifest: Path, tmp_path: Path) -> None:
    options = small(manifest, tmp_path / "out", lr=1e30, warmup=0.0)
    with pytest.raises(InputError, match=r"^the training has diverged: .* step 2 (are|is) not .*lr than 1e\+30"):
        run(options)
    for path in options.output.glob("*.ckpt"):
        weights = read_checkpoint(path)["state_dict"].values()
        assert all(bool(tensor.isfinite().all()) for tensor in weights)


@pytest.mark.parametrize("step", [1, 3, 5])
def test_the_step_of_the_first_gradient_without_a_number_is_named(
    manifest: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    options = small(manifest, tmp_path / "out")
    good = TransducerTask.training_step

    def bad(self: TransducerTask, *arguments: object) -> torch.Tensor:
        loss = good(self, *arguments)  # type: ignore[arg-type]
        return loss * float("nan") if self.global_step + 1 == step else loss

    monkeypatch.setattr(TransducerTask, "training_step", bad)
    with pytest.raises(InputError, match=f"the gradients of step {step} are not finite numbers"):
        run(options)
    last = last_checkpoint(options.output)
    assert (read_checkpoint(last)["global_step"] if last.exists() else 0) == step - 1


def test_weights_without_numbers_are_not_saved(manifest: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options = small(manifest, tmp_path / "out", epochs=1)

    def lost(self: TransducerTask, *arguments: object) -> None:
        with torch.no_grad():
            self.model.joiner.output.bias[0] = float("inf")

    monkeypatch.setattr(TransducerTask, "lr_scheduler_step", lost)
    with pytest.raises(InputError, match=r"^the training has diverged: weights after step 1 are not finite numbers; "):
        run(options)
    assert not best_checkpoint(options.output).exists()


def test_a_moved_folder_keeps_its_best_model(killer: Killer, manifest: Path, tmp_path: Path) -> None:
    """The best results go with the folder: a worse model does not take the best one's place."""
    options = small(manifest, tmp_path / "out", lr=1e-6)
    killer.arm(20)
    with pytest.raises(Killed):
        run(options)
    os.rename(options.output, tmp_path / "moved")
    checkpoint = read_checkpoint(tmp_path / "moved" / "last.ckpt")
    (state,) = (state for state in checkpoint["callbacks"].values() if "best" in state)
    state["best"] = [0.0, 0.0, 0.0]
    killer.arm(None)
    with (tmp_path / "moved" / "last.ckpt").open("wb") as file:
        torch.save(checkpoint, file)
    best_checkpoint(tmp_path / "moved").unlink()
    run(replace(options, output=tmp_path / "moved"))
    assert not best_checkpoint(tmp_path / "moved").exists()
