"""Which kernels would run the recurrent layers of a model, and why not faster ones."""

import dataclasses
from collections.abc import Sequence
from operator import index

import torch
from torch import Tensor

from prnn import _C, nn
from prnn._layer_norm_stack import gates_configuration
from prnn._ops._handles import DTYPES, handle
from prnn._ops._layer import BACKENDS, MODES, Config, Layer
from prnn._ops._precision import allows_tf32_rnn
from prnn._options import configuration_of

__all__ = ["Explanation", "LayerExplanation", "explain"]

_MOST = 2**31 - 1  # sequences, and rows of data that the resident kernels count
_LONG = 256  # timesteps of long sequences
_OURS = (nn.RNN, nn.GRU, nn.LSTM, nn.sLSTM)
_KINDS = (nn.LayerNormLSTM, *_OURS, torch.nn.RNN, torch.nn.GRU, torch.nn.LSTM)


@dataclasses.dataclass(frozen=True)
class LayerExplanation:
    """One module. Engines are those of docs/resident_kernels.md ("mma", "wgmma", "cluster", ...), "cpu" or "cudnn", of
    a LayerNormLSTM those of docs/layer_norm_lstm.md."""

    name: str  # in the model; "" for the model itself
    module: str  # what it is: "LSTM 80 -> 512, 2 layers"
    dtype: torch.dtype
    device: str  # the GPU's row of the table, or the CPU
    forward: str  # engine
    backward: str
    layers_together: int  # layers that one launch runs forward; 1: one after the other
    blocks: int  # thread blocks of a replica of the weights (CPU: threads)
    replicas: int  # copies of the weights, each serving a share of the batch
    supported: bool  # False: the resident kernels do not serve it
    notes: tuple[str, ...]  # why not a faster engine, why not together; why it is not supported
    units: int = 0  # hidden units of a block; 0: none holds weights, and where it is not supported


@dataclasses.dataclass(frozen=True)
class Explanation:
    """The findings of explain(), in the order of the model's modules; str() is a table."""

    batch: int
    layers: tuple[LayerExplanation, ...]

    def __str__(self) -> str:
        if not self.layers:
            return "no recurrent layers"
        header = ("layer", "module", "dtype", "on", "forward", "backward", "together", "blocks", "units")
        rows = [header]
        for layer in self.layers:
            blocks = f"{layer.blocks}" if layer.replicas == 1 else f"{layer.replicas} x {layer.blocks}"
            dtype = str(layer.dtype).removeprefix("torch.")
            together = str(layer.layers_together) if layer.layers_together > 1 else "-"
            rows.append(
                (layer.name or "(model)", layer.module, dtype, layer.device, layer.forward, layer.backward, together)
                + (blocks if layer.supported else "-", str(layer.units) if layer.units > 0 else "-")
            )
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = [f"N = {self.batch}"]
        for row, notes in zip(rows, ((), *(layer.notes for layer in self.layers)), strict=True):
            lines.append("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
            lines += [f"    {note}" for note in notes]
        return "\n".join(lines)


def explain(
    module: torch.nn.Module,
    batch: int | Sequence[int] | Tensor,
    *,
    gpu: str | None = None,
    dtype: torch.dtype | None = None,
) -> Explanation:
    """Says which kernels would run each recurrent layer of a model: prnn.nn's as they are, torch.nn's as prnn.convert
    would make them. Nothing runs, and no GPU is needed where `gpu` names one.

    A layer with dropout is explained as it trains, or, in evaluation mode, without dropout.

    Args:
        module: any module, also a recurrent layer itself.
        batch: the number of sequences, all of one length, or the length of each, or a tensor that the model takes: its
            first dimension is N, or its second, after the timesteps, where the model's first recurrent layer is not
            batch_first. Of floating-point numbers with two dimensions it is one sequence for a layer, and N samples
            for any other model, of any length.
        gpu: a row of the tile table ("H200", "A100"; `prnn info` lists them); None is the device of the weights.
        dtype: of the layers' input, where it is not that of the weights (under autocast).

    Raises:
        TypeError, ValueError: an argument of a wrong type or value.
    """
    if not isinstance(module, torch.nn.Module):
        raise TypeError(f"module is a {type(module).__name__}; it must be a torch.nn.Module")
    if dtype is not None and dtype not in DTYPES:
        raise ValueError(f"dtype is {dtype}; recurrent layers take float32, float64, float16 and bfloat16")
    if not (gpu is None or isinstance(gpu, str)):
        raise TypeError(f"gpu is {gpu!r}; it must be a string")
    if gpu is not None and gpu.lower() not in (name.lower() for name in _C.gpu_names()):
        raise ValueError(f"gpu is {gpu!r}; the table has {', '.join(_C.gpu_names())}")
    sizes = _sizes_of_input(module, batch) or _batch_sizes(batch)
    layers = []
    for name, layer in module.named_modules():
        if isinstance(layer, _KINDS):
            layers.append(_explain_layer(name, layer, sizes, gpu, dtype))
    return Explanation(sizes[0], tuple(layers))


def _sizes_of_input(module: torch.nn.Module, input: int | Sequence[int] | Tensor) -> list[int] | None:
    """Sequences of each timestep of a tensor that the model takes; None for any other argument."""
    if not isinstance(input, Tensor) or (input.dim() <= 1 and not input.is_floating_point()):
        return None
    found = f"a tensor of shape {tuple(input.shape)} and {input.dtype}"
    if input.dim() < 2 or 0 in input.shape[:2]:
        raise ValueError(f"batch is {found}; an input of the model has at least two dimensions and one sequence")
    features = _features(module)
    if features is not None and input.is_floating_point() and input.size(-1) != features:
        raise ValueError(f"batch is {found}; the model takes {features} features, the last dimension")
    layers = [layer for layer in module.modules() if isinstance(layer, _KINDS)]
    if input.dim() == 2 and input.is_floating_point():
        steps, batch = (input.size(0), 1) if isinstance(module, _KINDS) else (_LONG, input.size(0))
    else:
        steps, batch = input.shape[:2]
        if layers and layers[0].batch_first:
            steps, batch = batch, steps
    return [_checked(batch, found, "it")] * _C.canonical_length(steps)


def _features(module: torch.nn.Module) -> int | None:
    """The size of the last dimension of what a recurrent layer, an encoder of a transducer or a transducer takes; None
    for other models."""
    for owner, name in (
        (module, "input_size"),
        (module, "feature_dim"),
        (getattr(module, "encoder", None), "feature_dim"),
    ):
        if isinstance(size := getattr(owner, name, None), int):
            return size
    return None


def _batch_sizes(batch: int | Sequence[int] | Tensor) -> list[int]:
    """Sequences of each timestep. A number alone is one of long sequences."""
    values = batch.tolist() if isinstance(batch, Tensor) else batch
    try:
        if isinstance(values, str | bytes | bool):
            raise TypeError
        if not isinstance(values, Sequence):
            number = _checked(index(values), batch, "it")
            return [number] * min(_LONG, _MOST // number)
        lengths = [_checked(index(length), batch, "lengths") for length in values]
    except TypeError:
        raise TypeError(f"batch is {batch!r}; it must be a number of sequences, their lengths, or a tensor") from None
    if not lengths:
        raise ValueError(f"batch is {batch!r}; there must be at least one sequence")
    if min(lengths) == max(lengths):
        return [len(lengths)] * _C.canonical_length(lengths[0])
    # The plan asks whether the number of sequences changes, for the largest, and whether timesteps are few.
    some_end = [sum(length > min(lengths) for length in lengths)]
    return [len(lengths)] * (_C.canonical_length(max(lengths)) - 1) + some_end


def _checked(number: int, batch: object, what: str) -> int:
    if number < 1:
        raise ValueError(f"batch is {batch!r}; {what} must be at least 1")
    if number > _MOST:
        raise ValueError(f"batch is {batch!r}; {what} must be at most {_MOST}")
    return number


def _describe(layer: torch.nn.RNNBase | nn.LayerNormLSTM) -> str:
    projection = getattr(layer, "proj_size", 0)
    state = f"{layer.hidden_size}" if projection == 0 else f"{layer.hidden_size} ({projection})"
    directions = ", both directions" if layer.bidirectional else ""
    layers = f", {layer.num_layers} layers" if layer.num_layers > 1 else ""
    heads = getattr(layer, "heads", 1)
    layers += f", {heads} heads" if heads > 1 else ""
    return f"{type(layer).__name__} {layer.input_size} -> {state}{layers}{directions}"


def _explain_layer(
    name: str,
    layer: torch.nn.RNNBase | nn.LayerNormLSTM,
    sizes: list[int],
    gpu: str | None,
    dtype: torch.dtype | None,
) -> LayerExplanation:
    weight = next(layer.parameters())
    dtype = dtype or weight.dtype
    notes = []
    if type(layer) not in _KINDS:
        notes.append(f"{type(layer).__qualname__} is a subclass, which prnn.convert leaves as it is")
    is_cuda = gpu is not None or weight.device.type == "cuda"
    computed = dtype
    if not is_cuda and dtype in (torch.float16, torch.bfloat16):
        computed = torch.float32
        notes.append("computed in float32")
    width = layer.input_size
    if isinstance(layer, nn.LayerNormLSTM):  # each layer and direction is a call
        config, sizes = gates_configuration(layer, False), sizes[:1]
        width = 4 * config.hidden_size
    elif isinstance(layer, _OURS):
        config = configuration_of(layer)
    else:
        shape = (layer.hidden_size, layer.proj_size, layer.num_layers, layer.bidirectional)
        dropout = layer.dropout if layer.training and layer.num_layers > 1 else 0.0
        config = Config(MODES[layer.mode], *shape, dropout, BACKENDS["best"])
    device = weight.device if is_cuda and gpu is None else torch.device("cpu")
    rnn = Layer(config, computed, width, device).rnn
    if is_cuda:  # a GPU of the table, too
        rnn.set_backend(config.backend)
        rnn.set_math(_C.TF32_MATH if dtype == torch.float32 and allows_tf32_rnn() else _C.DEFAULT_MATH)
    found = rnn.query(handle(device), sizes) if gpu is None else rnn.query_gpu(gpu, sizes)
    together = found["layers_together"]
    engines = found["forward_engine"], found["backward_engine"]
    if found["backend"] == _C.CUDNN_BACKEND:
        engines = ("cudnn", "cudnn")
    elif not found["supported"]:
        engines = ("-", "-")
    if found["supported"] and not found["measured"]:
        notes.append(f"nobody has run the plans for the {found['device']}")
    on_steps = [label for label, engine in zip(("forward", "backward"), engines, strict=True) if engine == "steps"]
    if on_steps:
        passes = "" if len(on_steps) == 2 else f" {on_steps[0]}"
        notes.append(f"two launches a timestep{passes}: see docs/layer_norm_lstm.md")
    if together > 1 and not engines[0].startswith("wavefront"):
        notes.append("two layers side by side, each on half of the GPU")
    if found["supported"] and together == 1 and found["layers_together_inference"] > 1:
        notes.append(f"inference runs {found['layers_together_inference']} layers together")
    reasons = {"": "reason", "not faster: ": "engine_reason", "not together: ": "layers_reason"}
    notes += [f"{label}{found[key]}" for label, key in reasons.items() if found[key]]
    return LayerExplanation(
        name,
        _describe(layer),
        dtype,
        found["device"],
        *engines,
        together,
        max(found["blocks"], 1) if found["supported"] else 0,
        found["replicas"],
        found["supported"],
        tuple(notes),
        found["units_per_block"] if found["supported"] else 0,
    )
