"""Tokenizers: round trips, unknown characters, damaged files and checkpoints, and the commands with word pieces."""

from __future__ import annotations

import copy
import json
import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sentencepiece
import sherpa_onnx
import soundfile
import torch
from asr_data import small_config, write_corpus

from prnn.asr import CharTokenizer, FeatureConfig, InputError, PieceTokenizer, Recogniser, read_manifest
from prnn.asr.augment import Augmentation
from prnn.asr.checkpoint import describe, load_recogniser_parts
from prnn.asr.dataset import UtteranceDataset
from prnn.asr.evaluation import evaluate
from prnn.asr.options import TrainingOptions
from prnn.asr.plots import plot_alignment
from prnn.asr.tokenizer import tokenizer_from_state, train_pieces, unknown_characters
from prnn.asr.training import train
from prnn.cli import main
from prnn.transducer import Transducer, TransducerConfig

TEXTS = ["one two three four five", "six seven eight nine zero", "one nine seven", "two eight for you and your dog"]


@pytest.fixture(scope="module")
def pieces() -> PieceTokenizer:
    return train_pieces(TEXTS, 40)


def sentencepiece_model(**options: Any) -> bytes:
    """A model of sentencepiece's own defaults: <unk> is piece 0."""
    import io

    written = io.BytesIO()
    defaults = {"vocab_size": 40, "model_type": "bpe", "minloglevel": 2}
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(TEXTS), model_writer=written, **{**defaults, **options}
    )
    return written.getvalue()


def pieces_checkpoint(tokenizer: PieceTokenizer, config: TransducerConfig | None = None) -> dict[str, Any]:
    """Returns a checkpoint as prnn train saves it, of an untrained model."""
    config = config or small_config(len(tokenizer))
    model = Transducer.from_config(config)
    with torch.no_grad():
        for name in ("encoder_proj", "predictor_proj"):
            getattr(model.joiner, name).weight.mul_(6)
    weights = {f"model.{name}": tensor for name, tensor in model.state_dict().items()}
    return {"prnn": describe(config, FeatureConfig(), tokenizer), "state_dict": weights}


def test_pieces(pieces: PieceTokenizer) -> None:
    processor = sentencepiece.SentencePieceProcessor(model_proto=pieces.model)
    assert len(pieces) == processor.get_piece_size() == 40
    assert pieces.symbols[:2] == ("<blk>", "<unk>")
    for text in (*TEXTS, "dog one", "e"):
        labels = pieces.encode(text)
        assert labels == processor.encode(text)
        assert pieces.decode(labels) == text == processor.decode(labels)
        assert "".join(pieces.surfaces(labels)) == text
        assert "".join(pieces.symbols[label] for label in labels) == "\u2581" + text.replace(" ", "\u2581")
    assert pieces.encode("") == []
    assert pieces.decode([]) == ""
    for label in (0, 40, -1):
        with pytest.raises(ValueError, match=f"label {label} is not between 1 and 39"):
            pieces.decode([label])


def test_pieces_of_the_same_texts_are_the_same(pieces: PieceTokenizer) -> None:
    assert train_pieces(TEXTS, 40) == pieces
    assert hash(train_pieces(TEXTS, 40)) == hash(pieces)
    assert train_pieces(TEXTS, 39) != pieces
    assert train_pieces(TEXTS, 29, "unigram").decode(train_pieces(TEXTS, 29, "unigram").encode(TEXTS[0])) == TEXTS[0]
    assert pickle.loads(pickle.dumps(pieces)) == copy.deepcopy(pieces) == pieces


def test_a_model_without_a_blank() -> None:
    """Its numbers are moved up by one; control symbols are silent."""
    model = sentencepiece_model()
    processor = sentencepiece.SentencePieceProcessor(model_proto=model)
    tokenizer = PieceTokenizer(model)
    assert len(tokenizer) == 41
    assert tokenizer.symbols[:4] == ("<blk>", "<unk>", "<s>", "</s>")
    labels = tokenizer.encode("one two")
    assert labels == [number + 1 for number in processor.encode("one two")]
    assert tokenizer.decode([2, *labels, 3]) == "one two"


def test_a_blank_is_not_spelled() -> None:
    """icefall's models have <blk> as a symbol that texts may hold."""
    tokenizer = PieceTokenizer(sentencepiece_model(user_defined_symbols=["<blk>", "<sos/eos>"], unk_id=2, bos_id=-1,
                                                   eos_id=-1))  # fmt: skip
    assert tokenizer.symbols[:3] == ("<blk>", "<sos/eos>", "<unk>")
    labels, unknown = tokenizer.encode_known("one <blk>two")
    assert unknown == "<blk>"
    assert min(labels) > 0


def test_bytes_make_characters() -> None:
    tokenizer = PieceTokenizer(sentencepiece_model(byte_fallback=True, vocab_size=300))
    labels = tokenizer.encode("one 漢字 two")
    assert tokenizer.decode(labels) == "one 漢字 two"
    surfaces = tokenizer.surfaces(labels)
    assert [surface for surface in surfaces if surface in ("漢", "字")] == ["漢", "字"]
    cut = tokenizer.decode(labels[: surfaces.index("漢")])
    assert cut == "one \ufffd"


@pytest.mark.parametrize("kind", ["characters", "pieces"])
def test_unknown_characters(kind: str, pieces: PieceTokenizer) -> None:
    tokenizer = pieces if kind == "pieces" else CharTokenizer.from_texts(TEXTS)
    labels, unknown = tokenizer.encode_known("one €ü two €")
    assert unknown == "€ü€"
    assert tokenizer.decode(labels).split() == ["one", "two"]
    assert unknown_characters(tokenizer, ["one", "€ü", "a€"]) == {"€": 2, "ü": 1}
    with pytest.raises(ValueError, match="the text has '€', which is not among the "):
        tokenizer.encode("one €")


def test_states(pieces: PieceTokenizer, tmp_path: Path) -> None:
    for tokenizer in (pieces, CharTokenizer("ab ")):
        torch.save(tokenizer.state(), tmp_path / "state")
        assert tokenizer_from_state(torch.load(tmp_path / "state", weights_only=True)) == tokenizer
    assert CharTokenizer("ab") != pieces


@pytest.mark.parametrize(
    "contents",
    [b"", b"no model\n", bytes(range(256)) * 20, b"\n\t\n\x05<unk>\x18\x02"],
    ids=["empty", "text", "bytes", "no pieces"],
)
def test_files_that_are_no_model(contents: bytes, tmp_path: Path) -> None:
    path = tmp_path / "pieces.model"
    path.write_bytes(contents)
    with pytest.raises(InputError) as caught:
        PieceTokenizer.load(path)
    assert str(caught.value) == f"{path}: not a sentencepiece model, or a damaged one"
    with pytest.raises(InputError, match="no such file"):
        PieceTokenizer.load(tmp_path / "none.model")
    with pytest.raises(InputError, match="not a file"):
        PieceTokenizer.load(tmp_path)


def test_models_with_changed_bytes(tmp_path: Path) -> None:
    """They are refused, or they encode and decode."""
    model = sentencepiece_model()
    rng = np.random.default_rng(0)
    refused = 0
    for case in range(150):
        changed = bytearray(model)
        most = 900 if case % 2 else len(model)  # the pieces, or mostly the table of the normalisation
        for place in rng.integers(0, most, int(rng.choice([1, 2, 8]))):
            changed[place] = rng.integers(256)
        try:
            tokenizer = PieceTokenizer(bytes(changed))
        except ValueError:
            refused += 1
            continue
        labels, _ = tokenizer.encode_known("one two ½ ﬁ three")
        assert all(0 < label < len(tokenizer) for label in labels)
        tokenizer.decode(labels)
    assert 0 < refused < 150


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"sentencepiece": b"no model"}, "not a sentencepiece model"),
        ({"sentencepiece": "text"}, "the sentencepiece model is 'text'; it must be bytes"),
        ({"sentencepiece": None}, "the sentencepiece model is None; it must be bytes"),
        ({"sentencepiece": train_pieces(TEXTS, 39).model}, "vocab_size is 40; its features and tokenizer make it 39"),
    ],
)
def test_checkpoints_whose_tokenizer_does_not_fit(
    pieces: PieceTokenizer, tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    contents = pieces_checkpoint(pieces)
    contents["prnn"].update(change)
    torch.save(contents, tmp_path / "model.ckpt")
    with pytest.raises(InputError, match="a damaged checkpoint") as caught:
        load_recogniser_parts(tmp_path / "model.ckpt")
    assert message in str(caught.value)


# The commands


def refused(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    assert main([str(argument) for argument in arguments]) == 2
    output = capsys.readouterr()
    assert output.err.startswith("prnn: ")
    assert output.err.count("\n") == 1
    return output.err.removeprefix("prnn: ").strip()


def test_the_command_makes_a_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    manifest = write_corpus(tmp_path, "tones", ["abc cab", "bca abc", "ab c"])
    out = tmp_path / "pieces.model"
    command = ["tokenizer", "--manifest", str(manifest), str(manifest), "--out", str(out), "--vocab"]
    assert main([*command, "9"]) == 0
    tokenizer = PieceTokenizer.load(out)
    texts = [utterance.text for utterance in read_manifest(manifest)] * 2
    assert tokenizer == train_pieces(texts, 9)
    count = sum(len(tokenizer.encode(text)) for text in texts)
    assert capsys.readouterr().out == f"{out}: 9 symbols; 6 texts of 12 words have {count} pieces\n"
    before = out.read_bytes()
    message = refused(capsys, *command, "500")
    assert message == "no vocabulary of 500 can be made of the texts: they allow at most 20"
    message = refused(capsys, *command, "5")
    assert message == "no vocabulary of 5 can be made of the texts: their characters need at least 6"
    assert refused(capsys, *command[:-1], "--vocab", "9", "--out", tmp_path / "no" / "x") == (
        f"{tmp_path / 'no' / 'x'}: no such file or directory"
    )
    assert out.read_bytes() == before
    assert not list(tmp_path.glob("*.partial"))


def test_the_command_writes_to_links_and_pipes(tmp_path: Path) -> None:
    """A device or a pipe stays what it is: as root, a file took the place of /dev/null."""
    manifest = write_corpus(tmp_path, "t", ["ab abc", "c"])
    link, out, pipe = tmp_path / "link", tmp_path / "out", tmp_path / "pipe"
    link.symlink_to(out)
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    for place in (link, pipe):
        assert main(["tokenizer", "--manifest", str(manifest), "--vocab", "8", "--out", str(place)]) == 0
    assert link.is_symlink()
    assert pipe.is_fifo()
    assert os.read(reader, 2**20) == out.read_bytes()
    os.close(reader)


def test_train_with_pieces(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The checkpoint carries the model; every other command goes on with it; a character that validation alone has is
    counted."""
    manifest = write_corpus(tmp_path, "tones", ["abc cab", "bca abc", "ab c"])
    lines = manifest.read_text().splitlines()
    valid = tmp_path / "valid.jsonl"
    entries = [json.loads(line) for line in lines[:2]]
    entries[0]["text"], entries[1]["text"] = "abc dd cab", "€"
    valid.write_text("".join(json.dumps(entry) + "\n" for entry in entries))
    assert main(["tokenizer", "--manifest", str(manifest), "--vocab", "8", "--out", str(tmp_path / "p.model")]) == 0
    train = ["train", "--manifest", manifest, "--valid", valid, "--output", tmp_path / "out", "--epochs", "1"]
    train += ["--hidden", "8", "--layers", "1", "--accelerator", "cpu", "--no-progress"]
    command = [str(argument) for argument in [*train, "--tokenizer", tmp_path / "p.model"]]
    assert main(command) == 0
    printed = capsys.readouterr().out
    assert ", 7 symbols, " in printed
    unknown = "3 characters, 2 different ones, are not among the 8 symbols of the sentencepiece model"
    assert f"{valid}: {unknown}; they count as errors: 'd' 2 times, '€' once\n" in printed
    recogniser = Recogniser.load(tmp_path / "out" / "model.ckpt")
    assert recogniser.tokenizer == PieceTokenizer.load(tmp_path / "p.model")
    assert main(command) == 0
    assert "going on from" in capsys.readouterr().out
    assert "holds a training with tokenizer" in refused(capsys, *train)
    (tmp_path / "p.model").write_bytes(train_pieces(["abc cab", "ab c"], 8, "unigram").model)
    now = f"other symbols than {tmp_path / 'p.model'} has now: take another --output, or --restart"
    assert refused(capsys, *command) == f"{tmp_path / 'out'} holds a training with {now}"
    (tmp_path / "p.model").write_bytes(b"")
    assert refused(capsys, *command).startswith(f"{tmp_path / 'p.model'}: not a sentencepiece model")


def test_pieces_are_learnt(tmp_path: Path) -> None:
    """Four utterances by heart: texts, words and error rates."""
    texts = ["ab ca", "cab", "b", "acc ab"]
    manifest = write_corpus(tmp_path / "data", "tones", texts)
    pieces = train_pieces(texts, 8)
    (tmp_path / "p.model").write_bytes(pieces.model)
    model = {
        "encoder_hidden": 48, "encoder_layers": 1, "predictor": "stateless", "predictor_hidden": 16, "joiner_dim": 32,
        "frame_stack": 4, "ctc_weight": 0.3,
    }  # fmt: skip
    options = TrainingOptions(
        manifest, manifest, tmp_path / "out", tokenizer=tmp_path / "p.model", model=model, accelerator="cpu",
        batch_size=4, lr=1e-2, epochs=300, valid_every=300,
        augmentation=Augmentation(frequency_width=0, time_width=0),
    )  # fmt: skip
    recogniser = Recogniser.load(train(options, progress=False))
    assert any(len(symbol.strip("\u2581")) > 1 for symbol in pieces.symbols[2:])
    for beam in (1, 3):
        result = evaluate(recogniser, read_manifest(manifest), beam)
        assert result.texts == texts
        assert result.rates == (0.0, 0.0)
        assert [[word.text for word in found.words] for found in result.transcripts] == [t.split() for t in texts]


def test_training_texts_must_be_known(tmp_path: Path) -> None:
    utterances = read_manifest(write_corpus(tmp_path, "tones", ["ab", "abc"]))
    tokenizer = train_pieces(["ab a b"], 5)
    with pytest.raises(InputError, match="line 2: the text has 'c', which is not among the 5 symbols of the sentence"):
        UtteranceDataset(utterances, tokenizer, FeatureConfig())
    dataset = UtteranceDataset(utterances, tokenizer, FeatureConfig(), pass_over_unknown=True)
    example = dataset.example(1, epoch=0)
    assert example.targets.tolist() == tokenizer.encode("ab")
    assert example.text == "abc"


def test_the_commands_spell_with_pieces(
    pieces: PieceTokenizer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    torch.save(pieces_checkpoint(pieces), tmp_path / "model.ckpt")
    soundfile.write(tmp_path / "a.wav", 0.2 * np.random.default_rng(1).standard_normal(24000), 16000)
    arguments = ["transcribe", str(tmp_path / "model.ckpt"), str(tmp_path / "a.wav")]
    assert main(arguments) == 0
    text = capsys.readouterr().out.strip()
    assert text
    assert main([*arguments, "--stream"]) == 0
    assert capsys.readouterr().out.splitlines()[-1].strip() == text
    recogniser = Recogniser.load(tmp_path / "model.ckpt")
    plot_alignment(recogniser, torch.randn(40, 80), "one two", tmp_path / "alignment.png")
    assert (tmp_path / "alignment.png").stat().st_size > 5000


def test_sherpa_onnx_spells_with_pieces(pieces: PieceTokenizer, tmp_path: Path) -> None:
    """tokens.txt has the pieces; the text is prnn's; bpe.vocab spells hotwords."""
    from test_export import CONFIG, TAIL, recording

    import prnn.asr.export

    config = TransducerConfig.from_dict({**CONFIG.to_dict(), "vocab_size": len(pieces)})
    torch.manual_seed(3)
    recogniser = Recogniser(Transducer.from_config(config).eval(), FeatureConfig(), pieces)
    with torch.no_grad():
        recogniser.model.joiner.encoder_proj.weight.mul_(6)
        recogniser.model.joiner.output.weight.mul_(10)
        recogniser.model.joiner.output.bias[1] = -1e3
    folder = tmp_path / "model"
    files = prnn.asr.export.export(recogniser, folder)
    assert {path.name for path in files} >= {"bpe.model", "bpe.vocab", "tokens.txt"}
    assert (folder / "bpe.model").read_bytes() == pieces.model
    tokens = (folder / "tokens.txt").read_text().splitlines()
    assert tokens[:2] == ["<blk> 0", "<unk> 1"]
    assert len(tokens) == len(pieces)
    parts = {name: str(folder / f"{name}.onnx") for name in ("encoder", "decoder", "joiner")}
    hotwords = tmp_path / "hotwords.txt"
    hotwords.write_text("nine seven :3.0\n")
    samples = recording(0)
    expected = recogniser.transcribe(samples[: len(samples) - TAIL], 16000, max_symbols=1)
    for options in (
        {},
        {
            "decoding_method": "modified_beam_search", "hotwords_file": str(hotwords), "modeling_unit": "bpe",
            "bpe_vocab": str(folder / "bpe.vocab"),
        },
    ):  # fmt: skip
        online = sherpa_onnx.OnlineRecognizer.from_transducer(
            tokens=str(folder / "tokens.txt"), **parts, num_threads=1, **options
        )
        stream = online.create_stream()
        stream.accept_waveform(16000, samples)
        stream.input_finished()
        while online.is_ready(stream):
            online.decode_stream(stream)
        found = online.get_result(stream).strip()
        assert found
        if not options:
            assert found.startswith(expected.strip()[:5])
