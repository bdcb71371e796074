"""The losses on tensors without memory, of the meta device or fake: results without memory; a mixture is refused by
name."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from test_losses_messages import CASES
from torch._subclasses.fake_tensor import FakeTensorMode

ACTIVATIONS = {"log_probs", "logits", "activations", "encoder_out", "am", "lm", "px", "py", "px_grad", "py_grad"}


def of_tensors(convert: Callable[[torch.Tensor], torch.Tensor], value: Any) -> Any:
    if isinstance(value, list) and isinstance(value[0], torch.Tensor):
        return [convert(x) for x in value]
    return convert(value) if isinstance(value, torch.Tensor) else value


def to_meta(value: Any) -> Any:
    return of_tensors(lambda x: x.to("meta"), value)


def tensors(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    return [x for part in value for x in tensors(part)]


@pytest.mark.parametrize("case", CASES)
def test_meta_gives_the_same_shapes_without_memory(case: str) -> None:
    function, arguments = CASES[case]
    wanted = tensors(function(**arguments))
    got = tensors(function(**{name: to_meta(value) for name, value in arguments.items()}))
    assert [(x.shape, x.dtype, x.device.type) for x in got] == [(x.shape, x.dtype, "meta") for x in wanted]


@pytest.mark.parametrize("case", CASES)
def test_gradients_on_meta(case: str) -> None:
    function, arguments = CASES[case]
    leaves = []
    changed = {}
    for name, value in arguments.items():
        changed[name] = to_meta(value)
        if name in ACTIVATIONS | {"weight", "bias"} and isinstance(value, torch.Tensor):
            leaves.append(changed[name].requires_grad_())
    result = tensors(function(**changed))[0]
    if result.requires_grad:
        gradients = torch.autograd.grad(result.sum(), leaves, allow_unused=True)
        assert all(g.is_meta and g.shape == x.shape for g, x in zip(gradients, leaves, strict=True) if g is not None)


@pytest.mark.parametrize("case", CASES)
def test_lists_go_with_meta(case: str) -> None:
    function, arguments = CASES[case]
    changed = {
        name: value.tolist() if name.endswith("lengths") or name == "targets" else to_meta(value)
        for name, value in arguments.items()
    }
    assert all(x.is_meta for x in tensors(function(**changed)))


@pytest.mark.parametrize(
    ("case", "name"),
    [
        (case, name)
        for case, (_, arguments) in CASES.items()
        for name, value in arguments.items()
        if isinstance(value, torch.Tensor)
    ],
)
def test_one_tensor_elsewhere(case: str, name: str) -> None:
    """One argument on the meta device among real ones, and one with memory among those without."""
    function, arguments = CASES[case]
    for where in (lambda key: key == name, lambda key: key != name):
        changed = {key: to_meta(value) if where(key) else value for key, value in arguments.items()}
        with pytest.raises((ValueError, TypeError), match="meta") as caught:
            function(**changed)
        if name not in ACTIVATIONS:
            assert name in str(caught.value)


@pytest.mark.parametrize("case", [case for case in CASES if case != "get_rnnt_prune_ranges"])  # R follows from values
def test_fake_tensors(case: str) -> None:
    function, arguments = CASES[case]
    wanted = tensors(function(**arguments))
    with FakeTensorMode() as mode:
        got = tensors(function(**{name: of_tensors(mode.from_tensor, value) for name, value in arguments.items()}))
    assert [(x.shape, x.dtype) for x in got] == [(x.shape, x.dtype) for x in wanted]


def test_half_types_keep_the_type_of_the_costs() -> None:
    function, arguments = CASES["rnnt_loss"]
    changed = {name: to_meta(value) for name, value in arguments.items()}
    assert function(**{**changed, "logits": changed["logits"].half()}).dtype == torch.float32
