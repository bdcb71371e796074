"""An unmodified PyTorch program, for the tests of the stand-in: its recurrent layers' results, saved to a file.

`python cudnn_torch_program.py DEVICE RESULTS`; on the CPU in float64, for comparison.
"""

import random
import sys
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

CASES = 120
LOW = {"float16": torch.float16, "bfloat16": torch.bfloat16}


def make_case(number: int) -> dict[str, Any]:
    r = random.Random(number)
    case = {
        "cell": r.choice(["LSTM", "GRU", "RNN"]),  # tanh: the derivative of relu jumps with the last bit
        "type": r.choice(["float32", "tf32", "float16", "bfloat16"]),
        "sizes": (r.choice([1, 8, 40, 64]), r.choice([16, 17, 64, 100, 256]), r.choice([1, 1, 2, 3])),
        "options": {"bias": r.random() < 0.8, "batch_first": r.random() < 0.3, "bidirectional": r.random() < 0.3},
        "batch": r.choice([1, 2, 3, 8, 17]),
        "steps": r.choice([2, 5, 13, 40]),
        "packed": r.choice([None, None, "sorted", "unsorted"]),
        "has_states": r.random() < 0.6,
    }
    if case["cell"] == "LSTM" and r.random() < 0.4:
        case["options"]["proj_size"] = case["sizes"][1] // 2
    return case


def run_case(number: int, device: str) -> dict[str, Tensor]:
    case = make_case(number)
    low = LOW.get(case["type"], torch.float32)
    dtype = low if device == "cuda" else torch.float64
    torch.backends.cudnn.allow_tf32 = case["type"] == "tf32"
    generator = torch.Generator().manual_seed(number)

    def normal(*shape: int, scale: float = 1.0) -> Tensor:
        return (torch.randn(*shape, generator=generator) * scale).to(low).to(device, dtype).requires_grad_()

    size, hidden, layers = case["sizes"]
    module = getattr(torch.nn, case["cell"])(size, hidden, layers, **case["options"]).to(device, dtype)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(normal(*parameter.shape, scale=0.5 / hidden**0.5))
    batch, steps = case["batch"], case["steps"]
    x = normal(*((batch, steps) if case["options"]["batch_first"] else (steps, batch)), size)
    cells = layers * (2 if case["options"]["bidirectional"] else 1)
    widths = [case["options"].get("proj_size", hidden), hidden][: 2 if case["cell"] == "LSTM" else 1]
    states = [normal(cells, batch, width) for width in widths]
    given: Any = None
    if case["has_states"]:
        given = tuple(states) if case["cell"] == "LSTM" else states[0]
    data: Any = x
    if case["packed"]:
        lengths = torch.tensor([steps] + [random.Random(number + n).randint(1, steps) for n in range(batch - 1)])
        is_sorted = case["packed"] == "sorted"
        lengths = lengths.sort(descending=True).values if is_sorted else lengths
        data = pack_padded_sequence(x, lengths, case["options"]["batch_first"], enforce_sorted=is_sorted)
    y, last = module(data, given)
    if case["packed"]:
        y, _ = pad_packed_sequence(y, case["options"]["batch_first"])
    outputs = [y, *(last if isinstance(last, tuple) else (last,))]
    loss = sum((output * normal(*output.shape).detach()).sum() for output in outputs)
    leaves = [x, *module.parameters(), *(states if case["has_states"] else [])]
    gradients = torch.autograd.grad(loss, leaves)
    tensors = {f"output {i}": t for i, t in enumerate(outputs)} | {f"gradient {i}": t for i, t in enumerate(gradients)}
    return {name: tensor.detach().double().cpu() for name, tensor in tensors.items()}


def masks() -> dict[str, Tensor]:
    """Two layers that pass positive inputs on: y / x and dx are the mask of dropout over 1 - p."""
    torch.backends.cudnn.allow_tf32 = False
    module = torch.nn.RNN(64, 64, 2, nonlinearity="relu", dropout=0.3, bias=False).cuda()
    with torch.no_grad():
        for name, weight in module.named_parameters():
            weight.copy_(torch.eye(64) if "ih" in name else torch.zeros(64, 64))
    x = (torch.rand(50, 16, 64, device="cuda") + 0.5).requires_grad_()
    found = {}
    for call in range(2):
        y, _ = module(x)
        (dx,) = torch.autograd.grad(y.sum(), x)
        found |= {f"y / x {call}": (y / x).detach().cpu(), f"dx {call}": dx.cpu()}
    return found


def graphs() -> dict[str, Tensor]:
    """A captured training step, replayed, and the same in eager mode."""
    module = torch.nn.LSTM(128, 128, 2).cuda()
    x = torch.randn(20, 4, 128, device="cuda", requires_grad=True)

    def step() -> tuple[Tensor, ...]:
        y, _ = module(x)
        return (y.detach(), *torch.autograd.grad(y.sum(), [x, *module.parameters()]))

    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = step()
    with torch.no_grad():
        x.copy_(torch.randn_like(x))
    graph.replay()
    return {f"{name} {i}": t.cpu() for name, ts in (("graph", captured), ("eager", step())) for i, t in enumerate(ts)}


def threads() -> dict[str, list[Tensor]]:
    """Training steps and inference of several threads at once, each on a stream of its own, and one after the other."""
    torch.backends.cudnn.allow_tf32 = False
    makers = (torch.nn.LSTM, torch.nn.GRU, torch.nn.RNN, torch.nn.LSTM)
    modules = [make(64 + 32 * i, 128, 1 + i % 2).cuda() for i, make in enumerate(makers)]
    inputs = [torch.randn(30, 4 + i, 64 + 32 * i, device="cuda", requires_grad=True) for i in range(len(makers))]
    streams = [torch.cuda.Stream() for _ in makers]
    torch.cuda.synchronize()

    def run(number: int) -> list[Tensor]:
        module, x = modules[number], inputs[number]
        with torch.cuda.stream(streams[number]):
            for _ in range(10):
                y, _ = module(x)
                found = [y.detach(), *torch.autograd.grad(y.sum(), [x, *module.parameters()])]
                with torch.no_grad():
                    found.append(module(x)[0])
        streams[number].synchronize()
        return [tensor.cpu() for tensor in found]

    numbers = range(len(makers))
    with ThreadPoolExecutor(len(makers)) as pool:
        together = list(pool.map(run, numbers))
    in_turn = [run(number) for number in numbers]
    return {"at once": [*chain(*together)], "in turn": [*chain(*in_turn)]}


if __name__ == "__main__":
    device = sys.argv[1]
    results: dict[str, Any] = {str(number): run_case(number, device) for number in range(CASES)}
    if device == "cuda":
        results |= {"masks": masks(), "graphs": graphs(), "threads": threads()}
    torch.save(results, sys.argv[2])
