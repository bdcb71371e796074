"""prnn.distributed between processes on the CPU, and trainings whose processes are killed and restarted by torchrun."""

import multiprocessing
import pathlib
from collections.abc import Callable
from typing import Any

import distributed_program
import lightning
import pytest
import torch
from asr_data import write_corpus
from torch import nn
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

import prnn
from prnn.asr.checkpoint import read_checkpoint
from prnn.asr.data import open_data
from prnn.asr.options import TrainingOptions
from prnn.asr.task import TransducerTask
from prnn.cli import main
from prnn.distributed import GradientMean, batch_share

# Processes are forked from one that has imported these: they start at once. One worker of pytest has it.
multiprocessing.set_forkserver_preload(["torch._dynamo", "lightning"])
pytestmark = pytest.mark.xdist_group("distributed")


def run_processes(part: Callable[..., Any], tmp_path: pathlib.Path) -> list[Any]:
    """Returns part(rank, folder) of each of two processes."""
    torch.multiprocessing.start_processes(in_group, (part, str(tmp_path)), nprocs=2, start_method="forkserver")
    return [torch.load(tmp_path / f"{rank}.pt") for rank in range(2)]


def in_group(rank: int, part: Callable[..., Any], folder: str) -> None:
    torch.distributed.init_process_group("gloo", f"file://{folder}/rendezvous", rank=rank, world_size=2)
    torch.save(part(rank, folder), f"{folder}/{rank}.pt")
    torch.distributed.destroy_process_group()


def model_of(seed: int) -> nn.ModuleDict:
    torch.manual_seed(seed)
    model = nn.ModuleDict({"rnn": prnn.nn.LSTM(3, 5, 2), "out": nn.Linear(5, 2), "unused": nn.Linear(2, 2)})
    model["rnn"].bias_ih_l0.requires_grad_(False)
    return model.double()


def backward(model: nn.ModuleDict, x: torch.Tensor) -> None:
    model["out"](model["rnn"](x)[0]).square().mean().backward()


def train_part(rank: int, folder: str) -> dict[str, Any]:
    x = torch.load(f"{folder}/x.pt")[:, rank * 4 : rank * 4 + 4]
    states = {}
    for dtype in (None, torch.float32):
        model = model_of(rank)
        average = GradientMean(model, dtype)
        for backwards in (1, 2):  # the second time on top of the first
            for _ in range(backwards):
                backward(model, x)
            average()
        states[str(dtype)] = {name: (value.detach(), value.grad) for name, value in model.named_parameters()}
    return states


def test_gradients_are_those_of_the_joined_batch(tmp_path: pathlib.Path) -> None:
    x = torch.randn(6, 8, 3, dtype=torch.float64)
    torch.save(x, tmp_path / "x.pt")
    first, second = run_processes(train_part, tmp_path)
    expected = model_of(0)
    for _ in range(3):
        backward(expected, x)
    for case, tolerance in (("None", 1e-12), ("torch.float32", 1e-6)):
        for name, parameter in expected.named_parameters():
            for weight, grad in (first[case][name], second[case][name]):
                assert torch.equal(weight, parameter)
                if parameter.grad is not None:
                    torch.testing.assert_close(grad, parameter.grad, rtol=tolerance, atol=tolerance / 1000)
                elif parameter.requires_grad:
                    assert torch.equal(grad, torch.zeros_like(parameter))
                else:
                    assert grad is None


def use_parameters(rank: int, _: str) -> list[Any]:
    """Gradients of a and b after calls of different parameters: 1 for each use in process 0, 10 in process 1."""
    model = nn.ParameterDict({name: nn.Parameter(torch.zeros(2)) for name in "ab"})
    average = GradientMean(model)
    found = []
    for uses in (
        ("ab", "ab"),
        (["ab", "a"], ["ab", "a"]),  # backward twice, the second time of a alone
        (["a", "ab"], ["b"]),  # and not as often in both
        ("a", "b"),
        ("", "ab"),
        ("", ""),
    ):
        model.zero_grad()
        for names in uses[rank]:
            for name in names:
                (model[name].sum() * 10**rank).backward()
        average()
        found.append([model[name].grad[0].item() for name in "ab"])
    model["b"].requires_grad_(False)  # frozen later
    model.zero_grad()
    model["a"].sum().backward()
    average()
    return [*found, [model["a"].grad[0].item(), model["b"].grad]]


def test_several_backwards_and_different_parameters(tmp_path: pathlib.Path) -> None:
    first, second = run_processes(use_parameters, tmp_path)
    assert first == second == [[5.5, 5.5], [11, 5.5], [1, 5.5], [0.5, 5], [5, 5], [0, 0], [1, None]]


def make_different_models(rank: int, _: str) -> list[str]:
    messages = []
    for models in (
        (nn.Linear(3, 4), nn.Linear(3, 5)),
        (nn.Linear(3, 4), nn.Linear(3, 4, bias=False)),
        (nn.Linear(3, 4, bias=False), nn.Linear(3, 4)),
        (nn.Linear(3, 4), nn.Linear(3, 4).double()),
        (nn.Linear(3, 4), nn.Linear(3, 4)),
    ):
        try:
            GradientMean(models[rank])
        except ValueError as error:
            messages.append(str(error))
    return messages


def test_different_models_are_refused_in_every_process(tmp_path: pathlib.Path) -> None:
    first, second = run_processes(make_different_models, tmp_path)
    weight, bias = ("weight of shape (4, 3) and torch.float32 with a gradient", "bias of shape (4,) and torch.float32")
    pairs = [
        (weight, weight.replace("(4, 3)", "(5, 3)")),
        (f"{bias} with a gradient", "nothing"),
        ("nothing", f"{bias} with a gradient"),
        (weight, weight.replace("float32", "float64")),
    ]
    texts = [f"the processes have different models: process 0 has {a}, process 1 {b}" for a, b in pairs]
    assert first == second == texts


def test_parameters_of_two_kinds_are_refused() -> None:
    model = nn.ModuleList([nn.Linear(2, 2), nn.Linear(2, 2).double()])
    with pytest.raises(ValueError, match=r"torch\.float32 on cpu, torch\.float64 on cpu; they must be of one kind"):
        GradientMean(model)
    with pytest.raises(ValueError, match="the parameters are none"):
        GradientMean(nn.ReLU())


def run_as_torchrun(processes: int, part: Callable[..., None], *arguments: object) -> None:
    """Runs it in processes that are all restarted, once, if one of them is killed."""
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=processes,
        max_restarts=1,
        rdzv_backend="c10d",
        rdzv_endpoint="127.0.0.1:0",
        run_id="test",
        start_method="forkserver",
        logs_specs=DefaultLogsSpecs(),
    )
    with pytest.MonkeyPatch.context() as patch:
        # Else restarted processes find the addresses of the first ones (pytorch/pytorch#135712).
        patch.setenv("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "1")
        elastic_launch(config, part)(*arguments)


def test_eight_processes_train_as_one(tmp_path: pathlib.Path) -> None:
    """Two processes with different batch sizes, the last without data in the second half, one killed and all restarted:
    gradients and weights are those of one process with the whole batches."""
    run_as_torchrun(8, distributed_program.train, str(tmp_path))
    assert {path.read_text() for path in tmp_path.glob("attempt0-*")} == {"0"}
    assert [path.read_text() for path in tmp_path.glob("attempt1-*")] == ["2"] * 8
    model = distributed_program.make_model()
    optimizer = distributed_program.make_optimizer(model)
    for step in range(distributed_program.STEPS):
        optimizer.zero_grad()
        model(*distributed_program.batch_of(step)).backward()
        expected = [parameter.grad.clone() for parameter in model.parameters()]
        distributed_program.finish_step(model, optimizer)
    for rank in range(8):
        gradients, weights = torch.load(tmp_path / f"{rank}.pt")
        torch.testing.assert_close(gradients, expected, rtol=1e-9, atol=1e-12)
        torch.testing.assert_close(weights, model.state_dict(), rtol=1e-9, atol=1e-12)


def test_four_processes_of_prnn_train_are_as_one(tmp_path: pathlib.Path) -> None:
    """Batches of 2, the last of 1, one process killed and all restarted, from a checkpoint: weights are those of one
    process with batches of all 7."""
    texts = ["ab", "c", "ba c", "cab", "a", "bb", "ca"]
    manifest = write_corpus(tmp_path / "data", "tones", texts)
    weights = {}
    for processes, batch_size in ((4, 2), (1, 8)):
        output = tmp_path / str(processes)
        command = f"""train --manifest {manifest} --valid {manifest} --output {output} --epochs 4 --valid-every 4
            --hidden 8 --layers 1 --predictor-hidden 4 --joiner 8 --batch-size {batch_size} --devices {processes}
            --dropout 0 --checkpoint-every 1 --accelerator cpu --no-progress --restart""".split()
        if processes == 1:
            assert main(command) == 0
        else:
            run_as_torchrun(processes, distributed_program.prnn_train, str(tmp_path), command)
            assert [path.read_text() for path in tmp_path.glob("attempt0-*")] == ["0 1 2 "] * 4
            assert [path.read_text() for path in tmp_path.glob("attempt1-*")] == ["2 3 "] * 4  # in spite of --restart
        checkpoint = read_checkpoint(output / "last.ckpt")
        assert checkpoint["global_step"] == 4
        weights[processes] = torch.cat([tensor.flatten() for tensor in checkpoint["state_dict"].values()])
    assert (weights[4] - weights[1]).norm() < 1e-6 * weights[1].norm()


@torch.no_grad()
def validated(rank: int, folder: str, devices: int = 2) -> dict[str, Any]:
    """Returns a process's results of its share of a validation: its log, and the texts that it has validated."""
    manifest = pathlib.Path(folder, "tones.jsonl")
    model = {"encoder_hidden": 8, "encoder_layers": 1, "predictor_hidden": 4, "joiner_dim": 8, "frame_stack": 8}
    options = TrainingOptions(manifest, manifest, model=model, batch_size=2, accelerator="cpu", devices=devices)
    data = open_data(options, rank)
    torch.manual_seed(5)
    transducer = prnn.Transducer.from_config(options.transducer(len(data.tokenizer), 80))
    transducer.encoder.set_normalization(torch.full((80,), -8.0), torch.ones(80))
    task = TransducerTask(transducer, options.features, data.tokenizer, options, validates=data.validates)
    task.trainer = lightning.Trainer(logger=False, enable_checkpointing=False, accelerator="cpu", devices=1)
    logged: dict[str, Any] = {}
    task.log = lambda name, value, **_: logged.update({name: float(value)})
    for index, batch in enumerate(data.valid_loader):
        task.validation_step(batch, index)
    texts = list(task._references)
    task.on_validation_epoch_end()
    assert not task._references
    return {"logged": logged, "texts": texts}


@pytest.mark.parametrize("texts", [["ab", "c", "ba c", "cab", "a"], ["ab ca", "cab"]], ids=len)
def test_processes_share_a_validation(tmp_path: pathlib.Path, texts: list[str]) -> None:
    """Loss and error rates are those of one process over all utterances; a process may have none."""
    write_corpus(tmp_path, "tones", texts)
    first, second = run_processes(validated, tmp_path)
    alone = validated(0, str(tmp_path), devices=1)
    assert sorted(first["texts"] + second["texts"]) == sorted(texts)
    assert bool(second["texts"]) == (len(texts) > 2)
    for one in (first, second):
        assert one["logged"] == pytest.approx(alone["logged"], rel=1e-6)
        assert one["logged"]["valid/cer"] == alone["logged"]["valid/cer"]
    assert alone["logged"]["valid/cer"] > 0


def shares(rank: int, _: str) -> list[float]:
    return [batch_share(weights[rank]).item() for weights in ((3, 3), (3, 1), (0, 2), (0, 0), (1e-300, 1e-300))]


def test_shares_of_a_batch(tmp_path: pathlib.Path) -> None:
    first, second = run_processes(shares, tmp_path)
    assert first == [1, 1.5, 0, 0, 1]
    assert second == [1, 0.5, 2, 0, 1]


@pytest.mark.parametrize("weight", [-1, float("nan"), float("inf")])
def test_weights_that_are_none_are_refused(weight: float) -> None:
    with pytest.raises(ValueError, match=f"weight is {weight}; it must be a finite number of at least 0"):
        batch_share(weight)
