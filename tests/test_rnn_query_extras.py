"""prnnQueryRNNForGPU of layers with resets and with c of every timestep."""

import ctypes

import capi
import pytest
from test_rnn_query import GRU, MULTICAST, RNN_TANH, Layer, query_with, set_plan

import prnn


def test_a_cluster_for_each_sequence_share_as_far_as_a_launch_has_blocks() -> None:
    for batch, engine in ((2**31 - 8, b"cluster"), (2**31 - 1, b"mma")):
        assert query_with(Layer(hidden=128, batch=batch), "reset").forwardEngine == engine


@pytest.mark.parametrize(
    ("arguments", "engine"),
    [
        ({"hidden": 256, "batch": 16}, b"cluster"),
        ({"hidden": 512, "batch": 56}, b"cluster"),
        ({"mode": RNN_TANH, "hidden": 512, "batch": 2}, b"cluster"),
        ({"hidden": 512, "data_type": capi.FLOAT, "batch": 1}, b"simt"),
        ({"hidden": 256, "data_type": capi.FLOAT, "batch": 4}, b"simt"),
        ({"hidden": 256, "layers": 4}, b"cluster"),  # else a wavefront
        ({"hidden": 512, "batch": 127}, b"cluster"),  # else wgmma
        ({"hidden": 512, "batch": 128}, b"wgmma-multicast"),
        ({"hidden": 1024, "batch": 32}, b"mma"),
        ({"hidden": 512, "batch": 1000}, b"wgmma-multicast"),
        ({"hidden": 1024, "batch": 33}, b"wgmma-multicast"),
        ({"mode": GRU, "hidden": 1024, "batch": 1000}, b"wgmma-multicast"),
        ({"hidden": 2300, "batch": 100}, b"mma-large"),
        ({"mode": RNN_TANH, "hidden": 4500, "batch": 4}, b"mma-large"),
        ({"hidden": 1600, "data_type": capi.FLOAT, "batch": 4}, b"mma-large"),
    ],
    ids=str,
)
def test_kernels_that_have_resets(arguments: dict[str, int], engine: bytes) -> None:
    layer = Layer(**arguments)
    info = query_with(layer, "reset")
    assert (info.supported, info.forwardEngine, info.backwardEngine) == (1, engine, engine)
    assert (info.layersTogether, info.layersTogetherBackward, info.layersTogetherInference) == (1, 1, 1)
    assert info.reason == b""  # cuDNN, which has none, is not compared with
    if "layers" in arguments:
        assert info.layersReason == b"layers run one after the other with resets, masks and c of every timestep"


def test_with_resets_one_launch_takes_more_clusters_than_are_resident() -> None:
    for batch, replicas, per_pass in ((15, 15, 120), (120, 15, 120), (121, 16, 128), (1000, 125, 1000)):
        info = query_with(Layer(hidden=256, batch=batch), "reset")
        assert (info.forwardEngine, info.replicas, info.batchPerPass) == (b"cluster", replicas, per_pass)


def test_passes_with_resets_have_kernels_of_their_own() -> None:
    for layer, fields, engines in (
        (Layer(GRU, 512, batch=500), ("reset",), (b"wgmma-multicast", b"wgmma-multicast")),
        (Layer(hidden=896, batch=64), ("reset",), (b"wgmma-multicast", b"wgmma-multicast")),
        (Layer(hidden=1024, batch=128), ("reset", "cells"), (b"wgmma-multicast", b"wgmma-multicast")),
        (Layer(hidden=1024, batch=128), ("reset", "cells", "dcells"), (b"wgmma-multicast", b"mma")),
        (Layer(hidden=512, batch=1000), ("reset", "cells", "dcells"), (b"wgmma-multicast", b"cluster")),
    ):
        info = query_with(layer, *fields)
        assert (info.supported, info.forwardEngine, info.backwardEngine) == (1, *engines)


def test_passes_with_resets_in_tf32() -> None:
    for mode, batch, engine in ((2, 64, b"mma"), (2, 65, b"wgmma-multicast"), (GRU, 1000, b"wgmma-multicast")):
        layer = Layer(mode, 512, capi.FLOAT, batch)
        assert query_with(layer, "reset").forwardEngine == b"mma"
        capi.check("SetRNNMatrixMathType", rnnDesc=layer.rnn.pointer, mType=2)
        info = query_with(layer, "reset")
        assert (info.supported, info.forwardEngine, info.backwardEngine) == (1, engine, engine)


def test_kernels_that_have_none() -> None:
    layer = Layer(RNN_TANH, 2200, capi.FLOAT, 4)
    assert layer.query_gpu("L40").supported == 1
    info = query_with(layer, "reset", gpu="L40")
    assert (info.supported, info.forwardEngine) == (0, b"")
    sizes = b"4 sequences of hidden size 2200, at most %d" % info.largestHiddenSize
    assert b"are of kernels that have no room for " + sizes in info.reason
    assert 0 < info.largestHiddenSize < 2200


@pytest.mark.parametrize(("gpu", "room"), [("H200", "hidden sizes up to 2048"), ("A10", "none")])
def test_refusal_of_gates_names_the_room(gpu: str, room: str) -> None:
    layer = prnn._C.Rnn(prnn._C.LSTM, prnn._C.HALF, 2500, 1, 4 * 2500, False, gates_input=True)
    layer.set_backend(prnn._C.PERSISTENT_BACKEND)
    reason = f"the weights of the layer do not stay on the chip, which has room for {room}: "
    assert layer.query_gpu(gpu, 4)["reason"].startswith(reason)


@pytest.mark.parametrize("gpu", ["H200", "A100", "RTX 4090"])
@pytest.mark.parametrize("data_type", [capi.HALF, capi.FLOAT])
@pytest.mark.parametrize("mode", [0, 2, 3])
def test_resets_are_of_layers_of_all_sizes(mode: int, data_type: int, gpu: str) -> None:
    for batch in (1, 64):
        largest = Layer(mode, 64, data_type, batch).query_gpu(gpu).largestHiddenSize
        assert query_with(Layer(mode, 64, data_type, batch), "reset", gpu=gpu).largestHiddenSize == largest
        assert query_with(Layer(mode, largest, data_type, batch), "reset", gpu=gpu).supported == 1


@pytest.mark.parametrize(
    ("arguments", "batch_per_pass"),
    [
        ({"hidden": 1024, "batch": 16}, 16),
        ({"mode": RNN_TANH, "hidden": 1024, "batch": 57}, 64),
        ({"hidden": 512, "data_type": capi.FLOAT, "batch": 8}, 16),
        ({"mode": 3, "hidden": 1000, "batch": 1000}, 336),
    ],
    ids=str,
)
def test_mma_has_them_where_clusters_have_no_room(arguments: dict[str, int], batch_per_pass: int) -> None:
    """Also in several passes."""
    for fields in (("reset",), ("reset", "cells", "dcells")) if arguments.get("mode", 2) == 2 else (("reset",),):
        info = query_with(Layer(**arguments), *fields)
        assert (info.supported, info.forwardEngine, info.backwardEngine) == (1, b"mma", b"mma")
        assert info.batchPerPass == batch_per_pass


def test_no_plan_of_ones_own_has_wgmma_kernels_and_resets() -> None:
    layer = Layer(hidden=1024, batch=16)
    plan = capi.Plan(2, 0, 0, 1, 100)
    capi.check("SetRNNPlan", rnnDesc=layer.rnn.pointer, forward=ctypes.byref(plan), backward=ctypes.byref(plan))
    assert layer.query_gpu("H200").forwardEngine == b"wgmma"
    assert query_with(layer, "reset").supported == 0


def test_a_plan_of_ones_own_has_multicast_kernels_and_resets() -> None:
    layer = Layer(hidden=1024, batch=16)
    assert set_plan(layer, (MULTICAST, 0, 0, 1, 0), (MULTICAST, 0, 0, 1, 0)) == capi.SUCCESS
    info = query_with(layer, "reset")
    assert (info.forwardEngine, info.backwardEngine) == (b"wgmma-multicast", b"wgmma-multicast")
    assert query_with(layer, "reset", "dcells").supported == 0
