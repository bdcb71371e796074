"""prnn._C.Handle and Rnn: the same results and errors as the C API's, with pointers as integers."""

import threading
import time
from collections.abc import Callable

import pytest
import torch
from reference import rnn as reference

from prnn import _C

STACKS = [
    reference.Stack(reference.RNN_RELU, 5, 6),
    reference.Stack(reference.RNN_TANH, 6, 6, 2, 2, skip_input=True),
    reference.Stack(reference.LSTM, 5, 6, 3, 2, projection=4),
    reference.Stack(reference.GRU, 5, 6, 2),
]


def make(stack: reference.Stack, dtype: int = _C.DOUBLE, dropout: float = 0.0) -> "_C.Rnn":
    return _C.Rnn(
        stack.mode,
        dtype,
        stack.hidden,
        stack.layers,
        stack.input,
        stack.directions == 2,
        skip_input=stack.skip_input,
        projection=stack.projection,
        dropout=dropout,
    )


def space(size: int) -> torch.Tensor:
    return torch.empty(size, dtype=torch.uint8)


@pytest.mark.parametrize("stack", STACKS, ids=str)
def test_offsets(stack: reference.Stack) -> None:
    rnn = make(stack)
    assert rnn.params_size() == reference.params_size(stack)
    positions = torch.arange(reference.params_size(stack))
    for layer, directions in enumerate(reference.split_weights(stack, positions)):
        for direction, weights in enumerate(directions):
            blocks = (
                weights.input,
                weights.recurrent,
                weights.projection,
                weights.input_bias,
                weights.recurrent_bias,
            )
            expected = tuple(-1 if block is None else int(block.flatten()[0]) for block in blocks)
            assert rnn.layer_offsets(layer, direction) == expected


@pytest.mark.parametrize("stack", STACKS, ids=str)
def test_training_step(stack: reference.Stack) -> None:
    rnn, handle, batch_sizes = make(stack), _C.Handle.cpu(), [4, 3, 3, 1]
    rows, cells, width = sum(batch_sizes), stack.layers * stack.directions, stack.directions * stack.state
    x, dy = torch.randn(rows, stack.input).double(), torch.randn(rows, width).double()
    w = torch.randn(rnn.params_size()).double() / 3
    hx, dhy = torch.randn(2, cells, 4, stack.state).double()
    cx, dcy = torch.randn(2, cells, 4, stack.hidden).double()
    y, hy, cy = torch.zeros_like(dy), torch.zeros_like(hx), torch.zeros_like(cx)
    dx, dhx, dcx, dw = torch.zeros_like(x), torch.zeros_like(hx), torch.zeros_like(cx), torch.zeros_like(w)
    workspace = space(rnn.workspace_size(handle, batch_sizes))
    reserve = space(rnn.reserve_size(handle, batch_sizes))
    spaces = (workspace.data_ptr(), workspace.numel(), reserve.data_ptr(), reserve.numel())

    def pointers(*tensors: torch.Tensor) -> list[int]:
        return [tensor.data_ptr() for tensor in tensors]

    expected = reference.train_step(stack, x, batch_sizes, w, hx, cx, dy, dhy, dcy)
    inference = (*spaces[:2], 0, 0)
    for arguments in (inference, spaces):
        y.zero_()
        rnn.forward(handle, batch_sizes, *pointers(x, hx, cx, w, y, hy, cy), *arguments)
        torch.testing.assert_close(y, expected.y, rtol=0, atol=1e-12)
        torch.testing.assert_close(hy, expected.hy, rtol=0, atol=1e-12)
    rnn.backward_data(handle, batch_sizes, *pointers(y, dy, dhy, dcy, w, hx, cx, dx, dhx, dcx), *spaces)
    rnn.backward_weights(handle, batch_sizes, *pointers(x, hx, y, dw), *spaces)
    for name, value in {"dx": dx, "dhx": dhx, "dw": dw}.items():
        torch.testing.assert_close(value, getattr(expected, name), rtol=0, atol=1e-11, msg=name)
    if stack.mode == reference.LSTM:
        torch.testing.assert_close(cy, expected.cy, rtol=0, atol=1e-12)
        torch.testing.assert_close(dcx, expected.dcx, rtol=0, atol=1e-11)


def test_dropout_wants_its_states() -> None:
    rnn, handle = make(STACKS[2], dropout=0.5), _C.Handle.cpu()
    sizes = [2]
    workspace, reserve = space(rnn.workspace_size(handle, sizes)), space(rnn.reserve_size(handle, sizes))
    with pytest.raises(ValueError, match="but set_dropout has not been called"):
        rnn.forward(handle, sizes, 1, 0, 0, 1, 1, 0, 0, workspace.data_ptr(), workspace.numel(), reserve.data_ptr(), 0)
    states = torch.full((3,), -1)
    assert handle.dropout_states_size() == 16
    with pytest.raises(ValueError, match="stateSizeInBytes is 8; prnnDropoutGetStatesSize asks for 16"):
        rnn.set_dropout(handle, 0.5, states.data_ptr(), 8, 7)
    assert states.tolist() == [-1, -1, -1]
    rnn.set_dropout(handle, 0.5, states.data_ptr(), 16, 7)
    assert states.tolist() == [7, 0, -1]


def test_dropout_keeps_projection_and_backend() -> None:
    rnn = make(STACKS[2])
    states = torch.zeros(2, dtype=torch.int64)
    rnn.set_backend(_C.PERSISTENT_BACKEND)
    rnn.set_dropout(_C.Handle.cpu(), 0.25, states.data_ptr(), 16, 1)
    assert rnn.layer_offsets(0, 0)[2] > 0


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: _C.Rnn(7, 0, 1, 1, 1, False), "mode is 7"),
        (lambda: _C.Rnn(2, 4, 1, 1, 1, False), "dataType is 4"),
        (lambda: _C.Rnn(2, 0, 0, 1, 1, False), "hiddenSize is 0"),
        (lambda: _C.Rnn(2, 0, 1, -1, 1, False), "numLayers is -1"),
        (lambda: _C.Rnn(2, 0, 4, 1, 0, False), r"dimA\[1\] is 0"),
        (lambda: _C.Rnn(2, 0, 4, 1, 3, False, skip_input=True), "must be the hidden size, 4"),
        (lambda: _C.Rnn(2, 0, 4, 1, 3, False, projection=4), "projSize is 4"),
        (lambda: _C.Rnn(3, 0, 4, 1, 3, False, projection=2), "projSize is 2"),
        (lambda: make(STACKS[0]).set_backend(3), "backend is 3"),
        (lambda: make(STACKS[0]).layer_offsets(1, 0), "layer is 1"),
        (lambda: make(STACKS[0]).layer_offsets(0, 1), "direction is 1; the layer has 1"),
        (lambda: make(STACKS[0]).workspace_size(_C.Handle.cpu(), []), "seqLength is 0"),
        (lambda: make(STACKS[0]).workspace_size(_C.Handle.cpu(), [2, 3]), r"xDesc\[1\] has batch 3"),
        (lambda: make(STACKS[0]).reserve_size(_C.Handle.cpu(), [-1]), r"dimA\[0\] is -1"),
        (lambda: make(STACKS[0]).query_gpu("none", 1), 'gpu is "none"'),
        (lambda: make(STACKS[0]).forward(_C.Handle.cpu(), [1], *[0] * 11), "x is NULL"),
    ],
)
def test_bad_arguments_are_value_errors(call: Callable[[], object], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        call()


def test_what_is_not_supported() -> None:
    assert issubclass(_C.NotSupportedError, NotImplementedError)
    rnn = _C.Rnn(_C.GRU, _C.FLOAT, 4, 1, 4, False, True)
    rnn.set_masks(1, 0, 0.0)
    with pytest.raises(_C.NotSupportedError, match="a layer with masks"):
        rnn.workspace_size(_C.Handle.cpu(), [1])


def test_queries() -> None:
    rnn = _C.Rnn(_C.LSTM, _C.FLOAT, 64, 1, 64, False)
    info = rnn.query(_C.Handle.cpu(), 3)
    assert info["supported"] is True
    assert info["device"].startswith("CPU ")
    assert info["batch_per_pass"] == 3
    assert "H200" in _C.gpu_names()
    assert rnn.query_gpu("H200", 3)["device"] == "H200"
    for handle in (_C.Handle.cpu(), *([_C.Handle.cuda()] if torch.cuda.is_available() else [])):
        found = rnn.query(handle, [3, 3, 2])
        sizes = rnn.temp_space_sizes(handle, True, [3, 3, 2])
        assert (found["workspace_size"], found["reserve_size"]) == sizes != (0, 0)


def test_other_threads_run_during_a_call() -> None:
    """The interpreter is not held while the library computes."""
    stack = reference.Stack(reference.LSTM, 64, 256)
    rnn, handle, sizes = make(stack), _C.Handle.cpu(), [8] * 300
    x, w, y = torch.zeros(2400, 64).double(), torch.zeros(rnn.params_size()).double(), torch.zeros(2400, 256).double()
    workspace = space(rnn.workspace_size(handle, sizes))
    arguments = [x.data_ptr(), 0, 0, w.data_ptr(), y.data_ptr(), 0, 0, workspace.data_ptr(), workspace.numel(), 0, 0]

    def longest_pause() -> float:
        """The time of this thread, as a share of another one's call."""
        thread = threading.Thread(target=lambda: rnn.forward(handle, sizes, *arguments))
        start = last = time.perf_counter()
        longest = 0.0
        thread.start()
        while thread.is_alive():
            now = time.perf_counter()
            longest, last = max(longest, now - last), now
        thread.join()
        return longest / (time.perf_counter() - start)

    # A busy machine may keep this thread from running during a call, but not during all of them.
    assert any(longest_pause() < 0.5 for _ in range(20))
