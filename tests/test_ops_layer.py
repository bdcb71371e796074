"""What backend="best" says of what it settles for."""

import warnings
from typing import Any

import pytest
import torch

from prnn import _C
from prnn._ops import _layer
from prnn._ops._layer import BACKENDS, MODES, Config, Layer


class Answers:
    """In the place of a descriptor on a GPU: batches above 16 go to cuDNN, as those of large 16-bit layers do."""

    def __init__(self) -> None:
        self.asked: list[int] = []

    def query(self, handle: object, batch: int) -> dict[str, Any]:
        self.asked.append(batch)
        return {"reason": "cuDNN is faster" if batch > 16 else ""}


@pytest.fixture
def layer(monkeypatch: pytest.MonkeyPatch) -> Layer:
    monkeypatch.setattr(_layer, "_told", set())
    made = Layer(Config(MODES["LSTM"], 4, 0, 1, False, 0.0, BACKENDS["best"]), torch.float32, 3, torch.device("cpu"))
    made._may_settle, made.rnn = True, Answers()
    return made


def warnings_of(layer: Layer, *batches: int) -> list[str]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for batch in batches:
            layer.tell_backend(_C.Handle.cpu(), batch)
    return [str(warning.message) for warning in caught]


def test_a_later_batch_that_settles_is_announced(layer: Layer) -> None:
    assert warnings_of(layer, 4, 8) == []
    assert warnings_of(layer, 4, 32) == ["prnn: not the persistent kernels: cuDNN is faster"]


def test_a_reason_is_announced_once(layer: Layer) -> None:
    assert len(warnings_of(layer, 32, 33, 32, 4, 64)) == 1
    other = Layer(layer.config, torch.float64, 3, torch.device("cpu"))
    other._may_settle, other.rnn = True, Answers()
    assert warnings_of(other, 32) == []


def test_a_batch_size_is_looked_up_once(layer: Layer) -> None:
    warnings_of(layer, 32, 4, 32, 4, 4)
    assert layer.rnn.asked == [32, 4]
