"""Plans of stacks that run as a wavefront by chunks: prnnQueryRNNForGPU and prnnQueryRNNSequence."""

import ctypes
import itertools
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


# Fields that do not depend on a projection.
LAYOUT = ["forwardEngine", "backwardEngine", "blocks", "replicas", "unitsPerBlock", "batchPerPass", "registerBytes"]
LAYOUT += ["sharedBytes", "layersTogether", "layersTogetherBackward", "layersReason"]


@pytest.mark.parametrize("data_type", [capi.HALF, capi.BFLOAT16])
@pytest.mark.parametrize("batch", range(1, 9))
def test_a_layer_has_a_share_of_the_gpu(batch: int, data_type: int) -> None:
    info = plan(batch=batch, data_type=data_type)
    assert (info.forwardEngine, info.engineReason) == (CHUNKED, b"")
    assert (info.layersTogether, info.layersTogetherInference) == (5, 5)
    assert (info.blocks, info.unitsPerBlock, info.replicas, info.batchPerPass) == (26, 40, 1, 8)
    # 80 operands of 16 rows and 16 elements of K a warp, and nothing of the input matrices.
    assert info.registerBytes == 26 * 8 * 39 * 512
    assert info.registerBytes + info.sharedBytes == 26 * 40 * 4 * 1024 * 2
    assert (info.backwardEngine, info.layersTogetherBackward, info.layersReason) == (CHUNKED, 5, b"")


# Hidden size, layers, how many of them run together, and blocks of a layer and units of a block, forward.
LAUNCHES = [
    (1024, 3, 3, 43, 24),
    (1024, 4, 4, 32, 32),
    (1024, 5, 5, 26, 40),
    (1024, 8, 4, 32, 32),  # launches of as many layers
    (1024, 7, 4, 32, 32),  # or one more
    (1024, 12, 4, 32, 32),
    (1024, 6, 3, 43, 24),
    (1024, 21, 5, 26, 40),
    (960, 5, 5, 24, 40),
    (896, 3, 3, 38, 24),
    (896, 4, 4, 28, 32),
    (896, 5, 5, 23, 40),
    (832, 3, 3, 35, 24),
    (832, 6, 6, 21, 40),
    (832, 7, 4, 26, 32),
    (768, 3, 3, 32, 24),
    (768, 6, 6, 20, 40),
    (768, 8, 4, 32, 24),
    (704, 4, 4, 30, 24),
    (704, 7, 7, 18, 40),
    (704, 8, 4, 30, 24),
    (640, 4, 4, 27, 24),
    (640, 8, 8, 16, 40),
    (576, 4, 4, 24, 24),
    (576, 8, 8, 15, 40),
    (576, 10, 5, 24, 24),
]


@pytest.mark.parametrize(("hidden", "layers", "together", "blocks", "units"), LAUNCHES)
def test_how_many_layers_run_together(hidden: int, layers: int, together: int, blocks: int, units: int) -> None:
    for gpu, batch in itertools.product(("H100", "H200"), range(1, 9)):
        info = plan(gpu, hidden=hidden, layers=layers, batch=batch)
        assert (info.forwardEngine, info.layersTogether, info.blocks) == (CHUNKED, together, blocks), (gpu, batch)
        assert info.unitsPerBlock == units
        assert (info.backwardEngine, info.layersTogetherBackward, info.layersReason) == (CHUNKED, together, b"")
        assert together * max(blocks, 2 * -(-hidden // 80)) <= 132  # backward, clusters of 2 blocks have 80 units


@pytest.mark.parametrize(("hidden", "layers", "together"), [launch[:3] for launch in LAUNCHES])
def test_inference(hidden: int, layers: int, together: int) -> None:
    for projection, batch in itertools.product((0, 200), range(1, 9)):
        info = plan(projection=projection, hidden=hidden, layers=layers, batch=batch)
        found = (info.layersTogetherInference, info.layersTogether, info.layersTogetherBackward)
        assert found == (together, together, together), (projection, batch)


@pytest.mark.parametrize(
    "arguments",
    [
        {"layers": 2},
        {"layers": 2, "hidden": 576},
        {"layers": 9, "hidden": 640},  # in launches of three
        {"layers": 3, "hidden": 576},
        {"layers": 3, "hidden": 640},
        {"layers": 3, "hidden": 704},  # in one launch of three
        {"layers": 3, "hidden": 704, "batch": 1},
        {"batch": 9},
        {"batch": 9, "hidden": 576},
        {"hidden": 512},
        {"hidden": 544},  # no multiple of 64
        {"hidden": 1000},
        {"hidden": 1088},
        {"mode": RNN_TANH},
        {"data_type": capi.FLOAT},
    ],
    ids=str,
)
def test_other_stacks(arguments: dict[str, int]) -> None:
    info = plan(**arguments)
    assert CHUNKED not in (info.forwardEngine, info.backwardEngine)
    assert info.layersTogetherInference == info.layersTogether


@pytest.mark.parametrize(
    ("hidden", "layers", "together", "blocks", "units"),
    [
        *LAUNCHES,
        (576, 9, 5, 24, 24),
        (704, 3, 3, 30, 24),
        (640, 3, 3, 27, 24),
        (576, 3, 3, 24, 24),
    ],
)
def test_with_a_projection(hidden: int, layers: int, together: int, blocks: int, units: int) -> None:
    """All stacks of these sizes, on the launches of stacks without one that run so."""
    for gpu, projection, batch in itertools.product(("H100", "H200"), (512, 200, 17), (1, 2, 3, 4, 8)):
        arguments = {"layers": layers, "hidden": hidden, "batch": batch}
        info, without = plan(gpu, projection, **arguments), plan(gpu, **arguments)
        assert info.supported == 1, (gpu, projection, batch)
        assert (info.forwardEngine, info.backwardEngine, info.layersReason) == (CHUNKED, CHUNKED, b"")
        assert (info.layersTogether, info.layersTogetherBackward) == (together, together)
        assert info.layersTogetherInference == together
        assert (info.blocks, info.unitsPerBlock, info.replicas, info.batchPerPass) == (blocks, units, 1, 8)
        assert info.registerBytes + info.sharedBytes == blocks * units * 4 * 1024 * 2  # of 8 warps by 4 k-tiles
        if without.forwardEngine == CHUNKED:
            assert all(getattr(info, name) == getattr(without, name) for name in LAYOUT)


ONE_AFTER_THE_OTHER = (
    b"layers with a projection run together by chunks alone, where that is faster: from 3 layers on of 576 to 1024 "
    b"units (multiples of 64) with up to 8 sequences over many timesteps, compute capability 9.0"
)


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({"layers": 2}, ONE_AFTER_THE_OTHER),
        ({"batch": 9}, ONE_AFTER_THE_OTHER),
        ({"hidden": 512}, ONE_AFTER_THE_OTHER),
        ({"hidden": 544}, ONE_AFTER_THE_OTHER),
        ({"hidden": 1000}, b"hidden size 1000 is not a multiple of 32"),
        ({"hidden": 1088}, ONE_AFTER_THE_OTHER),
        ({"hidden": 2560}, ONE_AFTER_THE_OTHER),  # both matrices apart
        ({"data_type": capi.FLOAT}, b"layers run together in 16 bits alone"),
    ],
    ids=str,
)
def test_stacks_with_a_projection_that_run_one_after_the_other(arguments: dict[str, int], reason: bytes) -> None:
    """On what layers alone run on."""
    for batch in (1, 4, 16):
        sizes = {"batch": batch} | arguments
        info, alone = plan(projection=200, **sizes), plan(projection=200, **(sizes | {"layers": 1}))
        assert (info.layersTogether, info.layersTogetherBackward, info.layersTogetherInference) == (1, 1, 1)
        assert (info.forwardEngine, info.backwardEngine) == (alone.forwardEngine, alone.backwardEngine)
        assert not info.forwardEngine.startswith(b"wavefront")
        assert info.layersReason == reason


# A multiple of 64, 128 at least, which the blocks of a layer share by 32 columns each.
@pytest.mark.parametrize(
    ("projection", "together"), [(128, 5), (512, 5), (832, 5), (64, 1), (200, 1), (480, 1), (896, 1)]
)
def test_dropout_between_layers_with_a_projection(projection: int, together: int) -> None:
    layer = Layer(hidden=1024, layers=5)
    states = ctypes.create_string_buffer(capi.size_from("DropoutGetStatesSize", handle=layer.handle.pointer))
    dropout = dropout_descriptor(layer.handle, 0.2, states, 7)
    layer.sizes["dropoutDesc"] = dropout.pointer
    capi.check("SetRNNDescriptor", rnnDesc=layer.rnn.pointer, inputMode=0, direction=0, **layer.sizes)
    info = layer.query_gpu("H200")
    assert (info.forwardEngine, info.backwardEngine, info.layersTogetherInference) == (CHUNKED, CHUNKED, 5)
    capi.check("SetRNNProjectionSize", rnnDesc=layer.rnn.pointer, projSize=projection)
    info = layer.query_gpu("H200")
    assert (info.layersTogether, info.layersTogetherBackward, info.layersTogetherInference) == (together, together, 5)
    if together > 1:
        assert (info.forwardEngine, info.backwardEngine, info.layersReason) == (CHUNKED, CHUNKED, b"")
    else:
        assert (info.forwardEngine, info.backwardEngine) == (b"mma", b"wgmma")
        assert info.layersReason == (ONE_AFTER_THE_OTHER + b"; with dropout P is a multiple of 64, 128 or more")


@pytest.mark.parametrize("mode", [LSTM, GRU])
@pytest.mark.parametrize("gpu", GPUS)
def test_gpus(gpu: str, mode: int) -> None:
    info = plan(gpu, mode=mode)
    assert (info.forwardEngine == CHUNKED) == (info.backwardEngine == CHUNKED) == (gpu in ("H100", "H200"))


# GRU: hidden size, layers, how many of them run together forward, blocks of a layer and units of a block, and how many
# run together backward.
GRU_LAUNCHES = [
    (1024, 3, 3, 32, 32, 3),
    (1024, 4, 4, 32, 32, 4),
    (1024, 5, 5, 26, 40, 5),
    (1024, 6, 6, 22, 48, 3),
    (1024, 8, 4, 32, 32, 4),
    (1024, 12, 6, 22, 48, 4),
    (960, 9, 5, 24, 40, 5),
    (896, 6, 6, 19, 48, 3),
    (832, 5, 5, 26, 32, 5),
    (832, 7, 7, 18, 48, 4),
    (768, 3, 3, 24, 32, 3),
    (768, 6, 6, 20, 40, 6),
    (768, 8, 8, 16, 48, 4),
    (704, 7, 7, 18, 40, 7),
    (704, 8, 8, 15, 48, 4),
    (640, 8, 8, 16, 40, 8),
    (576, 7, 7, 18, 32, 7),
    (576, 10, 5, 18, 32, 5),
]


@pytest.mark.parametrize(("hidden", "layers", "forward", "blocks", "units", "backward"), GRU_LAUNCHES)
def test_gru(hidden: int, layers: int, forward: int, blocks: int, units: int, backward: int) -> None:
    for gpu, batch in itertools.product(("H100", "H200"), range(1, 9)):
        info = plan(gpu, mode=GRU, hidden=hidden, layers=layers, batch=batch)
        engines = (info.forwardEngine, info.backwardEngine, info.layersReason)
        assert engines == (CHUNKED, CHUNKED, b""), (gpu, batch)
        assert (info.layersTogether, info.layersTogetherBackward) == (forward, backward)
        assert (info.blocks, info.unitsPerBlock, info.replicas, info.batchPerPass) == (blocks, units, 1, 8)
        # Pairs of tiles of 8 rows by 1024 of K.
        assert info.registerBytes + info.sharedBytes == blocks * -(-units * 3 // 16) * 16 * 1024 * 2
        never = hidden <= 832 and layers < (5 if hidden <= 704 else 4) and batch > 4
        others = min(layers, 3 if hidden <= 704 else 2)
        assert info.layersTogetherInference == (others if never else forward)


@pytest.mark.parametrize(
    "arguments", [{"layers": 2}, {"batch": 9}, {"hidden": 512}, {"hidden": 544}, {"data_type": capi.FLOAT}], ids=str
)
def test_other_stacks_of_gru(arguments: dict[str, int]) -> None:
    info = plan(mode=GRU, **arguments)
    assert CHUNKED not in (info.forwardEngine, info.backwardEngine)


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


# Mode, projection, hidden size, layers, sequences, and the fewest timesteps of training and of inference; None: other
# kernels are faster, however many.
FEWEST = [
    (LSTM, 0, 1024, 5, 1, 64, 96),
    (LSTM, 0, 1024, 5, 8, 64, 96),
    (LSTM, 0, 1024, 3, 4, 96, 64),
    (LSTM, 0, 1024, 3, 5, 96, 96),
    (LSTM, 0, 1024, 6, 4, 256, 128),
    (LSTM, 0, 1024, 12, 7, 64, 96),
    (LSTM, 0, 896, 4, 8, 96, 64),
    (LSTM, 0, 896, 9, 5, 64, 96),
    (LSTM, 0, 832, 5, 2, 48, 48),
    (LSTM, 0, 832, 6, 4, 64, 96),
    (LSTM, 0, 768, 3, 1, 96, 64),
    (LSTM, 0, 768, 8, 5, 64, 48),
    (LSTM, 0, 704, 3, 4, None, None),
    (LSTM, 0, 704, 5, 4, 128, 128),
    (LSTM, 0, 704, 5, 5, 96, 96),
    (LSTM, 0, 576, 9, 8, None, None),
    (LSTM, 0, 576, 10, 8, 128, 96),
    (LSTM, 512, 1024, 3, 4, 64, 96),
    (LSTM, 512, 1024, 3, 5, 96, 96),
    (LSTM, 512, 960, 12, 8, 64, 96),
    (LSTM, 64, 832, 3, 8, 64, 96),
    (LSTM, 64, 768, 5, 1, 48, 48),
    (LSTM, 64, 640, 9, 4, 48, 48),
    (GRU, 0, 1024, 3, 4, 64, 96),
    (GRU, 0, 1024, 3, 5, 64, 256),
    (GRU, 0, 960, 6, 1, 64, 128),
    (GRU, 0, 896, 8, 8, 64, 128),
    (GRU, 0, 1024, 20, 8, 64, 256),
    (GRU, 0, 832, 3, 4, 64, 96),
    (GRU, 0, 832, 3, 5, 64, None),
    (GRU, 0, 768, 5, 8, 64, 64),
    (GRU, 0, 704, 3, 4, 96, None),
    (GRU, 0, 704, 3, 5, 192, None),
    (GRU, 0, 640, 4, 4, 64, 192),
    (GRU, 0, 640, 9, 8, 64, None),
    (GRU, 0, 576, 7, 2, 64, 128),
]


@pytest.mark.parametrize(("mode", "projection", "hidden", "layers", "batch", "training", "inference"), FEWEST)
def test_few_timesteps_and_lengths(
    mode: int, projection: int, hidden: int, layers: int, batch: int, training: int | None, inference: int | None
) -> None:
    """The fewest that run by chunks, and one less."""
    layer, alone = (Layer(mode=mode, hidden=hidden, layers=count, batch=batch) for count in (layers, 1))
    for of_layers in (layer, alone):
        capi.check("SetRNNProjectionSize", rnnDesc=of_layers.rnn.pointer, projSize=projection)
    at_once = plan(mode=mode, projection=projection, hidden=hidden, layers=layers, batch=4).layersTogether
    others = 1 if projection else 3 if hidden <= 704 else 2
    for steps in (32, 1000, *(fewest - less for fewest in (training, inference) if fewest for less in (0, 1))):
        for batch_sizes in ([batch] * steps, [batch] * 20 + [1] * (steps - 20), [batch] + [1] * (steps - 1)):
            info = plan_of(layer, batch_sizes)
            by_chunks = training is not None and steps >= training
            assert (info.forwardEngine == CHUNKED) == (info.backwardEngine == CHUNKED) == by_chunks
            infers_so = inference is not None and steps >= inference
            assert info.layersTogetherInference == (at_once if infers_so else others)
            if by_chunks:
                assert info.layersTogether == at_once
            elif projection:
                single = plan_of(alone, batch_sizes)
                assert (info.forwardEngine, info.backwardEngine) == (single.forwardEngine, single.backwardEngine)
                assert info.layersTogether == 1
            else:
                assert (info.forwardEngine, info.layersTogether) == (MMA, others)


@pytest.mark.parametrize(
    ("hidden", "layers"), [(1024, 5), (1024, 4), (1024, 6), (832, 6), (832, 3), (704, 3), (640, 8), (576, 4)]
)
def test_lengths_are_as_one_length(hidden: int, layers: int) -> None:
    """The largest batch counts, whatever the others."""
    fields = ("forwardEngine", "backwardEngine", "layersTogether", "layersTogetherBackward", "layersTogetherInference")
    for batch in range(1, 9):
        found = []
        for batch_sizes in ([batch] * 300, [batch] * 40 + [1] * 260, [batch] + [max(batch - 1, 1)] * 299):
            info = plan_of(Layer(hidden=hidden, layers=layers, batch=batch), batch_sizes)
            found.append([getattr(info, field) for field in (*fields, "layersReason")])
        assert found[0] == found[1] == found[2], batch


def variables(operation: str) -> dict[str, list[tuple[int, int]]]:
    """Returns, by architecture, registers of a thread and static shared memory of each kernel; some are of dropout or
    lengths alone."""
    log = LOGS / f"wavefront_chunked_{operation}_16bit.txt"
    if not log.exists():
        pytest.skip("the CUDA sources were not compiled here (no nvcc, or cuda=off)")
    found: dict[str, list[tuple[int, int]]] = {}
    for of_kernel in log.read_text().split("Compiling entry function")[1:]:
        (architecture,), (registers,) = (
            re.findall(pattern, of_kernel) for pattern in (r" for '(\w+)'", r"Used (\d+) registers")
        )
        static = sum(map(int, re.findall(r"(\d+) bytes smem", of_kernel)))
        found.setdefault(architecture, []).append((int(registers), static))
    assert found
    return found


def test_shared_memory_has_room_for_the_kernels_variables() -> None:
    weights = (80 - 39) * 4096  # of the largest blocks, in shared memory
    stages = 4 * (64 + 4 * 40) * 64  # of a product; sums take less
    assert weights + stages + 40 * 16 <= 227 * 1024
    assert (72 - 31) * 4096 + 4 * (64 + 3 * 48) * 64 + 48 * 16 <= 227 * 1024  # of the largest of GRU
    for kernels in variables("forward").values():
        assert len(kernels) == 6 * 8  # of 3 sizes of LSTM and of GRU: two types, up to 4 sequences and up to 8, extras
        for registers, static in kernels:
            assert registers <= 255
            assert static == 0  # stages are aligned


def test_shared_memory_has_room_for_the_backward_kernels_variables() -> None:
    for kernels in variables("backward").values():
        assert (
            len(kernels) == 24
        )  # two types, up to 4 sequences and up to 8, of one length and of others; GRU, and LSTM twice
        for registers, static in kernels:
            assert registers <= 255
            assert static == 0  # what the plan says is all of it
