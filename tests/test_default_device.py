"""torch.set_default_device and `with torch.device(...)`: calls give what they give without. The default device is the
meta device here, whose tensors have no values, so that one that is made on it by mistake is found on any machine."""

from pathlib import Path
from typing import Any

import pytest
import torch
from nn_pairs import flat
from test_losses_messages import CASES
from tones_model import RATE, save, tone_recogniser, tones
from torch import Tensor

import prnn
from prnn.asr import Recogniser
from prnn.compat import k2, torchaudio
from prnn.transducer import PhraseBias


def assert_same(found: list[Tensor], expected: list[Tensor]) -> None:
    for one, other in zip(found, expected, strict=True):
        assert one.device == other.device
        assert torch.equal(one, other)


def loss_and_gradients(case: str) -> list[Tensor]:
    function, arguments = CASES[case]
    given: dict[str, Any] = {}
    for name, value in arguments.items():
        if name.endswith("lengths"):
            value = value.tolist()
        elif isinstance(value, Tensor) and value.is_floating_point():
            value = value.detach().clone().requires_grad_()
        given[name] = value
    result = function(**given)
    results = flat(result) if isinstance(result, Tensor | tuple | list) else []
    leaves = [value for value in given.values() if isinstance(value, Tensor) and value.requires_grad]
    loss = [tensor.sum() for tensor in results if tensor.requires_grad]
    gradients = torch.autograd.grad(sum(loss), leaves, allow_unused=True) if loss else []
    return [*results, *(gradient for gradient in gradients if gradient is not None)]


@pytest.mark.parametrize("case", CASES)
def test_losses(case: str) -> None:
    expected = loss_and_gradients(case)
    with torch.device("meta"):
        found = loss_and_gradients(case)
    assert_same(found, expected)


@pytest.mark.parametrize(
    "layer",
    [
        prnn.nn.LSTM(3, 4, num_layers=2, dropout=0.3),
        prnn.nn.GRU(3, 4, bias=False, bidirectional=True),
        prnn.nn.GRU(3, 4, heads=2),
        prnn.nn.LSTM(3, 4, zoneout=0.1, recurrent_dropout=0.2),
        prnn.nn.RNN(3, 4, recurrent_dropout=0.2),
        prnn.nn.LayerNormLSTM(3, 4, num_layers=2, dropout=0.1, zoneout=0.1, recurrent_dropout=0.1),
    ],
    ids=str,
)
def test_layers(layer: torch.nn.Module) -> None:
    x = torch.randn(5, 2, 3)

    def step() -> list[Tensor]:
        torch.manual_seed(1)
        results = flat(layer(x, lengths=[5, 2]))
        return [*results, *torch.autograd.grad(results[0].sum(), list(layer.parameters()))]

    expected = step()
    with torch.device("meta"):
        found = step()
    assert_same(found, expected)


@pytest.mark.parametrize("loss", ["full", "pruned", "tdt"])
def test_transducer(loss: str) -> None:
    torch.manual_seed(0)
    model = prnn.Transducer.from_config(prnn.TransducerConfig(vocab_size=5, feature_dim=4, loss=loss)).eval()
    features, targets = torch.randn(2, 30, 4), torch.randint(1, 5, (2, 3))
    lengths, target_lengths = torch.tensor([30, 17]), torch.tensor([3, 1])

    def run() -> list[Any]:
        bias = PhraseBias([[1, 2], [2]], 2.0, vocab_size=5)
        certain, state = model.stream_step(features[:1, :13], model.stream_init(batch=1))
        rest, _ = model.stream_finish(state)
        return [
            model(features, lengths, targets, target_lengths).tolist(),
            [hypothesis.tokens for hypothesis in model.greedy_search(features)],
            [hypothesis.tokens for (hypothesis,) in model.beam_search(features, lengths, bias=bias)],
            [*certain, *rest],
        ]

    expected = run()
    with torch.device("meta"):
        assert run() == expected


def test_recogniser(tmp_path: Path) -> None:
    path, samples = tmp_path / "tones.ckpt", tones("ab c ba")
    save(tone_recogniser(), path)

    def run() -> list[str]:
        recogniser = Recogniser.load(path)
        stream = recogniser.stream(RATE, beam=3)
        pieces = [stream.accept(piece) for piece in (samples[:3000], samples[3000:3010], samples[3010:])]
        return [recogniser.transcribe(samples, RATE), *pieces, stream.finish()]

    expected = run()
    with torch.device("meta"):
        assert run() == expected
    torch.set_default_dtype(torch.float64)
    try:
        assert run() == expected
    finally:
        torch.set_default_dtype(torch.float32)


def test_other_packages_functions() -> None:
    log_probs, targets = torch.randn(2, 6, 5).log_softmax(-1), torch.tensor([[1, 2], [3, 3]], dtype=torch.int32)
    segments = torch.tensor([[0, 0, 6], [1, 1, 5]], dtype=torch.int32)

    def run() -> list[Tensor]:
        graph = k2.ctc_graph(targets.tolist())
        cost = k2.ctc_loss(graph, k2.DenseFsaVec(log_probs, segments))
        return [*torchaudio.forced_align(log_probs[:1], targets[:1]), cost]

    expected = run()
    with torch.device("meta"):
        found = run()
    assert_same(found, expected)
