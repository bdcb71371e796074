"""A prepared recurrent call: a thread's layer, and what it needs for sequences of one size, forward and backward."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from prnn import _C
from prnn._ops._handles import device_of, handle, is_unproven, this_thread
from prnn._ops._layer import BACKENDS, Config, Layer, layer
from prnn._ops._measured import is_benchmark
from prnn._ops._sequences import pack, sort_states, unpack, unsort_states

__all__ = ["NO_OPTIONS", "Call", "Data", "Options", "lie_packed", "make_ready", "pack_weights", "prepare"]

_BYTE = torch.uint8  # each look-up takes time

# Without initial states cuDNN's training step takes up to 7 % longer for many sequences, with states of fewer elements
# 1 to 9 % less.
_MANY_STATES = 8192

Data = tuple[Tensor, Tensor | None, Tensor | None]  # input, hx and cx
# reset, in the layout of input; the masks of zoneout, in the layout of input, and of the recurrence, (L D, N, H); and
# the seed of dropout, which counts the calls.
Options = tuple[Tensor | None, Tensor | None, Tensor | None, Tensor | None]
NO_OPTIONS: Options = (None, None, None, None)
# Output, hy, cy, an LSTM's, the reserve space of a call that trains, and cells, where they are returned.
Results = tuple[Tensor, Tensor, Tensor | None, Tensor | None, Tensor | None]
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


def pack_weights(weights: Sequence[Tensor], stack: Layer, input: Tensor) -> Tensor:
    """A tensor at whose address the packed weights begin: the first of `weights` if they lie so."""
    if lie_packed(weights, stack, input):
        return weights[0]
    return torch.cat([weight.reshape(-1) for weight in weights])


def _at_reset(
    library: "_C.Handle", sequences: "_C.Sequences", states: Sequence[Tensor | None], is_new: bool = False
) -> tuple[list[int], list[Tensor]]:
    """Addresses of the states of sequences that start anew, the second halves of (2, L D, N, ...), 0 for none; and the
    copies at these addresses where packed data have another order. is_new: of states that a call writes."""
    addresses: list[int] = []
    copies: list[Tensor] = []
    order = sequences.order
    for state in states:
        if state is None or state.dim() == 3:
            addresses.append(0)
        elif order is None:
            addresses.append(state.data_ptr() + state.nbytes // 2)
        else:
            own = torch.empty_like(state[1]) if is_new else sort_states(library, sequences, state[1])
            copies.append(own)
            addresses.append(own.data_ptr())
    return addresses, copies


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
        weights: Tensor,
        options: Options = NO_OPTIONS,
        reserve_size: int = 0,
    ) -> Results:
        """Computes a call on the current GPU or on the CPU. All arguments have been checked, and there are sequences.

        weights: the packed weights, or a tensor where they begin. data: input (T, N, I) or packed (rows, I); states as
        rnn.py has them. reserve_size: bytes of the reserve space, at least as many as the library asks for; 0: as many.

        Each call of a function of Python's takes time: this calls C."""
        stack, (input, hx, cx) = self.stack, data
        library = stack.library or handle(stack.device)
        if stack.has_tf32:
            stack.follow_precision()
        rnn, new, training, batch = stack.rnn, input.new_empty, self.training, sequences.batch
        *rows, _ = input.shape
        is_padded = sequences.is_padded
        hx_address = cx_address = cy_address = reserve_address = scratch_size = 0
        if hx is not None:
            hx_address = (hx := hx.contiguous()).data_ptr()
        if cx is not None:
            cx_address = (cx := cx.contiguous()).data_ptr()
        y = new((*rows, stack.output_size))
        hy = new((stack.states, batch, stack.state_size))
        cy = reserve = cells = None
        if stack.cell_states > 0:
            cy_address = (cy := new((stack.cell_states, batch, stack.hidden_size))).data_ptr()
        if stack.has_extras or stack.has_masks:  # before sizes are asked for, which are others with the gradient of c
            if stack.config.return_cells:
                cells = new((*((sequences.rows,) if is_padded else rows), stack.cells_size))
            at_reset: Sequence[int] = ()
            if stack.config.has_reset:
                at_reset, _copies = _at_reset(library, sequences, (hx, cx))
            cells_address = 0 if cells is None else cells.data_ptr()
            options = self._give_options(library, sequences, options, input, at_reset, cells_address)
        if (seed := options[3]) is not None:
            stack.seed_dropout(library, seed)
        if is_padded:
            scratch_size, workspace_size, needed = rnn.padded_spaces(library, training, sequences)
        else:
            workspace_size, needed = self.spaces or rnn.temp_space_sizes(library, training, sequences)
        workspace = stack.kept_workspace
        if workspace is None or workspace.numel() < scratch_size + workspace_size:
            workspace = stack.workspace(scratch_size + workspace_size, input)
        if training:
            reserve_size = reserve_size or needed
            reserve_address = (reserve := new(reserve_size, dtype=_BYTE)).data_ptr()
        address, results = workspace.data_ptr(), (y.data_ptr(), hy.data_ptr(), cy_address)
        rest = (address + scratch_size, workspace_size, reserve_address, reserve_size if training else 0)
        states = (hx_address, cx_address, weights.data_ptr())
        if is_padded:
            if input.stride(2) != 1:
                input = input.contiguous()
            itemsize, (step_stride, sequence_stride, _) = input.itemsize, input.stride()
            x = (input.data_ptr(), step_stride * itemsize, sequence_stride * itemsize)
            rnn.forward_padded(library, sequences, *x, *states, *results, address, *rest)
            if cells is not None:
                cells = unpack(library, cells, (*rows, stack.cells_size), sequences.sizes, sequences.order)
        else:
            input = input.contiguous()
            rnn.forward(library, sequences, input.data_ptr(), *states, *results, *rest)
        return y, hy, cy, reserve, cells

    def _give_options(
        self,
        library: "_C.Handle",
        sequences: "_C.Sequences",
        options: Options,
        input: Tensor,
        at_reset: Sequence[int],
        cells: int,
        dcells: int = 0,
    ) -> Options:
        """Has the library's next call take the options, and returns them as it reads them: those of padded sequences
        packed. They have to live until that call.

        at_reset, cells, dcells: addresses, of hx and cx at resets and in a backward pass of their gradients."""
        stack, (reset, zoneout, recurrent, seed) = self.stack, options
        if sequences.is_padded:
            sizes, order = sequences.sizes, sequences.order
            reset = None if reset is None else pack(library, reset.unsqueeze(-1), sizes, order)
            zoneout = None if zoneout is None else pack(library, zoneout, sizes, order)
            recurrent = None if recurrent is None else sort_states(library, sequences, recurrent)
        if stack.has_extras:
            reset = None if reset is None else reset.contiguous()
            reset_address = 0 if reset is None else reset.data_ptr()
            stack.rnn.set_extras(reset_address, cells, dcells, *at_reset)
        if stack.has_masks:
            zoneout = None if zoneout is None else zoneout.contiguous()
            recurrent = None if recurrent is None else recurrent.to(input.dtype).contiguous()
            # The backward pass, which has no mask of zoneout, looks no further than whether it is NULL.
            zoneout_address = stack.config.mask_kinds & 1 if zoneout is None else zoneout.data_ptr()
            recurrent_address = 0 if recurrent is None else recurrent.data_ptr()
            stack.rnn.set_masks(recurrent_address, zoneout_address, stack.config.zoneout)
        return reset, zoneout, recurrent, seed

    def backward(
        self,
        sequences: "_C.Sequences",
        gradients: Gradients,
        data: Data,
        weights: Tensor,
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
        rnn, itemsize, config, is_padded = stack.rnn, input.itemsize, stack.config, sequences.is_padded
        hx, cx, dhy, dcy, dcells = [
            None if tensor is None else tensor.contiguous() for tensor in (hx, cx, *gradients[1:])
        ]
        output = output.contiguous()
        d_copies: list[Tensor] = []
        dy = torch.zeros_like(output) if gradients[0] is None else gradients[0]
        dx = input.new_empty(input.shape) if wanted[0] else None
        dhx = torch.empty_like(hx) if wanted[1] and hx is not None else None
        dcx = torch.empty_like(cx) if wanted[2] and cx is not None else None
        dw = None
        if wanted[3]:
            dw = (input.new_empty if stack.sets_gradients else input.new_zeros)(stack.params_size)
        if stack.has_extras or stack.has_masks:
            at_reset: Sequence[int] = ()
            if config.has_reset:
                at_reset, _copies = _at_reset(library, sequences, (hx, cx))
                d_at_reset, d_copies = _at_reset(library, sequences, (dhx, dcx), is_new=True)
                at_reset = (*at_reset, *d_at_reset)
            if dcells is not None:
                sizes, order = sequences.sizes, sequences.order
                dcells = pack(library, dcells, sizes, order) if is_padded else dcells.contiguous()
            # The backward pass looks at `cells` no further than whether it is NULL.
            addresses = (int(config.return_cells), 0 if dcells is None else dcells.data_ptr())
            options = self._give_options(library, sequences, options, input, at_reset, *addresses)
        if dx is None and config.backend == BACKENDS["cudnn"]:  # which wants room for the input's gradient then
            workspace_size = rnn.workspace_size(library, sequences)
        else:
            workspace_size = rnn.temp_space_sizes(library, True, sequences)[0]
        initial = self._initial(hx, sequences.batch, input) if dw is not None else hx
        at_hx, at_cx, at_dhy, at_dcy, at_dx, at_dhx, at_dcx, at_initial, at_dw = [
            0 if tensor is None else tensor.data_ptr() for tensor in (hx, cx, dhy, dcy, dx, dhx, dcx, initial, dw)
        ]
        memory, w, y = (reserve.data_ptr(), reserve.numel()), weights.data_ptr(), output.data_ptr()
        if is_padded:
            input, dy = (value if value.stride(2) == 1 else value.contiguous() for value in (input, dy))
            scratch_size = rnn.scratch_size(sequences, True)
            workspace = stack.workspace(scratch_size + workspace_size, input)
            scratch = workspace.data_ptr()
            rnn.backward_padded(
                *(library, sequences, input.data_ptr(), input.stride(0) * itemsize, input.stride(1) * itemsize),
                *(at_hx, at_cx, w, y, dy.data_ptr(), dy.stride(0) * itemsize, dy.stride(1) * itemsize),
                *(at_dhy, at_dcy, at_dx, at_dhx, at_dcx, at_initial, at_dw),
                *(scratch, scratch + scratch_size, workspace_size, *memory),
            )
            at_resets = [state for state in (dhx, dcx) if state is not None and state.dim() == 4]
            for gradient, own in zip(at_resets, d_copies, strict=False):
                gradient[1] = unsort_states(library, sequences, own)
            return dx, dhx, dcx, dw
        dy, input = dy.contiguous(), input.contiguous()
        workspace = stack.workspace(workspace_size, input)
        spaces = (workspace.data_ptr(), workspace_size, *memory)
        rnn.backward_data(
            library, sequences, y, dy.data_ptr(), at_dhy, at_dcy, w, at_hx, at_cx, at_dx, at_dhx, at_dcx, *spaces
        )
        if dw is not None:
            rnn.backward_weights(library, sequences, input.data_ptr(), at_initial, y, at_dw, *spaces)
        return dx, dhx, dcx, dw

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
    is_operator: bool = False,
) -> Call:
    """Returns what serves calls of a size in this thread: for a layer with backend="best" the backend that was chosen,
    or, with torch.backends.cudnn.benchmark, measured. The first call of a size runs others, too, on data of the same
    size. data: input, packed or (T, N, I), hx and cx."""
    library = handle(stack.device)
    stack.follow_precision()

    def run(config: Config) -> None:
        _run_step(data, weights, sequences, seed, config, training)

    if is_unproven(stack.device) and _fails(stack, sequences):
        cudnn = BACKENDS["cudnn"]
        config = stack.with_backend(cudnn)
        if training:
            config = stack.training_config(library, sequences, is_operator=is_operator, backend=cudnn)
    elif is_benchmark():
        stack.warn_of_backend(library, sequences)
        config = stack.measured_config(library, sequences, run, training=training, is_operator=is_operator)
        handle(stack.device)  # which worked on a stream of the measurement
    elif is_operator:
        stack.warn_of_backend(library, sequences)
        config = stack.config
        if training:
            config = stack.training_config(library, sequences, is_operator=True)
    else:
        config = _ready_config(stack, sequences, run, training)
    served = stack if config == stack.config else layer(config, stack.dtype, stack.input_size, stack.device)
    served.follow_precision()
    call = Call(served, sequences, training, stack.config)
    if sequences[0] == sequences[-1] and not served.has_extras:  # which may have others after a gradient of c
        call.spaces = served.rnn.temp_space_sizes(library, training, sequences)
    return call


def _fails(stack: Layer, sequences: "_C.Sequences") -> bool:
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
    options: Options = (None, None, None, None if seed is None else seed.clone())
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
