"""What every test starts from: fixed seeds, and as many threads as the caller's OMP_NUM_THREADS says."""

import random

import numpy as np
import pytest
import torch


@pytest.fixture(autouse=True)
def fixed_seeds() -> None:
    random.seed(0)
    np.random.seed(0)
    torch.manual_seed(0)
