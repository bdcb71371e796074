"""What every test starts from: fixed seeds, true float32 on a GPU, and as many threads as OMP_NUM_THREADS says."""

import pathlib
import random
import subprocess
import sys
import tarfile

import numpy as np
import pytest
import torch

ROOT = pathlib.Path(__file__).resolve().parent.parent


@pytest.fixture(scope="session")
def source(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """The source distribution, unpacked. Builds with other options run there: the library under test stays."""
    folder = tmp_path_factory.mktemp("sdist")
    program = f"import pep517; print(pep517.build_sdist({str(folder)!r}))"
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT / "site_scons", capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    name = done.stdout.strip()
    with tarfile.open(folder / name) as archive:
        archive.extraction_filter = getattr(tarfile, "data_filter", None)  # from Python 3.11.4 on
        archive.extractall(folder)
    return folder / name.removesuffix(".tar.gz")


@pytest.fixture(autouse=True)
def fixed_seeds() -> None:
    random.seed(0)
    np.random.seed(0)
    torch.manual_seed(0)


@pytest.fixture(autouse=True)
def true_float32() -> None:
    """By default torch lets recurrent layers on a GPU round to tf32. Tests of it set the switch themselves."""
    torch.backends.cudnn.allow_tf32 = False
