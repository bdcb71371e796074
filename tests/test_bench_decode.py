"""prnn bench decode: rows of both searches, with the symbols of the rate that was asked for."""

import json
import sys
from argparse import Namespace
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

import prnn
from prnn.asr import compute_features
from prnn.bench.decode import library_call, main, modules
from prnn.bench.decode_streams import RATE, model_of, recording
from prnn.transducer.hypothesis import Decoder
from prnn.transducer.streaming import SearchOptions
from prnn.transducer.streaming import search as beam_search


@pytest.mark.parametrize("options", [[], ["--tdt"], ["--predictor", "stateless", "--beam", "3"]])
def test_rows(tmp_path: Path, capsys: pytest.CaptureFixture[str], options: list[str]) -> None:
    sizes = ["--classes", "20", "--hidden", "16", "--joiner", "16", "--frames", "40", "--rate", "0.5"]
    path = tmp_path / "rows.json"
    main(["--batch", "1", "3", *sizes, "--seconds", "0.01", "--json", str(path), *options], "cpu")
    rows = json.loads(path.read_text())["rows"]
    searches = ["libprnn", "libprnn 3", "steps", "steps 3"] if "--beam" in options else ["libprnn", "steps"]
    assert [(row["batch"], row["search"]) for row in rows] == [(n, s) for n in (1, 3) for s in searches]
    assert len(capsys.readouterr().out.splitlines()) == 1 + 2 * len(searches)
    found = {(row["batch"], row["search"]): row for row in rows}
    for (count, search), row in found.items():
        assert row["symbols"] == found[count, search.replace("libprnn", "steps")]["symbols"]
        assert 1 <= row["symbols"] <= 60
        assert row["us_a_symbol"] > 0


@pytest.mark.parametrize("predictor", ["lstm", "stateless"])
def test_library_call(predictor: str) -> None:
    """The call that is measured alone searches from the beginning, each time it is made."""
    sizes = {"classes": 20, "hidden": 16, "joiner": 16, "layers": 1, "predictor": predictor, "tdt": False}
    parts = modules(Namespace(**sizes), torch.device("cpu"))
    frames = torch.randn(3, 30, 512)
    decoder = Decoder.of(*parts, 0, (), None)
    greedy = library_call(decoder, frames, None)
    assert greedy is not None
    wanted = prnn.transducer_search(frames, predictor=parts[0], joiner=parts[1])
    assert greedy().counts.tolist() == wanted.counts.tolist() == greedy().counts.tolist()
    with_beam = library_call(decoder, frames, 3)
    assert with_beam is not None
    options = SearchOptions.checked("modified", 3, 1)
    scores = beam_search(decoder, options, frames, torch.full((3,), 30)).scores
    for _ in range(2):
        torch.testing.assert_close(with_beam().scores, scores)


class LabelLooping:
    """In the place of NeMo's search: it calls the same methods of a decoder and a joint."""

    def __init__(
        self, decoder: Any, joint: Any, blank_index: int, max_symbols_per_step: int, durations: Sequence[int] = ()
    ) -> None:
        self.decoder, self.joint, self.blank, self.durations = decoder, joint, blank_index, durations
        self.most = max_symbols_per_step

    def __call__(self, x: torch.Tensor, lengths: torch.Tensor) -> tuple[Any, None, None]:
        rows = [self.search(frames[None, :length]) for frames, length in zip(x, lengths.tolist(), strict=True)]
        counts = torch.tensor([len(row) for row in rows])
        room = max(map(len, rows)) + 1
        transcript = torch.tensor([row + [0] * (room - len(row)) for row in rows])
        return SimpleNamespace(transcript=transcript, current_lengths=counts), None, None

    def search(self, frames: torch.Tensor) -> list[int]:
        symbols: list[int] = []
        projected, at, here = self.joint.project_encoder(frames), 0, 0
        last = torch.tensor([[self.blank]])
        out, state = self.decoder.predict(last, self.decoder.initialize_state(last), add_sos=False, batch_size=1)
        while at < projected.shape[1]:
            logits = self.joint.joint_after_projection(projected[:, at : at + 1], self.joint.project_prednet(out))
            row = logits[0, 0, 0]
            classes = row[: len(row) - len(self.durations)]
            symbol = int(classes.argmax())
            ahead = self.durations[int(row[len(classes) :].argmax())] if self.durations else int(symbol == self.blank)
            if symbol == self.blank:
                ahead = max(ahead, 1)
            else:
                symbols.append(symbol)
                kept = self.decoder.clone_state(state)
                out, after = self.decoder.predict(torch.tensor([[symbol]]), state)
                self.decoder.batch_replace_states_all(after, dst_states=state)
                self.decoder.batch_replace_states_mask(kept, state, torch.tensor([False]), other_src_states=after)
                here += 1
                ahead = max(ahead, int(here == self.most))
            here = 0 if ahead else here
            at += ahead
        return symbols


@pytest.mark.parametrize("options", [[], ["--tdt", "--layers", "2"], ["--predictor", "gru"]], ids=str)
def test_nemo(tmp_path: Path, options: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Where NeMo is installed it has a row, with as many symbols."""
    nemo = ModuleType("nemo")
    nemo.__spec__ = ModuleSpec("nemo", None)
    monkeypatch.setitem(sys.modules, "nemo", nemo)
    for name in ("rnnt", "tdt"):
        module = ModuleType(f"nemo.collections.asr.parts.submodules.transducer_decoding.{name}_label_looping")
        vars(module)[f"GreedyBatched{name.upper()}LabelLoopingComputer"] = LabelLooping
        monkeypatch.setitem(sys.modules, module.__name__, module)
    sizes = ["--classes", "20", "--hidden", "16", "--joiner", "16", "--frames", "30", "--rate", "0.5"]
    path = tmp_path / "rows.json"
    main(["--batch", "2", *sizes, "--seconds", "0.01", "--json", str(path), *options], "cpu")
    rows = {row["search"]: row["symbols"] for row in json.loads(path.read_text())["rows"]}
    assert list(rows) == ["libprnn", "steps"] + ["NeMo"] * ("gru" not in options)
    assert len(set(rows.values())) == 1
    assert rows["steps"] > 2


STREAMS = ["--encoder-layers", "1", "--encoder-hidden", "16", "--classes", "20", "--hidden", "16", "--joiner", "16"]


@pytest.mark.parametrize("options", [[], ["--tdt"], ["--predictor", "stateless", "--sherpa"]])
def test_streams(tmp_path: Path, capsys: pytest.CaptureFixture[str], options: list[str]) -> None:
    """As many symbols as the whole recordings have, in chunks of both lengths, and times that fit each other."""
    path = tmp_path / "rows.json"
    command = ["--streams", "1", "3", "--chunk-ms", "160", "300", "--seconds", "0.01", *STREAMS, *options]
    main([*command, "--json", str(path)], "cpu")
    rows = json.loads(path.read_text())["rows"]
    ways = ["prnn", "sherpa-onnx"] if "--sherpa" in options else ["prnn"]
    expected = [(n, chunk, way) for n in (1, 3) for chunk in (160, 300) for way in ways]
    assert [(row["streams"], row["chunk_ms"], row["search"]) for row in rows] == expected
    assert len(capsys.readouterr().out.splitlines()) == 1 + len(rows)
    most = 1 if "--sherpa" in options else 8
    arguments = Namespace(
        classes=20, encoder_layers=1, encoder_hidden=16, encoder_projection=0, hidden=16, joiner=16, rate=0.3, layers=1,
        predictor="stateless" if most == 1 else "lstm", tdt="--tdt" in options,
    )  # fmt: skip
    model = model_of(arguments, most, torch.device("cpu"))
    features = [compute_features(recording(seed), RATE) for seed in range(3)]
    symbols = [len(model.greedy_search(one[None], max_symbols=most)[0].tokens) for one in features]
    assert symbols[0] > 20
    for row in rows:
        if row["search"] == "prnn":
            assert row["symbols"] == sum(symbols[: row["streams"]])
        else:  # which decodes silence after the recording
            assert abs(row["symbols"] - sum(symbols[: row["streams"]])) <= 20 * row["streams"]
        assert 0 < row["ms"] <= row["p99_ms"]
        assert row["audio_s_per_s"] == pytest.approx(row["streams"] * row["chunk_ms"] / row["ms"], rel=0.05, abs=1)


@pytest.mark.parametrize(
    "options", [["--sherpa"], ["--streams", "1", "--sherpa"], ["--streams", "1", "--dtype", "float16"]]
)
def test_streams_that_cannot_be_measured(capsys: pytest.CaptureFixture[str], options: list[str]) -> None:
    with pytest.raises(SystemExit):
        main(options, "cpu")
    assert "--streams" in capsys.readouterr().err


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main([], "gpu")
    assert "torch can use no GPU here" in capsys.readouterr().err
