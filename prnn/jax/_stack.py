"""A stack of recurrent layers over sequences of one length as a function that jax differentiates.

Sizes as in persistent_rnn.h: T timesteps, N sequences, I input size, H hidden size, P state size (the projection's,
else H), L layers, D directions. With K heads, H is a head's, and D counts the heads of both directions.
"""

import dataclasses
import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from prnn import _C
from prnn._modes import MODES
from prnn.jax import _library


@dataclasses.dataclass(frozen=True)
class Stack:
    """The description of a stack. hidden_size is that of all heads; zoneout: zoneoutExpectation of prnnRNNMasks_t;
    has_cells: whether an LSTM of one layer gives c of each timestep."""

    mode: str
    input_size: int
    hidden_size: int
    layers: int
    directions: int
    proj_size: int
    heads: int
    zoneout: float
    has_cells: bool
    allow_tf32: bool

    @property
    def states(self) -> int:
        return self.layers * self.directions * self.heads

    @property
    def cell_size(self) -> int:
        return self.hidden_size // self.heads

    @property
    def state_size(self) -> int:
        return self.proj_size or self.cell_size

    @property
    def output_size(self) -> int:
        return self.directions * self.heads * self.state_size

    def attributes(self) -> dict[str, int | float | bool]:
        return {
            "mode": MODES[self.mode],
            "hidden_size": self.hidden_size,
            "layers": self.layers,
            "directions": self.directions,
            "proj_size": self.proj_size,
            "heads": self.heads,
            "zoneout": float(self.zoneout),
            "has_cells": self.has_cells,
            "allow_tf32": self.allow_tf32,
        }


class Arrays(NamedTuple):
    """The arrays that a call reads. All but weights and x may be None.

    weights: packed, as persistent_rnn.h has them.  x: (T, N, I).  hx, reset_hx: (L D, N, P).  cx, reset_cx: (L D, N,
    H).  reset: bool (T, N).  recurrent_mask: (L D, N, H).  zoneout_mask: bool (T, N, L D, H)."""

    weights: Any
    x: Any
    hx: Any = None
    cx: Any = None
    reset: Any = None
    reset_hx: Any = None
    reset_cx: Any = None
    recurrent_mask: Any = None
    zoneout_mask: Any = None


class Outputs(NamedTuple):
    """y: (T, N, D P).  hy: (L D, N, P).  cy: (L D, N, H), an LSTM's, else None.  cells: (T, N, D H), with has_cells,
    else None."""

    y: Any
    hy: Any
    cy: Any
    cells: Any


class _Sizes(NamedTuple):
    """In bytes; backward: the workspace of a backward pass."""

    inference: int
    forward: int
    reserve: int
    backward: int


class _Kinds(NamedTuple):
    """Which of the arrays are given, as sizes depend on it."""

    reset: bool
    recurrent_mask: bool
    zoneout_mask: bool


@functools.lru_cache(maxsize=1024)
def _sizes(stack: Stack, dtype: str, steps: int, batch: int, kinds: _Kinds, platform: str) -> _Sizes:
    rnn = _C.Rnn(
        MODES[stack.mode],
        _library.DTYPES[dtype],
        stack.hidden_size,
        stack.layers,
        stack.input_size,
        stack.directions == 2,
        projection=stack.proj_size,
        heads=stack.heads,
    )
    rnn.set_backend(_C.PERSISTENT_BACKEND)
    rnn.set_math(_C.TF32_MATH if stack.allow_tf32 else _C.DEFAULT_MATH)
    rnn.set_masks(int(kinds.recurrent_mask), int(kinds.zoneout_mask), stack.zoneout)
    handle, sequences = _library.handle(platform), [batch] * steps
    rnn.set_extras(int(kinds.reset), 0, 0)
    inference, _ = rnn.temp_space_sizes(handle, False, sequences)
    rnn.set_extras(int(kinds.reset), int(stack.has_cells), 0)
    forward, reserve = rnn.temp_space_sizes(handle, True, sequences)
    # Other kernels may serve a backward pass without dx, or with a gradient of cells.
    backward = max(forward, rnn.workspace_size(handle, sequences))
    if stack.has_cells:
        rnn.set_extras(int(kinds.reset), 1, 1)
        backward = max(backward, *rnn.temp_space_sizes(handle, True, sequences))
    return _Sizes(inference, forward, reserve, backward)


def _sizes_of(stack: Stack, arrays: Arrays) -> _Sizes:
    steps, batch, _ = arrays.x.shape
    kinds = _Kinds(arrays.reset is not None, arrays.recurrent_mask is not None, arrays.zoneout_mask is not None)
    return _sizes(stack, arrays.x.dtype.name, steps, batch, kinds, _library.platform())


def _inputs(arrays: Arrays) -> list[Any]:
    """As the handlers take them."""
    dtype = arrays.x.dtype
    given = (
        arrays.x,
        arrays.hx,
        arrays.cx,
        arrays.weights,
        arrays.reset,
        arrays.reset_hx,
        arrays.reset_cx,
        arrays.recurrent_mask,
        arrays.zoneout_mask,
    )
    return [_library.nothing(dtype) if array is None else array for array in given]


def _result(shape: tuple[int, ...], dtype: Any, wanted: bool = True) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape if wanted else (0,), dtype)


def _forward(stack: Stack, arrays: Arrays, train: bool) -> tuple[Outputs, Any]:
    """The outputs and, of a call that trains, the reserve space."""
    sizes, (steps, batch, _), dtype = _sizes_of(stack, arrays), arrays.x.shape, arrays.x.dtype
    is_lstm = stack.mode == "LSTM"
    y, hy, cy, cells, reserve, _ = _library.call(
        "prnnJaxRnnForward",
        _inputs(arrays),
        [
            _result((steps, batch, stack.output_size), dtype),
            _result((stack.states, batch, stack.state_size), dtype),
            _result((stack.states, batch, stack.cell_size), dtype, is_lstm),
            _result((steps, batch, stack.directions * stack.hidden_size), dtype, stack.has_cells),
            _result((sizes.reserve if train else 0,), jnp.uint8),
            _result((sizes.forward if train else sizes.inference,), jnp.uint8),
        ],
        stack.attributes(),
    )
    return Outputs(y, hy, cy if is_lstm else None, cells if stack.has_cells else None), reserve


def run(stack: Stack, arrays: Arrays) -> Outputs:
    """Runs the layers. Forward-mode derivatives and second ones are not defined."""
    return _run(stack, Arrays(*_library.as_varying(arrays)))


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _run(stack: Stack, arrays: Arrays) -> Outputs:
    return _forward(stack, arrays, train=stack.has_cells)[0]  # inference gives no cells


@jax.tree_util.register_static
@dataclasses.dataclass(frozen=True)
class _Wanted:
    """Which gradients are wanted, by the names of arrays."""

    names: frozenset[str]


def _run_forward(stack: Stack, primals: Arrays) -> tuple[Outputs, Any]:
    arrays = Arrays(*(None if primal is None else primal.value for primal in primals))
    wanted = [name for name, primal in primals._asdict().items() if primal is not None and primal.perturbed]
    outputs, reserve = _forward(stack, arrays, train=True)
    return outputs, (arrays, outputs.y, reserve, _Wanted(frozenset(wanted)))


def _run_backward(stack: Stack, residuals: Any, gradients: Outputs) -> tuple[Arrays]:
    arrays, y, reserve, wanted = residuals
    dtype = arrays.x.dtype
    dy, dhy, dcy, dcells = (
        None if isinstance(value, jax.custom_derivatives.SymbolicZero) else value for value in gradients
    )
    if dy is None:
        dy = jnp.zeros_like(y)
    if arrays.zoneout_mask is not None:  # which the reserve space has: any array says that there was one
        arrays = arrays._replace(zoneout_mask=jnp.zeros(1, bool))
    given = [_library.nothing(dtype) if value is None else value for value in (dhy, dcy, dcells)]
    zeros = jnp.zeros_like(arrays.weights) if "weights" in wanted.names else _library.nothing(dtype)
    inputs = [*_inputs(arrays), y, reserve, dy, *given, zeros]
    results = ("x", "hx", "cx", "reset_hx", "reset_cx", "weights")
    shapes = [_result(getattr(arrays, name).shape if name in wanted.names else (0,), dtype) for name in results]
    sizes = _sizes_of(stack, arrays)
    filled = _library.call(
        "prnnJaxRnnBackward",
        inputs,
        [*shapes, _result(reserve.shape, jnp.uint8), _result((sizes.backward,), jnp.uint8)],
        stack.attributes(),
        aliases={len(inputs) - 6: len(results), len(inputs) - 1: len(results) - 1},
    )
    by_name = {name: value for name, value in zip(results, filled, strict=False) if name in wanted.names}
    return (Arrays(**{name: by_name.get(name) for name in Arrays._fields}),)


_run.defvjp(_run_forward, _run_backward, symbolic_zeros=True)
