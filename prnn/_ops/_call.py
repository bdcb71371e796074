"""A prepared recurrent call: a thread's layer, and what it needs for sequences of one size, forward and backward."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from prnn import _C
from prnn._ops._handles import device_of, handle, is_unproven, this_thread
from prnn._ops._layer import BACKENDS, Config, Layer, layer
from prnn._ops._measured import is_benchmark

__all__ = ["NO_OPTIONS", "Call", "Data", "Options", "lie_packed", "make_ready", "pack_weights", "prepare"]

_BYTE = torch.uint8  # each look-up takes time

# Without initial states cuDNN's training step takes up to 7 % longer for many sequences, with states of fewer elements
# 1 to 9 % less.
_MANY_STATES = 8192

Data = tuple[Tensor, Tensor | None, Tensor | None]  # input, hx and cx
# reset, in the layout of input; the masks of zoneout, in the layout of input, and of the recurrence, (L D, N, H); the
# seed of dropout, which counts the calls; and lengths on the device of an LSTM that takes gates (others' do not count).
Options = tuple[Tensor | None, Tensor | None, Tensor | None, Tensor | None, Tensor | None]
NO_OPTIONS: Options = (None, None, None, None, None)
# A tensor at whose address the packed weights begin; of an LSTM that takes gates each of them.
Weights = Tensor | Sequence[Tensor]
# Output, hy (None of an LSTM that takes gates), cy, an LSTM's, the reserve space of a call that trains, and cells,
# where they are returned.
Results = tuple[Tensor, Tensor | None, Tensor | None, Tensor | None, Tensor | None]
Gradients = tuple[Tensor | None, Tensor | None, Tensor | None, Tensor | None]


def lie_packed(weights: Sequence[Tensor], stack: Layer, input: Tensor) -> bool:
    """Whether weights, which are checked, lie one after the other, and aligned as cuDNN's kernels want it."""
    if not weights:
        raise ValueError("weights is empty")
    dtype, itemsize = input.dtype, input.itemsize
    place = input.get_device()
    first = address = weights[0].data_ptr()
    in_place = first % 16 == 0
    for weight in weights:
        if weight.dtype is not dtype or weight.get_device() != place:
            raise ValueError(
                f"a weight has dtype {weight.dtype} on {weight.device}, but input has {dtype} on {input.device}"
            )
        in_place = in_place and weight.data_ptr() == address and weight.is_contiguous()
        address += weight.numel() * itemsize
    count = (address - first) // itemsize
    if count != stack.params_size:
        raise ValueError(
            f"weights hold {count} elements; the layer has {stack.params_size} for inputs of size {input.size(-1)}"
        )
    return in_place


def pack_weights(weights: Sequence[Tensor], stack: Layer, input: Tensor) -> Weights:
    """The weights as a call takes them, without a copy where they lie so."""
    if not stack.takes_gates:
        in_place = lie_packed(weights, stack, input)
        return weights[0] if in_place else torch.cat([weight.reshape(-1) for weight in weights])
    shapes, dtype, place = stack.gates_shapes, input.dtype, input.get_device()
    if len(weights) != len(shapes):
        raise ValueError(f"weights has {len(weights)} tensors; it must have {len(shapes)}, of shapes {shapes}")
    for index, weight in enumerate(weights):  # parameters may have been replaced, or converted one by one
        if weight.shape != shapes[index]:
            raise ValueError(f"weights[{index}] has shape {tuple(weight.shape)}; it must be {shapes[index]}")
        if weight.dtype is not dtype or weight.get_device() != place:
            found = f"weights[{index}] has dtype {weight.dtype} on {weight.device}"
            raise ValueError(f"{found}, but input has {dtype} on {input.device}")
    return weights


def _with_options(weights: Weights, options: Options, data: Data) -> tuple[Tensor, list[int], list[Tensor | None]]:
    """The packed weights, or the recurrent matrix of an LSTM that takes gates; options, and that LSTM's other weights,
    as the library's binding takes them; and the tensors at their addresses."""
    reset, zoneout, recurrent, _, lengths = options
    input, hx, cx = data
    norm: Sequence[Tensor] = ()
    if not isinstance(weights, Tensor):
        matrix, *norm = weights
        weights, zoneout = matrix.contiguous(), None if zoneout is None else zoneout.to(input.dtype)
    if recurrent is not None:
        recurrent = recurrent.to(input.dtype)
    kept: list[Tensor | None] = [reset, zoneout, recurrent, lengths, *norm]
    addresses = [int(hx is not None and hx.dim() == 4), int(cx is not None and cx.dim() == 4)]
    for place, array in enumerate(kept):
        if array is None:
            addresses.append(0)
        else:
            kept[place] = array = array.contiguous()
            addresses.append(array.data_ptr())
    return weights, addresses, kept


class Call:
    """A layer of the calling thread prepared for sequences of one size, for training or inference, and the precision
    that the layer has now.

    given: the configuration that the layer's was chosen for, which may leave the choice of a backend open.
    sequences: those of the first call. Later ones have as many timesteps and sequences, and in the last timestep as
    many or, where there are many timesteps, fewer than in the first as well."""

    __slots__ = ("given", "ready", "sequences", "spaces", "stack", "thread", "training")

    def __init__(self, stack: Layer, sequences: "_C.Sequences", training: bool, given: Config | None = None) -> None:
        self.stack, self.sequences, self.training, self.given = stack, sequences, training, given or stack.config
        self.thread = this_thread.token
        self.spaces: tuple[int, int] | None = None  # bytes of workspace and reserve, where all calls take as many
        self.ready: set[Layer] = set()  # the layers of other threads for which make_ready() has run

    def forward(
        self,
        sequences: "_C.Sequences",
        data: Data,
        weights: Weights,
        options: Options = NO_OPTIONS,
        reserve_size: int = 0,
    ) -> Results:
        """Computes a call on the current GPU or on the CPU. All arguments have been checked, and there are sequences.

        weights: of pack_weights(). data: input (T, N, I) or packed (rows, I); states as rnn.py has them. reserve_size:
        bytes of the reserve space, at least as many as the library asks for; 0: as many.

        Each call of a function of Python's takes time: this calls C."""
        stack, (input, hx, cx) = self.stack, data
        library = stack.library or handle(stack.device)
        if stack.has_tf32:
            stack.follow_precision()
        rnn, new, training, batch = stack.rnn, input.new_empty, self.training, sequences.batch
        hx_address = cx_address = hy_address = cy_address = cells_address = reserve_address = step = sequence = 0
        if hx is not None:
            hx_address = (hx := hx.contiguous()).data_ptr()
        if cx is not None:
            cx_address = (cx := cx.contiguous()).data_ptr()
        *rows, _ = input.shape
        y = new((*rows, stack.output_size))
        packed: Any = weights
        hy = cy = reserve = cells = given = None
        if not stack.takes_gates:
            hy_address = (hy := new((stack.states, batch, stack.state_size))).data_ptr()
        if stack.cell_states > 0:
            cy_address = (cy := new((stack.cell_states, batch, stack.hidden_size))).data_ptr()
        if stack.has_options:
            packed, given, _kept = _with_options(weights, options, data)
            if stack.config.return_cells:
                cells_address = (cells := new((*rows, stack.cells_size))).data_ptr()
        if (seed := options[3]) is not None:
            stack.seed_dropout(library, seed)
        workspace_size, needed = self.spaces or rnn.spaces(library, training, sequences)
        workspace = stack.kept_workspace
        if workspace is None or workspace.numel() < workspace_size:
            workspace = stack.workspace(workspace_size, input)
        if training:
            reserve_size = reserve_size or needed
            reserve_address = (reserve := new(reserve_size, dtype=_BYTE)).data_ptr()
        if not sequences.is_padded:
            input = input.contiguous()
        else:
            if input.stride(2) != 1:
                input = input.contiguous()
            step, sequence, _ = input.stride()
        itemsize = input.itemsize
        rnn.run_forward(
            *(library, sequences, input.data_ptr(), step * itemsize, sequence * itemsize, hx_address, cx_address),
            *(packed.data_ptr(), y.data_ptr(), hy_address, cy_address, cells_address),
            *(workspace.data_ptr(), workspace_size, reserve_address, reserve_size if training else 0, given),
        )
        return y, hy, cy, reserve, cells

    def backward(
        self,
        sequences: "_C.Sequences",
        gradients: Gradients,
        data: Data,
        weights: Weights,
        options: Options,
        output: Tensor,
        reserve: Tensor,
        wanted: Sequence[bool],
    ) -> tuple[Tensor | None, Tensor | None, Tensor | None, Tensor | None]:
        """The gradients of input, hx, cx and the packed weights, None for those that are not wanted. Arguments as
        forward()'s; gradients: those of output, hy, cy and cells."""
        stack, (input, hx, cx) = self.stack, data
        library = stack.library or handle(stack.device)
        if stack.has_tf32:
            stack.follow_precision()
        rnn, itemsize = stack.rnn, input.itemsize
        hx, cx, dhy, dcy, dcells = [
            None if tensor is None else tensor.contiguous() for tensor in (hx, cx, *gradients[1:])
        ]
        output = output.contiguous()
        dy = torch.zeros_like(output) if gradients[0] is None else gradients[0]
        dx = input.new_empty(input.shape) if wanted[0] or stack.takes_gates else None  # whose kernels write it anyway
        dhx = torch.empty_like(hx) if wanted[1] and hx is not None else None
        dcx = torch.empty_like(cx) if wanted[2] and cx is not None else None
        dw = None
        if wanted[3]:
            dw = (input.new_empty if stack.sets_gradients else input.new_zeros)(stack.params_size)
        packed: Any = weights
        given = None
        if stack.has_options:
            zoneout = options[1] if stack.takes_gates else None  # other layers do not read it again
            packed, given, _kept = _with_options(weights, (options[0], zoneout, *options[2:]), data)
        x_strides = dy_strides = (0, 0)
        if not sequences.is_padded:
            input, dy = input.contiguous(), dy.contiguous()
        else:
            input, dy = (value if value.stride(2) == 1 else value.contiguous() for value in (input, dy))
            x_strides = input.stride(0) * itemsize, input.stride(1) * itemsize
            dy_strides = dy.stride(0) * itemsize, dy.stride(1) * itemsize
        workspace_size = rnn.backward_space(library, sequences, dcells is not None, dx is not None)
        workspace = stack.workspace(workspace_size, input)
        initial, batch = hx, sequences.batch  # the states that the weights' gradients begin with
        is_large = batch * stack.hidden_size >= _MANY_STATES and stack.config.backend == BACKENDS["cudnn"]
        if dw is not None and hx is None and is_large:
            initial = input.new_zeros(stack.states, batch, stack.state_size)
        at_hx, at_cx, at_dhy, at_dcy, at_dcells, at_dx, at_dhx, at_dcx, at_initial, at_dw = [
            0 if tensor is None else tensor.data_ptr()
            for tensor in (hx, cx, dhy, dcy, dcells, dx, dhx, dcx, initial, dw)
        ]
        rnn.run_backward(
            *(library, sequences, input.data_ptr(), *x_strides, at_hx, at_cx, packed.data_ptr(), output.data_ptr()),
            *(dy.data_ptr(), *dy_strides, at_dhy, at_dcy, at_dcells, at_dx, at_dhx, at_dcx, at_initial, at_dw),
            *(workspace.data_ptr(), workspace_size, reserve.data_ptr(), reserve.numel(), given),
        )
        return dx if wanted[0] else None, dhx, dcx, dw


def prepare(
    stack: Layer, sequences: "_C.Sequences", data: Data, weights: Sequence[Tensor], seed: Tensor | None, training: bool
) -> Call:
    """Returns what serves eager calls of a size in this thread: for a layer with backend="best" the backend that was
    chosen, or, with torch.backends.cudnn.benchmark, measured. The first call of a size runs others, too, on data of the
    same size. data: input, packed or (T, N, I), hx and cx."""
    library = handle(stack.device)
    stack.follow_precision()
    run = partial(_run_step, data, weights, sequences, seed, training)
    if _fails(stack, sequences):
        config = stack.with_backend(BACKENDS["cudnn"])
    elif is_benchmark():
        config = stack.measured_config(library, sequences, run, training=training)
        handle(stack.device)  # which worked on a stream of the measurement
    else:
        config = _ready_config(stack, sequences, run, training)
    served = _with(stack, config)
    call = Call(served, sequences, training, stack.config)
    if sequences[0] == sequences[-1]:
        call.spaces = served.rnn.spaces(library, training, sequences)
    return call


def operators_layer(stack: Layer, sequences: "_C.Sequences", training: bool) -> Layer:
    """The layer that serves an operator's call. Its backward pass has nothing but the arguments to go by: a training
    step has the backend that the library estimates to be faster in tf32, whatever torch's switch says."""
    stack.follow_precision()
    if _fails(stack, sequences):
        return _with(stack, stack.with_backend(BACKENDS["cudnn"]))
    math = _C.TF32_MATH if training and stack.has_tf32 else None
    return _with(stack, stack.estimate(handle(stack.device), sequences, training=training, math=math))


def _with(stack: Layer, config: Config) -> Layer:
    """The thread's layer like another, of a configuration of the same sizes, with the precision of now."""
    served = stack if config == stack.config else layer(config, stack.dtype, stack.input_size, stack.device)
    served.follow_precision()
    return served


def _fails(stack: Layer, sequences: "_C.Sequences") -> bool:
    """Whether cuDNN has to run the layer, since the resident kernels' first comparison on this GPU failed."""
    if not is_unproven(stack.device):
        return False
    from prnn._ops._twin import fails  # which makes calls

    return fails(stack, sequences)


def _ready_config(stack: Layer, sequences: "_C.Sequences", run: Any, training: bool) -> Config:
    """The configuration of an eager call. The first call of a size in a thread runs the one of captured calls, too, if
    that is another: so that a capture finds it ready."""
    config, captured = stack.eager_config(handle(stack.device), sequences, training=training)
    if config == captured or torch.cuda.is_current_stream_capturing():
        return captured
    run(captured)
    return config


def _run_step(
    data: Data,
    weights: Sequence[Tensor],
    sequences: "_C.Sequences",
    seed: Tensor | None,
    training: bool,
    config: Config,
) -> None:
    """A call for its time, and for what it leaves ready: with data of these sizes, packed, and in training with its
    backward pass and a gradient of everything."""
    input, hx, cx = data
    stack = layer(config, input.dtype, input.size(-1), input.device)
    packed = _C.Sequences(sequences.sizes)
    x = input.contiguous().flatten(0, -2)[: sequences.rows]
    options: Options = (None, None, None, None if seed is None else seed.clone(), None)
    with torch.no_grad():
        hx, cx = (None if state is None else state.contiguous() for state in (hx, cx))
        first = pack_weights(weights, stack, input)
        call = Call(stack, packed, training)
        y, _, _, reserve, _ = call.forward(packed, (x, hx, cx), first, options)
        if reserve is not None:
            call.backward(packed, (y, None, None, None), (x, hx, cx), first, NO_OPTIONS, y, reserve, [True] * 4)


def make_ready(call: Call, sequences: "_C.Sequences", data: Data, weights: Sequence[Tensor], stack: Layer) -> None:
    """For the thread of a backward pass, which has layers and a library handle of its own: what prepare() does in the
    first call of a small layer, so that the pass may be captured. stack: this thread's layer for call.stack."""
    if call.given == stack.config or not stack.is_small or stack in call.ready:
        return
    call.ready.add(stack)
    given = _with(stack, call.given)
    with device_of(data[0]):
        _ready_config(given, sequences, partial(_run_step, data, weights, sequences, None, True), True)
