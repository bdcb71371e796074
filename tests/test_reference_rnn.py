"""The reference layers against torch.nn's, so that what they are compared with can be trusted."""

import pytest
import torch
from reference import rnn as reference


def torch_module(stack: reference.Stack) -> torch.nn.RNNBase:
    arguments = dict(num_layers=stack.layers, bidirectional=stack.directions == 2, dtype=torch.float64)
    if stack.mode == reference.LSTM:
        return torch.nn.LSTM(stack.input, stack.hidden, proj_size=stack.projection, **arguments)
    if stack.mode == reference.GRU:
        return torch.nn.GRU(stack.input, stack.hidden, **arguments)
    nonlinearity = "relu" if stack.mode == reference.RNN_RELU else "tanh"
    return torch.nn.RNN(stack.input, stack.hidden, nonlinearity=nonlinearity, **arguments)


def pack_weights(stack: reference.Stack, module: torch.nn.RNNBase) -> torch.Tensor:
    w = torch.zeros(reference.params_size(stack), dtype=torch.float64)
    for layer, directions in enumerate(reference.split_weights(stack, w)):
        for direction, weights in enumerate(directions):
            suffix = f"l{layer}" + ("_reverse" if direction else "")
            blocks = {
                "weight_ih": weights.input,
                "weight_hh": weights.recurrent,
                "weight_hr": weights.projection,
                "bias_ih": weights.input_bias,
                "bias_hh": weights.recurrent_bias,
            }
            for name, block in blocks.items():
                if block is not None:
                    block.copy_(getattr(module, f"{name}_{suffix}").detach().view_as(block))
    return w


@pytest.mark.parametrize("projection", [0, 3])
@pytest.mark.parametrize("directions", [1, 2])
@pytest.mark.parametrize("mode", [reference.RNN_RELU, reference.RNN_TANH, reference.LSTM, reference.GRU])
def test_agrees_with_torch(mode: int, directions: int, projection: int) -> None:
    stack = reference.Stack(mode, 4, 5, 2, directions, projection=projection if mode == reference.LSTM else 0)
    module = torch_module(stack)
    lengths = [4, 3, 1]
    batch_sizes = [3, 2, 2, 1]
    x = torch.randn(sum(lengths), stack.input, dtype=torch.float64)
    hx = torch.randn(2 * directions, 3, stack.state, dtype=torch.float64)
    cx = torch.randn(2 * directions, 3, stack.hidden, dtype=torch.float64)
    packed = torch.nn.utils.rnn.PackedSequence(x, torch.tensor(batch_sizes))
    y, last = module(packed, (hx, cx) if mode == reference.LSTM else hx)
    hy = last[0] if mode == reference.LSTM else last
    got_y, got_hy, got_cy = reference.forward(stack, x, batch_sizes, pack_weights(stack, module), hx, cx)
    torch.testing.assert_close(got_y, y.data, rtol=0, atol=1e-12)
    torch.testing.assert_close(got_hy, hy, rtol=0, atol=1e-12)
    if mode == reference.LSTM:
        torch.testing.assert_close(got_cy, last[1], rtol=0, atol=1e-12)
