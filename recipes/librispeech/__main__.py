"""LibriSpeech, from the download to a model for sherpa-onnx.

    python -m recipes.librispeech --corpus /data/LibriSpeech --output librispeech

Stages: prepare, tokenizer, train, decode, export; all of them unless some are named. What is done is passed over;
killed at any point, the same command goes on where it was. What follows -- goes to prnn train.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import json
import os
import shutil
import sys
from collections.abc import Callable
from contextlib import redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from prnn._fields import Within, number_parser
from prnn.asr.errors import InputError
from prnn.asr.folder import averaged_checkpoint, best_checkpoint, replacing
from prnn.cli import main as prnn_command
from prnn.commands.failure import CommandError, reported
from recipes.librispeech.prepare import prepare

CONFIGS = Path(__file__).parent / "configs"


class StageError(Exception):
    """A command of prnn has ended with this status, and said why."""


def run(*arguments: object) -> None:
    """Runs a command of prnn."""
    status = prnn_command([str(argument) for argument in arguments])
    if status:
        raise StageError(status)


@dataclass(frozen=True)
class Experiment:
    """The options of the command line.

    Args:
        corpus: where LibriSpeech lies, or is to lie.
        output: folder of all that is made.
        config: a file of `CONFIGS`, without its suffix, or any configuration of prnn train.
        vocab: word pieces.
        download: a corpus of Lhotse's to fetch; None takes what is there.
        jobs: threads that read the corpus.
        training: options of prnn train, which come last.
    """

    corpus: Path
    output: Path
    config: str
    vocab: int
    download: str | None
    jobs: int
    training: tuple[str, ...]

    @property
    def data(self) -> Path:
        """The manifests."""
        return self.output / "data"

    @property
    def pieces(self) -> Path:
        """The tokenizer."""
        return self.output / f"pieces-{self.vocab}.model"

    @property
    def trained(self) -> Path:
        """The training's folder."""
        return self.output / Path(self.config).stem

    def model(self) -> Path:
        """The checkpoint to use: the mean of several models, if there is one."""
        averaged = averaged_checkpoint(self.trained)
        return averaged if averaged.is_file() else best_checkpoint(self.trained)

    def model_digest(self) -> str:
        """A digest that tells one checkpoint from another."""
        model = self.model()
        if not model.is_file():
            raise InputError(f"{model}: no such file; the stage train makes it")
        with model.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()


def _read(record: Path) -> dict[str, Any]:
    """Returns a stage's record; empty if it has not been done."""
    try:
        found = json.loads(record.read_text())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _record(record: Path, wanted: dict[str, Any]) -> None:
    with replacing(record) as file:
        file.write(json.dumps(wanted, indent=2).encode())


def stage_prepare(experiment: Experiment) -> None:
    """The manifests."""
    if experiment.data.is_dir():
        print(f"{experiment.data} is there already")
        return
    prepare(experiment.corpus, experiment.data, experiment.download, experiment.jobs)


def stage_tokenizer(experiment: Experiment) -> None:
    """Word pieces of the training texts."""
    if experiment.pieces.is_file():
        print(f"{experiment.pieces} is there already")
        return
    run("tokenizer", "--manifest", experiment.data / "train.jsonl", "--vocab", experiment.vocab,
        "--out", experiment.pieces)  # fmt: skip


def stage_train(experiment: Experiment) -> None:
    """The training, or what is left of it."""
    config = Path(experiment.config)
    if not config.is_file():
        config = CONFIGS / f"{experiment.config}.yaml"
    if not config.is_file():
        known = ", ".join(sorted(path.stem for path in CONFIGS.glob("*.yaml") if path.stem != "base"))
        raise InputError(f"{experiment.config}: no such configuration; there are {known}")
    configs = [] if config.parent != CONFIGS else ["--config", str(CONFIGS / "base.yaml")]
    data = experiment.data
    arguments = ["train", *configs, "--config", str(config), "--manifest", str(data / "train.jsonl.gz"), "--valid",
                 str(data / "dev.jsonl.gz"), "--tokenizer", str(experiment.pieces), "--output",
                 str(experiment.trained), *experiment.training]  # fmt: skip
    wanted = {"arguments": arguments, "configuration": config.read_text()}
    if _read(experiment.trained / "trained.json") == wanted:
        print(f"{experiment.trained} is trained already")
        return
    run(*arguments)
    _record(experiment.trained / "trained.json", wanted)


def stage_decode(experiment: Experiment) -> None:
    """Error rates on every test set; what was recognised is in NAME.recognised.jsonl."""
    model, digest = experiment.model(), experiment.model_digest()
    for manifest in sorted(experiment.data.glob("test-*.jsonl")):
        rates = experiment.trained / f"{manifest.stem}.rates.json"
        print(f"{manifest.stem}, {model.name}", flush=True)
        found = _read(rates)
        if found.get("model") != digest:
            recognised = experiment.trained / f"{manifest.stem}.recognised.jsonl"
            partial = recognised.with_name(f"{recognised.name}.partial")
            with redirect_stdout(io.StringIO()) as printed:
                run("evaluate", model, manifest, "--accelerator", "auto", "--output", partial)
            os.replace(partial, recognised)
            found = {"model": digest, "rates": printed.getvalue().strip()}
            _record(rates, found)
        print(found["rates"])


def stage_export(experiment: Experiment) -> None:
    """ONNX files for sherpa-onnx, float32 and with 8-bit weights."""
    exported, wanted = experiment.trained / "exported", {"model": experiment.model_digest()}
    record = experiment.trained / "exported.json"
    if exported.is_dir() and _read(record) == wanted:
        print(f"{exported} is there already")
        return
    for path in (exported, *experiment.trained.glob("exported.*.partial")):
        shutil.rmtree(path, ignore_errors=True)
    run("export", experiment.model(), exported, "--int8")
    _record(record, wanted)


def remove_leftovers(experiment: Experiment) -> None:
    """Removes what a kill has left of half-written files; a training's own are the training's."""
    left = [*experiment.output.glob("pieces-*.partial"), *experiment.trained.glob("*.json*.partial")]
    for path in left:
        if not path.name.startswith("options.json."):
            path.unlink(missing_ok=True)


STAGES: dict[str, Callable[[Experiment], None]] = {
    "prepare": stage_prepare,
    "tokenizer": stage_tokenizer,
    "train": stage_train,
    "decode": stage_decode,
    "export": stage_export,
}


def main(arguments: list[str] | None = None) -> int:
    """Runs the stages; returns the exit status."""
    given = sys.argv[1:] if arguments is None else arguments
    cut = given.index("--") if "--" in given else len(given)
    parser = argparse.ArgumentParser(prog="python -m recipes.librispeech", description=(__doc__ or "").split("\n")[0])
    add = parser.add_argument
    add("stages", nargs="*", metavar="STAGE", help=f"{', '.join(STAGES)} (all)")
    add("--corpus", type=Path, required=True, help="where LibriSpeech lies: train-*, dev-*, test-*")
    add("--output", type=Path, default=Path("librispeech"), help="all that is made (%(default)s)")
    add(
        "--config",
        default="layer_norm_lstm",
        help="layer_norm_lstm, lstm_30m, lstm_80m, lstm_5x1024, lstmp_12x1024, lstmp_blocks, or a file (%(default)s)",
    )
    count = number_parser(int, Within(4, 100_000))
    add("--vocab", type=count, default=500, help="word pieces (%(default)s)")
    help_ = "fetch this corpus to --corpus first"
    add("--download", choices=("librispeech", "mini_librispeech"), help=help_)
    add(
        "--jobs", type=number_parser(int, Within(1, 1000)), default=4, help="threads that read the corpus (%(default)s)"
    )
    options = parser.parse_args(given[:cut])
    for stage in options.stages:
        if stage not in STAGES:
            parser.error(f"there is no stage {stage!r}; there are {', '.join(STAGES)}")
    experiment = Experiment(
        options.corpus, options.output, options.config, options.vocab, options.download, options.jobs,
        tuple(given[cut + 1 :]),
    )  # fmt: skip
    try:
        with reported():
            remove_leftovers(experiment)
            for name, stage in STAGES.items():
                if name in (options.stages or STAGES):
                    print(f"== {name}", flush=True)
                    stage(experiment)
    except StageError as failed:
        return int(failed.args[0])
    except CommandError as error:
        print(f"librispeech: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
