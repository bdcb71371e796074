"""prnnQueryRNN, prnnQueryRNNForGPU and prnnGetGPUName: plans without starting anything."""

import ctypes
from typing import Any

import capi
import pytest

BACKEND_PERSISTENT, CUDNN = 0, 1
MMA, WGMMA, SPLIT_K, MULTICAST = 1, 2, 3, 4  # prnnRNNEngine_t
RNN_TANH, GRU = 1, 3  # prnnRNNMode_t
GPUS = []
while name := capi.call("GetGPUName", index=len(GPUS)):
    GPUS.append(name.decode())


class Info(ctypes.Structure):
    """prnnRNNInfo_t."""

    _fields_ = [
        ("supported", ctypes.c_int),
        ("backend", ctypes.c_int),
        ("device", ctypes.c_char * 64),
        ("measured", ctypes.c_int),
        ("forwardEngine", ctypes.c_char * 24),
        ("backwardEngine", ctypes.c_char * 24),
        ("blocks", ctypes.c_int),
        ("replicas", ctypes.c_int),
        ("unitsPerBlock", ctypes.c_int),
        ("batchPerPass", ctypes.c_int),
        ("layersTogether", ctypes.c_int),
        ("layersTogetherBackward", ctypes.c_int),
        ("layersTogetherInference", ctypes.c_int),
        ("registerBytes", ctypes.c_size_t),
        ("sharedBytes", ctypes.c_size_t),
        ("largestHiddenSize", ctypes.c_int),
        ("reason", ctypes.c_char * 256),
        ("engineReason", ctypes.c_char * 256),
        ("layersReason", ctypes.c_char * 256),
        ("inferenceBackend", ctypes.c_int),
        ("workspaceSize", ctypes.c_size_t),
        ("reserveSize", ctypes.c_size_t),
    ]


class Layer:
    def __init__(
        self, mode: int = 2, hidden: int = 1024, data_type: int = capi.HALF, batch: int = 4, layers: int = 1
    ) -> None:
        self.handle = capi.cpu_handle()
        self.rnn = capi.descriptor("RNN")
        self.sizes = {"hiddenSize": hidden, "numLayers": layers, "mode": mode, "dataType": data_type}
        self.set_input_mode(0)
        self.x_desc = capi.tensor([batch, hidden, 1], data_type)
        self.info = Info(supported=-5)

    def set_input_mode(self, mode: int) -> None:
        capi.check(
            "SetRNNDescriptor", rnnDesc=self.rnn.pointer, dropoutDesc=None, inputMode=mode, direction=0, **self.sizes
        )

    def query(self, status: int = capi.SUCCESS, **changes: Any) -> Info:
        arguments = dict(
            handle=self.handle.pointer,
            rnnDesc=self.rnn.pointer,
            xDesc=self.x_desc.pointer,
            info=ctypes.byref(self.info),
        )
        assert capi.call("QueryRNN", **(arguments | changes)) == status, capi.message(self.handle.pointer)
        return self.info

    def query_gpu(self, gpu: str | None, status: int = capi.SUCCESS, **changes: Any) -> Info:
        arguments = dict(
            gpu=gpu.encode() if gpu else None,
            rnnDesc=self.rnn.pointer,
            xDesc=self.x_desc.pointer,
            info=ctypes.byref(self.info),
        )
        assert capi.call("QueryRNNForGPU", **(arguments | changes)) == status, capi.message()
        return self.info


def test_the_rows_have_names() -> None:
    assert {"H200", "H100", "A100", "A10", "L4", "L40", "RTX 3090", "RTX 4090"} <= set(GPUS)
    assert {"TITAN X", "M40", "GTX 1080", "GP100"} <= set(GPUS)
    assert len(set(GPUS)) == len(GPUS)
    for index in (-1, len(GPUS), 2**31 - 1, -(2**31)):
        assert capi.call("GetGPUName", index=index) is None


@pytest.mark.parametrize("gpu", GPUS)
def test_every_row_answers(gpu: str) -> None:
    info = Layer(hidden=256).query_gpu(gpu)
    assert info.device.decode() == gpu
    assert info.backend == BACKEND_PERSISTENT
    if info.supported:
        assert info.reason == b""
        assert info.blocks * info.unitsPerBlock >= 256
        assert info.registerBytes + info.sharedBytes >= 4 * 256 * 256 * 2
        assert info.replicas * info.batchPerPass >= 1
        assert info.largestHiddenSize >= 256
    else:
        assert len(info.reason) > 20


@pytest.mark.parametrize("mode", [0, 1, 2, 3])
def test_the_largest_layer_fits_and_the_next_does_not(mode: int) -> None:
    largest = Layer(mode).query_gpu("H200").largestHiddenSize
    assert largest >= 1024
    assert Layer(mode, hidden=largest).query_gpu("H200").supported == 1
    assert Layer(mode, hidden=largest + 1).query_gpu("H200").supported == 0


@pytest.mark.parametrize("mode", [2, 3])
def test_wgmma_kernels_hold_what_registers_do_not_in_shared_memory(mode: int) -> None:
    info = Layer(mode, batch=64).query_gpu("H200")
    assert (info.unitsPerBlock, info.blocks, info.replicas, info.batchPerPass) == (16, 64, 2, 64)
    assert info.registerBytes > 0
    assert info.sharedBytes == 0
    info = Layer(mode, hidden=2048, batch=64).query_gpu("H200")
    assert (info.unitsPerBlock, info.blocks, info.replicas, info.batchPerPass) == (16, 128, 1, 64)
    assert info.registerBytes > 0
    assert info.sharedBytes > 0


@pytest.mark.parametrize(("mode", "hidden"), [(0, 512), (1, 512), (2, 512), (3, 512), (2, 100), (3, 256)])
def test_one_cluster_holds_a_small_layer(mode: int, hidden: int) -> None:
    info = Layer(mode, hidden, batch=1).query_gpu("H200")
    assert info.blocks in (8, 16)
    assert info.blocks * info.unitsPerBlock >= hidden
    assert info.sharedBytes == 0
    assert Layer(mode, hidden, batch=9).query_gpu("H200").replicas in (5, 7, 9)


@pytest.mark.parametrize(
    ("mode", "hidden", "blocks", "units"),
    [(0, 256, 8, 32), (1, 500, 16, 32), (1, 1024, 64, 16), (0, 2048, 128, 16), (2, 256, 16, 16), (3, 512, 64, 8)]
    + [(2, 1024, 128, 8), (3, 1024, 128, 8)],
)
def test_a_single_float_sequence_has_all_weights_in_registers(mode: int, hidden: int, blocks: int, units: int) -> None:
    info = Layer(mode, hidden, capi.FLOAT, batch=1).query_gpu("H200")
    assert (info.supported, info.blocks, info.unitsPerBlock, info.replicas) == (1, blocks, units, 1)
    assert info.registerBytes >= 4 * {2: 4, 3: 3}.get(mode, 1) * hidden**2
    assert info.sharedBytes == 0


def test_few_float_sequences() -> None:
    """In clusters, each is a replica; a large layer without gates takes them together where replicas have no room."""
    assert Layer(2, 256, capi.FLOAT, batch=4).query_gpu("H200").replicas == 4
    for hidden, batch, replicas, units in ((2048, 4, 1, 16), (2048, 2, 2, 32), (1024, 4, 4, 32)):
        info = Layer(0, hidden, capi.FLOAT, batch=batch).query_gpu("H200")
        assert (info.supported, info.replicas, info.unitsPerBlock) == (1, replicas, units)
    assert Layer(2, 256, capi.FLOAT, batch=5).query_gpu("H200").unitsPerBlock == 8


@pytest.mark.parametrize(
    ("mode", "hidden", "layers", "together"),
    [(2, 512, 5, 5), (2, 512, 1, 1), (2, 1024, 2, 2), (2, 500, 5, 1), (3, 512, 12, 8), (0, 1024, 5, 4)],
)
def test_layers_that_run_together(mode: int, hidden: int, layers: int, together: int) -> None:
    assert Layer(mode, hidden, layers=layers).query_gpu("H200").layersTogether == together


@pytest.mark.parametrize(
    ("gpu", "mode", "hidden", "batch", "together"),
    [
        ("H200", 2, 512, 32, 5),
        ("H200", 2, 512, 64, 4),
        ("H200", 2, 1024, 65, 1),
        ("H200", 0, 1024, 33, 4),
        ("A100", 2, 1024, 32, 1),
    ],
)
def test_many_sequences_that_run_together(gpu: str, mode: int, hidden: int, batch: int, together: int) -> None:
    assert Layer(mode, hidden, layers=5, batch=batch).query_gpu(gpu).layersTogether == together


def test_layers_that_run_together_forward_alone() -> None:
    info = Layer(2, 512, layers=5, batch=32).query_gpu("H200")
    assert (info.layersTogether, info.layersTogetherBackward) == (5, 1)
    reason = b"backward: layers of hidden size 512 run together for up to 16 sequences; N is 32; "
    assert info.layersReason == reason + b"layers run side by side from hidden size 544 to 1024"
    assert Layer(2, 512, layers=5, batch=16).query_gpu("H200").layersReason == b""


@pytest.mark.parametrize("batch", [9, 16, 32, 64])
@pytest.mark.parametrize("mode", [2, 3])
def test_layers_that_run_side_by_side(mode: int, batch: int) -> None:
    info = Layer(mode, 1024, layers=3, batch=batch).query_gpu("H200")
    assert (info.layersTogether, info.layersTogetherBackward, info.layersTogetherInference) == (2, 2, 2)
    assert (info.forwardEngine, info.backwardEngine, info.layersReason) == (b"wgmma-split-k", b"wgmma-split-k", b"")
    assert (info.blocks <= 66, info.replicas) == (True, 1)
    assert info.batchPerPass >= batch


def test_few_sequences_run_side_by_side_where_there_is_no_wavefront() -> None:
    for mode, layers, batch, forward, backward, together in (
        (2, 5, 8, b"wavefront-chunked", b"wavefront-chunked", 5),
        (3, 5, 8, b"wavefront-chunked", b"wavefront-chunked", 5),
        (3, 2, 8, b"wavefront-mma", b"wgmma-split-k", 2),
        (3, 2, 2, b"wavefront-mma", b"wgmma-split-k", 2),
        (3, 2, 1, b"wavefront-mma", b"wgmma", 1),
    ):
        info = Layer(mode, 1024, layers=layers, batch=batch).query_gpu("H200")
        assert (info.forwardEngine, info.backwardEngine) == (forward, backward)
        assert info.layersTogetherBackward == together
    assert info.layersReason.endswith(b"; one sequence leaves room for one sum of the biases' gradients")


def test_why_layers_do_not_run_side_by_side() -> None:
    layer = Layer(2, 1024, layers=3, batch=16)

    def reason(steps: int, batch: int = 16) -> bytes:
        x_descs = [capi.tensor([batch, 1024, 1], capi.HALF)] * steps
        capi.check(
            "QueryRNNSequence",
            handle=None,
            gpu=b"H200",
            rnnDesc=layer.rnn.pointer,
            seqLength=steps,
            xDesc=capi.addresses(x_descs),
            info=ctypes.byref(layer.info),
        )
        return layer.info.layersReason

    assert reason(32) == b""
    assert reason(31).endswith(b"; layers run side by side from 32 timesteps on; T is 31")
    assert reason(32, 65).endswith(b"; two layers of hidden size 1024 have no room side by side for 65 sequences")
    layer.set_input_mode(1)
    assert reason(32).endswith(b"; the first layer has no input matrices")


@pytest.mark.parametrize("changes", [{"batch": 65}, {"hidden": 1024, "batch": 65}, {"data_type": capi.FLOAT}], ids=str)
def test_layers_that_run_one_after_the_other(changes: dict[str, int]) -> None:
    assert Layer(**({"hidden": 256, "layers": 5} | changes)).query_gpu("H200").layersTogether == 1


@pytest.mark.parametrize(("gpu", "largest"), [("TITAN X", 1152), ("M40", 1152), ("GTX 1080", 1460), ("GP100", 1880)])
def test_gpus_of_the_original_project(gpu: str, largest: int) -> None:
    info = Layer(mode=0, hidden=256, data_type=capi.FLOAT).query_gpu(gpu)
    assert info.supported == 0
    assert info.largestHiddenSize == largest
    assert b"not compiled" in info.reason


def test_a_layer_that_is_too_large_says_so() -> None:
    info = Layer(hidden=6000).query_gpu("H200")
    assert info.supported == 0
    assert b"hidden size 6000" in info.reason
    assert str(info.largestHiddenSize).encode() in info.reason
    assert info.blocks == 0


@pytest.mark.parametrize("data_type", [capi.FLOAT, capi.DOUBLE, capi.HALF, capi.BFLOAT16])
def test_cpu(data_type: int) -> None:
    info = Layer(hidden=512, data_type=data_type, batch=7).query()
    assert info.supported == 1
    assert info.device.decode().startswith("CPU ")
    assert info.reason == b""
    assert info.blocks >= 1
    assert info.blocks * info.unitsPerBlock >= 512
    assert info.batchPerPass == 7
    assert info.layersTogether == 1
    as_they_are = data_type == capi.BFLOAT16 and info.device in (b"CPU AVX-512 BF16", b"CPU AMX")
    assert info.sharedBytes == 4 * 512 * 512 * (8 if data_type == capi.DOUBLE else 2 if as_they_are else 4)
    assert Layer().query_gpu("H200").workspaceSize == Layer().query_gpu("H200").reserveSize == 0
    assert info.largestHiddenSize >= 16


def test_bad_arguments() -> None:
    layer = Layer()
    layer.query(capi.NOT_INITIALIZED, handle=None)
    for name in ("rnnDesc", "xDesc", "info"):
        layer.query(capi.BAD_PARAM, **{name: None})
        assert capi.message(layer.handle.pointer) == f"{name} is NULL"
        layer.query_gpu("H200", capi.BAD_PARAM, **{name: None})
        assert capi.message() == f"{name} is NULL"
    layer.query_gpu(None, capi.BAD_PARAM)
    assert capi.message() == "gpu is NULL"
    layer.query_gpu("Voodoo 2", capi.BAD_PARAM)
    assert capi.message() == f'gpu is "Voodoo 2"; the GPU table has {", ".join(GPUS)}'
    assert layer.info.supported == -5


# Hidden sizes that stay resident in 16 bits and in float: LSTM, GRU, RNN.
LARGEST = {
    "H200": ((2432, 1664), (2816, 1936), (4992, 3392)),
    "H100": ((2432, 1664), (2816, 1936), (4992, 3392)),
    "B200": ((2432, 1664), (2816, 1936), (4992, 3392)),
    "RTX 5090": ((1568, 1040), (1824, 1280), (3264, 2304)),
    "A100": ((1984, 1344), (2336, 1568), (4096, 2768)),
    "A10": ((1344, 928), (1568, 1072), (2720, 1872)),
    "RTX 3090": ((1536, 1040), (1792, 1120), (3104, 2128)),
    "L40": ((1568, 1040), (1824, 1136), (3264, 2272)),
    "L4": ((1088, 752), (1248, 864), (2176, 1536)),
    "RTX 4090": ((1568, 1040), (1824, 1120), (3264, 2144)),
}


@pytest.mark.parametrize("gpu", LARGEST)
def test_largest_layers_of_a_row(gpu: str) -> None:
    for mode, sizes in zip((2, 3, 1), LARGEST[gpu], strict=True):
        for data_type, least in zip((capi.HALF, capi.FLOAT), sizes, strict=True):
            for batch in (1, 4, 64, 200):  # a batch that does not fit at once goes in passes
                layer = Layer(mode, hidden=least, data_type=data_type, batch=batch)
                info = layer.query_gpu(gpu)
                assert info.supported, info.reason
                assert info.largestHiddenSize >= least
                assert info.batchPerPass >= min(batch, 8)


@pytest.mark.parametrize(
    ("mode", "data_type", "hidden", "units"),
    [
        (2, capi.HALF, 2432, 19),
        (3, capi.BFLOAT16, 2816, 22),
        (0, capi.HALF, 4864, 38),
        (2, capi.FLOAT, 1664, 13),
        (3, capi.FLOAT, 1920, 15),
        (1, capi.FLOAT, 3328, 26),
    ],
)
def test_large_layer_kernels_take_what_fits_no_other(mode: int, data_type: int, hidden: int, units: int) -> None:
    info = Layer(mode, hidden=hidden, data_type=data_type, batch=4).query_gpu("H200")
    assert (info.supported, info.unitsPerBlock, info.blocks) == (1, units, 128)
    assert (info.replicas, info.batchPerPass) == (1, 8)
    assert info.registerBytes + info.sharedBytes >= {2: 4, 3: 3}.get(mode, 1) * hidden**2 * (4 if data_type == 0 else 2)
    info = Layer(mode, hidden=info.largestHiddenSize + 1, data_type=data_type, batch=4).query_gpu("H200")
    assert info.supported == 0
    assert b"more than stays resident" in info.reason
    small = Layer(mode, hidden=512, data_type=data_type, batch=4).query_gpu("H200")
    assert small.unitsPerBlock % 8 == 0


def projected_layer(hidden: int, projection: int, data_type: int = capi.HALF, batch: int = 4) -> Layer:
    layer = Layer(hidden=hidden, data_type=data_type, batch=batch)
    capi.check("SetRNNProjectionSize", rnnDesc=layer.rnn.pointer, projSize=projection)
    return layer


@pytest.mark.parametrize(
    ("data_type", "hidden", "projection", "units"),
    [
        (capi.HALF, 2560, 640, 24),
        (capi.BFLOAT16, 3072, 1024, 24),
        (capi.HALF, 4096, 1024, 32),
        (capi.FLOAT, 2048, 640, 16),
        (capi.FLOAT, 2500, 300, 24),
        (capi.FLOAT, 4096, 300, 32),
    ],
)
def test_matrices_of_a_projection_apart_take_what_merged_ones_do_not(
    data_type: int, hidden: int, projection: int, units: int
) -> None:
    layer = projected_layer(hidden, projection, data_type)
    info = layer.query_gpu("H200")
    assert (info.supported, info.forwardEngine, info.backwardEngine) == (1, b"projected", b"projected")
    assert (info.unitsPerBlock, info.replicas, info.blocks) == (units, 1, -(-hidden // units))
    assert info.registerBytes + info.sharedBytes >= 5 * hidden * projection * (4 if data_type == capi.FLOAT else 2)
    assert b"product of both recurrent matrices" in info.engineReason
    assert info.largestHiddenSize >= hidden
    info = projected_layer(info.largestHiddenSize + 1, projection, data_type).query_gpu("H200")
    assert (info.supported, info.largestHiddenSize + 1) == (0, info.largestHiddenSize + 1)
    assert b"more than stays resident" in info.reason


@pytest.mark.parametrize(("batch", "per_pass"), [(3, 8), (17, 24), (32, 32), (33, 24), (100, 32)])
def test_batches_of_a_projection_apart(batch: int, per_pass: int) -> None:
    assert projected_layer(2560, 640, batch=batch).query_gpu("H200").batchPerPass == per_pass


def test_merged_matrices_come_first() -> None:
    assert projected_layer(1024, 512).query_gpu("H200").forwardEngine == b"mma"
    assert projected_layer(2048, 1000).query_gpu("H200").forwardEngine == b"mma"
    assert projected_layer(1024, 512, capi.FLOAT).query_gpu("H200").forwardEngine == b"mma"
    assert projected_layer(2432, 1000).query_gpu("H200").forwardEngine == b"projected"  # before mma-large
    assert projected_layer(1536, 512, capi.FLOAT).query_gpu("H200").forwardEngine == b"projected"
    assert projected_layer(2432, 1500).query_gpu("H200").forwardEngine == b"mma-large"
    assert projected_layer(2560, 1500).query_gpu("H200").supported == 0  # neither
    for extra in ("reset", "cells", "dcells"):
        assert query_with(projected_layer(2560, 640), extra).supported == 0
        assert query_with(projected_layer(2432, 1000), extra).forwardEngine == b"mma-large"


def query_with(layer: Layer, *fields: str, gpu: str = "H200") -> Info:
    extras = capi.Extras(**dict.fromkeys(fields, 4096))
    capi.check("SetRNNExtras", rnnDesc=layer.rnn.pointer, extras=ctypes.addressof(extras))
    return layer.query_gpu(gpu)


def set_plan(layer: Layer, forward: tuple[int, ...] | None, backward: tuple[int, ...] | None) -> int:
    plans = [None if plan is None else ctypes.byref(capi.Plan(*plan)) for plan in (forward, backward)]
    return capi.call("SetRNNPlan", rnnDesc=layer.rnn.pointer, forward=plans[0], backward=plans[1])


def test_a_plan_of_ones_own() -> None:
    layer = Layer(batch=16)
    for units, replicas in ((8, 1), (16, 2)):
        assert set_plan(layer, (MMA, units, 1, replicas, 100), None) == capi.SUCCESS
        info = layer.query_gpu("H200")
        assert (info.supported, info.unitsPerBlock, info.replicas) == (1, units, replicas)
        assert info.blocks * units == 1024
    largest = info.largestHiddenSize
    for forward, backward in [
        ((MMA, 24, 1, 1, 0), None),
        ((MMA, 8, 2, 1, 0), None),
        ((MMA, 8, 1, 2, 0), None),
        (None, (MMA, 8, 3, 1, 0)),
    ]:
        assert set_plan(layer, forward, backward) == capi.SUCCESS
        info = layer.query_gpu("H200")
        assert (info.supported, info.largestHiddenSize) == (0, largest)
        assert info.reason == b"the plan of prnnSetRNNPlan has no kernel, or does not fit this GPU"
    assert set_plan(layer, None, None) == capi.SUCCESS
    assert layer.query_gpu("H200").supported == 1


@pytest.mark.parametrize("mode", [2, 3])
def test_a_plan_of_wgmma_kernels(mode: int) -> None:
    layer = Layer(mode, hidden=512, batch=16)
    assert set_plan(layer, (WGMMA, 0, 0, 4, 100), (WGMMA, 0, 0, 3, 100)) == capi.SUCCESS
    info = layer.query_gpu("H200")
    assert (info.supported, info.unitsPerBlock, info.blocks, info.replicas) == (1, 16, 32, 4)
    for forward, backward in [((WGMMA, 0, 0, 5, 0), None), (None, (WGMMA, 0, 0, 4, 0)), ((MMA, 8, 4, 1, 0), None)]:
        assert set_plan(layer, forward, backward) == capi.SUCCESS
        assert layer.query_gpu("H200").supported == 0
    for other, row in ((layer, "A100"), (Layer(mode, hidden=512, data_type=capi.FLOAT, batch=16), "H200")):
        assert set_plan(other, (WGMMA, 0, 0, 1, 100), None) == capi.SUCCESS
        assert other.query_gpu(row).supported == 0


@pytest.mark.parametrize("mode", [2, 3])
def test_a_plan_of_split_k_kernels(mode: int) -> None:
    layer = Layer(mode, hidden=512, batch=16)
    assert set_plan(layer, (SPLIT_K, 0, 0, 3, 100), (SPLIT_K, 0, 0, 2, 100)) == capi.SUCCESS
    info = layer.query_gpu("H200")
    assert (info.supported, info.unitsPerBlock, info.blocks, info.replicas) == (1, 16, 32, 3)
    assert info.batchPerPass == 24
    for forward, backward in [((SPLIT_K, 0, 0, 5, 0), None), (None, (SPLIT_K, 0, 0, 5, 0)), ((MMA, 8, 2, 1, 0), None)]:
        assert set_plan(layer, forward, backward) == capi.SUCCESS
        assert layer.query_gpu("H200").supported == 0
    assert set_plan(layer, (SPLIT_K, 0, 0, 3, 100), None) == capi.SUCCESS
    assert layer.query_gpu("A100").supported == 0


@pytest.mark.parametrize("mode", [2, 3])
def test_a_plan_of_multicast_kernels(mode: int) -> None:
    layer = Layer(mode, hidden=1024, batch=600)
    assert set_plan(layer, (MULTICAST, 0, 0, 4, 0), (MULTICAST, 0, 0, 4, 0)) == capi.SUCCESS
    info = layer.query_gpu("H200")
    assert (info.supported, info.unitsPerBlock, info.blocks, info.replicas) == (1, 32, 32, 4)
    assert info.batchPerPass == 320  # two passes alike, of 75 sequences a replica
    assert (info.forwardEngine, info.backwardEngine) == (b"wgmma-multicast", b"wgmma-multicast")
    assert set_plan(layer, (MULTICAST, 0, 0, 5, 0), None) == capi.SUCCESS
    assert layer.query_gpu("H200").supported == 0
    for hidden in (480, 1000, 1344):  # too few chunks for the registers, no whole ones, too many for shared memory
        other = Layer(mode, hidden=hidden, batch=600)
        assert set_plan(other, (MULTICAST, 0, 0, 1, 0), None) == capi.SUCCESS
        assert other.query_gpu("H200").supported == 0
    larger = Layer(mode, hidden=1280, batch=64)  # up to 32 sequences a replica would find room
    assert set_plan(larger, (MULTICAST, 0, 0, 2, 0), None) == capi.SUCCESS
    assert larger.query_gpu("H200").supported == 0
    assert layer.query_gpu("A100").supported == 0


@pytest.mark.parametrize("mode", [2, 3])
def test_a_plan_of_multicast_kernels_in_tf32(mode: int) -> None:
    """Half as many sequences, of half as large a layer, as in 16 bits."""
    layer = Layer(mode, 512, capi.FLOAT, batch=600)
    assert set_plan(layer, (MULTICAST, 0, 0, 8, 0), (MULTICAST, 0, 0, 8, 0)) == capi.SUCCESS
    assert layer.query_gpu("H200").supported == 0  # float32 keeps its accuracy
    capi.check("SetRNNMatrixMathType", rnnDesc=layer.rnn.pointer, mType=2)
    info = layer.query_gpu("H200")
    assert (info.supported, info.unitsPerBlock, info.blocks, info.replicas) == (1, 32, 16, 8)
    assert info.batchPerPass == 320  # two passes alike, of 38 sequences a replica
    assert (info.forwardEngine, info.backwardEngine) == (b"wgmma-multicast", b"wgmma-multicast")
    for hidden in (384, 544, 640, 1024):
        other = Layer(mode, hidden, capi.FLOAT, batch=600)
        capi.check("SetRNNMatrixMathType", rnnDesc=other.rnn.pointer, mType=2)
        for plans in (((MULTICAST, 0, 0, 1, 0), None), (None, (MULTICAST, 0, 0, 1, 0))):
            assert set_plan(other, *plans) == capi.SUCCESS
            assert other.query_gpu("H200").supported == 0


@pytest.mark.parametrize(
    ("arguments", "forward", "backward"),
    [
        ({"hidden": 512, "batch": 8}, b"cluster", b"cluster"),
        ({"hidden": 1024, "batch": 8}, b"mma", b"wgmma"),
        ({"hidden": 1024, "batch": 32}, b"wgmma-split-k", b"wgmma-split-k"),
        ({"hidden": 1024, "batch": 65}, b"wgmma-multicast", b"wgmma-split-k"),
        ({"hidden": 1024, "batch": 97}, b"wgmma-multicast", b"wgmma-multicast"),
        ({"hidden": 512, "batch": 1024}, b"wgmma-multicast", b"wgmma-multicast"),
        ({"hidden": 512, "batch": 128}, b"wgmma", b"wgmma-multicast"),
        ({"hidden": 640, "batch": 96}, b"wgmma", b"wgmma"),
        ({"hidden": 640, "batch": 104}, b"wgmma-multicast", b"wgmma-multicast"),
        ({"mode": GRU, "hidden": 512, "batch": 193}, b"wgmma-multicast", b"wgmma-multicast"),
        ({"mode": GRU, "hidden": 896, "batch": 256}, b"wgmma-multicast", b"wgmma-multicast"),
        ({"hidden": 2432}, b"mma-large", b"mma-large"),
        ({"hidden": 512, "data_type": capi.FLOAT, "batch": 1}, b"simt", b"simt"),
        ({"hidden": 1344, "data_type": capi.FLOAT, "batch": 1}, b"simt", b"simt"),  # weights also in shared memory
        ({"hidden": 1345, "data_type": capi.FLOAT, "batch": 1}, b"mma-large", b"mma-large"),
        ({"mode": RNN_TANH, "hidden": 1024, "data_type": capi.FLOAT, "batch": 4}, b"simt", b"simt"),  # a replica each
        ({"hidden": 512, "batch": 8, "layers": 5}, b"wavefront-mma", b"wavefront-mma"),
        ({"hidden": 512, "batch": 32, "layers": 2}, b"wavefront-wgmma", b"cluster"),
        ({"hidden": 1024, "batch": 32, "layers": 2}, b"wgmma-split-k", b"wgmma-split-k"),
        ({"hidden": 1024, "batch": 8, "layers": 2}, b"wavefront-mma", b"wavefront-mma"),
        ({"hidden": 1024, "batch": 8, "layers": 5}, b"wavefront-chunked", b"wavefront-chunked"),
        ({"hidden": 704, "batch": 8, "layers": 9}, b"wavefront-mma", b"wavefront-mma"),
        ({"hidden": 768, "batch": 8, "layers": 5}, b"wavefront-chunked", b"wavefront-chunked"),
        ({"hidden": 704, "batch": 8, "layers": 3}, b"wavefront-mma", b"wavefront-mma"),
        ({"hidden": 768, "batch": 1, "layers": 3}, b"wavefront-chunked", b"wavefront-chunked"),
        ({"hidden": 6000}, b"", b""),
    ],
    ids=str,
)
def test_engines(arguments: dict[str, int], forward: bytes, backward: bytes) -> None:
    info = Layer(**arguments).query_gpu("H200")
    assert (info.forwardEngine, info.backwardEngine) == (forward, backward)


def test_what_rows_were_measured() -> None:
    assert {gpu for gpu in GPUS if Layer().query_gpu(gpu).measured} == {"H200", "H100"}


def query_sequence(layer: Layer, batches: list[int], gpu: bytes | None = b"H200") -> int:
    hidden = 256
    xs = {batch: capi.tensor([batch, hidden, 1], capi.HALF) for batch in batches}
    return capi.call(
        "QueryRNNSequence",
        handle=layer.handle.pointer,
        gpu=gpu,
        rnnDesc=layer.rnn.pointer,
        seqLength=len(batches),
        xDesc=capi.addresses([xs[batch] for batch in batches]),
        info=ctypes.byref(layer.info),
    )


def test_sequences_of_different_lengths() -> None:
    layer = Layer(hidden=256, layers=3)
    for batch_sizes in ([8, 8], [8, 7]):
        assert query_sequence(layer, batch_sizes) == capi.SUCCESS
        assert (layer.info.layersTogether, layer.info.layersReason) == (3, b"")
    assert query_sequence(layer, [7, 8]) == capi.BAD_PARAM
    assert query_sequence(layer, [8, 7], b"Voodoo 2") == capi.BAD_PARAM
    assert query_sequence(layer, [8], None) == capi.SUCCESS  # the handle's, which is one for the CPU
    assert layer.info.forwardEngine == b"cpu"


def test_rows_that_the_kernels_do_not_count() -> None:
    layer = Layer(hidden=256)
    assert query_sequence(layer, [65536] * 32767) == capi.SUCCESS
    assert (layer.info.supported, layer.info.reason[:5]) == (1, b"cuDNN")
    assert query_sequence(layer, [65536] * 32768) == capi.SUCCESS
    assert (layer.info.supported, layer.info.backend) == (0, CUDNN)
    assert layer.info.reason == (
        b"the sequences have 2147483648 rows in all; the resident kernels take at most 2147483647"
    )
    for batch in (2**25, 2**31 - 1):  # a query without timesteps is of no more rows than that
        assert Layer(hidden=8, batch=batch).query_gpu("H200").supported == 1


def test_sizes_of_long_sequences_that_cannot_be_counted() -> None:
    layer = Layer(hidden=2**26, data_type=capi.DOUBLE)
    x_desc = capi.tensor([2**24, 8, 1], capi.DOUBLE)
    layer.query(capi.BAD_PARAM, xDesc=x_desc.pointer)
    assert "2130706432 rows of data" in capi.message(layer.handle.pointer)


def test_why_not_an_engine_that_is_faster() -> None:
    for gpu, reason in (
        ("H200", b"a cluster holds hidden sizes up to 512; H is 1024; with so few sequences mma is as fast as wgmma"),
        ("A100", b"the GPU has no clusters of thread blocks"),
        ("B200", b"how many clusters stay resident is not in the row of the B200"),
    ):
        assert Layer(hidden=1024, batch=8).query_gpu(gpu).engineReason == reason
    assert Layer(hidden=512, batch=8).query_gpu("H200").engineReason == b""
    assert b"cuDNN" not in Layer(hidden=2432, batch=16).query_gpu("H200").engineReason
    layer = Layer(hidden=257, data_type=capi.FLOAT, batch=8)
    assert layer.query_gpu("H200").engineReason == b"in float32, simt kernels serve up to 4 sequences; N is 8"
    capi.check("SetRNNMatrixMathType", rnnDesc=layer.rnn.pointer, mType=2)
    assert layer.query_gpu("H200").engineReason == b"in tf32, a cluster holds hidden sizes up to 256; H is 257"
    assert b"cluster" not in layer.query_gpu("A100").engineReason


def test_layers_of_a_stack_with_a_plan_of_its_own_run_one_after_the_other() -> None:
    layer = Layer(hidden=256, layers=5)
    assert layer.query_gpu("H200").layersTogether > 1
    assert set_plan(layer, (MMA, 8, 1, 1, 100), None) == capi.SUCCESS
    assert layer.query_gpu("H200").layersTogether == 1


@pytest.mark.parametrize(
    ("plan", "message"),
    [
        (
            (0, 8, 1, 1, 0),
            "engine is PRNN_ENGINE_BEST (0); it must be PRNN_ENGINE_MMA (1), PRNN_ENGINE_WGMMA (2), "
            "PRNN_ENGINE_WGMMA_SPLIT_K (3) or PRNN_ENGINE_WGMMA_MULTICAST (4)",
        ),
        (
            (5, 8, 1, 1, 0),
            "engine is 5; it must be PRNN_ENGINE_MMA (1), PRNN_ENGINE_WGMMA (2), PRNN_ENGINE_WGMMA_SPLIT_K (3) or "
            "PRNN_ENGINE_WGMMA_MULTICAST (4)",
        ),
        ((MMA, 0, 1, 1, 0), "unitsPerBlock is 0; it must be a positive multiple of 8"),
        ((MMA, 12, 1, 1, 0), "unitsPerBlock is 12; it must be a positive multiple of 8"),
        ((MMA, 8, 0, 1, 0), "clusterBlocks is 0; it must be at least 1"),
        ((WGMMA, 16, 0, 1, 0), "unitsPerBlock is 16; it must be 0, since the engine is not PRNN_ENGINE_MMA"),
        ((SPLIT_K, 0, 2, 1, 0), "clusterBlocks is 2; it must be 0, since the engine is not PRNN_ENGINE_MMA"),
        ((MMA, 8, 1, -3, 0), "replicas is -3; it must be at least 1"),
        ((WGMMA, 0, 0, 1, -1), "pollDelayCycles is -1; it must be at least 0"),
    ],
)
def test_plans_that_are_none(plan: tuple[int, ...], message: str) -> None:
    layer = Layer()
    for name, arguments in (("forward", (plan, None)), ("backward", (None, plan))):
        assert set_plan(layer, *arguments) == capi.BAD_PARAM
        assert capi.message() == f"{name}->{message}"


def test_only_a_gpu_has_a_row() -> None:
    handle, text = capi.cpu_handle(), ctypes.create_string_buffer(256)
    assert capi.call("DescribeGPU", handle=handle.pointer, text=text, size=256) == capi.BAD_PARAM
    assert capi.message(handle.pointer) == "handle is one for the CPU; only a GPU has a row"
    assert capi.call("DescribeGPU", handle=handle.pointer, text=None, size=256) == capi.BAD_PARAM


def test_tf32_takes_the_exact_kernels_where_they_are_faster() -> None:
    for mode, hidden, batch, engine in (
        (2, 1024, 1, b"simt"),
        (1, 512, 4, b"simt"),
        (2, 512, 4, b"mma"),
        (0, 2048, 4, b"mma"),
        (0, 2200, 1, b"mma"),
        (2, 256, 4, b"simt"),
        (2, 256, 5, b"cluster"),
        (3, 100, 1000, b"cluster"),
        (2, 257, 5, b"mma"),
        (0, 128, 5, b"mma"),
        (2, 512, 64, b"mma"),
        (2, 512, 65, b"wgmma-multicast"),
        (3, 512, 2048, b"wgmma-multicast"),
        (3, 640, 512, b"mma"),
    ):
        layer = Layer(mode, hidden, capi.FLOAT, batch)
        capi.check("SetRNNMatrixMathType", rnnDesc=layer.rnn.pointer, mType=2)
        info = layer.query_gpu("H200")
        assert (info.forwardEngine, info.backwardEngine) == (engine, engine)


def test_exact_float_has_no_clusters_for_several_sequences() -> None:
    assert Layer(2, 256, capi.FLOAT, 5).query_gpu("H200").forwardEngine == b"mma"
