"""Trainings on several processes, for tests/test_distributed.py, as torchrun starts them: a loop, and prnn train.

In the loop, process r trains on utterances r, r + W, ... of each step's batch: not all have as many, and the last has
none in the second half. The first process saves a checkpoint after each step. Process 1 kills itself once, before it
communicates the gradients of step 2.
"""

import os
import pathlib
import signal

import torch
from torch import Tensor, nn

import prnn
from prnn.distributed import GradientMean, batch_share

STEPS = 4


def make_model() -> prnn.Transducer:
    torch.manual_seed(3)
    config = prnn.TransducerConfig(
        vocab_size=6,
        feature_dim=4,
        frame_stack=2,
        encoder_layers=2,
        encoder_hidden=8,
        predictor_embedding=4,
        predictor_hidden=6,
        joiner_dim=8,
        ctc_weight=0.3,
    )
    return prnn.Transducer.from_config(config).double()


def make_optimizer(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=1e-2)


def batch_of(step: int, rows: slice | None = None) -> list[Tensor]:
    """Utterances of different lengths; of `rows` alone, padded no further than they need."""
    generator = torch.Generator().manual_seed(step)
    size = 13 if step < STEPS // 2 else 15
    lengths = torch.randint(14, 25, (size,), generator=generator)
    target_lengths = torch.randint(0, 6, (size,), generator=generator)
    features = torch.randn(size, 24, 4, dtype=torch.float64, generator=generator)
    targets = torch.randint(1, 6, (size, 5), generator=generator)
    batch = [tensor[rows or slice(None)] for tensor in (features, lengths, targets, target_lengths)]
    if len(batch[0]):
        batch[0], batch[2] = batch[0][:, : batch[1].max()], batch[2][:, : batch[3].max()]
    return batch


def rows_of(step: int, rank: int, world: int) -> slice:
    """Utterances of a process; after the first half the last process has none, and the others have all."""
    if step < STEPS // 2:
        return slice(rank, None, world)
    return slice(rank, None, world - 1) if rank < world - 1 else slice(0, 0)


def finish_step(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()


def train(folder_name: str) -> None:
    """In one of the processes; leaves its last gradients and its weights in the folder."""
    folder = pathlib.Path(folder_name)
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo")
    rank, world = torch.distributed.get_rank(), torch.distributed.get_world_size()
    attempt = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    model = make_model()
    optimizer = make_optimizer(model)
    first = 0
    if (folder / "last.pt").exists():
        saved = torch.load(folder / "last.pt")
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        first = saved["step"]
    average = GradientMean(model)
    (folder / f"attempt{attempt}-{rank}").write_text(str(first))
    for step in range(first, STEPS):
        features, *rest = batch_of(step, rows_of(step, rank, world))
        optimizer.zero_grad()
        share = batch_share(len(features), dtype=torch.float64)
        if len(features):
            (model(features, *rest) * share).backward()
        if (rank, step, attempt) == (1, 2, 0):
            os.kill(os.getpid(), signal.SIGKILL)
        average()
        gradients = [parameter.grad.clone() for parameter in model.parameters()]
        finish_step(model, optimizer)
        if rank == 0:
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step + 1}
            torch.save(state, folder / "partial.pt")
            os.replace(folder / "partial.pt", folder / "last.pt")
    torch.save((gradients, model.state_dict()), folder / f"{rank}.pt")
    torch.distributed.destroy_process_group()


def prnn_train(folder: str, arguments: list[str]) -> None:
    """prnn train, whose process 1 kills itself once, after two steps; leaves in the folder which steps were begun."""
    from prnn.asr.task import TransducerTask
    from prnn.cli import main

    torch.set_num_threads(1)
    attempt = os.environ["TORCHELASTIC_RESTART_COUNT"]
    start = TransducerTask.on_train_batch_start

    def observed(self: TransducerTask, *batch: object) -> None:
        with pathlib.Path(folder, f"attempt{attempt}-{self.global_rank}").open("a") as file:
            print(self.global_step, end=" ", file=file)
        if (self.global_rank, self.global_step, attempt) == (1, 2, "0"):
            os.kill(os.getpid(), signal.SIGKILL)
        start(self, *batch)

    TransducerTask.on_train_batch_start = observed
    assert main(arguments) == 0
