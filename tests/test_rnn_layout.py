"""Where prnnGetRNNLinLayer{Matrix,Bias}Params find things in the packed weights, against a layout worked out apart."""

import ctypes
import itertools
from typing import Any

import capi
import pytest
import torch
from reference import rnn as reference

BASE = 1 << 20  # where the packed weights are said to lie; they are never read
ELEMENT_SIZE = {capi.FLOAT: 4, capi.DOUBLE: 8, capi.HALF: 2, capi.BFLOAT16: 2}

STACKS = [
    reference.Stack(mode, 6 if skip else 5, 6, layers, directions, skip, projection)
    for mode, layers, directions, skip, projection in itertools.product(range(4), (1, 3), (1, 2), (False, True), (0, 4))
    if mode == reference.LSTM or not projection
]


class Layout:
    """The descriptors that a query of a stack's weights takes."""

    def __init__(self, stack: reference.Stack, data_type: int = capi.FLOAT) -> None:
        self.stack, self.data_type = stack, data_type
        self.handle = capi.cpu_handle()
        self.rnn = capi.descriptor("RNN")
        capi.check(
            "SetRNNDescriptor",
            rnnDesc=self.rnn.pointer,
            hiddenSize=stack.hidden,
            numLayers=stack.layers,
            dropoutDesc=None,
            inputMode=int(stack.skip_input),
            direction=stack.directions - 1,
            mode=stack.mode,
            dataType=data_type,
        )
        if stack.projection:
            capi.check("SetRNNProjectionSize", rnnDesc=self.rnn.pointer, projSize=stack.projection)
        self.x_desc = capi.tensor([2, stack.input, 1], data_type)
        self.w_desc = capi.filter_([stack.hidden, reference.params_size(stack) // stack.hidden, 1], data_type)

    def query(self, kind: str, **changes: Any) -> tuple[int, int | None, list[int]]:
        """Status, pointer and dimensions that prnnGetRNNLinLayer<kind>Params gives."""
        block, pointer = capi.filter_([99]), ctypes.c_void_p(77)
        short = {"Matrix": "Mat", "Bias": "Bias"}[kind]
        arguments = {
            "handle": self.handle.pointer,
            "rnnDesc": self.rnn.pointer,
            "layer": 0,
            "xDesc": self.x_desc.pointer,
            "wDesc": self.w_desc.pointer,
            "w": BASE,
            "linLayerID": 0,
            f"linLayer{short}Desc": block.pointer,
            f"linLayer{short}": ctypes.byref(pointer),
        }
        status = capi.call(f"GetRNNLinLayer{kind}Params", **(arguments | changes))
        rank, dims = ctypes.c_int(), capi.ints([0] * 8)
        capi.check(
            "GetFilterNdDescriptor",
            filterDesc=block.pointer,
            nbDimsRequested=8,
            dataType=None,
            format=None,
            nbDims=ctypes.byref(rank),
            filterDimA=dims,
        )
        return status, pointer.value, list(dims)[: rank.value]

    def found(self, kind: str, pseudo_layer: int, lin_layer: int) -> tuple[int | None, list[int]]:
        """Offset in elements, None for NULL, and dimensions."""
        status, pointer, dims = self.query(kind, layer=pseudo_layer, linLayerID=lin_layer)
        assert status == capi.SUCCESS, capi.message(self.handle.pointer)
        return None if pointer is None else (pointer - BASE) // ELEMENT_SIZE[self.data_type], dims


@pytest.mark.parametrize("stack", STACKS, ids=str)
def test_params_size(stack: reference.Stack) -> None:
    for data_type, size in ELEMENT_SIZE.items():
        layout = Layout(stack, data_type)
        bytes_ = capi.size_from(
            "GetRNNParamsSize",
            handle=layout.handle.pointer,
            rnnDesc=layout.rnn.pointer,
            xDesc=layout.x_desc.pointer,
            dataType=data_type,
        )
        assert bytes_ == size * reference.params_size(stack)


@pytest.mark.parametrize("data_type", [capi.FLOAT, capi.DOUBLE, capi.HALF])
@pytest.mark.parametrize("stack", STACKS, ids=str)
def test_every_matrix_and_bias(stack: reference.Stack, data_type: int) -> None:
    layout = Layout(stack, data_type)
    positions = torch.arange(reference.params_size(stack))  # the value of a weight is its offset
    seen = []
    for layer, directions in enumerate(reference.split_weights(stack, positions)):
        for direction, weights in enumerate(directions):
            pseudo_layer = layer * stack.directions + direction
            for gate in range(stack.gates):
                for kind, block, lin_layer in [
                    ("Matrix", weights.input, gate),
                    ("Matrix", weights.recurrent, gate + stack.gates),
                    ("Bias", weights.input_bias, gate),
                    ("Bias", weights.recurrent_bias, gate + stack.gates),
                ]:
                    offset, dims = layout.found(kind, pseudo_layer, lin_layer)
                    if block is None:
                        assert (offset, dims) == (None, [])
                        continue
                    elements = block[gate].numel()
                    assert offset == block[gate].flatten()[0]
                    assert dims == ([elements, 1, 1] if kind == "Matrix" else [1, elements, 1])
                    seen += range(offset, offset + elements)
            if weights.projection is not None:
                assert layout.found("Matrix", pseudo_layer, 8) == (
                    weights.projection.flatten()[0],
                    [weights.projection.numel(), 1, 1],
                )
                assert layout.found("Bias", pseudo_layer, 8) == (None, [])
                seen += weights.projection.flatten().tolist()
    assert sorted(seen) == list(range(reference.params_size(stack)))


def test_null_weights_give_offsets() -> None:
    stack = reference.Stack(reference.GRU, 5, 6, 2)
    status, pointer, _ = Layout(stack).query("Matrix", w=None, layer=1, linLayerID=3)
    assert status == capi.SUCCESS
    first = reference.split_weights(stack, torch.arange(reference.params_size(stack)))[1][0].recurrent
    assert pointer == 4 * first.flatten()[0]


@pytest.mark.parametrize("trailing", [[], [1], [1, 1], [1, 1, 1]])
def test_descriptors_of_two_to_five_dimensions(trailing: list[int]) -> None:
    stack = reference.Stack(reference.LSTM, 5, 6)
    x_desc = capi.tensor([2, 5, *trailing])
    w_desc = capi.filter_([1, reference.params_size(stack), *trailing])
    status, pointer, dims = Layout(stack).query("Matrix", xDesc=x_desc.pointer, wDesc=w_desc.pointer)
    assert (status, pointer, dims) == (capi.SUCCESS, BASE, [30, 1, 1])


def test_more_than_2_to_the_31_weights() -> None:
    """Sizes of 64 bits, also where each factor fits 32."""
    layout = Layout(reference.Stack(reference.LSTM, 40000, 30000, 3, 2), capi.HALF)
    count = 2 * (120000 * (40000 + 30000) + 2 * 120000 * (60000 + 30000) + 3 * 2 * 120000)
    assert count == reference.params_size(layout.stack) > 2**32
    status, pointer, dims = layout.query("Bias", layer=5, linLayerID=7)
    assert (status, dims) == (capi.SUCCESS, [1, 30000, 1])
    assert pointer == BASE + 2 * (count - 30000)


def test_a_matrix_too_large_for_a_descriptor_is_not_supported() -> None:
    layout = Layout(reference.Stack(reference.RNN_TANH, 70000, 70000))
    status, pointer, dims = layout.query("Matrix")
    assert (status, pointer, dims) == (capi.NOT_SUPPORTED, 77, [99])
    assert "4900000000 elements" in capi.message(layout.handle.pointer)


@pytest.mark.parametrize("kind", ["Matrix", "Bias"])
@pytest.mark.parametrize(
    ("stack", "changes", "text"),
    [
        (reference.Stack(0, 5, 6), dict(layer=1), "layer is 1"),
        (reference.Stack(0, 5, 6, 3, 2), dict(layer=6), "numLayers * directions - 1 = 5"),
        (reference.Stack(0, 5, 6), dict(layer=-1), "layer is -1"),
        (reference.Stack(0, 5, 6), dict(linLayerID=2), "linLayerID is 2"),
        (reference.Stack(2, 5, 6), dict(linLayerID=8), "linLayerID is 8"),
        (reference.Stack(2, 5, 6, projection=4), dict(linLayerID=9), "or be 8 for the projection"),
        (reference.Stack(3, 5, 6), dict(linLayerID=6), "between 0 and 5"),
        (reference.Stack(3, 5, 6), dict(linLayerID=-1), "linLayerID is -1"),
        (reference.Stack(3, 5, 6), dict(rnnDesc=None), "rnnDesc is NULL"),
        (reference.Stack(3, 5, 6), dict(xDesc=None), "xDesc is NULL"),
        (reference.Stack(3, 5, 6), dict(wDesc=None), "wDesc is NULL"),
    ],
)
def test_bad_queries_change_nothing(kind: str, stack: reference.Stack, changes: dict[str, Any], text: str) -> None:
    layout = Layout(stack)
    assert layout.query(kind, **changes) == (capi.BAD_PARAM, 77, [99])
    assert text in capi.message(layout.handle.pointer)


@pytest.mark.parametrize("kind", ["Matrix", "Bias"])
def test_where_the_answer_goes(kind: str) -> None:
    layout = Layout(reference.Stack(3, 5, 6))
    short = {"Matrix": "Mat", "Bias": "Bias"}[kind]
    assert layout.query(kind, handle=None)[0] == capi.NOT_INITIALIZED
    for name in (f"linLayer{short}", f"linLayer{short}Desc"):
        assert layout.query(kind, **{name: None}) == (capi.BAD_PARAM, 77, [99])
        assert capi.message(layout.handle.pointer) == f"{name} is NULL"


def test_weights_of_another_size_or_type() -> None:
    layout = Layout(reference.Stack(reference.LSTM, 5, 6))
    for bad in (capi.filter_([5, 1, 1]), capi.filter_([2**31 - 1] * 8)):
        assert layout.query("Matrix", wDesc=bad.pointer)[0] == capi.BAD_PARAM
        assert "the packed weights of this layer have 312 elements" in capi.message(layout.handle.pointer)
    double, unset = capi.filter_([312], capi.DOUBLE), capi.descriptor("Filter")
    assert layout.query("Matrix", wDesc=double.pointer)[0] == capi.BAD_PARAM
    assert "wDesc has type PRNN_DATA_DOUBLE; it must be PRNN_DATA_FLOAT" in capi.message(layout.handle.pointer)
    assert layout.query("Matrix", wDesc=unset.pointer)[0] == capi.BAD_PARAM
    assert "wDesc has no dimensions yet" in capi.message(layout.handle.pointer)
