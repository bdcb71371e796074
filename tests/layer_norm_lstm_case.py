"""Arguments of torch.ops.prnn.rnn for an LSTM on the input of its gates, and its results beside the reference's in
float64."""

import dataclasses
from collections.abc import Callable
from typing import Any

import torch
from reference.layer_norm_lstm import Tf32Product
from reference.layer_norm_lstm import layer_norm_lstm as reference
from torch import Tensor

from prnn import _C, NotSupportedError
from prnn._modes import MODES, NORMALIZE
from prnn._ops._handles import DTYPES, handle
from prnn._ops._layer import BACKENDS, Config
from prnn._ops._precision import allows_tf32_rnn
from prnn._ops.rnn import rnn

NAMES = ("x", "h0", "c0", "recurrent", "gate_gain", "gate_bias", "cell_gain", "cell_bias")


@dataclasses.dataclass(frozen=True)
class Case:
    steps: int
    batch: int
    hidden: int
    normalize: str = "gates"
    reverse: bool = False
    states: bool = True
    zoneout: float = 0.0
    masks: bool = False
    epsilon: float = 1e-5
    has_lengths: bool = False
    offset: float = 0.0  # of x: a mean that is large beside the deviation

    def arrays(self, dtype: torch.dtype, device: str = "cpu") -> list[Tensor | None]:
        """x, the states, weights, masks and lengths, of which there may be none, rounded to dtype."""
        generator = torch.Generator().manual_seed(self.steps * 1009 + self.batch * 101 + self.hidden)

        def normal(*shape: int, scale: float = 1.0, shift: float = 0.0) -> Tensor:
            values = torch.randn(shape, generator=generator, dtype=torch.float64) * scale + shift
            return values.to(dtype).to(device)

        t, n, h = self.steps, self.batch, self.hidden
        arrays: list[Tensor | None] = [
            normal(t, n, 4 * h, shift=self.offset),
            normal(n, h, scale=0.5) if self.states else None,
            normal(n, h, scale=0.5) if self.states else None,
            normal(4 * h, h, scale=h**-0.5),
            normal(4 * h, scale=0.2, shift=1.0),
            normal(4 * h, scale=0.2),
            normal(h, scale=0.2, shift=1.0),
            normal(h, scale=0.2),
        ]
        if self.normalize == "none":
            arrays[4:] = [None] * 4
        if self.masks:
            kept = torch.rand(n, h, generator=generator) < 0.75
            arrays.append((torch.rand(t, n, h, generator=generator) < 0.3).to(dtype).to(device))
            arrays.append((kept / 0.75).to(dtype).to(device))
        else:
            arrays += [None, None]
        lengths = torch.tensor([(7 * i + 3) % (t + 1) for i in range(n)], dtype=torch.int32, device=device)
        return [*arrays, lengths if self.has_lengths else None]

    def numbers(self) -> tuple[int, bool, float, float]:
        return NORMALIZE[self.normalize], self.reverse, self.epsilon, self.zoneout

    def named(self) -> dict[str, Any]:
        keys = ("normalize", "reverse", "epsilon", "zoneout")
        return {key: getattr(self, key) for key in keys}


def operator_arguments(*given: Any, train: bool = False) -> tuple[Any, ...]:
    """The operator's arguments from Case.arrays() and Case.numbers()."""
    x, h, c, recurrent, *norm, zoneout_mask, recurrent_mask, lengths = given[:11]
    normalize, reverse, epsilon, zoneout = given[11:]
    h, c, recurrent_mask = (None if array is None else array.unsqueeze(0) for array in (h, c, recurrent_mask))
    kinds = (zoneout_mask is not None) + 2 * (recurrent_mask is not None)
    config = Config(
        *(MODES["LSTM"], x.size(-1) // 4, 0, 1, False, 0.0, BACKENDS["best"]),
        zoneout=0.0 if kinds & 1 else zoneout,
        mask_kinds=kinds,
        gates_input=True,
        reverse=reverse,
        normalize=normalize,
        epsilon=epsilon,
    )
    weights = [array for array in (recurrent, *norm) if array is not None]
    masks = [zoneout_mask, recurrent_mask] if kinds else []
    return x, h, c, weights, None, lengths, None, masks, None, None, *config, train


def check_operator(*given: Any) -> None:
    """By opcheck, which compares reserve spaces whole: memory that nobody has written to is the same in all runs."""
    torch.use_deterministic_algorithms(True)
    try:
        torch.library.opcheck(rnn, operator_arguments(*given, train=True))
    finally:
        torch.use_deterministic_algorithms(False)


def call_layer(*given: Any) -> tuple[Tensor, Tensor]:
    """y and the last c from Case.arrays() and Case.numbers()."""
    y, _, cy, _, _ = rnn(*operator_arguments(*given))
    return y, cy.squeeze(0)


def plan_of(
    device: torch.device, gpu: str | None, dtype: torch.dtype, normalize: str, batch: int, hidden: int
) -> tuple[str, str, int, int]:
    """The engines forward and backward on the device, or on a GPU of the table, the copies of the weights, and the
    blocks (on a CPU threads) of each."""
    layer = _C.Rnn(
        *(_C.LSTM, DTYPES[dtype], hidden, 1, 4 * hidden, False),
        gates_input=True,
        normalize=NORMALIZE[normalize],
        epsilon=1e-5,
    )
    if dtype == torch.float32 and allows_tf32_rnn():
        layer.set_math(_C.TF32_MATH)
    found = layer.query(handle(device), [batch]) if gpu is None else layer.query_gpu(gpu, [batch])
    if not found["supported"]:
        raise NotSupportedError(found["reason"])
    return found["forward_engine"], found["backward_engine"], found["replicas"], found["blocks"]


def results(
    case: Case,
    dtype: torch.dtype,
    device: str,
    use_reference: bool,
    *,
    rounds_to_tf32: bool = False,
    moves: Callable[[Tensor], Tensor] = lambda array: array,
) -> dict[str, Tensor]:
    """y, cy and all gradients, by name, in float64 on the CPU. The reference computes in float64 on dtype's values, and
    rounds the factors of the recurrent products where it is to. What is given has been moved to another place."""
    arrays = [None if array is None else moves(array) for array in case.arrays(dtype, device)]
    if use_reference:
        arrays = [None if array is None else array.double() for array in arrays[:10]] + arrays[10:]
    for array in arrays[:8]:
        if array is not None:
            array.requires_grad_()
    if use_reference:
        multiply = {"multiply": Tf32Product.apply} if rounds_to_tf32 else {}
        y, cy = reference(*arrays, **case.named(), **multiply)
    else:
        y, cy = call_layer(*arrays, *case.numbers())
    generator = torch.Generator().manual_seed(5)
    dy = torch.randn(y.shape, generator=generator, dtype=torch.float64)
    dcy = torch.randn(cy.shape, generator=generator, dtype=torch.float64)
    weights = [moves(gradient.to(dtype).to(y)) for gradient in (dy, dcy)]
    torch.autograd.backward([y, cy], weights)
    found = {"y": y.detach(), "cy": cy.detach()}
    found |= {
        f"d {name}": array.grad
        for name, array in zip(NAMES, arrays, strict=False)
        if array is not None and array.grad is not None
    }
    return {name: value.double().cpu() for name, value in found.items()}


def compare(case: Case, dtype: torch.dtype, tolerance: float, device: str = "cpu") -> None:
    """Each result within `tolerance` of the largest element of the reference's."""
    ours, theirs = results(case, dtype, device, False), results(case, dtype, device, True)
    assert ours.keys() == theirs.keys()
    for name, expected in theirs.items():
        assert ours[name].shape == expected.shape, name
        error = ((ours[name] - expected).abs().max() / expected.abs().max().clamp_min(1e-3)).item()
        assert error <= tolerance, f"{name} is off by {error:.2e} in {case}"
