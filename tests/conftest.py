"""What every test starts from: fixed seeds, true float32 on a GPU, and as many threads as OMP_NUM_THREADS says."""

import random

import numpy as np
import pytest
import torch


@pytest.fixture(autouse=True)
def fixed_seeds() -> None:
    random.seed(0)
    np.random.seed(0)
    torch.manual_seed(0)


@pytest.fixture(autouse=True)
def true_float32() -> None:
    """By default torch lets recurrent layers on a GPU round to tf32. Tests of it set the switch themselves."""
    torch.backends.cudnn.allow_tf32 = False
