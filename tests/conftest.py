"""The state that every test starts from: fixed seeds, true float32 on a GPU, and as many threads as OMP_NUM_THREADS
says."""

import pathlib
import random
import subprocess
import sys
import tarfile
from collections.abc import Iterable, Iterator

import pytest

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


class Skipped(pytest.Item):
    """Stands for all tests of a module."""

    def runtest(self) -> None:
        raise AssertionError("it has a mark that skips it")

    def reportinfo(self) -> tuple[pathlib.Path, int, str]:
        return self.path, 0, self.nodeid


class Module(pytest.Module):
    """A module whose pytestmark skips every test of it is one skipped test: those of a GPU are thousands."""

    def collect(self) -> Iterable[pytest.Item | pytest.Collector]:
        marks = getattr(self.obj, "pytestmark", [])
        for mark in marks if isinstance(marks, list) else [marks]:
            if mark.name == "skipif" and mark.args[0] is True:
                skipped = Skipped.from_parent(self, name="all")
                skipped.add_marker(pytest.mark.skip(reason=mark.kwargs["reason"]))
                return [skipped]
        return super().collect()


def pytest_pycollect_makemodule(module_path: pathlib.Path, parent: pytest.Collector) -> pytest.Module | None:
    if any("::" in argument for argument in parent.config.args):  # a test by its name is not to be missing
        return None
    return Module.from_parent(parent, path=module_path)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--full", action="store_true", help="also the tests with the mark `full`")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves out what has the mark `full`, but for a test by its name."""
    if config.getoption("full") or any("::" in argument for argument in config.args):
        return
    left_out = [item for item in items if item.get_closest_marker("full")]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if not item.get_closest_marker("full")]


# torch is imported by the workers alone, not by the process that they report to.


@pytest.fixture(autouse=True)
def fixed_seeds() -> None:
    import numpy as np
    import torch

    random.seed(0)
    np.random.seed(0)
    torch.manual_seed(0)


@pytest.fixture(autouse=True)
def true_float32() -> None:
    """By default torch lets recurrent layers on a GPU round to tf32. Tests of it set the switch themselves."""
    import torch

    torch.backends.cudnn.allow_tf32 = False


@pytest.fixture
def precision_of_products() -> Iterator[None]:
    """For tests that set torch.backends.cuda.matmul's switch: afterwards it is as before."""
    import torch

    before = torch.backends.cuda.matmul.allow_tf32
    yield
    torch.backends.cuda.matmul.allow_tf32 = before


@pytest.fixture(autouse=True)
def spare_gpu_memory() -> Iterator[None]:
    """Processes of tests share a GPU, and torch keeps what was freed for itself."""
    yield
    import torch

    if torch.cuda.is_initialized() and torch.cuda.memory_reserved() > 1 << 30:
        torch.cuda.empty_cache()
