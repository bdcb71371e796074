"""The calls of the cuDNN backend, without a GPU: the backend compiled against a fake runtime and a fake cuDNN."""

import os
import pathlib
import re
import subprocess

import pytest

ROOT = pathlib.Path(__file__).resolve().parent.parent
SOURCES = [
    *(f"src/rnn/cudnn/{name}.cc" for name in ("backend", "memory", "stack", "weights")),
    "src/rnn/plan/cudnn_algorithm.cc",
    *(f"src/core/cuda/{name}.cc" for name in ("cudnn", "cudnn_library")),
    *(
        "src/core/descriptors.cc",
        "src/core/enums.cc",
        "src/core/last_error.cc",
        "src/core/status.cc",
        "src/rnn/layout.cc",
        "src/rnn/problem.cc",
        "tests/c/cudnn_calls.cc",
    ),
]
RUNTIME = "inline int cudaGetDevice(int* device) { return *device = 0; }\ninline int cudaSetDevice(int) { return 0; }\n"
LSTM, GRU = 2, 3


class Fake:
    """The program and the fake library."""

    def __init__(self, folder: pathlib.Path) -> None:
        self.program, self.library = folder / "calls", folder / "libfake.so"
        (folder / "cuda_runtime_api.h").write_text(f"#pragma once\n{RUNTIME}")
        options = ["g++", "-std=c++17", "-O0", "-Wall", "-Wextra", f"-I{folder}"]
        options += [f"-I{ROOT / name}" for name in ("src", "include")]
        for command in (
            [*options, *(ROOT / source for source in SOURCES), "-o", self.program, "-ldl"],
            [*options, "-shared", "-fPIC", ROOT / "tests/c/fake_cudnn.cc", "-o", self.library],
        ):
            subprocess.run(list(map(str, command)), check=True)

    def run(self, steps: str, **environment: str) -> list[str]:
        """The lines that the program prints."""
        environment = {**os.environ, "PRNN_CUDNN_LIBRARY": str(self.library), "LD_PRELOAD": "", **environment}
        command = [str(self.program), *steps.split()]
        text = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout
        return text.splitlines()


@pytest.fixture(scope="module")
def fake(tmp_path_factory: pytest.TempPathFactory) -> Fake:
    return Fake(tmp_path_factory.mktemp("cudnn_calls"))


def verbs(lines: list[str]) -> list[str]:
    return [line.split()[0].rstrip(",:") for line in lines]


STACKS = {
    "lstm": f"mode={LSTM}",
    "stack": f"mode={LSTM} layers=12",
    "projected": f"mode={LSTM} layers=3 projection=4",
    "both directions": f"mode={GRU} layers=2 directions=2",
    "skip": f"mode={GRU} layers=2 skip=1",
    "relu": "mode=0 layers=2",
}


@pytest.mark.parametrize("stack", STACKS.values(), ids=STACKS)
def test_one_call_for_the_stack_and_no_copy(fake: Fake, stack: str) -> None:
    lines = fake.run(f"{stack} train infer")
    assert verbs(lines) == ["train", "data", "weights", "dw", "infer", "left"]
    layers = re.search(r"layers=(\d+)", stack)
    assert f"layers {layers[1] if layers else 1} " in lines[0]
    assert lines[2].startswith("weights, added")
    assert lines[-1] == "left 0"


@pytest.mark.parametrize("stack", STACKS.values(), ids=STACKS)
def test_another_layout_of_the_weights_is_gathered_and_scattered(fake: Fake, stack: str) -> None:
    """cuDNN then sees the same weights, and the same gradients come out, by copies."""
    expected = [line for line in fake.run(f"{stack} train") if not line.startswith("copy")]
    found = fake.run(f"{stack} train", FAKE_CUDNN_LAYOUT="gaps")
    assert "copy" in verbs(found)
    assert [line for line in found if not line.startswith("copy")] == expected


def test_nothing_is_made_anew_for_a_call_like_an_earlier_one(fake: Fake) -> None:
    lines = fake.run("layers=3 9,7,3 train count train infer train count")
    made = [line for line in lines if line.startswith("made")]
    assert made[0] == made[1]
    assert lines[-1] == "left 0"


def test_other_lengths_make_the_descriptors_of_sequences_alone(fake: Fake) -> None:
    lines = fake.run("layers=3 9,7,3 infer count 9,9,1 infer count 9,7,3 infer count")
    made = [int(line.split()[1]) for line in lines if line.startswith("made")]
    assert made[1] - made[0] == 4  # x, y, h, c
    assert made[2] == made[1]
    assert [line[line.index("lengths") :].split(" states")[0] for line in lines if line.startswith("infer")] == [
        "lengths 9 7 3",
        "lengths 9 9 1",
        "lengths 9 7 3",
    ]


def test_old_stacks_are_let_go(fake: Fake) -> None:
    steps = " ".join(f"{length} infer" for length in range(10, 110))
    lines = fake.run(f"{steps} count 10 infer count")
    made = [int(line.split()[1]) for line in lines if line.startswith("made")]
    assert made[1] - made[0] == 4
    assert lines[-1] == "left 0"


def test_cudnn_drops_out_with_states_that_follow_from_the_draw(fake: Fake) -> None:
    lines = fake.run("layers=3 dropout=25 train")
    assert verbs(lines) == ["draw", "seed", "train", "data", "weights", "dw", "left"]
    assert lines[1] == "seed 480"
    assert "dropout 0.25" in lines[2]
    assert "states seeded" in lines[2]


def test_inference_drops_nothing(fake: Fake) -> None:
    (line, _) = fake.run("layers=3 dropout=25 infer")
    assert "layers 3 " in line
    assert "dropout 0 " in line


def test_layer_after_layer_where_the_states_are_unknown(fake: Fake) -> None:
    """prnn's masks then; the weights of a layer are no weight space, so that they are copied."""
    lines = fake.run("layers=3 dropout=25 train", FAKE_UNKNOWN_STATES="1")
    kinds = [verb for verb in verbs(lines) if verb not in ("copy", "dw", "left")]
    assert kinds == ["draw", *["train", "drop"] * 2, "train", *["data", "drop"] * 2, "data", *["weights"] * 3]
    assert [line for line in lines if line.startswith("drop")] == [
        f"drop after layer {layer} of 48 elements" for layer in (0, 1, 1, 0)
    ]
    whole = fake.run("layers=3 train")
    assert next(line for line in lines if line.startswith("dw")).count(":") == whole[3].count(":")
    shown = [line.split("weights ")[1] for line in lines if line.startswith("train")]
    assert " ".join(shown) == whole[0].split("weights ")[1]
    assert lines[-1] == "left 0"


def test_double_with_dropout_is_refused_where_the_states_are_unknown(fake: Fake) -> None:
    lines = fake.run("type=1 layers=3 dropout=25 train", FAKE_UNKNOWN_STATES="1")
    assert lines[0].startswith("9: dropout between layers of type double")


@pytest.mark.parametrize(
    ("steps", "expected"),
    [
        ("type=0", "type 0 precision 0 math 3"),  # true float32
        ("type=0 tf32=1", "type 0 precision 0 math 0"),
        ("type=1", "type 1 precision 1 math 0"),
    ],
)
def test_precision(fake: Fake, steps: str, expected: str) -> None:
    assert expected in fake.run(f"{steps} infer")[0]


def test_a_call_with_another_precision_is_another_one(fake: Fake) -> None:
    lines = fake.run("infer tf32=1 infer tf32=0 infer")
    assert [re.search(r"math (\d)", line)[1] for line in lines[:3]] == ["3", "0", "3"]


def test_weights_that_are_not_aligned_are_refused(fake: Fake) -> None:
    assert re.match(r"9: w is at 0x\w+; cuDNN takes weights that are aligned to 16 bytes", fake.run("misaligned")[0])


STANDARD, STATIC, SMALL_H = 0, 1, 3


def algorithms(lines: list[str]) -> list[int]:
    """Returns the calls' algorithms: forward, data gradient, weight gradient."""
    return [int(line.split("algorithm ")[1].split()[0]) for line in lines if "algorithm" in line]


@pytest.mark.parametrize(
    ("steps", "algorithm"),
    [
        (f"mode={LSTM} hidden=64", SMALL_H),
        (f"mode={LSTM} hidden=128 {','.join(['20'] * 488)}", SMALL_H),
        (f"mode={LSTM} hidden=128 {','.join(['20'] * 489)}", STANDARD),
        (f"mode=1 hidden=256 {','.join(['20'] * 366)}", SMALL_H),
        (f"mode=1 hidden=256 {','.join(['20'] * 367)}", STANDARD),
        (f"mode={LSTM} hidden=16 1,1", STANDARD),  # loading the weights takes longer than a timestep
        (f"mode={LSTM} hidden=48 2,2", SMALL_H),
        (f"mode={LSTM} hidden=128 5,5", STANDARD),
        (f"mode={LSTM} hidden=128 6,6", SMALL_H),
        (f"mode={LSTM} hidden=128 {','.join('6' * 64)}", STANDARD),
        ("mode=1 hidden=128 3,3", STANDARD),
        ("mode=1 hidden=128 4,4", SMALL_H),
        (f"mode={LSTM} hidden=129", STANDARD),
        ("mode=1 hidden=257", STANDARD),
        (f"mode={LSTM} hidden=192 type=2 5,5,5", STATIC),
        (f"mode={LSTM} hidden=192 type=2 4,4,4", STATIC),
        (f"mode={LSTM} hidden=192 type=2 3,3,3", STANDARD),
        (f"mode={LSTM} hidden=256 5", STATIC),  # one sequence in float
        (f"mode={LSTM} hidden=256 5,5", STANDARD),
        (f"mode={LSTM} hidden=256 type=2 5,5", STATIC),
        (f"mode={GRU} hidden=256 type=2 {','.join('5' * 16)}", STANDARD),
        (f"mode={LSTM} hidden=256 type=2 {','.join('5' * 16)}", STATIC),
        (f"mode={LSTM} hidden=256 type=2 {','.join('5' * 9)}", STANDARD),
        (f"mode={LSTM} hidden=256 type=2 layers=2", STANDARD),
        (f"mode={LSTM} hidden=256 type=9", STANDARD),
        (f"mode={LSTM} hidden=64 type=1", STANDARD),
        (f"mode={LSTM} hidden=64 5,4", STANDARD),
        (f"mode={LSTM} hidden=64 projection=32", STANDARD),
    ],
)
def test_algorithms(fake: Fake, steps: str, algorithm: int) -> None:
    assert algorithms(fake.run(f"{steps} train")) == [algorithm] * 3


def test_an_older_gpu_has_the_standard_algorithm(fake: Fake) -> None:
    lines = fake.run(f"mode={LSTM} hidden=256 type=2 train", FAKE_ARCH="86")
    assert algorithms(lines) == [STANDARD] * 3


def test_an_algorithm_that_cudnn_refuses_is_not_insisted_on(fake: Fake) -> None:
    lines = fake.run(f"mode={LSTM} hidden=64 train", FAKE_CUDNN_REFUSE_ALGORITHM=str(SMALL_H))
    assert algorithms(lines) == [STANDARD] * 3
    assert lines[-1] == "left 0"


def test_batches_with_other_algorithms_do_not_share_layers(fake: Fake) -> None:
    assert algorithms(fake.run("hidden=64 5,5 infer 5,4 infer 3,3 infer")) == [SMALL_H, STANDARD, SMALL_H]


def test_room_for_the_inputs_gradient_and_for_random_states_is_one_place(fake: Fake) -> None:
    sizes = fake.run("dx=1 size dx=0 size dropout=25 dx=1 layers=3 size dx=0 hidden=64 size")[:-1]
    scratch = 1000 + 256, 3 * 1000 + 256  # of one layer and of three, each with room to align it
    other = [-(-size // 16) * 16 + 256 for size in scratch]
    assert [int(line.split()[1]) for line in sizes] == [
        scratch[0],
        other[0] + 6 * 8 * 4,  # rows, inputs
        other[1] + 480,
        other[1] + 6 * 64 * 4,
    ]
    lines = fake.run("dx=1 layers=3 dropout=25 train")
    assert verbs(lines) == ["draw", "seed", "train", "data", "weights", "dw", "left"]


def test_a_size_that_cannot_be(fake: Fake) -> None:
    line, left = fake.run("train", FAKE_CUDNN_OVERFLOW="1")
    assert re.match(r"\d+: cuDNN wants a workspace of 18446744073709551360 bytes for 6 rows", line)
    assert left == "left 0"


@pytest.mark.parametrize("function", ["cudnnCreate", "cudnnCreateDropoutDescriptor", "cudnnRNNForward"])
def test_what_cudnn_refuses_leaves_nothing_behind(fake: Fake, function: str) -> None:
    lines = fake.run("infer infer", FAKE_CUDNN_REFUSE=function)
    assert re.match(r"\d+: cuDNN refused ", lines[0])
    assert lines[0] == lines[1]
    assert lines[-1] == "left 0"
