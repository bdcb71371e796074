"""What the recurrent operators compute: tensors checked, packed and handed to the library. rnn.py has the arguments."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from prnn import _C
from prnn._ops._handles import device_of, handle
from prnn._ops._layer import BACKENDS, Config, Layer, layer
from prnn._ops._measured import is_benchmark
from prnn._ops._steps import Steps, steps_of

__all__ = [
    "backward",
    "backward_plain",
    "config_of_call",
    "forward",
    "forward_plain",
    "lie_packed",
    "make_ready",
    "require",
    "require_masks",
    "require_reset",
    "require_states",
    "reserve_of_operator",
    "run_once",
]

_BYTE = torch.uint8  # each look-up takes time

# Without initial states cuDNN's training step takes up to 7 % longer for many sequences, with states of fewer elements
# 1 to 9 % less.
_MANY_STATES = 8192


def require(tensor: Tensor, name: str, shape: tuple[int, ...], input: Tensor, dtype: torch.dtype | None = None) -> None:
    """Of the dtype of input, unless another is given."""
    if tensor.dtype != (dtype or input.dtype):
        wanted = f"it must have {dtype}" if dtype else f"but input has {input.dtype}"
        raise ValueError(f"{name} has dtype {tensor.dtype}, {wanted}")
    if tensor.device != input.device:
        raise ValueError(f"{name} is on {tensor.device}, but input is on {input.device}")
    if tensor.shape != shape:
        raise ValueError(f"{name} has shape {tuple(tensor.shape)}; it must be {shape}")


def require_states(
    hx: Tensor | None,
    cx: Tensor | None,
    stack: Layer,
    batch: int,
    input: Tensor,
    names: tuple[str, str] = ("hx", "cx"),
    takes_reset: bool = False,
) -> None:
    """takes_reset: each may have the states of sequences that start anew, too."""
    for state, name, size in ((hx, names[0], stack.state_size), (cx, names[1], stack.hidden_size)):
        if state is None:
            continue
        if name == names[1] and not stack.is_lstm:
            raise ValueError(f"{name} is given, but only an LSTM has a cell state")
        shape = (stack.states, batch, size)
        require(state, name, (2, *shape) if takes_reset and state.dim() == 4 else shape, input)


def require_reset(reset: Tensor | None, config: Config, input: Tensor) -> None:
    if config.has_reset != (reset is not None):
        raise ValueError(f"has_reset is {config.has_reset}, but reset is {'None' if reset is None else 'given'}")
    if reset is not None:
        require(reset, "reset", tuple(input.shape[:-1]), input, torch.bool)


def require_masks(
    masks: Sequence[Tensor | None], config: Config, stack: Layer, batch: int, input: Tensor, is_backward: bool = False
) -> None:
    """is_backward: that of zoneout is not needed any more."""
    if not masks and not config.mask_kinds:
        return
    if len(masks) != 2:
        raise ValueError(f"masks has {len(masks)} entries; it must have two, zoneout and recurrent, or none")
    for bit, name, mask in ((1, "zoneout", masks[0]), (2, "recurrent", masks[1])):
        if (is_backward and bit == 1) or (mask is not None) == bool(config.mask_kinds & bit):
            continue
        raise ValueError(f"mask_kinds is {config.mask_kinds}, but that of {name} is {'not ' * (mask is None)}given")
    zoneout, recurrent = masks
    if zoneout is not None:
        require(
            zoneout, "the mask of zoneout", (*input.shape[:-1], stack.states * stack.hidden_size), input, torch.bool
        )
    if recurrent is not None:
        require(recurrent, "the recurrent mask", (stack.states, batch, stack.hidden_size), input, recurrent.dtype)


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


def _packed_weights(weights: Sequence[Tensor], stack: Layer, input: Tensor) -> Tensor:
    """A tensor at whose address the packed weights begin: the first of `weights` if they lie so."""
    if lie_packed(weights, stack, input):
        return weights[0]
    return torch.cat([weight.reshape(-1) for weight in weights])


def _address(tensor: Tensor | None) -> int:
    return 0 if tensor is None else tensor.data_ptr()


def _sorted(state: Tensor | None, steps: Steps) -> Tensor | None:
    if state is None or state.dim() == 3:
        return steps.sort(state)
    together = steps.sort(state.flatten(0, 1))
    return None if together is None else together.view(state.shape)


def _unsorted(state: Tensor | None, steps: Steps) -> Tensor | None:
    """Of _sorted() in the given order."""
    if state is None or steps.order is None:
        return state
    return steps.unsort(state.flatten(0, -3)).view(state.shape)


def _reset_address(state: Tensor | None) -> int:
    """Where the states of sequences that start anew lie."""
    return 0 if state is None or state.dim() == 3 else state.data_ptr() + state.nbytes // 2


def _packed_masks(masks: Sequence[Tensor | None], steps: Steps, input: Tensor) -> tuple[Tensor | None, Tensor | None]:
    """Those of zoneout and of the recurrence, as the library takes them."""
    if not masks:
        return None, None
    zoneout, recurrent = masks
    return (
        None if zoneout is None else steps.pack(zoneout),
        None if recurrent is None else steps.sort(recurrent.to(input.dtype)),
    )


def reserve_of_operator(stack: Layer, input: Tensor, batch_sizes: Tensor | None, batch: int) -> int:
    """Bytes of an operator's reserve space: an expression of symbols where it is traced."""
    steps = (input if batch_sizes is None else batch_sizes).size(0)
    return stack.reserve_bound(steps * batch if batch_sizes is None else input.size(0), steps, batch)


def forward(
    input: Tensor,
    hx: Tensor | None,
    cx: Tensor | None,
    weights: Sequence[Tensor],
    batch_sizes: Tensor | None,
    lengths: Tensor | None,
    reset: Tensor | None,
    masks: Sequence[Tensor | None],
    seed: Tensor | None,
    config: Config,
    train: bool,
    is_operator: bool = False,
) -> tuple[Tensor, Tensor, Tensor, Tensor | None, Tensor, Config]:
    """rnn's results, but None for a reserve space without elements; and the configuration for backward().

    The shapes of states, reset and masks have been checked. is_operator: with the reserve space of
    reserve_of_operator(), and the backend that rnn_backward will settle for; otherwise outputs without elements are
    tensors that other calls return, too, and the seed, which is contiguous, counts this call."""
    stack = layer(config, input.dtype, input.size(-1), input.device)
    steps = steps_of(input, batch_sizes, lengths)
    batch = steps.batch
    rows = input.shape[:-1]
    output_shape, cells_shape = (*rows, stack.output_size), (*rows, stack.cells_size)
    training = train or config.dropout > 0 or config.return_cells
    with device_of(input):
        packed_weights = _packed_weights(weights, stack, input)
        hy = input.new_empty(stack.states, batch, stack.state_size)
        nothing = input.new_empty(0) if is_operator else stack.nothing(input)
        cy = input.new_empty(stack.states, batch, stack.hidden_size) if stack.is_lstm else nothing
        reserve_size = reserve_of_operator(stack, input, batch_sizes, batch) if training and is_operator else 0
        if batch == 0:
            reserve = input.new_empty(reserve_size, dtype=_BYTE) if training else None
            cells = input.new_empty(cells_shape if config.return_cells else 0)
            return input.new_empty(output_shape), hy, cy, reserve, cells, config
        x, hx, cx = steps.pack(input), _sorted(hx, steps), _sorted(cx, steps)
        y = steps.new_packed(output_shape, input)
        cells = nothing
        if config.return_cells:
            cells = steps.new_packed(cells_shape, input)
        elif is_operator:
            cells = input.new_empty(0)  # of its own: outputs of an operator do not share memory
        flags = None if reset is None else steps.pack(reset.unsqueeze(-1))
        zoneout_mask, recurrent_mask = _packed_masks(masks, steps, input)
        library = handle(input.device)
        stack.follow_precision()
        if is_operator and not is_benchmark():
            stack.tell_backend(library, steps.sizes)
            if training:
                config = stack.settled(library, steps.sizes, is_traced=True)
        else:
            config = config_of_call(stack, steps.sizes, (x, hx, cx), weights, seed, training, is_operator)
        stack = stack.served_by(config)
        if stack.has_extras:  # before sizes are asked for, which are others with the gradient of c
            cells_address = cells.data_ptr() if config.return_cells else 0
            stack.rnn.set_extras(_address(flags), cells_address, 0, _reset_address(hx), _reset_address(cx))
        if stack.has_masks:
            stack.rnn.set_masks(_address(recurrent_mask), _address(zoneout_mask), config.zoneout)
        if config.dropout > 0:
            if seed is None:
                raise ValueError(f"seed is None; dropout {config.dropout} wants one")
            require(seed, "seed", (2,), input, torch.int64)
            if is_operator:  # whose arguments stay as they are
                seed = seed.clone(memory_format=torch.contiguous_format)
            stack.seed_dropout(library, seed)
        results = (y, hy, cy if stack.is_lstm else None)
        reserve = _run_forward(
            stack, library, steps.sizes, (x, hx, cx), packed_weights, results, training, reserve_size
        )
        if config.return_cells:
            cells = steps.unpack(cells, cells_shape)
        return steps.unpack(y, output_shape), steps.unsort(hy), steps.unsort(cy), reserve, cells, config


def config_of_call(
    stack: Layer,
    sizes: "Sequence[int] | _C.Sequences",
    data: tuple[Tensor, Tensor | None, Tensor | None],
    weights: Sequence[Tensor],
    seed: Tensor | None,
    training: bool,
    is_operator: bool = False,
) -> Config:
    """The configuration that serves a call: measured with torch.backends.cudnn.benchmark. The first call of a size runs
    others, too, on data of the same size. data: x, packed or (T, N, I), hx and cx."""
    library = handle(stack.device)

    def run(configuration: Config) -> None:
        x, hx, cx = _contiguous(data)
        rows = sizes.sizes if isinstance(sizes, _C.Sequences) else list(sizes)
        _run_step((x.flatten(0, -2)[: sum(rows)], hx, cx), weights, rows, seed, configuration, training)

    if is_benchmark():
        stack.tell_backend(library, sizes)
        config = stack.measured(library, sizes, run, training=training, is_traced=is_operator)
        handle(stack.device)  # which worked on a stream of the measurement
        return config
    config, captured = stack.of_call(library, sizes, training=training)
    if captured is not None:
        run(captured)
    return config


def _run_forward(
    stack: Layer,
    library: "_C.Handle",
    sizes: list[int],
    data: tuple[Tensor, Tensor | None, Tensor | None],
    packed_weights: Tensor,
    results: tuple[Tensor, Tensor, Tensor | None],
    training: bool,
    reserve_size: int,
) -> Tensor | None:
    """The library's call, which fills y, hy and cy. data: packed x, hx and cx. Returns the reserve space of a call that
    trains, of so many bytes, or, of 0, as many as it needs."""
    (x, hx, cx), (y, hy, cy) = data, results
    workspace_size, needed = stack.spaces(library, sizes, training)
    workspace = stack.workspace(workspace_size, x)
    reserve_size = reserve_size or needed
    reserve = x.new_empty(reserve_size, dtype=_BYTE) if training else None
    stack.rnn.forward(
        library,
        sizes,
        x.data_ptr(),
        _address(hx),
        _address(cx),
        packed_weights.data_ptr(),
        y.data_ptr(),
        hy.data_ptr(),
        _address(cy),
        workspace.data_ptr(),
        workspace_size,
        _address(reserve),
        0 if reserve is None else reserve_size,
    )
    return reserve


def forward_plain(
    stack: Layer,
    sequences: "_C.Sequences",
    data: tuple[Tensor, Tensor | None, Tensor | None],
    packed_weights: Tensor,
    training: bool,
) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
    """Output, hy, cy, an LSTM's, and the reserve space of a call without masks, extras and dropout, of an input
    (T, N, I) or packed, on the current GPU if it is on one. All of it has been checked, and there are sequences.

    Calls of nothing but C, each look-up and each call of a function of Python's takes time."""
    input, hx, cx = data
    library = stack.library or handle(stack.device)
    if stack.has_tf32:
        stack.follow_precision()
    hx_address = cx_address = cy_address = reserve_address = 0
    if hx is not None:
        hx_address = (hx := hx.contiguous()).data_ptr()
    if cx is not None:
        cx_address = (cx := cx.contiguous()).data_ptr()
    new, batch = input.new_empty, input.size(1) if input.dim() == 3 else sequences.batch
    y = new((*input.shape[:-1], stack.output_size))
    hy = new((stack.states, batch, stack.state_size))
    cy = reserve = None
    if stack.is_lstm:
        cy_address = (cy := new((stack.states, batch, stack.hidden_size))).data_ptr()
    is_padded = sequences.is_padded
    if is_padded:
        scratch_size, workspace_size, reserve_size = stack.rnn.padded_spaces(library, training, sequences)
    else:
        scratch_size, (workspace_size, reserve_size) = 0, stack.spaces(library, sequences, training)
    workspace = stack.workspace(scratch_size + workspace_size, input)
    address = workspace.data_ptr()
    if training:
        reserve_address = (reserve := new(reserve_size, dtype=_BYTE)).data_ptr()
    else:
        reserve_size = 0
    weights, results = packed_weights.data_ptr(), (y.data_ptr(), hy.data_ptr(), cy_address)
    rest = (address + scratch_size, workspace_size, reserve_address, reserve_size)
    if is_padded:
        if input.stride(2) != 1:
            input = input.contiguous()
        itemsize = input.itemsize
        x = (input.data_ptr(), input.stride(0) * itemsize, input.stride(1) * itemsize)
        stack.rnn.forward_padded(library, sequences, *x, hx_address, cx_address, weights, *results, address, *rest)
    else:
        input = input.contiguous()
        stack.rnn.forward(library, sequences, input.data_ptr(), hx_address, cx_address, weights, *results, *rest)
    return y, hy, cy, reserve


def _contiguous(tensors: Any) -> Any:
    return [None if tensor is None else tensor.contiguous() for tensor in tensors]


def backward_plain(
    stack: Layer,
    sequences: "_C.Sequences",
    gradients: tuple[Tensor | None, Tensor | None, Tensor | None],
    data: tuple[Tensor, Tensor | None, Tensor | None],
    packed_weights: Tensor,
    output: Tensor,
    reserve: Tensor,
    wanted: Sequence[bool],
) -> tuple[Tensor | None, Tensor | None, Tensor | None, Tensor | None]:
    """backward() after forward_plain(). gradients: of output, hy and cy."""
    library = stack.library or handle(stack.device)
    stack.follow_precision()
    input, hx, cx = data
    hx, cx, output, grad_hy, grad_cy = _contiguous((hx, cx, output, *gradients[1:]))
    dy = torch.zeros_like(output) if gradients[0] is None else gradients[0]
    dx = input.new_empty(input.shape) if wanted[0] else None
    dhx = torch.empty_like(hx) if wanted[1] and hx is not None else None
    dcx = torch.empty_like(cx) if wanted[2] and cx is not None else None
    dw = _new_gradients(stack, input) if wanted[3] else None
    workspace_size = stack.backward_workspace(library, sequences, wanted[0])
    initial = _initial(stack, hx, sequences.batch, input) if wanted[3] else hx
    if not sequences.is_padded:
        given = ((output, dy.contiguous(), grad_hy, grad_cy), (input.contiguous(), hx, cx), packed_weights, initial)
        _run_backward(stack, library, sequences, *given, reserve, workspace_size, (dx, dhx, dcx, dw))
        return dx, dhx, dcx, dw
    input, dy = (value if value.stride(2) == 1 else value.contiguous() for value in (input, dy))
    scratch_size, itemsize = stack.rnn.scratch_size(sequences, True), input.itemsize
    workspace = stack.workspace(scratch_size + workspace_size, input)
    stack.rnn.backward_padded(
        library,
        sequences,
        input.data_ptr(),
        input.stride(0) * itemsize,
        input.stride(1) * itemsize,
        _address(hx),
        _address(cx),
        packed_weights.data_ptr(),
        output.data_ptr(),
        dy.data_ptr(),
        dy.stride(0) * itemsize,
        dy.stride(1) * itemsize,
        _address(grad_hy),
        _address(grad_cy),
        _address(dx),
        _address(dhx),
        _address(dcx),
        _address(initial),
        _address(dw),
        workspace.data_ptr(),
        workspace.data_ptr() + scratch_size,
        workspace_size,
        reserve.data_ptr(),
        reserve.numel(),
    )
    return dx, dhx, dcx, dw


def _new_gradients(stack: Layer, input: Tensor) -> Tensor:
    """Of the packed weights, for a backward pass of at least one sequence."""
    return (input.new_empty if stack.sets_gradients else input.new_zeros)(stack.params_size)


def _initial(stack: Layer, hx: Tensor | None, batch: int, input: Tensor) -> Tensor | None:
    """The states that the weights' gradients begin with."""
    if hx is None and batch * stack.hidden_size >= _MANY_STATES and stack.config.backend == BACKENDS["cudnn"]:
        return input.new_zeros(stack.states, batch, stack.state_size)
    return hx


def _run_backward(
    stack: Layer,
    library: "_C.Handle",
    sizes: "list[int] | _C.Sequences",
    outputs: tuple[Tensor, Tensor, Tensor | None, Tensor | None],
    data: tuple[Tensor, Tensor | None, Tensor | None],
    packed_weights: Tensor,
    initial: Tensor | None,
    reserve: Tensor,
    workspace_size: int,
    results: tuple[Tensor | None, Tensor | None, Tensor | None, Tensor | None],
) -> None:
    """The library's calls. outputs: packed y, dy, dhy and dcy; data: packed x, hx and cx; initial: hx for the weights'
    gradients; results: dx, dhx, dcx and the weights' gradients, those that are wanted, to be filled."""
    (y, dy, dhy, dcy), (x, hx, cx), (dx, dhx, dcx, dw) = outputs, data, results
    workspace = stack.workspace(workspace_size, x)
    memory = (workspace.data_ptr(), workspace_size, reserve.data_ptr(), reserve.numel())
    stack.rnn.backward_data(
        library,
        sizes,
        y.data_ptr(),
        dy.data_ptr(),
        _address(dhy),
        _address(dcy),
        packed_weights.data_ptr(),
        _address(hx),
        _address(cx),
        _address(dx),
        _address(dhx),
        _address(dcx),
        *memory,
    )
    if dw is not None:
        stack.rnn.backward_weights(
            library, sizes, x.data_ptr(), _address(initial), y.data_ptr(), dw.data_ptr(), *memory
        )


def run_once(
    data: tuple[Tensor, Tensor | None, Tensor | None], weights: Sequence[Tensor], config: Config, training: bool
) -> None:
    """A call, and in training its backward pass, for what they leave ready: with input (T, N, I) and states."""
    input, hx, cx = data
    steps = steps_of(input, None, None)
    with torch.no_grad():
        _run_step((steps.pack(input).flatten(0, -2), hx, cx), weights, steps.sizes, None, config, training)


def _run_step(
    data: tuple[Tensor, Tensor | None, Tensor | None],
    weights: Sequence[Tensor],
    sizes: list[int],
    seed: Tensor | None,
    config: Config,
    training: bool,
) -> None:
    """A call for its time: of packed data, with a gradient of everything in training."""
    batch_sizes = torch.tensor(sizes)
    seed = None if seed is None else seed.clone()
    output, _, _, reserve, _, config = forward(*data, weights, batch_sizes, None, None, (), seed, config, training)
    if reserve is not None:
        sequences = (batch_sizes, None, None, None)
        backward((output, None, None, None), *data, weights, *sequences, output, reserve, config, [True] * 4)


def make_ready(
    input: Tensor,
    hx: Tensor | None,
    cx: Tensor | None,
    weights: Sequence[Tensor],
    batch_sizes: Tensor | None,
    lengths: Tensor | None,
    config: Config,
) -> None:
    """For the thread of a backward pass, which has a library handle of its own: what forward() does in the first call
    of a small layer, so that the pass may be captured. config: forward()'s argument."""
    stack = layer(config, input.dtype, input.size(-1), input.device)
    steps = steps_of(input, batch_sizes, lengths) if stack.is_small else Steps([])
    if steps.batch == 0:
        return
    with device_of(input):
        stack.follow_precision()
        captured = stack.of_call(handle(input.device), steps.sizes, training=True)[1]
        if captured is not None:
            x, hx, cx = steps.pack(input), _sorted(hx, steps), _sorted(cx, steps)
            _run_step((x.flatten(0, -2), hx, cx), weights, steps.sizes, None, captured, True)


def backward(
    gradients: tuple[Tensor | None, Tensor | None, Tensor | None, Tensor | None],
    input: Tensor,
    hx: Tensor | None,
    cx: Tensor | None,
    weights: Sequence[Tensor],
    batch_sizes: Tensor | None,
    lengths: Tensor | None,
    reset: Tensor | None,
    recurrent_mask: Tensor | None,
    output: Tensor,
    reserve: Tensor,
    config: Config,
    wanted: Sequence[bool],
) -> tuple[Tensor | None, Tensor | None, Tensor | None, Tensor | None]:
    """rnn_backward's results, but None for what is not wanted. The shapes have been checked. config: forward()'s, or
    that of the operators."""
    grad_output, grad_hy, grad_cy, grad_cells = gradients
    stack = layer(config, input.dtype, input.size(-1), input.device)
    steps = steps_of(input, batch_sizes, lengths)
    with device_of(input):
        packed_weights = _packed_weights(weights, stack, input)
        x, y, hx, cx = steps.pack(input), steps.pack(output), _sorted(hx, steps), _sorted(cx, steps)
        dy = torch.zeros_like(y) if grad_output is None else steps.pack(grad_output)
        dhy, dcy = steps.sort(grad_hy), steps.sort(grad_cy)
        flags, dcells = None if reset is None else steps.pack(reset.unsqueeze(-1)), None
        if grad_cells is not None and config.return_cells:
            dcells = steps.pack(grad_cells)
        dx = steps.new_packed(input.shape, input) if wanted[0] else None
        dhx = torch.empty_like(hx) if wanted[1] and hx is not None else None
        dcx = torch.empty_like(cx) if wanted[2] and cx is not None else None
        dw = None
        if wanted[3]:
            dw = _new_gradients(stack, input) if steps.batch > 0 else input.new_zeros(stack.params_size)
        if recurrent_mask is not None:
            recurrent_mask = _packed_masks((None, recurrent_mask), steps, input)[1]
        if steps.batch > 0:
            library = handle(input.device)
            config = stack.settled(library, steps.sizes, is_traced=True)
            if config is not stack.config:
                stack = layer(config, input.dtype, input.size(-1), input.device)
            stack.follow_precision()
            if stack.has_extras:  # the backward pass looks at `cells` no further than whether it is NULL
                reset_states = [_reset_address(state) for state in (hx, cx, dhx, dcx)]
                stack.rnn.set_extras(_address(flags), int(config.return_cells), _address(dcells), *reset_states)
            if stack.has_masks:  # the backward pass looks at that of zoneout no further than whether it is NULL
                stack.rnn.set_masks(_address(recurrent_mask), config.mask_kinds & 1, config.zoneout)
            if dcells is None:
                workspace_size = stack.backward_workspace(library, steps.sizes, wanted[0])
            else:  # for other kernels, maybe
                workspace_size = stack.rnn.temp_space_sizes(library, True, steps.sizes)[0]
            initial = hx if dw is None else _initial(stack, hx, steps.batch, input)
            given = ((y, dy, dhy, dcy), (x, hx, cx), packed_weights, initial, reserve, workspace_size)
            _run_backward(stack, library, steps.sizes, *given, (dx, dhx, dcx, dw))
        dx = None if dx is None else steps.unpack(dx, input.shape)
        return dx, _unsorted(dhx, steps), _unsorted(dcx, steps), dw
