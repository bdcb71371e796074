"""Plans of stacks that run as a wavefront by chunks: prnnQueryRNNForGPU and prnnQueryRNNSequence."""

import ctypes
import pathlib
import re

import capi
import pytest
from rnn_case import dropout_descriptor
from test_rnn_query import GPUS, Info, Layer

LSTM, GRU, RNN_TANH = 2, 3, 1  # prnnRNNMode_t
CHUNKED, MMA = b"wavefront-chunked", b"wavefront-mma"
LOGS = pathlib.Path(__file__).parents[1] / "build/release/ptxas/rnn/cuda/instances"


def plan(gpu: str = "H200", projection: int = 0, **arguments: int) -> Info:
    layer = Layer(**({"hidden": 1024, "layers": 5} | arguments))
    capi.check("SetRNNProjectionSize", rnnDesc=layer.rnn.pointer, projSize=projection)
    return layer.query_gpu(gpu)


# What does not depend on a projection.
LAYOUT = ["forwardEngine", "backwardEngine", "blocks", "replicas", "unitsPerBlock", "batchPerPass", "registerBytes"]
LAYOUT += ["sharedBytes", "layersTogether", "layersTogetherBackward", "layersTogetherInference", "layersReason"]


@pytest.mark.parametrize("data_type", [capi.HALF, capi.BFLOAT16])
@pytest.mark.parametrize("batch", range(2, 9))
def test_a_layer_has_a_share_of_the_gpu(batch: int, data_type: int) -> None:
    info = plan(batch=batch, data_type=data_type)
    assert (info.forwardEngine, info.engineReason) == (CHUNKED, b"")
    assert (info.layersTogether, info.layersTogetherInference) == (5, 5)
    assert (info.blocks, info.unitsPerBlock, info.replicas, info.batchPerPass) == (26, 40, 1, 8)
    # 80 operands of 16 rows and 16 elements of K a warp, and nothing of the input matrices.
    assert info.registerBytes == 26 * 8 * 39 * 512
    assert info.registerBytes + info.sharedBytes == 26 * 40 * 4 * 1024 * 2
    assert (info.backwardEngine, info.layersTogetherBackward, info.layersReason) == (CHUNKED, 5, b"")


@pytest.mark.parametrize(
    ("hidden", "layers", "together", "blocks", "units"),
    [
        (1024, 3, 3, 43, 24),
        (1024, 4, 4, 32, 32),
        (1024, 8, 4, 32, 32),  # launches of as many layers
        (1024, 7, 4, 32, 32),  # or one more
        (1024, 12, 4, 32, 32),
        (1024, 21, 5, 26, 40),
        (960, 5, 5, 24, 40),
        (896, 5, 5, 23, 40),
        (832, 6, 6, 21, 40),
        (704, 7, 7, 18, 40),
        (640, 8, 8, 16, 40),
        (576, 8, 8, 15, 40),
        (576, 9, 5, 24, 24),
    ],
)
def test_how_many_layers_run_together(hidden: int, layers: int, together: int, blocks: int, units: int) -> None:
    info = plan(hidden=hidden, layers=layers)
    assert (info.forwardEngine, info.layersTogether, info.blocks) == (CHUNKED, together, blocks)
    assert info.unitsPerBlock == units
    assert together * blocks <= 132
    assert info.layersTogetherInference == together


@pytest.mark.parametrize("batch", [4, 5, 8])
@pytest.mark.parametrize(
    ("hidden", "layers", "together"),
    [
        (1024, 3, 3),
        (1024, 5, 5),
        (1024, 8, 4),  # launches of as many layers
        (1024, 7, 4),  # or one more
        (1024, 12, 4),
        (1024, 21, 5),
        (960, 5, 5),
        (896, 4, 4),
        (832, 6, 6),  # 11 clusters of 2 blocks a layer
        (832, 7, 4),
    ],
)
def test_how_many_layers_run_together_backward(hidden: int, layers: int, together: int, batch: int) -> None:
    for gpu in ("H100", "H200"):
        info = plan(gpu, hidden=hidden, layers=layers, batch=batch)
        assert (info.backwardEngine == CHUNKED) == (batch == 4 or together > 4)  # else others are as fast
        if info.backwardEngine == CHUNKED:
            assert (info.layersTogetherBackward, info.layersReason) == (together, b"")
        assert together * 2 * -(-hidden // 80) <= 132


@pytest.mark.parametrize("hidden", [576, 640, 704, 768])
def test_smaller_layers_run_backward_as_other_stacks_do(hidden: int) -> None:
    info = plan(hidden=hidden)
    assert (info.forwardEngine, info.backwardEngine) == (CHUNKED, MMA)


@pytest.mark.parametrize(
    "arguments",
    [
        {"layers": 2},
        {"layers": 6},  # in launches of three
        {"layers": 3, "hidden": 640},
        {"layers": 3, "hidden": 704},  # in one launch of three
        {"batch": 1},
        {"batch": 3, "layers": 4},
        {"batch": 9},
        {"hidden": 512},
        {"hidden": 544},  # no multiple of 64
        {"hidden": 1000},
        {"hidden": 1088},
        {"mode": GRU},
        {"mode": RNN_TANH},
        {"data_type": capi.FLOAT},
    ],
    ids=str,
)
def test_other_stacks(arguments: dict[str, int]) -> None:
    info = plan(**arguments)
    assert CHUNKED not in (info.forwardEngine, info.backwardEngine)


@pytest.mark.parametrize("projection", [512, 200, 17])
@pytest.mark.parametrize("batch", [1, 3, 4, 8])
@pytest.mark.parametrize("hidden", [576, 704, 832, 1024])
@pytest.mark.parametrize("layers", [3, 5, 7, 12])
def test_a_projection_changes_nothing_where_stacks_run_so(
    layers: int, hidden: int, batch: int, projection: int
) -> None:
    """Other passes over stacks with a projection run one layer after the other, on what layers alone run on."""
    arguments = {"layers": layers, "hidden": hidden, "batch": batch}
    for gpu in ("H100", "H200"):
        without, with_one = plan(gpu, **arguments), plan(gpu, projection, **arguments)
        alone = plan(gpu, projection, **(arguments | {"layers": 1}))
        assert with_one.supported == 1
        assert (with_one.layersTogether > 1) == (without.forwardEngine == CHUNKED)
        assert (with_one.layersTogetherBackward > 1) == (without.backwardEngine == CHUNKED)
        if without.forwardEngine == without.backwardEngine == CHUNKED:
            assert all(getattr(with_one, name) == getattr(without, name) for name in LAYOUT)
            continue
        if without.forwardEngine != CHUNKED:
            assert (with_one.forwardEngine, with_one.layersTogetherInference) == (alone.forwardEngine, 1)
        if without.backwardEngine != CHUNKED:
            assert with_one.backwardEngine == alone.backwardEngine
        assert b"layers with a projection run together by chunks alone" in with_one.layersReason
        assert with_one.layersReason.startswith(b"backward: ") == (without.forwardEngine == CHUNKED)
        assert with_one.layersReason.endswith(b"compute capability 9.0")


@pytest.mark.parametrize(
    "arguments",
    [
        {"layers": 2},
        {"batch": 9},
        {"hidden": 512},
        {"hidden": 1000},
        {"hidden": 1088},
        {"hidden": 2560},  # both matrices apart
        {"data_type": capi.FLOAT},
    ],
    ids=str,
)
def test_stacks_with_a_projection_that_run_one_after_the_other(arguments: dict[str, int]) -> None:
    for batch in (4, 16):
        info = plan(projection=200, **({"batch": batch} | arguments))
        assert (info.layersTogether, info.layersTogetherBackward, info.layersTogetherInference) == (1, 1, 1)
        assert not info.forwardEngine.startswith(b"wavefront")


def test_dropout_between_layers_with_a_projection_is_of_training() -> None:
    layer = Layer(hidden=1024, layers=5)
    states = ctypes.create_string_buffer(capi.size_from("DropoutGetStatesSize", handle=layer.handle.pointer))
    dropout = dropout_descriptor(layer.handle, 0.2, states, 7)
    layer.sizes["dropoutDesc"] = dropout.pointer
    capi.check("SetRNNDescriptor", rnnDesc=layer.rnn.pointer, inputMode=0, direction=0, **layer.sizes)
    info = layer.query_gpu("H200")
    assert (info.forwardEngine, info.backwardEngine, info.layersTogetherInference) == (CHUNKED, CHUNKED, 5)
    capi.check("SetRNNProjectionSize", rnnDesc=layer.rnn.pointer, projSize=512)
    info = layer.query_gpu("H200")
    assert (info.layersTogether, info.layersTogetherBackward, info.layersTogetherInference) == (1, 1, 5)
    assert (info.forwardEngine, info.backwardEngine) == (b"mma", b"wgmma")
    assert info.layersReason == (
        b"in training, layers with a projection and dropout between them run one after the other"
    )


@pytest.mark.parametrize("gpu", GPUS)
def test_gpus(gpu: str) -> None:
    info = plan(gpu)
    assert (info.forwardEngine == CHUNKED) == (info.backwardEngine == CHUNKED) == (gpu in ("H100", "H200"))


def plan_of(layer: Layer, batch_sizes: list[int]) -> Info:
    hidden = layer.sizes["hiddenSize"]
    x_descs = {batch: capi.tensor([batch, hidden, 1], capi.HALF) for batch in set(batch_sizes)}
    capi.check(
        "QueryRNNSequence",
        handle=None,
        gpu=b"H200",
        rnnDesc=layer.rnn.pointer,
        seqLength=len(batch_sizes),
        xDesc=capi.addresses([x_descs[batch] for batch in batch_sizes]),
        info=ctypes.byref(layer.info),
    )
    return layer.info


@pytest.mark.parametrize("projection", [0, 512])
@pytest.mark.parametrize("batch_sizes", [[4] * 128, [4] * 127, [4] * 64 + [3] * 64, [4] + [1] * 126], ids=str)
def test_few_timesteps_and_lengths(batch_sizes: list[int], projection: int) -> None:
    layer = Layer(hidden=1024, layers=5, batch=4)
    capi.check("SetRNNProjectionSize", rnnDesc=layer.rnn.pointer, projSize=projection)
    info = plan_of(layer, batch_sizes)
    others = (b"mma", b"wgmma") if projection else (MMA, MMA)  # of a layer alone
    by_chunks = len(batch_sizes) >= 128
    assert (info.forwardEngine, info.backwardEngine) == ((CHUNKED, CHUNKED) if by_chunks else others)
    assert info.layersTogetherBackward == (5 if by_chunks else 1 if projection else 2)


@pytest.mark.parametrize("batch", range(2, 9))
@pytest.mark.parametrize(("hidden", "layers"), [(1024, 5), (1024, 4), (832, 6), (832, 3), (640, 8)])
def test_lengths_are_as_one_length(hidden: int, layers: int, batch: int) -> None:
    """The largest batch counts, whatever the others."""
    fields = ("forwardEngine", "backwardEngine", "layersTogether", "layersTogetherBackward", "layersReason")
    found = []
    for batch_sizes in ([batch] * 300, [batch] * 40 + [1] * 260, [batch] + [batch - 1] * 299):
        info = plan_of(Layer(hidden=hidden, layers=layers, batch=batch), batch_sizes)
        found.append([getattr(info, field) for field in fields])
    assert found[0] == found[1] == found[2]


def variables(operation: str) -> list[tuple[int, int]]:
    """Registers of a thread and static shared memory of each kernel; some are of dropout or lengths alone."""
    log = LOGS / f"wavefront_chunked_{operation}_16bit.txt"
    if not log.exists():
        pytest.skip("the CUDA sources were not compiled here (no nvcc, or cuda=off)")
    found = re.findall(r"Used (\d+) registers.*?(?:(\d+) bytes smem)?\n", log.read_text())
    return [(int(registers), int(static or 0)) for registers, static in found]


def test_shared_memory_has_room_for_the_kernels_variables() -> None:
    kernels = variables("forward")
    assert len(kernels) == 3 * 8  # of 3 sizes: two types, up to 4 sequences and up to 8, with lengths or dropout
    weights = (80 - 39) * 4096  # of the largest blocks, in shared memory
    stages = 4 * (64 + 4 * 40) * 64  # of a product; sums take less
    for registers, static in kernels:
        assert registers <= 255
        assert static == 0  # stages are aligned
        assert weights + stages + 40 * 16 <= 227 * 1024


def test_shared_memory_has_room_for_the_backward_kernels_variables() -> None:
    kernels = variables("backward")
    assert len(kernels) % 8 == 0  # two types, up to 4 sequences and up to 8, of one length and of different ones
    for registers, static in kernels:
        assert registers <= 255
        assert static == 0  # what the plan says is all of it
