"""Transformers' own models with prnn.compat.transformers on a GPU: what test_transformers_models.py has on a CPU."""

import pytest
import torch
from test_transformers_models import check_small_models, needs_transformers


@needs_transformers
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_small_models() -> None:
    check_small_models("cuda")
