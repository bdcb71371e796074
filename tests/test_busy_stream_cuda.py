"""Layers, losses and searches while another stream keeps the GPU busy: the same bits as on a quiet GPU. Blocks of a
kernel then start and end apart in time, and memory is allocated and freed by two streams."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
import torch
from torch import Tensor

import prnn
from prnn.asr.fbank import Fbank
from prnn.asr.feature_config import FeatureConfig

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
    pytest.mark.xdist_group("gpu"),
]

REPEATS = 6
TF32 = "tf32"
Type = torch.dtype | str


class Neighbour:
    """Fills a stream of its own with what prepares batches of recordings of any length, products and fills."""

    def __init__(self) -> None:
        self._stream = torch.cuda.Stream()
        self._fbank = Fbank(FeatureConfig()).cuda()
        self._samples = torch.rand(16, 160_000, device="cuda") * 2 - 1
        self._matrix = torch.randn(512, 512, device="cuda")
        self._round = 0
        torch.cuda.synchronize()

    def add_work(self) -> None:
        with torch.cuda.stream(self._stream):
            lengths = 16_000 + 997 * torch.arange(4 + self._round % 13) + 31 * (self._round % 101)
            self._fbank(self._samples[: len(lengths), : int(lengths.max())], lengths)
            torch.empty(3_000_000 + 4096 * (self._round % 64), device="cuda").fill_(float("nan"))
            self._matrix @ self._matrix
        self._round += 1

    def end(self) -> None:
        self._stream.synchronize()


@contextmanager
def busy_neighbour() -> Iterator[None]:
    """Another thread gives another stream work all the while."""
    neighbour = Neighbour()
    neighbour.add_work()
    neighbour.end()  # loaded
    running = threading.Event()
    running.set()

    def work() -> None:
        while running.is_set():
            for _ in range(8):
                neighbour.add_work()
            neighbour.end()

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        running.clear()
        thread.join()


def assert_same_beside_a_neighbour(compute: Callable[[], list[Tensor]]) -> None:
    quiet = compute()
    torch.cuda.synchronize()
    with busy_neighbour():
        results = [compute() for _ in range(REPEATS)]
        torch.cuda.synchronize()
    for found in results:
        for number, (one, wanted) in enumerate(zip(found, quiet, strict=True)):
            assert torch.equal(one, wanted), f"result {number}"


# (engine forward, engine backward, layers together, cell, layers, hidden, timesteps, sequences, type, options)
Case = tuple[str, str, int, str, int, int, int, int, Type, dict]
LAYERS: list[Case] = [
    ("simt", "simt", 1, "LSTM", 1, 256, 60, 1, torch.float32, {}),
    ("simt", "simt", 1, "GRU", 1, 512, 60, 1, TF32, {}),
    ("cluster", "cluster", 1, "LSTM", 2, 256, 60, 8, TF32, {}),
    ("cluster", "cluster", 1, "RNN", 1, 512, 60, 64, torch.float16, {}),
    ("cluster", "mma", 1, "RNN", 1, 640, 60, 1, torch.bfloat16, {}),
    ("mma", "mma", 1, "LSTM", 4, 640, 40, 64, torch.float32, {}),
    ("mma", "mma", 1, "GRU", 2, 512, 40, 16, torch.float32, {"bidirectional": True}),
    ("mma", "wgmma", 1, "GRU", 1, 1536, 40, 16, torch.float16, {}),
    ("mma-large", "mma-large", 1, "LSTM", 1, 1536, 30, 4, torch.float32, {}),
    ("wgmma", "wgmma", 1, "GRU", 1, 320, 60, 128, torch.bfloat16, {}),
    ("wgmma", "wgmma-multicast", 1, "LSTM", 1, 512, 60, 128, torch.bfloat16, {}),
    ("wgmma-multicast", "wgmma-multicast", 1, "LSTM", 1, 512, 40, 128, TF32, {}),
    ("wgmma-multicast", "wgmma-multicast", 1, "GRU", 1, 1024, 40, 256, torch.float16, {}),
    ("wgmma-split-k", "wgmma-split-k", 1, "LSTM", 1, 1024, 40, 64, torch.bfloat16, {}),
    ("wgmma-split-k", "wgmma-split-k", 2, "LSTM", 4, 640, 40, 64, torch.bfloat16, {}),
    ("wavefront-mma", "wavefront-mma", 4, "LSTM", 4, 256, 60, 8, torch.bfloat16, {}),
    ("wavefront-mma", "wgmma-split-k", 2, "GRU", 2, 1024, 40, 8, torch.float16, {}),
    ("wavefront-wgmma", "cluster", 4, "LSTM", 4, 320, 60, 32, torch.bfloat16, {}),
    ("wavefront-wgmma", "wgmma", 4, "LSTM", 4, 320, 60, 64, torch.float16, {}),
    ("wavefront-chunked", "wavefront-chunked", 5, "LSTM", 5, 1024, 60, 8, torch.bfloat16, {}),
    ("wavefront-chunked", "wavefront-chunked", 4, "GRU", 4, 640, 60, 4, torch.float16, {}),
    ("projected", "projected", 1, "LSTM", 1, 2048, 40, 8, torch.float32, {"proj_size": 512}),
]


# Masks and resets have kernels of their own.
WITH_EXTRAS = [("LSTM", 640, 16, torch.float32), ("LSTM", 1024, 32, torch.bfloat16), ("GRU", 1024, 256, TF32)]


def dtype_of(kind: Type) -> torch.dtype:
    return kind if isinstance(kind, torch.dtype) else torch.float32


@pytest.fixture
def tf32(request: pytest.FixtureRequest) -> Iterator[None]:
    before = torch.backends.cudnn.allow_tf32
    yield
    torch.backends.cudnn.allow_tf32 = before


def layer_of(case: Case) -> torch.nn.Module:
    _, _, _, cell, layers, hidden, _, _, kind, options = case
    torch.manual_seed(1)
    torch.backends.cudnn.allow_tf32 = kind == TF32
    module = getattr(prnn.nn, cell)(hidden, hidden, layers, device="cuda", dtype=dtype_of(kind), **options)
    module.backend = "persistent"
    return module


@pytest.mark.parametrize("case", LAYERS, ids=lambda case: " ".join(map(str, case[:9])))
def test_layers(case: Case, tf32: None) -> None:
    module = layer_of(case)
    _, _, _, _, _, hidden, steps, batch, kind, _ = case
    x = torch.randn(steps, batch, hidden, device="cuda", dtype=dtype_of(kind), requires_grad=True)
    weights = torch.randn_like(module(x)[0])
    leaves = [x, *module.parameters()]

    def compute() -> list[Tensor]:
        out = module(x)[0]
        return [out.detach(), *torch.autograd.grad((out * weights).sum(), leaves)]

    assert_same_beside_a_neighbour(compute)


@pytest.mark.parametrize("case", LAYERS, ids=lambda case: " ".join(map(str, case[:9])))
def test_cases_cover_engines(case: Case, tf32: None) -> None:
    (found,) = prnn.explain(layer_of(case), case[7], dtype=dtype_of(case[8])).layers
    if found.device not in ("H100", "H200"):
        pytest.skip(f"the engines are those of an H100 or H200, not of {found.device}")
    assert (found.forward, found.backward, found.layers_together) == case[:3]


@pytest.mark.parametrize(("cell", "hidden", "batch", "kind"), WITH_EXTRAS)
def test_layers_that_are_reset(cell: str, hidden: int, batch: int, kind: Type, tf32: None) -> None:
    module = layer_of(("", "", 1, cell, 1, hidden, 40, batch, kind, {}))
    x = torch.randn(40, batch, hidden, device="cuda", dtype=dtype_of(kind), requires_grad=True)
    reset = torch.rand(40, batch, device="cuda") < 0.1
    weights = torch.randn_like(module(x, reset=reset)[0])

    def compute() -> list[Tensor]:
        out = module(x, reset=reset)[0]
        return [out.detach(), *torch.autograd.grad((out * weights).sum(), [x, *module.parameters()])]

    assert_same_beside_a_neighbour(compute)


@pytest.mark.parametrize(("hidden", "batch", "dtype"), [(256, 16, torch.float32), (640, 32, torch.bfloat16)])
def test_layer_norm_lstms(hidden: int, batch: int, dtype: torch.dtype) -> None:
    torch.manual_seed(1)
    module = prnn.nn.LayerNormLSTM(hidden, hidden, 2, device="cuda", dtype=dtype)
    x = torch.randn(40, batch, hidden, device="cuda", dtype=dtype, requires_grad=True)
    weights = torch.randn(40, batch, hidden, device="cuda", dtype=dtype)

    def compute() -> list[Tensor]:
        out = module(x)[0]
        return [out.detach(), *torch.autograd.grad((out * weights).sum(), [x, *module.parameters()])]

    assert_same_beside_a_neighbour(compute)


# ---- losses and searches ----


def lattice(dtype: torch.dtype, vocabulary: int = 129) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    torch.manual_seed(2)
    logits = torch.randn(6, 40, 13, vocabulary, device="cuda").to(dtype).requires_grad_()
    targets = torch.randint(1, vocabulary - 4, (6, 12), device="cuda")
    return logits, targets, torch.tensor([40, 31, 17, 40, 8, 29]), torch.tensor([12, 7, 0, 12, 3, 11])


def with_gradients(loss: Tensor, *leaves: Tensor) -> list[Tensor]:
    return [loss.detach(), *torch.autograd.grad(loss, leaves)]


DTYPES = [torch.float32, torch.bfloat16, torch.float16]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ["rnnt", "tdt", "ctc"])
def test_losses_of_logits(name: str, dtype: torch.dtype) -> None:
    logits, targets, frames, lengths = lattice(dtype)

    def compute() -> list[Tensor]:
        if name == "ctc":
            return with_gradients(prnn.ctc_loss(logits[:, :, 0].transpose(0, 1), targets, frames, lengths), logits)
        if name == "tdt":
            loss = prnn.tdt_loss(logits, targets, frames, lengths, 0, [0, 1, 2, 4])
        else:
            loss = prnn.rnnt_loss(logits, targets, frames, lengths, 0)
        return with_gradients(loss, logits)

    assert_same_beside_a_neighbour(compute)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("vocabulary", "size"), [(29, 320), (1025, 640)])
def test_joint_losses(vocabulary: int, size: int, dtype: torch.dtype) -> None:
    torch.manual_seed(3)
    _, targets, frames, lengths = lattice(dtype, vocabulary)
    encoder = torch.randn(6, 40, size, device="cuda", dtype=dtype, requires_grad=True)
    predictor = torch.randn(6, 13, size, device="cuda", dtype=dtype, requires_grad=True)
    weight = (torch.randn(vocabulary, size, device="cuda") / size**0.5).to(dtype).requires_grad_()
    bias = torch.randn(vocabulary, device="cuda", dtype=dtype, requires_grad=True)

    def compute() -> list[Tensor]:
        loss = prnn.joint_rnnt_loss(encoder, predictor, weight, bias, targets, frames, lengths, 0)
        return with_gradients(loss, encoder, predictor, weight, bias)

    assert_same_beside_a_neighbour(compute)


@pytest.mark.parametrize("options", [{}, {"loss": "pruned"}, {"loss": "tdt"}, {"predictor": "stateless"}])
def test_transducers_train_and_search(options: dict) -> None:
    torch.manual_seed(4)
    model = prnn.transducer.Transducer.from_config(
        prnn.transducer.TransducerConfig(vocab_size=29, feature_dim=80, encoder_hidden=256, ctc_weight=0.3, **options)
    ).cuda()
    features = torch.randn(4, 160, 80, device="cuda")
    lengths, targets = torch.tensor([160, 131, 80, 97]), torch.randint(1, 29, (4, 9))
    parameters = list(model.parameters())

    def compute() -> list[Tensor]:
        gradients = with_gradients(model(features, lengths, targets, torch.tensor([9, 5, 0, 7])), *parameters)
        found = model.greedy_search(features, lengths)
        return [*gradients, *(torch.tensor(hypothesis.tokens) for hypothesis in found)]

    assert_same_beside_a_neighbour(compute)
