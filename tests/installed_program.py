"""Tries an installed prnn away from the checkout: README's program, layers, losses and searches on the CPU.

python installed_program.py README.md
"""

from __future__ import annotations

import os
import pathlib
import re
import sys
import textwrap

import torch

import prnn


def readme(page: str) -> None:
    found = re.search(r"```python\n(.*?)```\n\n((?:    [^\n]*\n)*)", page, re.DOTALL)
    assert found is not None
    printed: list[str] = []
    exec(found[1], {"print": lambda *values: printed.append(" ".join(map(str, values)))})
    assert "\n".join([*printed, ""]) == textwrap.dedent(found[2]), printed


def layers() -> None:
    x = torch.randn(6, 3, 8)
    for name in ("LSTM", "GRU"):
        ours, theirs = getattr(prnn.nn, name)(8, 16, 2), getattr(torch.nn, name)(8, 16, 2)
        theirs.load_state_dict(ours.state_dict())
        torch.testing.assert_close(ours(x)[0], theirs(x)[0])
        for module in (ours, theirs):
            module(x)[0].square().sum().backward()
        for mine, other in zip(ours.parameters(), theirs.parameters(), strict=True):
            torch.testing.assert_close(mine.grad, other.grad)
    threads = len(os.listdir("/proc/self/task"))
    torch.randn(10**6).exp().sum()  # torch's own threads are the layers'
    assert len(os.listdir("/proc/self/task")) == threads


def losses() -> None:
    targets, lengths = torch.randint(1, 7, (2, 3)), (torch.tensor([5, 4]), torch.tensor([3, 2]))
    logits = torch.randn(5, 2, 7, dtype=torch.float64, requires_grad=True)
    theirs = torch.nn.functional.ctc_loss(logits.log_softmax(-1), targets, *lengths)
    torch.testing.assert_close(prnn.ctc_loss(logits, targets, *lengths), theirs)
    encoded, labels = torch.randn(2, 5, 6, requires_grad=True), torch.randn(2, 4, 6, requires_grad=True)
    weight, bias = torch.randn(7, 6, requires_grad=True), torch.randn(7, requires_grad=True)
    given = (encoded, labels, weight, bias)
    joint = prnn.joint_rnnt_loss(encoded, labels, weight, bias, targets, *lengths, blank=0)
    cells = torch.tanh(encoded[:, :, None] + labels[:, None]) @ weight.T + bias
    plain = prnn.rnnt_loss(cells, targets, *lengths, blank=0)
    torch.testing.assert_close(joint, plain)
    for mine, other in zip(torch.autograd.grad(joint, given), torch.autograd.grad(plain, given), strict=True):
        torch.testing.assert_close(mine, other)


def searches() -> None:
    config = prnn.TransducerConfig(vocab_size=30, encoder_hidden=32, predictor="lstm")
    model, features = prnn.Transducer.from_config(config), torch.randn(2, 60, 80)
    (whole, _), ((best, *_), _) = model.greedy_search(features), model.beam_search(features, beam=4)
    assert whole.tokens
    assert best.tokens
    assert best.score > whole.score  # the sum over all ways to place the symbols
    state = model.stream_init(batch=1)
    streamed = []
    for chunk in features[:1].split(7, dim=1):
        tokens, state = model.stream_step(chunk, state)
        streamed += tokens[0]
    tokens, _ = model.stream_finish(state)
    assert streamed + tokens[0] == whole.tokens


torch.manual_seed(0)
torch.set_num_threads(2)
readme(pathlib.Path(sys.argv[1]).read_text())
layers()
losses()
searches()
print(prnn.__file__)
