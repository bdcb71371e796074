"""Transcripts: words with times and confidence, endpoints, formats, n-best, phrases, the microphone."""

from __future__ import annotations

import json
import math
import re
import sys
from functools import cache
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar

import numpy as np
import pytest
import soundfile
import torch
from asr_data import write_corpus
from test_tokenizer import refused
from tones_model import FRAME, RATE, TONE, save, tone_recogniser, tones

from prnn.asr import Alternative, CharTokenizer, EndpointRules, Transcript, Word, compute_features
from prnn.asr.formats import TranscriptLines
from prnn.asr.language_model import read_language_model
from prnn.asr.phrases import read_phrases
from prnn.asr.tokenizer import train_pieces
from prnn.asr.transcript import transcript_of, words_of
from prnn.asr.word_times import WordDelays
from prnn.cli import main
from prnn.transducer import Hypothesis, PhraseBias

# Pauses of 400, 300 and 1300 ms, a repeated word, a long one.
SPELLED = "..ab c....ba cb...c a.............b cacbabcacbac ab"
TEXT = SPELLED.replace(".", "")


# Words


def test_words_of_characters() -> None:
    hypothesis = Hypothesis([3, 1, 2, 3, 3, 1, 3], -5.0, [0, 2, 2, 3, 7, 9, 12], [-0.1, -0.5, -0.2, 0, 0, -1.0, -0.3])
    words = words_of(hypothesis, CharTokenizer("ab "), 0.04)
    assert [word.text for word in words] == ["ab", "a"]
    assert words[0][1:] == pytest.approx((0.08, 0.12, math.exp(-0.5)))
    assert words[1][1:] == pytest.approx((0.36, 0.40, math.exp(-1.0)))
    assert words_of(Hypothesis([], 0.0, [], []), CharTokenizer("ab "), 0.04) == ()


def test_words_of_pieces() -> None:
    tokenizer = train_pieces(["one two nine", "nine one two one"], 14)
    for text in ("one two nine", "nine", "two one"):
        labels = tokenizer.encode(text)
        begins = [label for label in labels if tokenizer.symbols[label].startswith("\u2581")]
        assert len(begins) == len(text.split()) < len(labels)
        frames = [3 * place for place in range(len(labels))]
        probabilities = [0.9 - 0.05 * place for place in range(len(labels))]
        words = words_of(Hypothesis(labels, 0.0, frames, [math.log(p) for p in probabilities]), tokenizer, 0.04)
        assert " ".join(word.text for word in words) == text
        borders = [place for place, label in enumerate(labels) if label in begins]
        for word, start, end in zip(words, borders, [*borders[1:], len(labels)], strict=True):
            start += tokenizer.symbols[labels[start]] == "\u2581"  # no letter of the word yet
            assert word.start == pytest.approx(0.04 * frames[start])
            assert word.end == pytest.approx(0.04 * (frames[end - 1] + 1))
            assert word.confidence == pytest.approx(probabilities[end - 1])


def test_a_text_that_pieces_spell_in_two_ways_is_one_alternative() -> None:
    tokenizer = train_pieces(["one two nine", "nine one two one"], 14)
    whole = tokenizer.encode("one")
    spelled = [tokenizer.symbols.index(symbol) for symbol in ("\u2581", "o", "n", "e")]
    assert tokenizer.decode(spelled) == tokenizer.decode(whole) == "one"
    other = tokenizer.encode("two")
    nbest = [
        Hypothesis(tokens, score, [0] * len(tokens), [0.0] * len(tokens))
        for tokens, score in ((whole, -1.0), (spelled, -2.0), (other, -3.0))
    ]
    found = transcript_of(nbest, tokenizer, 0.04)
    assert found.alternatives == (Alternative("one", -1.0), Alternative("two", -3.0))


def expected_words(text: str) -> list[tuple[str, float, float]]:
    """Words of what `tones` sounds like, with their times: a symbol is found in the frame in which its tone begins."""
    found = re.finditer(r"[^ .](?:\.*[^ .])*", text)
    return [(m[0].replace(".", ""), m.start() * TONE, (m.end() - 1) * TONE + FRAME) for m in found]


@pytest.mark.parametrize("beam", [1, 3])
def test_a_transcript_of_a_recording(beam: int) -> None:
    recogniser, samples = tone_recogniser(gain=4.0), tones(SPELLED)
    with torch.no_grad():
        recogniser.model.joiner.output.weight[4] *= 0.95  # so that the model is less sure of one symbol
    features = compute_features(samples, RATE)
    if beam == 1:
        nbest = recogniser.model.greedy_search(features[None])
    else:
        (nbest,) = recogniser.model.beam_search(features[None], beam=beam, mode="standard", nbest=beam)
    (found,) = recogniser.transcribe_batch([features], beam)
    assert found.text == TEXT
    assert [a.score for a in found.alternatives] == [h.score for h in nbest]
    assert len(found.alternatives) == beam
    for word, (text, start, end) in zip(found.words, expected_words(SPELLED), strict=True):
        assert word[:3] == (text, pytest.approx(start), pytest.approx(end))
    places = [place for place, token in enumerate(nbest[0].tokens) if token != 3]
    for word in found.words:
        own, places = places[: len(word.text)], places[len(word.text) :]
        assert word.confidence == pytest.approx(math.exp(min(nbest[0].log_probs[place] for place in own)))
    assert len({word.confidence for word in found.words}) > 1
    assert found.confidence == pytest.approx(sum(word.confidence for word in found.words) / len(found.words))
    stream = recogniser.stream(RATE, beam)
    for start in range(0, len(samples), 1234):
        stream.feed(samples[start : start + 1234])
    assert stream.finish() == TEXT
    (streamed,) = stream.utterances()
    assert (streamed.text, streamed.words) == (found.text, found.words)
    assert stream.utterances() == []


def test_a_transcript_of_pieces() -> None:
    tokenizer = train_pieces(["abc ab", "ab abc c", "c abc ab"], 8)
    assert sorted(tokenizer.symbols[2:]) == sorted(["a", "b", "c", "\u2581", "\u2581ab", "ab"])
    sounds = {symbol: character for symbol, character in zip(tokenizer.symbols[1:], "0123456", strict=True)}
    spelled = ["\u2581ab", "c", "\u2581", "ab", "\u2581", "c"]
    text = "...".join(sounds[symbol] for symbol in spelled)
    recogniser = tone_recogniser("0123456", tokenizer)
    (found,) = recogniser.transcribe_batch([compute_features(tones(text, "0123456"), RATE)])
    assert found.text == "abc ab c"
    expected = (("abc", 0.0, 0.4 + FRAME), ("ab", 1.2, 1.2 + FRAME), ("c", 2.0, 2.0 + FRAME))
    for word, (text, start, end) in zip(found.words, expected, strict=True):
        assert word[:3] == (text, pytest.approx(start), pytest.approx(end))


# Endpoints


recogniser_of = cache(tone_recogniser)


def utterances(
    samples: np.ndarray, size: int, rules: EndpointRules, beam: int = 1, symbols: str = "ab c"
) -> list[Transcript]:
    stream = recogniser_of(symbols).stream(RATE, beam, endpoint=rules)
    found = []
    for start in range(0, len(samples), size):
        stream.feed(samples[start : start + size])
        found += stream.utterances()
    stream.finish()
    return found + stream.utterances()


@pytest.mark.parametrize("beam", [1, 3])
@pytest.mark.parametrize(
    ("silence", "texts"),
    [
        (0.3, ["ab c", "ba cb", "c a", "b cacbabcacbac ab"]),
        (0.48, ["ab c", "ba cbc a", "b cacbabcacbac ab"]),
        (0.5, ["ab cba cbc a", "b cacbabcacbac ab"]),
        (1.35, ["ab cba cbc a", "b cacbabcacbac ab"]),
        (1.45, [TEXT]),
    ],
)
def test_utterances_end_at_pauses(beam: int, silence: float, texts: list[str]) -> None:
    """A symbol comes 100 ms after the one before it, in the fifth frame: without it 80 ms have none, 480 with the first
    pause. However the recording is cut, the utterances are the same."""
    samples = tones(SPELLED)
    expected = utterances(samples, len(samples), EndpointRules(silence=silence), beam)
    assert [found.text for found in expected] == texts
    for size in (320, 7001):
        assert utterances(samples, size, EndpointRules(silence=silence), beam) == expected


def test_an_utterance_ends_while_nobody_speaks() -> None:
    """As soon as the pause is long enough, and not when speech goes on."""
    stream = tone_recogniser().stream(RATE, endpoint=EndpointRules(silence=1))
    stream.feed(tones("ab..........")[: round(1.1 * RATE)])
    assert (stream.text, stream.utterances()) == ("ab", [])
    stream.feed(tones("......"))
    assert stream.text == ""
    assert [found.text for found in stream.utterances()] == ["ab"]
    assert stream.accept(tones("c.")) == "c"
    assert stream.finish() == "c"
    (last,) = stream.utterances()
    assert last.words[0].start == pytest.approx(1.7)


@pytest.mark.parametrize("beam", [1, 3])
def test_long_utterances_end_before_a_word(beam: int) -> None:
    text = "ab ca cab ba bac ab ca b ac bab ca ba"
    rules = EndpointRules(silence=100, longest=1)
    found = utterances(tones(text), 4000, rules, beam)
    assert " ".join(transcript.text for transcript in found) == text
    words = [word for transcript in found for word in transcript.words]
    for word, (spelled, start, end) in zip(words, expected_words(text), strict=True):
        assert word[:3] == (spelled, pytest.approx(start), pytest.approx(end))
    assert len(found) > 2
    for transcript in found[:-1]:
        assert len(transcript.words) > 1
        assert transcript.words[-1].end - transcript.words[0].start < 1 + 0.32 + FRAME
        assert len(transcript.alternatives) == 1
    assert utterances(tones(text), 160, rules, beam) == found


def test_an_utterance_of_one_long_word_is_cut() -> None:
    text = "abcabcacbabcacbabcabcbabcabcabacb"
    found = utterances(tones(text, "abc"), 4000, EndpointRules(silence=100, longest=1), symbols="abc")
    assert len(found) > 2
    assert "".join(transcript.text for transcript in found) == text


def test_a_stream_finishes_once() -> None:
    stream = tone_recogniser().stream(RATE)
    stream.feed(tones("ab"))
    text = stream.finish()
    for call in (stream.finish, lambda: stream.feed(tones("c")), lambda: stream.accept(tones("c"))):
        with pytest.raises(ValueError, match=r"^the stream has finished; Recogniser\.stream begins another$"):
            call()
    (utterance,) = stream.utterances()
    assert utterance.text == text


def test_nothing_said_is_no_utterance() -> None:
    silence = tones("....")
    assert utterances(silence, 4000, EndpointRules()) == []
    assert utterances(tones("....  .... .."), 4000, EndpointRules(silence=0.1)) == []
    stream = tone_recogniser().stream(RATE)
    stream.feed(silence)
    assert stream.finish() == ""
    (empty,) = stream.utterances()
    assert empty == Transcript("", (), (Alternative("", empty.alternatives[0].score),))


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"silence": 0}, "silence is 0; it must be at least 0.1"),
        ({"silence": "1"}, "silence is '1'; it must be a number"),
        ({"longest": math.nan}, "longest is nan; it must be at least 1"),
    ],
)
def test_rules_that_cannot_be(values: dict[str, Any], message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=re.escape(message)):
        EndpointRules(**values)


@pytest.mark.parametrize("beam", [1, 3])
def test_cues_of_utterances_that_end_for_their_length_do_not_overlap(beam: int) -> None:
    """The first ends 0.38 s before the next word; the second 0.08 s before what has been heard, 1.6 s."""
    found = utterances(tones("a.. bc..abcabcabcabc"), 4000, EndpointRules(longest=1), beam)
    assert [transcript.text for transcript in found] == ["a", "bcabcabcab", "cabc"]
    assert [transcript.pause for transcript in found] == pytest.approx([0.38, 0.08, 1.2])
    write = TranscriptLines("srt")
    cues = [list(write(Path("a.wav"), transcript))[1].split(" --> ") for transcript in found]
    for (_, end), (start, _) in pairwise(cues):
        assert end <= start


def test_cues_whose_words_share_a_frame_do_not_overlap() -> None:
    """The last symbol of one and the first of the next were emitted in one encoder frame."""
    recogniser = tone_recogniser()
    stream = recogniser.stream(RATE, endpoint=EndpointRules())
    a, space, b = recogniser.tokenizer.encode("a b")
    for stamps in ([0, 120, 168, 168], [0, 120, 167, 168], [0, 120, 160, 168]):
        stream._certain = Hypothesis([a, b, space, a], 0.0, stamps, [-0.1] * 4)
        stream._cut(3)
        stream._end_utterance()
        found = stream.utterances()
        assert [transcript.text for transcript in found] == ["ab", "a"]
        write = TranscriptLines("srt")
        (_, end), (start, _) = ([*write(Path("a.wav"), transcript)][1].split(" --> ") for transcript in found)
        assert end <= start == "00:00:03,360"
        assert found[0].words[-1].end <= found[1].words[0].start == pytest.approx(3.36)


def test_words_of_utterances_that_end_for_their_length_do_not_overlap() -> None:
    """Nor where the delays of the model, which move beginnings further than ends, would have them do so."""
    recogniser = tone_recogniser()
    recogniser.delays = WordDelays(0.25, 0.1)
    stream = recogniser.stream(RATE, endpoint=EndpointRules())
    a, space, b = recogniser.tokenizer.encode("a b")
    stream._certain = Hypothesis([a, space, b, space, a], 0.0, [100, 110, 120, 122, 124], [-0.1] * 5)
    stream._cut(4)
    stream._end_utterance()
    first, second = stream.utterances()
    assert first.words[-1].end == second.words[0].start
    assert first.pause == 0


# Formats

WORDS = (Word("one", 0.04, 0.32, 0.91234), Word("two", 3661.2, 3661.48, 1.0))
FOUND = Transcript("one two", WORDS, (Alternative("one two", -1.23456), Alternative("one too", -2.0)))
EMPTY = Transcript("", (), (Alternative("", -0.5),))


def lines(name: str, nbest: int = 1) -> list[str]:
    write = TranscriptLines(name, nbest)
    audio = Path("talks/the  first.wav")
    return [line for found in (FOUND, EMPTY, FOUND) for line in write(audio, found)]


def test_text() -> None:
    assert lines("text") == ["one two", "", "one two"]
    assert lines("text", 2) == ["-1.235\tone two", "-2.000\tone too", "-0.500\t", *lines("text", 2)[:2]]


def test_json_lines() -> None:
    first, empty, _ = (json.loads(line) for line in lines("jsonl"))
    words = [
        {"word": "one", "start": 0.04, "end": 0.32, "confidence": 0.9123},
        {"word": "two", "start": 3661.2, "end": 3661.48, "confidence": 1.0},
    ]
    audio = "talks/the  first.wav"
    expected = {"audio_filepath": audio, "text": "one two", "start": 0.04, "end": 3661.48, "confidence": 0.9562}
    assert first == {**expected, "words": words}
    nothing = {"text": "", "start": None, "end": None, "confidence": None, "words": []}
    assert empty == {"audio_filepath": audio, **nothing}
    first, empty, _ = (json.loads(line) for line in lines("jsonl", 2))
    assert first["nbest"] == [{"text": "one two", "score": -1.235}, {"text": "one too", "score": -2.0}]
    assert empty["nbest"] == [{"text": "", "score": -0.5}]


def test_json_lines_have_no_other_numbers_than_json() -> None:
    """A model whose outputs overflow has probabilities that are not numbers."""
    odd = Transcript("one", (Word("one", 0.0, 1.0, math.nan),), (Alternative("one", -math.inf), Alternative("", -1.0)))
    (line,) = TranscriptLines("jsonl", 2)(Path("a.wav"), odd)
    entry = json.loads(line, parse_constant=pytest.fail)
    assert (entry["confidence"], entry["words"][0]["confidence"], entry["nbest"][0]["score"]) == (None, None, None)


def test_ctm() -> None:
    assert lines("ctm")[:2] == ["the_first 1 0.04 0.28 one 0.9123", "the_first 1 3661.20 0.28 two 1.0000"]
    assert len(lines("ctm")) == 4


def test_subrip() -> None:
    cue = ["00:00:00,040 --> 01:01:01,480", "one two", ""]
    assert lines("srt") == ["1", *cue, "2", *cue]


@pytest.mark.parametrize(("pause", "end"), [(-0.08, "200"), (0.0, "280"), (0.3, "580"), (1.2, "999"), (5.0, "999")])
def test_a_cue_stays_as_long_as_the_pause_allows(pause: float, end: str) -> None:
    word = Word("one", 3.999, 4.28, 1.0)
    write = TranscriptLines("srt")
    short = Transcript("one", (word,), (Alternative("one", -1.0),), pause)
    assert list(write(Path("a.wav"), short))[1] == f"00:00:03,999 --> 00:00:04,{end}"


# The commands


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    return save(tone_recogniser(), tmp_path / "model.ckpt")


@pytest.fixture
def recording(tmp_path: Path) -> Path:
    soundfile.write(tmp_path / "talk.wav", tones(SPELLED), RATE, subtype="FLOAT")
    return tmp_path / "talk.wav"


def printed(capsys: pytest.CaptureFixture[str], *arguments: object) -> list[str]:
    assert main([str(argument) for argument in arguments]) == 0
    output = capsys.readouterr()
    assert output.err == ""
    return output.out.splitlines()


@pytest.mark.parametrize("beam", [1, 3])
def test_transcribe_in_every_format(
    checkpoint: Path, recording: Path, capsys: pytest.CaptureFixture[str], beam: int
) -> None:
    expected = utterances(tones(SPELLED), 4000, EndpointRules(silence=0.3, longest=5), beam)
    assert len(expected) == 4
    command = ["transcribe", checkpoint, recording, "--beam", beam, "--endpoint-silence", "0.3"]
    command += ["--endpoint-length", "5", "--format"]
    for name in ("text", "jsonl", "ctm", "srt"):
        write = TranscriptLines(name)
        wanted = [line for transcript in expected for line in write(recording, transcript)]
        assert printed(capsys, *command, name) == wanted
    if beam > 1:
        for name in ("text", "jsonl"):
            write = TranscriptLines(name, 2)
            wanted = [line for transcript in expected for line in write(recording, transcript)]
            assert printed(capsys, *command, name, "--nbest", 2) == wanted
    assert printed(capsys, *command, "text", "--stream")[-len(expected) :] == [found.text for found in expected]


def test_transcribe_defaults(checkpoint: Path, recording: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A recording is an utterance; SubRip has the rules' defaults; several recordings come one after the other."""
    assert printed(capsys, "transcribe", checkpoint, recording) == [TEXT]
    assert printed(capsys, "transcribe", checkpoint, recording, recording) == [TEXT, TEXT]
    expected = utterances(tones(SPELLED), 4000, EndpointRules())
    assert len(expected) == 2
    assert printed(capsys, "transcribe", checkpoint, recording, "--endpoint") == [found.text for found in expected]
    assert printed(capsys, "transcribe", checkpoint, recording, "--format", "srt")[2::4] == [
        found.text for found in expected
    ]
    for flag in ("--accelerator", "--device"):
        for value in ("cpu", "auto"):
            assert printed(capsys, "transcribe", checkpoint, recording, flag, value) == [TEXT]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--nbest", 2], "--nbest is 2; it must be at most --beam, 1"),
        (["--nbest", 2, "--beam", 2, "--format", "ctm"], "--nbest is 2; the format ctm holds one hypothesis"),
        (["--phrase-score", 2], "--phrase-score needs --phrases"),
        (["--lm-weight", 2], "--lm-weight needs --lm"),
        (["--lm-bonus", -1], "--lm-bonus needs --lm"),
        (["--lm", "a", "--phrases", "b"], "--phrases and --lm are given; take one of the two"),
        (["--microphone"], "recordings and --microphone are given; take one of the two"),
        (["--input-device", 2], "--input-device is for --microphone"),
        (["--stream", "--format", "srt"], "--stream prints a table of times, which does not go with --format srt"),
        (["{}", "--format", "srt"], "--format srt is for one recording; there are 2"),
        (["missing.wav"], "missing.wav: no such file"),
    ],
)
def test_options_that_do_not_go_together(
    checkpoint: Path, recording: Path, capsys: pytest.CaptureFixture[str], arguments: list[object], message: str
) -> None:
    given = [recording if argument == "{}" else argument for argument in arguments]
    assert refused(capsys, "transcribe", checkpoint, recording, *given) == message
    assert capsys.readouterr().out == ""


def test_no_recording_after_the_checkpoint(recording: Path, capsys: pytest.CaptureFixture[str]) -> None:
    message = f"there is no recording after the checkpoint, {recording}; name one, or --microphone"
    assert refused(capsys, "transcribe", recording, "--format", "srt") == message


# Phrases


def test_phrases_of_a_file(tmp_path: Path) -> None:
    tokenizer = CharTokenizer("abc ")
    path = tmp_path / "phrases.txt"
    path.write_text("\ufeffab  c :2.5\n\n  ba\nc\t:1e1\n", encoding="utf-8")
    found = read_phrases(path, tokenizer, 4.0)
    expected = PhraseBias([[1, 2, 4, 3], [2, 1], [3]], [2.5, 4.0, 10.0], 5)
    for ours, theirs in zip(found.tables(torch.device("cpu")), expected.tables(torch.device("cpu")), strict=True):
        assert torch.equal(ours, theirs)


@pytest.mark.parametrize("beam", [1, 3])
@pytest.mark.parametrize("extra", [[], ["--stream"]])
def test_phrases_are_preferred(
    checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], extra: list[str], beam: int
) -> None:
    soundfile.write(tmp_path / "short.wav", tones("..ab c."), RATE, subtype="FLOAT")
    command = ["transcribe", checkpoint, tmp_path / "short.wav", "--beam", beam, *extra]
    path = tmp_path / "phrases.txt"
    assert printed(capsys, *command)[-1] == "ab c"
    path.write_text("bbb :60\n")
    biased = printed(capsys, *command, "--phrases", path)[-1]
    assert "bbb" in biased
    bias = PhraseBias([[2, 2, 2]], 60.0, 5)
    assert biased == tone_recogniser().transcribe(tones("..ab c."), RATE, beam, bias=bias)
    path.write_text("bbb\n")
    assert printed(capsys, *command, "--phrases", path, "--phrase-score", 60)[-1] == biased
    assert printed(capsys, *command, "--phrases", path)[-1] == "ab c"


@pytest.mark.parametrize(
    ("contents", "message"),
    [
        (b"", "{}: the file has no phrase"),
        (b"\n \n", "{}: the file has no phrase"),
        (b"\xff\xfe", "{}: not text in UTF-8"),
        (b"ab\nxa", "{}, line 2: the text has 'x', which is not among the characters 'ab c'"),
        (b"ab :fast", "{}, line 1: the score is fast; it must be a number of more than 0 and at most 1000"),
        (b"ab :-1", "{}, line 1: the score is -1; it must be a number of more than 0 and at most 1000"),
        (b"ab :nan", "{}, line 1: the score is nan; it must be a number of more than 0 and at most 1000"),
    ],
)
def test_files_of_phrases_that_cannot_be_used(
    checkpoint: Path, recording: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], contents: bytes, message: str
) -> None:
    path = tmp_path / "phrases.txt"
    path.write_bytes(contents)
    for command in (
        ["transcribe", checkpoint, recording],
        ["evaluate", checkpoint, write_corpus(tmp_path, "t", ["a"])],
    ):
        assert refused(capsys, *command, "--beam", 2, "--phrases", path) == message.format(path)
    assert refused(capsys, *command, "--beam", 2, "--phrases", tmp_path) == f"{tmp_path}: not a file"


def test_phrases_of_pieces(tmp_path: Path) -> None:
    tokenizer = train_pieces(["one two nine", "nine one two one"], 14)
    path = tmp_path / "phrases.txt"
    path.write_text("two one :3\n")
    expected = PhraseBias([tokenizer.encode("two one")], 3.0, len(tokenizer))
    found = read_phrases(path, tokenizer, 4.0)
    for ours, theirs in zip(found.tables(torch.device("cpu")), expected.tables(torch.device("cpu")), strict=True):
        assert torch.equal(ours, theirs)


# Language models


def arpa(unigrams: str, more: str = "") -> str:
    lines = "\n".join(f"-1\t{word}\t-0.1" for word in unigrams.split())
    return f"\\data\\\n\n\\1-grams:\n{lines}\n{more}\n\\end\\\n"


@pytest.mark.parametrize("beam", [1, 3])
@pytest.mark.parametrize("extra", [[], ["--stream"], ["--endpoint"]])
def test_a_language_model_is_added(
    checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], extra: list[str], beam: int
) -> None:
    recording = tmp_path / "short.wav"
    soundfile.write(recording, tones("..ab c."), RATE, subtype="FLOAT")
    command = ["transcribe", checkpoint, recording, "--beam", beam, *extra]
    path = tmp_path / "lm.arpa"
    path.write_text(arpa("<s> </s> <unk> a b c \u2581", "\\2-grams:\n-0.01\tb b\n-9\tb \u2581\n"), encoding="utf-8")
    assert printed(capsys, *command, "--lm", path, "--lm-weight", 1e-3)[-1] == "ab c"
    options = ["--lm-weight", 20, "--lm-bonus", 50]
    changed = printed(capsys, *command, "--lm", path, *options)[-1]
    assert "bbb" in changed
    recogniser = tone_recogniser()
    bias = read_language_model(path, recogniser.tokenizer, 20.0, 50.0)
    assert changed == recogniser.transcribe(tones("..ab c."), RATE, beam, bias=bias)
    both = printed(capsys, "transcribe", checkpoint, recording, recording, *command[3:], "--lm", path, *options)
    assert both[-1] == changed


def test_evaluate_takes_a_language_model(checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    soundfile.write(tmp_path / "short.wav", tones("..ab c."), RATE, subtype="FLOAT")
    (tmp_path / "m.jsonl").write_text(json.dumps({"audio_filepath": "short.wav", "text": "ab c", "duration": 0.7}))
    (tmp_path / "lm.arpa").write_text(arpa("<unk> a b c \u2581", "\\2-grams:\n-0.01\tb b\n"), encoding="utf-8")
    command = ["evaluate", checkpoint, tmp_path / "m.jsonl"]
    assert "WER 0.00 %" in printed(capsys, *command)[0]
    assert "WER 0.00 %" not in printed(capsys, *command, "--lm", tmp_path / "lm.arpa", "--lm-bonus", 50)[0]


@pytest.mark.parametrize(
    ("contents", "message"),
    [
        ("", "{} is no ARPA file: it has no section of n-grams"),
        ("\\data\\\n\\1-grams:\n-1 a\nx b\n", "{}, line 4: 'x b' has no number where one must be"),
        (arpa("a b c"), "{} has no 1-gram of '\u2581', symbol 3, and no <unk>"),
        (
            arpa("<unk> a the of and"),
            "{} has 1-grams of 1 of the characters 'ab c'; "
            "it must be a model over the tokenizer's symbols, not over words",
        ),
    ],
)
def test_language_models_that_cannot_be_used(
    checkpoint: Path, recording: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], contents: str, message: str
) -> None:
    path = tmp_path / "lm.arpa"
    path.write_text(contents, encoding="utf-8")
    assert refused(capsys, "transcribe", checkpoint, recording, "--lm", path) == message.format(path)
    assert refused(capsys, "transcribe", checkpoint, recording, "--lm", tmp_path) == f"{tmp_path}: not a file"
    missing = tmp_path / "missing.arpa"
    assert refused(capsys, "transcribe", checkpoint, recording, "--lm", missing) == f"{missing}: no such file"


def test_a_language_model_over_pieces_with_unk(tmp_path: Path) -> None:
    """The piece <unk>, which no transcript has, has the probability of the file's <unk>, and so have pieces that the
    file lacks."""
    tokenizer = train_pieces(["one two nine", "nine one two one"], 14)
    path = tmp_path / "lm.arpa"
    path.write_text(arpa(" ".join(tokenizer.symbols[1:-1])), encoding="utf-8")
    _, gains, _ = read_language_model(path, tokenizer, 0.5).tables(torch.device("cpu"))
    assert gains[0, 1:].tolist() == pytest.approx([-0.5 * math.log(10)] * (len(tokenizer) - 1))


# The microphone


class PortAudioError(Exception):
    pass


class FakeMicrophone:
    """sounddevice.InputStream: a recording in pieces, then Ctrl-C."""

    samples = tones(SPELLED)
    made: ClassVar[list[dict[str, Any]]] = []

    def __init__(self, **options: Any) -> None:
        self.made.append(options)
        self.place = 0
        if options["device"] == "none":
            raise ValueError("No input device matching 'none'")
        if options["device"] == 7:
            raise PortAudioError("Invalid sample rate [PaErrorCode -9997]")

    def __enter__(self) -> FakeMicrophone:
        return self

    def __exit__(self, *_: object) -> None:
        self.made.append({"closed": True})

    def read(self, count: int) -> tuple[np.ndarray, bool]:
        piece = self.samples[self.place : self.place + count]
        if len(piece) == 0:
            raise KeyboardInterrupt
        self.place += count
        return piece[:, None], self.place == 3 * count


@pytest.fixture
def microphone(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("sounddevice")
    module.InputStream = FakeMicrophone  # type: ignore[attr-defined]
    module.PortAudioError = PortAudioError  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "sounddevice", module)
    monkeypatch.setattr(FakeMicrophone, "made", [])


@pytest.mark.usefixtures("microphone")
def test_a_microphone(checkpoint: Path, capsys: pytest.CaptureFixture[str]) -> None:
    expected = utterances(tones(SPELLED), 4000, EndpointRules(silence=0.3))
    assert len(expected) == 4
    command = ["transcribe", str(checkpoint), "--microphone", "--endpoint-silence", "0.3", "--input-device", "3"]
    assert main(command) == 0
    output = capsys.readouterr()
    assert output.out.splitlines() == [found.text for found in expected]
    assert output.err == "prnn: samples were lost, since recognition is slower than speech\n"
    options, closed = FakeMicrophone.made
    assert options == {"samplerate": RATE, "channels": 1, "dtype": "float32", "device": 3}
    assert closed == {"closed": True}
    assert main([*command, "--format", "jsonl"]) == 0
    entries = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [entry["text"] for entry in entries] == [found.text for found in expected]
    assert entries[0]["audio_filepath"] == "3"


@pytest.mark.usefixtures("microphone")
def test_a_microphone_that_cannot_be_used(
    checkpoint: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    command = ["transcribe", checkpoint, "--microphone", "--input-device"]
    for device, reason in (
        ("none", "No input device matching 'none'"),
        ("7", "Invalid sample rate [PaErrorCode -9997]"),
    ):
        assert refused(capsys, *command, device) == f"the microphone cannot be used: {reason}"
    monkeypatch.setitem(sys.modules, "sounddevice", None)
    message = refused(capsys, *command, "3")
    assert message == "the package sounddevice is not installed; pip install sounddevice brings it"
