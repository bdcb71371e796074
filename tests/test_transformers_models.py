"""Transformers' own models with prnn.compat.transformers, where Transformers is installed."""

import importlib.util
import os
import pathlib

import forked
import pytest

needs_transformers = pytest.mark.skipif(
    importlib.util.find_spec("transformers") is None,
    reason="transformers, which the tests' environment need not have, is not installed",
)


def check_small_models(device: str) -> None:
    """In a process of its own, since all of Transformers' models change with the installation."""
    tests = {"PYTHONPATH": str(pathlib.Path(__file__).parent)}
    done = forked.run("-m", "transformers_program", device, env=os.environ | tests)
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("OK\n")


@needs_transformers
def test_small_models() -> None:
    """Losses, gradients and generated symbols; checkpointing, autocast, a compiled encoder, DistributedDataParallel."""
    check_small_models("cpu")
