"""flashrnn's function: `from prnn.compat.flashrnn import flashrnn`, or `prnn.compat.install("flashrnn")`.

`flashrnn(Wx, R, b, states, function="slstm")` with the original's layouts, results and gradients. `install` puts it in
the place of flashrnn's, which goes on to serve the other functions. Nothing is compiled, and the CPU works.

The original's n is at least 1 after each timestep. That makes a difference for given states with n below 1 alone: from
the zero state, and from states that a call has returned, n is never less.
"""

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from prnn import NotSupportedError
from prnn._slstm import run_gates

__all__ = ["flashrnn"]

_DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32, "float64": torch.float64}
_SHAPES = {"input_shape": "BTGHD", "recurrent_shape": "GHDP", "bias_shape": "GHD", "output_shape": "SBTHD"}
_UNSUPPORTED = {"gradient_recurrent_cut": False, "gradient_recurrent_clipval": None, "forward_clipval": None}


def flashrnn(
    Wx: Tensor,
    R: Tensor,
    b: Tensor,
    states: Tensor | None = None,
    function: str = "lstm",
    config: Any = None,
    backend: str = "cuda_fused",
    dtype: str = "bfloat16",
) -> tuple[Tensor, Tensor]:
    """sLSTM on gate inputs. B sequences, T timesteps, G = 4 gates i, f, z, o, N heads of D units, S = 4 states.

    Args:
        Wx: (B, T, G, N, D).
        R: (G, N, D, D): gate, head, to unit, from unit.
        b: (G, N, D).
        states: h, c, n, m, (S, B, 1, N, D); None is zeros.
        function: "slstm"; others raise NotSupportedError.
        config: a `FlashRNNConfig` in place of what follows, for its layouts, too (input_shape, recurrent_shape,
            bias_shape, output_shape).
        backend: flashrnn's. With "vanilla" and "vanilla_fwbw" the computation is in the type of Wx; with the others, in
            `dtype`.
        dtype: "bfloat16", "float16" or "float32"; c, n and m are carried in float32.

    Returns:
        states: (S, B, T, N, D), those of all timesteps; states[0] is the output. Of the type of Wx.
        last_states: (S, B, 1, N, D).
    """
    if config is not None:
        function, backend, dtype = config.function, config.backend, config.dtype
        for name, default in _UNSUPPORTED.items():
            if getattr(config, name) != default:
                raise NotSupportedError(f"{name} is {getattr(config, name)!r}; prnn's flashrnn takes {default!r} alone")
    if function != "slstm":
        raise NotSupportedError(
            f"function is {function!r}; prnn's flashrnn has 'slstm' alone. prnn.nn.LSTM and GRU have heads="
        )
    if dtype is not None and dtype not in _DTYPES:
        raise ValueError(f"dtype is {dtype!r}; it must be one of {', '.join(map(repr, _DTYPES))}")
    shapes = {name: getattr(config, name, default) for name, default in _SHAPES.items()}
    for name, tensor in (("input_shape", Wx), ("recurrent_shape", R), ("bias_shape", b)):
        if tensor.dim() != len(shapes[name]):
            argument = {"input_shape": "Wx", "recurrent_shape": "R"}.get(name, "b")
            raise ValueError(f"{argument} has shape {tuple(tensor.shape)}; its dimensions must be {shapes[name]}")
    computed = Wx.dtype if dtype is None or backend.startswith("vanilla") else _DTYPES[dtype]
    gates = _permuted(Wx, shapes["input_shape"], "TBGHD").to(computed)
    recurrent = _permuted(R, shapes["recurrent_shape"], "HGDP").to(computed)
    bias = _permuted(b, shapes["bias_shape"], "HGD")
    _, batch, count, heads, units = gates.shape
    if count != 4 or recurrent.shape != (heads, 4, units, units) or bias.shape != (heads, 4, units):
        raise ValueError(
            f"Wx, R and b have shapes {tuple(Wx.shape)}, {tuple(R.shape)} and {tuple(b.shape)}, dimensions "
            f"{', '.join(shapes[name] for name in list(shapes)[:3])}; G must be 4, and H, D and P alike"
        )
    initial = None
    if states is not None:
        initial = _permuted(states, shapes["output_shape"], "TSBHD").squeeze(0).to(computed)
        if initial.shape != (4, batch, heads, units):
            raise ValueError(f"states has shape {tuple(states.shape)}; its dimensions must be {shapes['output_shape']}")
    with torch.autocast(Wx.device.type, enabled=False):
        given = None if initial is None else initial.flatten(2).unbind()
        output, last = run_gates(gates, recurrent, bias, given)
        h = output.unflatten(2, (heads, units))
        every = torch.stack([h, *_cells(gates, recurrent, bias, h, initial)]).to(Wx.dtype)
    last_states = torch.stack(last).unflatten(2, (heads, units)).unsqueeze(1).to(Wx.dtype)
    return tuple(_permuted(found, "STBHD", shapes["output_shape"]) for found in (every, last_states))  # type: ignore[return-value]


def _permuted(tensor: Tensor, given: str, wanted: str) -> Tensor:
    """The tensor, whose dimensions have the letters `given`, with those in the order `wanted`."""
    return tensor.permute([given.index(letter) for letter in wanted])


def _cells(gates: Tensor, recurrent: Tensor, bias: Tensor, h: Tensor, initial: Tensor | None) -> list[Tensor]:
    """c, n and m of all timesteps, (T, B, heads, D), from the hidden states: linear recurrences, by doubling.

    With F_t the sum of log sigma(f) up to t, and M_t the largest i_s - F_s up to t, m_t is F_t + M_t, and c_t is
    exp(M_{t-1} - M_t) c_{t-1} + exp(i_t - F_t - M_t) tanh(z_t); n_t likewise with 1 for tanh(z_t)."""
    first = torch.zeros_like(h[:1]) if initial is None else initial[:1]
    before = torch.cat([first, h[:-1]])
    products = torch.einsum("tbhp,hgdp->tbghd", before, recurrent)
    i, f, z, _ = (gates + products + bias.transpose(0, 1)).to(torch.promote_types(h.dtype, torch.float32)).unbind(2)
    # Sums over all timesteps, of which differences are taken: in float64.
    total = functional.logsigmoid(f).double().cumsum(0)
    shifted = i.double() - total
    start = torch.full_like(shifted[0], -torch.inf)
    if initial is not None:
        _, c, n, m = initial.to(i.dtype)
        start = torch.where(n == 0, start, m.double())
    largest = torch.cat([start[None], shifted]).cummax(0).values
    kept = largest[:-1] - largest[1:]
    if initial is not None:  # m, also where n is 0
        kept = torch.cat([(m.double() - largest[1:2]).clamp(max=0), kept[1:]])
    decay = torch.exp(kept).to(i.dtype)
    new = torch.exp(shifted - largest[1:]).to(i.dtype)
    values = torch.stack([new * z.tanh(), new], 1)
    if initial is not None:
        values = torch.cat([values[:1] + (decay[0] * torch.stack([c, n]))[None], values[1:]])
    decay = decay.unsqueeze(1)
    distance = 1
    while distance < values.size(0):
        added = values[distance:] + decay[distance:] * values[:-distance]
        values = torch.cat([values[:distance], added])
        decay = torch.cat([decay[:distance], decay[distance:] * decay[:-distance]])
        distance *= 2
    return [*values.unbind(1), (total + largest[1:]).to(i.dtype)]


TRIGGERS = ("flashrnn.flashrnn.flashrnn", "flashrnn.flashrnn", "flashrnn")


def replace(module: Any) -> list[str]:
    """Replaces the function in one of TRIGGERS, for "slstm"; the names of what was not prnn's already."""
    original = module.flashrnn
    if hasattr(original, "_prnn_original"):
        return []
    module.flashrnn = _with_other_functions(original)
    return [f"{module.__name__}.flashrnn, of slstm,"]


@functools.cache
def _with_other_functions(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def call(
        Wx: Tensor,
        R: Tensor,
        b: Tensor,
        states: Tensor | None = None,
        function: str = "lstm",
        config: Any = None,
        *rest: Any,
        **options: Any,
    ) -> Any:
        chosen = flashrnn if (function if config is None else config.function) == "slstm" else original
        return chosen(Wx, R, b, states, function, config, *rest, **options)

    call._prnn_original = original  # type: ignore[attr-defined]
    return call
