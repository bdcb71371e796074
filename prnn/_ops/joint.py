"""RNN-T and TDT with their joiner on a GPU as torch operators; prnn/losses/ checks arguments and calls them.

call_joint_rnnt_loss and call_joint_tdt_loss take and return what the operators do, with less to do on the way there.
"""

from collections.abc import Callable, Sequence
from operator import mul
from typing import Any

import torch
from torch import Tensor

from prnn import _C
from prnn._ops._handles import DTYPES, device_of, handle, require_proven
from prnn._ops._loss import Options, _Chosen, _run
from prnn._ops._operator import differentiate, operator, with_own_node, without_dispatch
from prnn._ops._precision import allows_tf32_matmul
from prnn._ops.rnnt import _RNNT_NAMES


def _in_range(lengths: list[int], most: int) -> list[int]:
    """The lengths, 0 to `most`; mostly they are."""
    return lengths if min(lengths) >= 0 and max(lengths) <= most else [min(max(0, x), most) for x in lengths]


joint_options = _Chosen(_C.JOINT_RNNT_LOSS_FIELDS, "activation")
joint_tdt_options = _Chosen(_C.JOINT_TDT_LOSS_FIELDS, "activation")

_TENSORS = (
    "Tensor encoder, Tensor predictor, Tensor weight, Tensor? bias, Tensor targets, Tensor frames, Tensor symbols, "
)


def _real(dtype: torch.dtype) -> torch.dtype:
    return torch.float64 if dtype == torch.float64 else torch.float32


def _fake_gradients(arguments: Sequence[Any]) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Unfilled gradients of encoder, predictor, weight and bias (empty without one)."""
    encoder, predictor, weight, bias = arguments[:4]
    return (
        torch.empty_like(encoder),
        torch.empty_like(predictor),
        torch.empty_like(weight),
        weight.new_empty(0, dtype=_real(weight.dtype)) if bias is None else torch.empty_like(bias),
    )


class _JointLoss:
    """A loss with its joiner: two operators over the calls of libprnn, and a way around the dispatcher. They take
    `count` tensors: those above, what else the calls are given the addresses of, and last `extents`, (2, N) on the CPU,
    frames and symbols of each sequence that are computed, as far as they are in range; then one argument of the loss's
    own, and what is chosen of the options.

    kernels: the name under which prnn._selftest compares them. options(arguments, cells): of the call, up to what is
    chosen. width(arguments): cells of a frame, and how many numbers the backward pass keeps of each.
    """

    def __init__(
        self,
        name: str,
        kernels: str,
        tensors: str,
        chosen: _Chosen,
        names: dict[str, str],
        options: Callable[[tuple[Any, ...], int], Options],
        width: Callable[[tuple[Any, ...]], tuple[int, int]],
    ) -> None:
        inputs = f"{_TENSORS}{tensors}, {chosen.schema}"
        self.name, self._kernels, self.names, self._options, self._width = name, kernels, names, options, width
        self.count = inputs.count("Tensor")
        self.arguments = self.count + 1 + chosen.count
        self.operator = operator(
            f"{name}({inputs}, bool keep) -> (Tensor costs, Tensor reserve)", self._kernel, self._fake
        )
        self.backward = operator(
            f"{name}_backward(Tensor cost_gradients, Tensor reserve, {inputs}) -> (Tensor, Tensor, Tensor, Tensor)",
            self._backward,
            lambda _cost_gradients, _reserve, *arguments: _fake_gradients(arguments),
        )
        self._call_backward = without_dispatch(self.backward, 1)
        differentiate(self.operator, self._setup, self._gradients, self.backward)
        self.call = with_own_node(self.operator, self._forward, self._setup, self._gradients)

    def _call_options(self, arguments: tuple[Any, ...]) -> Options:
        encoder, predictor, extents = arguments[0], arguments[1], arguments[self.count - 1]
        frames, symbols = extents.tolist()
        frames = _in_range(frames, encoder.shape[1])
        cells = max(1, sum(map(mul, frames, _in_range(symbols, predictor.shape[1] - 1))) + sum(frames))
        return *self._options(arguments, cells), *arguments[self.count + 1 : self.arguments]

    def _pointers(self, arguments: tuple[Any, ...]) -> list[int]:
        return [0 if tensor is None else tensor.data_ptr() for tensor in arguments[: self.count - 1]]

    def _reserve_size(self, arguments: tuple[Any, ...]) -> int:
        """At least what libprnn wants, from shapes alone, which a compiler may only know as symbols."""
        encoder = arguments[0]
        batch, frames = encoder.shape[:2]
        width, numbers = self._width(arguments)
        size = max(4, encoder.element_size()) * batch * frames * width * numbers + 24 * batch
        return (size + 511) // 256 * 256

    def _workspace(self, library: _C.Handle, options: Options, device: torch.device) -> Tensor:
        size = _run(getattr(_C, f"{self.name}_workspace_size"), self.names, library, options)
        return torch.empty(size, dtype=torch.uint8, device=device)

    def _forward(self, *arguments: Any, new_reserve: Callable[..., Tensor] = torch.empty) -> tuple[Tensor, Tensor]:
        """Costs (N,), and what the backward operator needs as bytes, empty unless `keep`."""
        options, encoder, keep = self._call_options(arguments), arguments[0], arguments[-1]
        require_proven(self._kernels, encoder.device, encoder.dtype)
        costs = encoder.new_empty(encoder.shape[0], dtype=_real(encoder.dtype))
        reserve = new_reserve(self._reserve_size(arguments) if keep else 0, dtype=torch.uint8, device=encoder.device)
        with device_of(encoder):
            library = handle(encoder.device)
            workspace = self._workspace(library, options, encoder.device)
            _run(
                getattr(_C, f"{self.name}_forward"),
                self.names,
                library,
                options,
                *self._pointers(arguments),
                costs.data_ptr(),
                workspace.data_ptr(),
                workspace.numel(),
                reserve.data_ptr() if keep else 0,
                reserve.numel(),
            )
        return costs, reserve

    def _kernel(self, *arguments: Any) -> tuple[Tensor, Tensor]:
        # Zeros, because an operator's outputs must be reproducible in all their bytes, and padding is not written.
        return self._forward(*arguments, new_reserve=torch.zeros)

    def _fake(self, *arguments: Any) -> tuple[Tensor, Tensor]:
        encoder, keep = arguments[0], arguments[-1]
        return (
            encoder.new_empty(encoder.shape[0], dtype=_real(encoder.dtype)),
            encoder.new_empty(self._reserve_size(arguments) if keep else 0, dtype=torch.uint8),
        )

    def _backward(
        self, cost_gradients: Tensor, reserve: Tensor, *arguments: Any
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        options, encoder, bias = self._call_options(arguments), arguments[0], arguments[3]
        cost_gradients = cost_gradients.contiguous()
        gradients = _fake_gradients(arguments)
        with device_of(encoder):
            library = handle(encoder.device)
            workspace = self._workspace(library, options, encoder.device)
            _run(
                getattr(_C, f"{self.name}_backward"),
                self.names,
                library,
                options,
                *self._pointers(arguments),
                cost_gradients.data_ptr(),
                *(gradient.data_ptr() for gradient in gradients[:3]),
                0 if bias is None else gradients[3].data_ptr(),
                workspace.data_ptr(),
                workspace.numel(),
                reserve.data_ptr(),
                reserve.numel(),
            )
        return gradients

    def _setup(self, ctx: Any, inputs: tuple[Any, ...], outputs: tuple[Tensor, Tensor]) -> None:
        ctx.options, ctx.keep = inputs[self.count : self.arguments], inputs[-1]
        ctx.save_for_backward(outputs[1], *inputs[: self.count])

    def _gradients(self, ctx: Any, cost_gradients: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        if not ctx.keep:
            raise RuntimeError(f"prnn::{self.name} was called with keep=False; its gradient needs keep=True")
        gradients = self._call_backward(cost_gradients, *ctx.saved_tensors, *ctx.options)
        bias_gradients = gradients[3] if gradients[3].numel() > 0 else None
        return *gradients[:3], bias_gradients, *(None,) * (self.arguments + 1 - 4)


def _rnnt_options(arguments: tuple[Any, ...], cells: int) -> Options:
    encoder, predictor, weight = arguments[:3]
    range_begins, kept = arguments[7], arguments[10]
    batch, frames, size = encoder.shape
    rows = (cells, 0) if range_begins is None else (0, kept)
    return (
        DTYPES[encoder.dtype],
        batch,
        frames,
        predictor.shape[1] - 1,
        *rows,
        size,
        weight.shape[0],
        allows_tf32_matmul(),
    )


def _tdt_options(arguments: tuple[Any, ...], cells: int) -> Options:
    encoder, predictor, weight = arguments[:3]
    durations = arguments[9]
    batch, frames, size = encoder.shape
    return (
        DTYPES[encoder.dtype],
        batch,
        frames,
        predictor.shape[1] - 1,
        cells,
        size,
        weight.shape[0] - len(durations),
        durations,
        allows_tf32_matmul(),
    )


# kept: R, with range_begins (N, T).
_rnnt = _JointLoss(
    "joint_rnnt_loss",
    "joint RNN-T loss",
    "Tensor? range_begins, Tensor? seed, Tensor extents, int kept",
    joint_options,
    _RNNT_NAMES,
    _rnnt_options,
    lambda arguments: (arguments[1].shape[1] if arguments[7] is None else arguments[10], 3),
)
joint_rnnt_loss, joint_rnnt_loss_backward, call_joint_rnnt_loss = _rnnt.operator, _rnnt.backward, _rnnt.call

# Kept of a cell: two normalisers, and a multiple of 4 for the shares of symbol, blank and durations and their sums.
_tdt = _JointLoss(
    "joint_tdt_loss",
    "joint TDT loss",
    "Tensor? seed, Tensor extents, int[] durations",
    joint_tdt_options,
    _RNNT_NAMES | {"durationCount": "the number of durations"},
    _tdt_options,
    lambda arguments: (arguments[1].shape[1], len(arguments[9]) + 9),
)
joint_tdt_loss, joint_tdt_loss_backward, call_joint_tdt_loss = _tdt.operator, _tdt.backward, _tdt.call
