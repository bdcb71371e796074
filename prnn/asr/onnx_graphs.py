"""A streaming transducer as ONNX graphs: encoder, decoder and joiner, as sherpa-onnx's LSTM transducers have them.

Inputs, outputs and metadata follow csrc/online-lstm-transducer-model.cc of sherpa-onnx; docs/export.md lists them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from torch import Tensor, nn

from prnn import __version__
from prnn.nn import LayerNormLSTM
from prnn.transducer.encoder import Encoder
from prnn.transducer.joiner import Joiner
from prnn.transducer.predictor import StatelessPredictor
from prnn.transducer.recurrent import RecurrentBlock, RecurrentBlocks

_OPSET = 13
_FLOAT, _INT64 = TensorProto.FLOAT, TensorProto.INT64
_ZERO_POINT = 128  # of 8-bit weights

Array = np.ndarray[Any, Any]


def _array(tensor: Tensor) -> Array:
    return tensor.detach().cpu().float().numpy()


def _quantized(weight: Array, axis: int) -> tuple[Array, Array]:
    """8-bit values and the float32 scales of a weight, symmetric, a scale for each index of the other axis.

    The values are unsigned: onnxruntime's products of unsigned activations and signed weights saturate on processors
    without VNNI, those of two unsigned operands do not.
    """
    largest = np.abs(weight).max(axis=axis, keepdims=True)
    scale = np.where(largest > 0, largest / 127, 1).astype(np.float32)
    values = (np.rint(weight / scale) + _ZERO_POINT).astype(np.uint8)
    return values, scale


class _Graph:
    """A graph in the making. With `int8`, its products and tables have 8-bit weights; the rest stays float32."""

    def __init__(self, name: str, int8: bool) -> None:
        self.name = name
        self.int8 = int8
        self._nodes: list[onnx.NodeProto] = []
        self._initializers: list[onnx.TensorProto] = []
        self._inputs: list[onnx.ValueInfoProto] = []
        self._outputs: list[onnx.ValueInfoProto] = []
        self._count = 0

    def _new(self) -> str:
        self._count += 1
        return f"{self.name}_{self._count}"

    def input(self, name: str, dtype: int, shape: Sequence[int | str] | None) -> str:
        self._inputs.append(helper.make_tensor_value_info(name, dtype, shape))
        return name

    def output(self, name: str, value: str, dtype: int, shape: Sequence[int | str] | None) -> None:
        self._nodes.append(helper.make_node("Identity", [value], [name]))
        self._outputs.append(helper.make_tensor_value_info(name, dtype, shape))

    def constant(self, values: Any, dtype: Any = None) -> str:
        name = self._new()
        self._initializers.append(numpy_helper.from_array(np.array(values, dtype, order="C"), name))
        return name

    def nodes(self, operator: str, *inputs: str, outputs: int, **attributes: Any) -> list[str]:
        names = [self._new() for _ in range(outputs)]
        self._nodes.append(helper.make_node(operator, inputs, names, **attributes))
        return names

    def node(self, operator: str, *inputs: str, **attributes: Any) -> str:
        return self.nodes(operator, *inputs, outputs=1, **attributes)[0]

    def linear(self, x: str, weight: Tensor, bias: Tensor | None = None) -> str:
        """`x W^T + b` for a weight of (out, in), as torch's linear layers have it."""
        columns = _array(weight).T
        if self.int8:
            values, scale = _quantized(columns, axis=0)
            x8, x_scale, x_zero = self.nodes("DynamicQuantizeLinear", x, outputs=3)
            zero = self.constant(_ZERO_POINT, np.uint8)
            product = self.node("MatMulInteger", x8, self.constant(values), x_zero, zero)
            product = self.node("Cast", product, to=_FLOAT)
            product = self.node("Mul", product, self.node("Mul", x_scale, self.constant(scale[0])))
        else:
            product = self.node("MatMul", x, self.constant(columns))
        return product if bias is None else self.node("Add", product, self.constant(_array(bias)))

    def layer_norm(self, x: str, weight: Tensor, bias: Tensor | None, eps: float) -> str:
        """Layer normalisation over the last axis, which this opset has no operator for."""
        centred = self.node("Sub", x, self.node("ReduceMean", x, axes=[-1]))
        variance = self.node("ReduceMean", self.node("Mul", centred, centred), axes=[-1])
        deviation = self.node("Sqrt", self.node("Add", variance, self.constant(eps, np.float32)))
        x = self.node("Mul", self.node("Div", centred, deviation), self.constant(_array(weight)))
        return x if bias is None else self.node("Add", x, self.constant(_array(bias)))

    def norm(self, x: str, module: nn.Module) -> str:
        """Adds the nodes of a LayerNorm; an Identity in its place adds none."""
        if not isinstance(module, nn.LayerNorm):
            return x
        return self.layer_norm(x, module.weight, module.bias, module.eps)

    def embedding(self, index: str, table: Tensor) -> str:
        """The rows of a table."""
        if not self.int8:
            return self.node("Gather", self.constant(_array(table)), index)
        values, scale = _quantized(_array(table), axis=1)
        rows = self.node("Cast", self.node("Gather", self.constant(values), index), to=_FLOAT)
        rows = self.node("Sub", rows, self.constant(_ZERO_POINT, np.float32))
        return self.node("Mul", rows, self.node("Gather", self.constant(scale), index))

    def proto(self) -> onnx.GraphProto:
        return helper.make_graph(self._nodes, self.name, self._inputs, self._outputs, self._initializers)

    def model(self, metadata: dict[str, Any]) -> onnx.ModelProto:
        opsets = [helper.make_opsetid("", _OPSET)]
        model = helper.make_model(
            self.proto(), opset_imports=opsets, producer_name="prnn", producer_version=__version__,
            ir_version=helper.find_min_ir_version_for(opsets),
        )  # fmt: skip
        helper.set_model_props(model, {key: str(value) for key, value in metadata.items()})
        return model


def _lstm_step(rnn: Any, layer: int, name: str, int8: bool) -> onnx.GraphProto:
    """A timestep of a layer as the body of a Scan: h, c and the input's gate products to h, c and the output.

    It serves layers with a projection, layer normalisation and zoneout, which ONNX's own LSTM operator does not have.
    """
    graph = _Graph(name, int8)
    before, c, gates = (graph.input(f"{graph.name}_{part}", _FLOAT, None) for part in ("h", "c", "gates"))
    gates = graph.node("Add", gates, graph.linear(before, getattr(rnn, f"weight_hh_l{layer}")))
    normalised = isinstance(rnn, LayerNormLSTM)
    if normalised:
        weight, bias = getattr(rnn, f"norm_gates_weight_l{layer}"), getattr(rnn, f"norm_gates_bias_l{layer}")
        gates = graph.layer_norm(gates, weight, bias, rnn.eps)
    i, f, g, o = graph.nodes("Split", gates, outputs=4, axis=-1)
    kept = graph.node("Mul", graph.node("Sigmoid", f), c)
    c = graph.node("Add", kept, graph.node("Mul", graph.node("Sigmoid", i), graph.node("Tanh", g)))
    if normalised:
        weight, bias = getattr(rnn, f"norm_cell_weight_l{layer}"), getattr(rnn, f"norm_cell_bias_l{layer}")
        c = graph.layer_norm(c, weight, bias, rnn.eps)
    h = graph.node("Mul", graph.node("Sigmoid", o), graph.node("Tanh", c))
    if getattr(rnn, "proj_size", 0):
        h = graph.linear(h, getattr(rnn, f"weight_hr_l{layer}"))
    if rnn.zoneout:
        stays = graph.node("Mul", before, graph.constant(rnn.zoneout, np.float32))
        h = graph.node("Add", stays, graph.node("Mul", h, graph.constant(1 - rnn.zoneout, np.float32)))
    for part, value in (("next_h", h), ("next_c", c), ("out", h)):
        graph.output(f"{graph.name}_{part}", value, _FLOAT, None)
    return graph.proto()


def _lstm_layer(graph: _Graph, rnn: Any, layer: int, number: int, x: str, state: list[str]) -> tuple[str, list[str]]:
    """A layer over the timesteps of x (T, N, I): its output (T, N, size), and h and c after."""
    bias = None
    if not isinstance(rnn, LayerNormLSTM):
        bias = getattr(rnn, f"bias_ih_l{layer}") + getattr(rnn, f"bias_hh_l{layer}")
    gates = graph.linear(x, getattr(rnn, f"weight_ih_l{layer}"), bias)
    step = _lstm_step(rnn, layer, f"layer_{number}", graph.int8)
    *state, out = graph.nodes("Scan", *state, gates, outputs=3, body=step, num_scan_inputs=1)
    return out, state


def _block(graph: _Graph, block: RecurrentBlock, number: int, x: str, state: list[str]) -> tuple[str, list[str]]:
    """A block, as `_lstm_layer`."""

    def joined(x: str, y: str, residual: bool, norm: nn.Module) -> str:
        y = graph.node("Add", x, y) if residual else y
        return y if block.norm_is_before else graph.norm(y, norm)

    inner = graph.norm(x, block.norm) if block.norm_is_before else x
    out, state = _lstm_layer(graph, block.layer, 0, number, inner, state)
    x = joined(x, out, block.residual and not block.is_first, block.norm)
    if block.feedforward is not None:
        inner = graph.norm(x, block.feedforward_norm) if block.norm_is_before else x
        inner = graph.linear(inner, block.feedforward.inner.weight, block.feedforward.inner.bias)
        inner = graph.node("Mul", inner, graph.node("Sigmoid", inner))
        inner = graph.linear(inner, block.feedforward.outer.weight, block.feedforward.outer.bias)
        x = joined(x, inner, block.residual, block.feedforward_norm)
    return x, state


def input_frames(encoder: Encoder, chunk: int) -> int:
    """The feature frames T that give `chunk` encoder frames."""
    return (chunk - 1) * encoder.frame_stride + encoder.frame_stack


def encoder_graph(encoder: Encoder, joiner: Joiner, chunk: int, int8: bool) -> onnx.ModelProto:
    """Features (N, T, F) and states to `chunk` encoder frames (N, chunk, J), projected for the joiner, and states.

    Args:
        encoder: with LSTM layers.
        joiner: whose encoder_proj is applied.
        chunk: encoder frames of a call.
        int8: whether matrices are quantised to 8 bits.
    """
    rnn: Any = encoder.rnn
    length, layers = input_frames(encoder, chunk), rnn.num_layers
    graph = _Graph("encoder", int8)
    x = graph.input("x", _FLOAT, ["N", length, encoder.feature_dim])
    states = [("h", encoder.output_dim), ("c", rnn.hidden_size)]
    before = [graph.input(name, _FLOAT, [layers, "N", size]) for name, size in states]

    x = graph.node("Sub", x, graph.constant(_array(encoder.feature_mean)))
    x = graph.node("Mul", x, graph.constant(_array(encoder.feature_inv_std)))
    frames = np.arange(chunk)[:, None] * encoder.frame_stride + np.arange(encoder.frame_stack)
    x = graph.node("Gather", x, graph.constant(frames, np.int64), axis=1)
    x = graph.node("Reshape", x, graph.constant([0, chunk, encoder.frame_stack * encoder.feature_dim], np.int64))
    x = graph.node("Transpose", x, perm=[1, 0, 2])

    after: list[list[str]] = [[], []]
    first = graph.constant([0], np.int64)
    for layer in range(layers):
        index = graph.constant(layer, np.int64)
        state = [graph.node("Gather", value, index, axis=0) for value in before]
        if isinstance(rnn, RecurrentBlocks):
            x, state = _block(graph, rnn.blocks[layer], layer, x, state)  # type: ignore[arg-type]
        else:
            x, state = _lstm_layer(graph, rnn, layer, layer, x, state)
        for values, value in zip(after, state, strict=True):
            values.append(graph.node("Unsqueeze", value, first))
    if isinstance(rnn, RecurrentBlocks):
        x = graph.norm(x, rnn.output_norm)

    out = graph.linear(graph.node("Transpose", x, perm=[1, 0, 2]), joiner.encoder_proj.weight, joiner.encoder_proj.bias)
    graph.output("encoder_out", out, _FLOAT, ["N", chunk, joiner.encoder_proj.out_features])
    for (name, size), values in zip(states, after, strict=True):
        graph.output(f"next_{name}", graph.node("Concat", *values, axis=0), _FLOAT, [layers, "N", size])
    return graph.model(
        {
            "model_type": "lstm",
            "num_encoder_layers": layers,
            "T": length,
            "decode_chunk_len": chunk * encoder.frame_stride,
            "rnn_hidden_size": rnn.hidden_size,
            "d_model": encoder.output_dim,
        }
    )


def decoder_graph(predictor: StatelessPredictor, joiner: Joiner, int8: bool) -> onnx.ModelProto:
    """The last symbols (N, context) to the predictor's output (N, J), projected for the joiner.

    sherpa-onnx starts with -1 where this predictor has blanks.
    """
    graph = _Graph("decoder", int8)
    y = graph.input("y", _INT64, ["N", predictor.context])
    y = graph.node("Max", y, graph.constant(predictor.blank, np.int64))
    total = ""
    for position, table in enumerate(predictor.embeddings):
        assert isinstance(table, nn.Embedding)
        index = graph.node("Gather", y, graph.constant(position, np.int64), axis=1)
        row = graph.embedding(index, table.weight)
        total = graph.node("Add", total, row) if total else row
    out = graph.linear(total, joiner.predictor_proj.weight)
    graph.output("decoder_out", out, _FLOAT, ["N", joiner.predictor_proj.out_features])
    return graph.model({"vocab_size": joiner.vocab_size, "context_size": predictor.context})


def joiner_graph(joiner: Joiner, int8: bool) -> onnx.ModelProto:
    """Projected encoder and predictor outputs, (N, J) each, to logits (N, V)."""
    graph = _Graph("joiner", int8)
    size = joiner.encoder_proj.out_features
    parts = [graph.input(name, _FLOAT, ["N", size]) for name in ("encoder_out", "decoder_out")]
    x = graph.node("Tanh" if joiner.activation == "tanh" else "Relu", graph.node("Add", *parts))
    graph.output("logits", graph.linear(x, joiner.output.weight, joiner.output.bias), _FLOAT, ["N", joiner.vocab_size])
    return graph.model({})
