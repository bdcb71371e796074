"""Sequences cut where they start anew, so that each piece, a segment, is a sequence of its own: for kernels that know
no resets. How many there are the host must know: it waits for the flags."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from prnn._compiler import assume_constant_result
from prnn._ops._handles import handle
from prnn._ops._layer import Config, layer
from prnn._ops._sequences import sequences_of

States = Sequence[Tensor | None]  # h and c

# torch.compile of 2.6 fails where an argument of what it assumes constant is a symbol; later it breaks the graph.
ASKS_WHILE_COMPILING = torch.__version__ >= "2.11"


def _computed_dtype(input: Tensor) -> torch.dtype:
    """The type in which a layer on a GPU computes."""
    if input.dtype != torch.float64 and torch.is_autocast_enabled("cuda"):
        return torch.get_autocast_dtype("cuda")
    return input.dtype


def resets_in_kernels(config: Config, input: Tensor, batch: int) -> bool:
    """Whether the kernels that serve the layer and so many sequences know resets."""
    if input.device.type != "cuda" or batch == 0:
        return True
    if ASKS_WHILE_COMPILING and torch.compiler.is_compiling():
        return resets_in_compiled_kernels(config, input)
    return _serves(config, input.size(-1), _computed_dtype(input), input.device, batch)


def resets_in_compiled_kernels(config: Config, input: Tensor) -> bool:
    """Whether kernels take the resets of all batches, which one graph serves."""
    # Without what torch.compile may hold as symbols, the size of the input and probabilities: they do not matter.
    known = config._replace(dropout=0.0, zoneout=0.5 if config.zoneout > 0 else 0.0, epsilon=0.0)
    return _resets_in_kernels_of_all_batches(config.hidden_size, _computed_dtype(input), input.device, *known)


def _serves(config: Config, input_size: int, dtype: torch.dtype, device: torch.device, batch: int) -> bool:
    stack = layer(config, dtype, input_size, device)
    stack.follow_precision()
    return bool(stack.plan(handle(device), [batch])["supported"])


@assume_constant_result
def _resets_in_kernels_of_all_batches(input_size: int, dtype: torch.dtype, device: torch.device, *config: Any) -> bool:
    """config: its fields, for torch.compile does not pass a NamedTuple on as it is."""
    return all(_serves(Config(*config), input_size, dtype, device, batch) for batch in (1, 64, 4096))


class Segments(NamedTuple):
    """The pieces of N sequences, from long to short: S segments with R rows in all."""

    rows: Tensor  # (R,): the row of the data that each packed row is
    batch_sizes: Tensor  # of the packed segments, on the CPU
    owner: Tensor  # (S,): the sequence that each is of
    starts_anew: Tensor  # (S,) bool: each was cut off what is before it
    is_cut: Tensor  # (S,) bool: what is after it was cut off
    first: Tensor  # (N,): the segment that each sequence begins with
    last: Tensor

    def cut_masks(self, zoneout: Tensor | None, recurrent: Tensor | None) -> tuple[Tensor | None, Tensor | None]:
        """zoneout: of every row of the data, (..., W), then (R, W); recurrent: (..., N, H), then (..., S, H), in which
        all segments of a sequence have its mask."""
        return (
            None if zoneout is None else zoneout.flatten(0, -2).index_select(0, self.rows),
            None if recurrent is None else recurrent.index_select(-2, self.owner),
        )


class Group(NamedTuple):
    """Segments [begin, end), padded to t timesteps."""

    begin: int
    end: int
    lengths: Tensor  # (end - begin,) int32
    rows: Tensor  # (t, end - begin): the packed row of each timestep; R, which is none, in the padding

    def pad(self, packed: Tensor) -> Tensor:
        """(R, W) to (t, end - begin, W), with anything in the padding."""
        rows = self.rows.clamp(max=packed.size(0) - 1)
        return packed.index_select(0, rows.flatten()).unflatten(0, rows.shape)


def cut(reset: Tensor, batch_sizes: Tensor | None, lengths: Tensor | None) -> Segments:
    """reset: (T, N) with lengths (N,) or None, or (sum of batch_sizes,)."""
    device = reset.device
    if reset.is_cuda and torch.cuda.is_current_stream_capturing():
        raise ValueError(
            f"reset is on {device}, and a CUDA graph is being captured, which cannot wait for its values; kernels that "
            "would read them do not serve this layer"
        )
    sequences_of(reset.unsqueeze(-1), batch_sizes, lengths)  # raises what the kernels would
    if batch_sizes is not None:
        steps, batch = batch_sizes.size(0), int(batch_sizes[0])
        active = torch.arange(batch, device=device) < batch_sizes.to(device).unsqueeze(1)
        flags = torch.zeros_like(active).masked_scatter(active, reset)
    else:
        steps, batch = reset.shape
        ends = torch.full((batch,), steps, device=device) if lengths is None else lengths.to(device)
        active = torch.arange(steps, device=device).unsqueeze(1) < ends
        flags = reset & active
    row_of = active.flatten().cumsum(0) - 1 if batch_sizes is not None else torch.arange(steps * batch, device=device)

    # Sequence by sequence from here, each from its first timestep to its last.
    starts = flags.clone()
    starts[0] = True
    time_major = torch.arange(steps * batch, device=device).view(steps, batch).T[active.T]  # (R,)
    segment = starts.T[active.T].cumsum(0) - 1  # (R,): the segment of each row
    begin = starts.T[active.T].nonzero().squeeze(1)  # (S,): its first row
    sizes = torch.diff(begin, append=begin.new_tensor([segment.size(0)]))
    step = torch.arange(segment.size(0), device=device) - begin[segment]
    order = sizes.argsort(descending=True, stable=True)
    rank = torch.empty_like(order).scatter_(0, order, torch.arange(order.size(0), device=device))
    packed = (step * order.size(0) + rank[segment]).argsort()

    owner = time_major[begin] % batch
    is_last = torch.ones_like(owner, dtype=torch.bool)
    is_last[:-1] = owner[1:] != owner[:-1]
    is_first = is_last.roll(1)
    return Segments(
        row_of[time_major[packed]],
        step.bincount().cpu(),
        owner[order],
        flags.flatten()[time_major[begin]][order],
        ~is_last[order],
        rank[is_first],
        rank[is_last],
    )


def groups(segments: Segments) -> list[Group]:
    """All segments, for kernels of padded sequences. The shortest of a group has more than half of the timesteps of
    its longest, so that less than half of a group is padding."""
    device, sizes = segments.rows.device, segments.batch_sizes
    batches = sizes.to(device).unsqueeze(1)
    first_rows = batches.cumsum(0) - batches
    found, begin = [], 0
    while begin < int(sizes[0]):
        steps = int((sizes > begin).sum())
        end = int(sizes[steps // 2])
        places = torch.arange(begin, end, device=device)
        exists = places < batches[:steps]
        rows = torch.where(exists, first_rows[:steps] + places, segments.rows.size(0))
        found.append(Group(begin, end, exists.sum(0, dtype=torch.int32), rows))
        begin = end
    return found


def run(
    call: Callable[[Tensor, Tensor | None, Tensor | None, Tensor, int], tuple[Tensor, ...]],
    input: Tensor,
    states: States,
    reset_states: States,
    segments: Segments,
    directions: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Runs layers over the segments of a padded or packed input.

    call: (packed input, hx, cx, batch_sizes, S) -> (output, hy, cy, cells), packed, too.
    states, reset_states: (L D, N, ...) at the beginning of the sequences, and where they start anew; None is zeros.

    Returns output, hy, cy and cells in the layout of input; those without elements stay so.
    """
    begins = [segments.starts_anew, segments.is_cut][:directions]  # in the direction of each
    anew = torch.stack(begins)  # (D, S): which segments begin with the reset state

    def initial(given: Tensor | None, at_reset: Tensor | None) -> Tensor | None:
        some = given if given is not None else at_reset
        if some is None:
            return None
        zeros = torch.zeros_like(some)
        given, at_reset = (
            (zeros if state is None else state).index_select(1, segments.owner).unflatten(0, (-1, directions))
            for state in (given, at_reset)
        )
        return torch.where(anew.unsqueeze(-1), at_reset, given).flatten(0, 1)

    def final(state: Tensor) -> Tensor:
        if state.dim() != 3:
            return state
        by_direction = state.unflatten(0, (-1, directions)).unbind(1)
        ends = (segments.last, segments.first)
        return torch.stack(
            [h.index_select(1, end) for h, end in zip(by_direction, ends[:directions], strict=True)], 1
        ).flatten(0, 1)

    def unpack(packed: Tensor) -> Tensor:
        if packed.dim() != 2:
            return packed
        whole = packed.new_zeros(input.shape[:-1].numel(), packed.size(-1))
        return whole.index_copy(0, segments.rows, packed).unflatten(0, input.shape[:-1])

    hx, cx = (initial(*pair) for pair in zip(states, reset_states, strict=True))
    data = input.reshape(-1, input.size(-1)).index_select(0, segments.rows)
    output, hy, cy, cells = call(data, hx, cx, segments.batch_sizes, segments.owner.size(0))
    return unpack(output), final(hy), final(cy), unpack(cells)
