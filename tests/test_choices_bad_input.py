"""Arguments that no comparison of theirs survives: choices that are lists or arrays, counts beyond 32 bits, complex
lengths."""

from typing import Any

import numpy as np
import pytest
import torch
from reference import transducer as slow

import prnn


@pytest.mark.parametrize("value", [[], {"best"}, np.zeros(2), 3, None], ids=str)
def test_choices_that_are_no_strings(value: Any) -> None:
    model = slow.tiny_model(0, dtype=torch.float32)
    wrong = [
        ("backend", lambda: prnn.nn.GRU(2, 3, backend=value)),
        ("backend", lambda: prnn.convert(torch.nn.GRU(2, 3), backend=value)),
        ("search", lambda: model.stream_init(1, value)),
        ("mode", lambda: model.beam_search(torch.zeros(1, 5, 4), mode=value)),
    ]
    for name, call in wrong:
        with pytest.raises(ValueError, match=f"^{name} is .* it must be one of"):
            call()


def test_counts_beyond_32_bits() -> None:
    model = slow.tiny_model(0, dtype=torch.float32)
    for name in ("batch", "beam", "max_symbols"):
        with pytest.raises(ValueError, match=f"^{name} is {2**70}; it must be at most 2147483647"):
            model.stream_init(**{"search": "standard", name: 2**70})


def test_complex_lengths_and_targets() -> None:
    model = slow.tiny_model(0, dtype=torch.float32)
    good: dict[str, torch.Tensor] = {
        "features": torch.zeros(1, 6, 4),
        "feature_lengths": torch.tensor([6]),
        "targets": torch.tensor([[1, 2]]),
        "target_lengths": torch.tensor([2]),
    }
    for name in ("feature_lengths", "targets", "target_lengths"):
        with pytest.raises(TypeError, match=f"^{name} is a tensor of torch.complex64; it must be a tensor of integers"):
            model(**{**good, name: good[name].to(torch.complex64)})
