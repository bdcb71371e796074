"""A prepared recurrent call: a thread's layer, and what it needs for sequences of one size, forward and backward."""

from collections.abc import Sequence
from math import prod
from typing import Any

import torch
from torch import Tensor

from prnn import _C
from prnn._ops._handles import device_of, handle, is_unproven, this_thread
from prnn._ops._layer import BACKENDS, Config, Layer, layer, remembered
from prnn._ops._measured import is_benchmark

__all__ = ["NO_OPTIONS", "Call", "Data", "Options", "lie_packed", "make_ready", "pack_weights", "prepare"]

_BYTE = torch.uint8  # each look-up takes time

# Without initial states cuDNN's training step takes up to 7 % longer for many sequences, with states of fewer elements
# 1 to 9 % less.
_MANY_STATES = 8192

Data = tuple[Tensor, Tensor | None, Tensor | None]  # input, hx and cx
# reset, in the layout of input; the masks of zoneout, in the layout of input, and of the recurrence, (L D, N, H); the
# seed of dropout, which counts the calls; and lengths on the device, of an LSTM that takes gates.
Options = tuple[Tensor | None, Tensor | None, Tensor | None, Tensor | None, Tensor | None]
NO_OPTIONS: Options = (None, None, None, None, None)
# A tensor at whose address the packed weights begin; of an LSTM that takes gates each of them.
Weights = Tensor | Sequence[Tensor]
_NO_NORM = [None] * 4  # gains and biases of a layer without normalisation
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
    if stack.takes_gates:
        return _checked_weights(weights, stack, input)
    if lie_packed(weights, stack, input):
        return weights[0]
    return torch.cat([weight.reshape(-1) for weight in weights])


def _checked_weights(weights: Sequence[Tensor], stack: Layer, input: Tensor) -> Sequence[Tensor]:
    """Checks the weights of an LSTM that takes gates. Parameters may have been replaced, or converted one by one."""
    shapes, dtype, place = stack.gates_shapes, input.dtype, input.get_device()
    if len(weights) != len(shapes):
        raise ValueError(f"weights has {len(weights)} tensors; it must have {len(shapes)}, of shapes {shapes}")
    for index, weight in enumerate(weights):
        if weight.shape != shapes[index]:
            raise ValueError(f"weights[{index}] has shape {tuple(weight.shape)}; it must be {shapes[index]}")
        if weight.dtype is not dtype or weight.get_device() != place:
            found = f"weights[{index}] has dtype {weight.dtype} on {weight.device}"
            raise ValueError(f"{found}, but input has {dtype} on {input.device}")
    return weights


def _addresses(options: Options, data: Data) -> tuple[tuple[int, int, int, bool, bool], list[Tensor]]:
    """Options as the library's binding takes them, and the tensors at their addresses."""
    reset, zoneout, recurrent, *_ = options
    input, hx, cx = data
    if recurrent is not None:
        recurrent = recurrent.to(input.dtype)
    addresses, kept = [0, 0, 0], []
    for place, array in enumerate((reset, zoneout, recurrent)):
        if array is not None:
            kept.append(array := array.contiguous())
            addresses[place] = array.data_ptr()
    hx_at_reset, cx_at_reset = hx is not None and hx.dim() == 4, cx is not None and cx.dim() == 4
    return (addresses[0], addresses[1], addresses[2], hx_at_reset, cx_at_reset), kept


def _gates_arrays(data: Data, weights: Sequence[Tensor], options: Options) -> tuple[list[Tensor | None], list[int]]:
    """The arrays of a _C.GatesCall, contiguous, and their addresses."""
    (input, hx, cx), (_, zoneout, recurrent, _, lengths) = data, options
    zoneout = None if zoneout is None else zoneout.to(input.dtype)
    recurrent = None if recurrent is None else recurrent.to(input.dtype)
    arrays: list[Tensor | None] = [input, hx, cx, *weights, zoneout, recurrent, lengths]
    if len(weights) == 1:
        arrays[4:4] = _NO_NORM
    addresses = [0] * len(arrays)
    for place, array in enumerate(arrays):
        if array is not None:
            arrays[place] = array = array.contiguous()
            addresses[place] = array.data_ptr()
    return arrays, addresses


class Call:
    """A layer of the calling thread prepared for sequences of one size, for training or inference, and the precision
    that the layer has now.

    given: the configuration that the layer's was chosen for, which may leave the choice of a backend open.
    sequences: those of the first call. Later ones have as many timesteps and sequences, and in the last timestep as
    many or, where there are many timesteps, fewer than in the first as well."""

    __slots__ = (
        "given",
        "ready",
        "sequences",
        "spaces",
        "stack",
        "thread",
        "training",
    )

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
        if not isinstance(weights, Tensor):
            return self._forward_gates(data, weights, options, reserve_size)
        library = stack.library or handle(stack.device)
        if stack.has_tf32:
            stack.follow_precision()
        rnn, new, training, batch = stack.rnn, input.new_empty, self.training, sequences.batch
        hx_address = cx_address = cy_address = cells_address = reserve_address = step = sequence = 0
        if hx is not None:
            hx_address = (hx := hx.contiguous()).data_ptr()
        if cx is not None:
            cx_address = (cx := cx.contiguous()).data_ptr()
        *rows, _ = input.shape
        y = new((*rows, stack.output_size))
        hy = new((stack.states, batch, stack.state_size))
        cy = reserve = cells = given = None
        if stack.cell_states > 0:
            cy_address = (cy := new((stack.cell_states, batch, stack.hidden_size))).data_ptr()
        if stack.has_options:
            given, _kept = _addresses(options, data)
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
            *(weights.data_ptr(), y.data_ptr(), hy.data_ptr(), cy_address, cells_address),
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
        if not isinstance(weights, Tensor):
            return self._backward_gates(gradients, data, weights, options, output, reserve, wanted)
        library = stack.library or handle(stack.device)
        if stack.has_tf32:
            stack.follow_precision()
        rnn, itemsize = stack.rnn, input.itemsize
        hx, cx, dhy, dcy, dcells = [
            None if tensor is None else tensor.contiguous() for tensor in (hx, cx, *gradients[1:])
        ]
        output = output.contiguous()
        dy = torch.zeros_like(output) if gradients[0] is None else gradients[0]
        dx = input.new_empty(input.shape) if wanted[0] else None
        dhx = torch.empty_like(hx) if wanted[1] and hx is not None else None
        dcx = torch.empty_like(cx) if wanted[2] and cx is not None else None
        dw = None
        if wanted[3]:
            dw = (input.new_empty if stack.sets_gradients else input.new_zeros)(stack.params_size)
        given, _kept = _addresses(options, data) if stack.has_options else (None, None)
        x_strides = dy_strides = (0, 0)
        if not sequences.is_padded:
            input, dy = input.contiguous(), dy.contiguous()
        else:
            input, dy = (value if value.stride(2) == 1 else value.contiguous() for value in (input, dy))
            x_strides = input.stride(0) * itemsize, input.stride(1) * itemsize
            dy_strides = dy.stride(0) * itemsize, dy.stride(1) * itemsize
        workspace_size = rnn.backward_space(library, sequences, dcells is not None, dx is not None)
        workspace = stack.workspace(workspace_size, input)
        initial = self._initial(hx, sequences.batch, input) if dw is not None else hx
        at_hx, at_cx, at_dhy, at_dcy, at_dcells, at_dx, at_dhx, at_dcx, at_initial, at_dw = [
            0 if tensor is None else tensor.data_ptr()
            for tensor in (hx, cx, dhy, dcy, dcells, dx, dhx, dcx, initial, dw)
        ]
        rnn.run_backward(
            *(library, sequences, input.data_ptr(), *x_strides, at_hx, at_cx, weights.data_ptr(), output.data_ptr()),
            *(dy.data_ptr(), *dy_strides, at_dhy, at_dcy, at_dcells, at_dx, at_dhx, at_dcx, at_initial, at_dw),
            *(workspace.data_ptr(), workspace_size, reserve.data_ptr(), reserve.numel(), given),
        )
        return dx, dhx, dcx, dw

    # LSTMs that take gates: (T, N, 4 H), all sequences as long, or of lengths that the device has.

    def _prepared(self, input: Tensor) -> "_C.GatesCall":
        stack, (steps, batch, _) = self.stack, input.shape
        library = stack.library or handle(stack.device)
        if stack.has_tf32:
            stack.follow_precision()
        key = (stack, self.training, steps, batch, stack.math)
        return remembered(key, lambda: stack.rnn.prepare_gates(library, self.training, steps, batch))

    def _forward_gates(self, data: Data, weights: Sequence[Tensor], options: Options, reserve_size: int) -> Results:
        call, (_kept, addresses) = self._prepared(data[0]), _gates_arrays(data, weights, options)
        input, units, size, address = data[0], self.stack.hidden_size, 0, 0
        steps, batch, _ = input.shape
        y, cy, reserve = input.new_empty(steps, batch, units), input.new_empty(1, batch, units), None
        workspace = self.stack.workspace(call.workspace_size, input)
        if self.training:
            size = reserve_size or call.reserve_size
            address = (reserve := input.new_empty(size, dtype=_BYTE)).data_ptr()
        call.forward(addresses, y.data_ptr(), cy.data_ptr(), workspace.data_ptr(), address, size)
        return y, None, cy, reserve, None

    def _backward_gates(
        self,
        gradients: Gradients,
        data: Data,
        weights: Sequence[Tensor],
        options: Options,
        output: Tensor,
        reserve: Tensor,
        wanted: Sequence[bool],
    ) -> Gradients:
        call, (arrays, addresses) = self._prepared(data[0]), _gates_arrays(data, weights, options)
        stack, (input, hx, cx, *_) = self.stack, arrays
        assert input is not None
        output, (dy, _, dcy, _) = output.contiguous(), gradients
        dy = torch.zeros_like(output) if dy is None else dy.contiguous()
        dcy = None if dcy is None else dcy.contiguous()
        dx = torch.empty_like(input)  # which the library wants in any case
        dhx = torch.empty_like(hx) if wanted[1] and hx is not None else None
        dcx = torch.empty_like(cx) if wanted[2] and cx is not None else None
        dw, places = None, [0] * 8
        for place, gradient in enumerate((dx, dhx, dcx)):
            places[place] = 0 if gradient is None else gradient.data_ptr()
        if wanted[3]:
            dw = input.new_empty(stack.params_size)
            address = dw.data_ptr()
            for place, shape in enumerate(stack.gates_shapes, 3):
                places[place] = address
                address += prod(shape) * input.itemsize
        workspace = stack.workspace(call.workspace_size, input)
        call.backward(
            *(addresses, output.data_ptr(), dy.data_ptr(), 0 if dcy is None else dcy.data_ptr()),
            *(places, workspace.data_ptr()),
            *(reserve.data_ptr(), reserve.numel()),
        )
        return dx if wanted[0] else None, dhx, dcx, dw

    def _initial(self, hx: Tensor | None, batch: int, input: Tensor) -> Tensor | None:
        """The states that the weights' gradients begin with."""
        stack = self.stack
        if hx is None and batch * stack.hidden_size >= _MANY_STATES and stack.config.backend == BACKENDS["cudnn"]:
            return input.new_zeros(stack.states, batch, stack.state_size)
        return hx


def prepare(
    stack: Layer,
    sequences: "_C.Sequences",
    data: Data,
    weights: Sequence[Tensor],
    seed: Tensor | None,
    training: bool,
) -> Call:
    """Returns what serves eager calls of a size in this thread: for a layer with backend="best" the backend that was
    chosen, or, with torch.backends.cudnn.benchmark, measured. The first call of a size runs others, too, on data of the
    same size. data: input, packed or (T, N, I), hx and cx."""
    library = handle(stack.device)
    stack.follow_precision()

    def run(config: Config) -> None:
        _run_step(data, weights, sequences, seed, config, training)

    if _fails(stack, sequences):
        config = stack.with_backend(BACKENDS["cudnn"])
    elif is_benchmark():
        config = stack.measured_config(library, sequences, run, training=training)
        handle(stack.device)  # which worked on a stream of the measurement
    else:
        config = _ready_config(stack, sequences, run, training)
    served = _with(stack, config)
    call = Call(served, sequences, training, stack.config)
    if sequences[0] == sequences[-1] and not served.takes_gates:
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
    config: Config,
    training: bool,
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
    given = layer(call.given, stack.dtype, stack.input_size, stack.device)
    given.follow_precision()

    def run(config: Config) -> None:
        _run_step(data, weights, sequences, None, config, True)

    with device_of(data[0]):
        _ready_config(given, sequences, run, True)
