"""Several GPUs: layers on each of them in one process, gradients averaged over NCCL, and prnn train."""

import pathlib
import subprocess
import sys
from typing import Any

import pytest
import torch
from torch.nn.parallel import DistributedDataParallel

import prnn
from prnn.distributed import GradientMean

pytestmark = pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")

CELLS = ("LSTM", "GRU", "RNN")
GPUS = 4 if torch.cuda.device_count() >= 4 else 2


def make_model(cell: str, **options: Any) -> torch.nn.Module:
    torch.manual_seed(1)
    return getattr(prnn.nn, cell)(24, 100, num_layers=2, bidirectional=True, **options)


def gradients(model: torch.nn.Module, x: torch.Tensor) -> list[torch.Tensor]:
    output = model(x)[0]
    output.square().mean().backward()
    return [output.detach(), *(parameter.grad for parameter in model.parameters())]


@pytest.mark.parametrize("backend", ["persistent", "cudnn"])
@pytest.mark.parametrize("cell", CELLS)
def test_devices_of_one_process(cell: str, backend: str) -> None:
    """The current device is the first one all the time; each layer runs on its own, with the same bits."""
    torch.manual_seed(2)
    x = torch.randn(20, 6, 24)
    models = [make_model(cell, backend=backend).to(f"cuda:{index}") for index in range(GPUS)]
    first, *others = (
        [tensor.cpu() for tensor in gradients(model, x.to(f"cuda:{i}"))] for i, model in enumerate(models)
    )
    assert torch.cuda.current_device() == 0
    assert all(torch.equal(a, b) for other in others for a, b in zip(first, other, strict=True))


def test_mixed_gpus_are_refused() -> None:
    with pytest.raises(ValueError, match="input is on cuda:1, but the weights are on cuda:0"):
        make_model("LSTM", device="cuda:0")(torch.zeros(3, 2, 24, device="cuda:1"))


def train_part(rank: int, folder: str) -> None:
    """A process of one GPU: its share of the batch, gradients averaged over all."""
    torch.cuda.set_device(rank)
    torch.backends.cudnn.allow_tf32 = False
    torch.distributed.init_process_group("nccl", f"file://{folder}/rendezvous", rank=rank, world_size=GPUS)
    x = torch.load(f"{folder}/x.pt").chunk(GPUS, dim=1)[rank].cuda()
    for cell in CELLS:
        model = DistributedDataParallel(make_model(cell, device="cuda"))
        grads = [tensor.cpu() for tensor in gradients(model, x)[1:]]
        torch.save(grads, f"{folder}/{cell}{rank}.pt")
        for dtype in (torch.float32, torch.bfloat16):
            model = make_model(cell, device="cuda")
            average = GradientMean(model, dtype)
            gradients(model, x)
            average()
            torch.save([parameter.grad.cpu() for parameter in model.parameters()], f"{folder}/{cell}{rank}{dtype}.pt")
    torch.distributed.destroy_process_group()


def test_distributed_gradients_are_those_of_the_joined_batch(tmp_path: pathlib.Path) -> None:
    x = torch.randn(20, 8, 24)
    torch.save(x, tmp_path / "x.pt")
    torch.multiprocessing.spawn(train_part, (str(tmp_path),), nprocs=GPUS)
    for cell in CELLS:
        expected = gradients(make_model(cell, device="cuda"), x.cuda())[1:]
        for way, tolerance in (("", 1e-5), (torch.float32, 1e-5), (torch.bfloat16, 2**-8)):
            first, *others = (torch.load(tmp_path / f"{cell}{rank}{way}.pt") for rank in range(GPUS))
            assert all(torch.equal(a, b) for other in others for a, b in zip(first, other, strict=True))
            for mine, wanted in zip(first, expected, strict=True):
                assert ((mine - wanted.cpu()).norm() / wanted.norm()).item() < tolerance


class TwoStacks(torch.nn.Module):
    """Two stacks of layers that run by chunks on a whole GPU. The gradients of the second travel while the first runs
    backward."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        like = {"device": "cuda", "dtype": torch.bfloat16}
        self.first, self.second = prnn.nn.LSTM(48, 1024, 5, **like), prnn.nn.LSTM(1024, 896, 5, **like)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.first(x)[0])[0]


def train_stacks(rank: int, folder: str) -> None:
    torch.cuda.set_device(rank)
    torch.distributed.init_process_group("nccl", f"file://{folder}/rendezvous", rank=rank, world_size=GPUS)
    model = TwoStacks()
    shared = DistributedDataParallel(model)
    for step in range(10):
        torch.manual_seed(step)
        shares = torch.randn(130, 4 * GPUS, 48).bfloat16().cuda().chunk(GPUS, dim=1)
        shared.zero_grad()
        shared(shares[rank]).float().square().mean().backward()
        found = [parameter.grad.float() for parameter in model.parameters()]
        expected = [torch.zeros_like(gradient) for gradient in found]
        for share in shares:
            of_share = torch.autograd.grad(model(share).float().square().mean(), list(model.parameters()))
            for total, gradient in zip(expected, of_share, strict=True):
                total += gradient.float() / GPUS
        errors = [((a - b).norm() / b.norm()).item() for a, b in zip(found, expected, strict=True)]
        assert max(errors) < 2**-8, (step, errors)
    torch.distributed.destroy_process_group()


def test_stacks_by_chunks_beside_nccl(tmp_path: pathlib.Path) -> None:
    torch.multiprocessing.spawn(train_stacks, (str(tmp_path),), nprocs=GPUS)


# prnn's command line in a model that refuses lengths and targets on a GPU: looking at them there waits for it.
GUARDED = f"""
import sys
sys.path.insert(0, {str(pathlib.Path(prnn.__file__).parents[1])!r})
import prnn.cli

loss_parts = prnn.Transducer.loss_parts

def guarded(self, features, *rest):
    assert features.is_cuda and not any(tensor.is_cuda for tensor in rest)
    return loss_parts(self, features, *rest)

prnn.Transducer.loss_parts = guarded
sys.exit(prnn.cli.main())
"""


def test_prnn_train(tmp_path: pathlib.Path) -> None:
    from asr_data import write_corpus  # which wants soundfile

    manifest = write_corpus(tmp_path / "data", "tones", ["ab ca", "cab", "b", "acc ab"])
    program = tmp_path / "guarded.py"
    program.write_text(GUARDED)
    command = f"""train --manifest {manifest} --valid {manifest} --output {tmp_path / "out"} --epochs 6 --batch-size 1
        --hidden 16 --layers 1 --valid-every 6 --accelerator gpu --devices {GPUS} --no-progress"""
    command = [sys.executable, str(program), *command.split()]
    result = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert result.returncode == 0, result.stderr
    assert result.stdout.count(f"epoch 6, step {6 * 4 // GPUS}:") == 1
