"""Floating point operations of the recurrent operators, for torch.utils.flop_counter.FlopCounterMode: two for each
multiplication of a matrix's element with a row of data, with padding, as torch counts its own operators."""

import math
from typing import Any

import torch
from torch.utils.flop_counter import register_flop_formula

from prnn._modes import GATES, MODES
from prnn._ops.rnn import Config

__all__: list[str] = []

_GATES = {MODES[name]: gates for name, gates in GATES.items()}
Shape = Any  # what the counter hands over in the place of a tensor


def _macs(input: Shape, config: Config) -> tuple[int, int]:
    """Multiplications of a forward pass, and those of the first layer's weight_ih among them."""
    directions = 2 if config.bidirectional else 1
    rows = _GATES[config.mode] * config.hidden_size
    state = config.proj_size or config.hidden_size
    first = 0 if config.gates_input else directions * rows * input[-1]
    upper = (config.num_layers - 1) * directions * rows * directions * state
    recurrent = config.num_layers * directions * (rows * state // config.heads + config.proj_size * config.hidden_size)
    steps = math.prod(input[:-1])
    return steps * (first + upper + recurrent), steps * first


@register_flop_formula([torch.ops.prnn.rnn, torch.ops.prnn.rnn_of_host])
def _rnn(input: Shape, hx: Shape, cx: Shape, weights: Any, *rest: Any, out_shape: Any = None) -> int:
    _, _, _, _, _, _, *config, _ = rest  # batch_sizes, lengths, reset, masks, seed, max_batch; train
    return 2 * _macs(input, Config(*config))[0]


@register_flop_formula([torch.ops.prnn.rnn_backward, torch.ops.prnn.rnn_backward_of_host])
def _rnn_backward(*arguments: Any, out_shape: Any = None) -> int:
    config, wanted = Config(*arguments[-len(Config._fields) - 1 : -1]), arguments[-1]
    whole, first = _macs(arguments[4], config)
    return 2 * (whole - (0 if wanted[0] else first) + (whole if wanted[3] else 0))


@register_flop_formula(torch.ops.prnn.layer_norm_lstm_input)
def _input(input: Shape, weight: Shape, *, out_shape: Any = None) -> int:
    return int(2 * math.prod(input) * weight[0])


@register_flop_formula(torch.ops.prnn.layer_norm_lstm_input_backward)
def _input_backward(
    dx: Shape, input: Shape, weight: Shape, wants_input: bool, wants_weight: bool, *, out_shape: Any = None
) -> int:
    return int(2 * math.prod(input) * weight[0] * (wants_input + wants_weight))
