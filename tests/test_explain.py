"""prnn.explain: which kernels would run a model's layers."""

import pytest
import torch

import prnn
from prnn import _C
from prnn.explain import LayerExplanation


def layer(module: torch.nn.Module, batch: object, **options: object) -> LayerExplanation:
    (found,) = prnn.explain(module, batch, **options).layers
    return found


def transducer() -> prnn.Transducer:
    config = prnn.TransducerConfig(vocab_size=4, feature_dim=5, encoder_layers=1, encoder_hidden=8, joiner_dim=8)
    return prnn.Transducer.from_config(config)


@pytest.mark.parametrize(
    ("module", "batch", "gpu", "dtype", "engines"),
    [
        (torch.nn.LSTM(80, 512), 8, "H200", torch.float16, ("cluster", "cluster")),
        (torch.nn.LSTM(80, 1024), 8, "H200", torch.bfloat16, ("mma", "wgmma")),
        (torch.nn.GRU(80, 1024), 64, "H200", torch.float16, ("wgmma-split-k", "wgmma-split-k")),
        (torch.nn.LSTM(80, 512), 64, "H200", torch.float16, ("wgmma", "wgmma")),
        (torch.nn.LSTM(80, 512, 5), 8, "H200", torch.float16, ("wavefront-mma", "wavefront-mma")),
        (torch.nn.LSTM(80, 512, 5), 32, "H200", torch.float16, ("wavefront-wgmma", "cluster")),
        (torch.nn.LSTM(80, 1024, 5), 4, "H200", torch.bfloat16, ("wavefront-chunked", "wavefront-chunked")),
        (torch.nn.LSTM(80, 640, 4), 1, "H200", torch.float16, ("wavefront-chunked", "wavefront-chunked")),
        (torch.nn.LSTM(80, 640, 3), 1, "H200", torch.float16, ("wavefront-mma", "wavefront-mma")),
        (torch.nn.LSTM(80, 640, 3, proj_size=64), 1, "H200", torch.float16, ("wavefront-chunked", "wavefront-chunked")),
        (torch.nn.LSTM(80, 512), 1, "H200", torch.float32, ("simt", "simt")),
        (torch.nn.LSTM(80, 2400), 4, "H200", torch.float16, ("mma-large", "mma-large")),
        (torch.nn.LSTM(80, 512), 8, "a100", torch.float16, ("mma", "mma")),
        (torch.nn.LSTM(80, 512), 8, None, torch.float32, ("cpu", "cpu")),
    ],
)
def test_engines(
    module: torch.nn.Module, batch: int, gpu: str | None, dtype: torch.dtype, engines: tuple[str, str]
) -> None:
    found = layer(module, batch, gpu=gpu, dtype=dtype)
    assert (found.forward, found.backward) == engines
    assert found.supported
    assert found.dtype == dtype


@pytest.mark.parametrize("steps", [95, 96])
def test_lengths_count_as_timesteps_do(steps: int) -> None:
    engine = "wavefront-chunked" if steps == 96 else "wavefront-mma"
    for batch in ([steps] * 3, [steps, 40, 3], torch.tensor([1, steps, steps])):
        found = layer(torch.nn.LSTM(80, 1024, 4).half(), batch, gpu="H200")
        assert (found.forward, found.backward) == (engine, engine)


def test_what_keeps_layers_from_running_together() -> None:
    module = torch.nn.LSTM(80, 256, 3, dropout=0.1).half()
    for batch in (8, [7, 5, 5], torch.tensor([7, 7, 7])):
        assert layer(module, batch, gpu="H200").layers_together == 3
    bidirectional = torch.nn.LSTM(80, 256, 3, bidirectional=True).half()
    assert "not together: layers of two directions run one after the other" in layer(bidirectional, 8, gpu="H200").notes


def test_why_not_a_faster_engine() -> None:
    module = torch.nn.LSTM(80, 1024)
    (note,) = layer(module, 8, gpu="A100", dtype=torch.float16).notes[1:]
    assert note == "not faster: the GPU has no clusters of thread blocks"
    (note,) = layer(module, 8, gpu="H200", dtype=torch.float16).notes
    assert note == (
        "not faster: a cluster holds hidden sizes up to 512; H is 1024; with so few sequences mma is as fast as wgmma"
    )
    (note,) = layer(module, 8, gpu="H200").notes
    assert note == "not faster: in float32, simt kernels serve up to 4 sequences; N is 8"
    (note,) = layer(prnn.nn.LSTM(80, 1024, zoneout=0.1), 64, gpu="H200", dtype=torch.float16).notes
    assert note.endswith("H is 1024; wgmma kernels take resets alone, and no masks and no c of every timestep")


def test_what_is_not_supported() -> None:
    found = layer(torch.nn.LSTM(80, 6000), 4, gpu="H200", dtype=torch.float16)
    assert (found.supported, found.forward) == (False, "cudnn")
    assert found.notes[0].startswith("hidden size 6000 is more than stays resident on this GPU")
    found = layer(prnn.nn.LSTM(80, 6000, backend="persistent", device="meta"), 4, gpu="H200")
    assert (found.supported, found.forward) == (False, "-")
    for module in (torch.nn.LSTM(80, 256), prnn.nn.LSTM(80, 256, backend="cudnn")):
        found = layer(module, 4, gpu="GTX 1080")  # which nothing is compiled for
        assert (found.supported, found.forward) == (False, "-")


@pytest.mark.parametrize("gpu", ["H200", "L4"])
def test_layers_that_are_to_run_on_cudnn(gpu: str) -> None:
    found = layer(prnn.nn.LSTM(80, 256, backend="cudnn"), 4, gpu=gpu, dtype=torch.float16)
    assert (found.supported, found.forward, found.backward) == (False, "cudnn", "cudnn")
    assert found.notes[0] == "PRNN_CUDNN_BACKEND was asked for"
    found = layer(torch.nn.GRU(80, 256).double(), 4, gpu=gpu)
    assert (found.supported, found.forward) == (False, "cudnn")
    assert found.notes[0] == "the data type is double; the resident kernels take float, half and bfloat16"


def test_what_cudnn_has_not() -> None:
    heads = prnn.nn.LSTM(80, 256, heads=4, backend="cudnn")
    found = layer(heads, 4, gpu="H200", dtype=torch.float16)
    assert (found.supported, found.forward) == (False, "-")
    assert found.notes[0] == "cuDNN has no heads (prnnSetRNNHeads)"
    found = layer(prnn.nn.LSTM(80, 65536, heads=4, device="meta"), 4, gpu="H200", dtype=torch.float16)
    assert (found.supported, found.forward) == (False, "-")
    for backend in ("best", "cudnn"):
        masks = prnn.nn.GRU(80, 256, recurrent_dropout=0.1, backend=backend)
        found = layer(masks, 512, gpu="H200", dtype=torch.float16)
        assert found.forward == ("-" if backend == "cudnn" else "cluster")


def test_projections_stay_resident() -> None:
    found = layer(torch.nn.LSTM(80, 512, 2, proj_size=64).half(), 4, gpu="H200")
    assert (found.supported, found.forward, found.backward) == (True, "cluster", "cluster")
    (note,) = found.notes
    assert note.startswith(
        "not together: layers with a projection run together by chunks alone, where that is faster: "
    )


def test_rows_that_nobody_ran_say_so() -> None:
    module = torch.nn.GRU(80, 640)
    assert "nobody has run the plans for the B200" in layer(module, 8, gpu="B200").notes
    assert not any("nobody" in note for note in layer(module, 8, gpu="H200").notes)


def test_every_recurrent_layer_of_a_model_in_order() -> None:
    class Own(torch.nn.GRU):
        pass

    model = torch.nn.ModuleDict(
        {
            "encoder": prnn.nn.LSTM(80, 256, 2),
            "linear": torch.nn.Linear(3, 3),
            "own": Own(4, 8),
            "rnn": torch.nn.RNN(4, 8),
        }
    )
    found = prnn.explain(model, 16, gpu="H200", dtype=torch.bfloat16)
    assert [entry.name for entry in found.layers] == ["encoder", "own", "rnn"]
    assert "prnn.convert leaves as it is" in found.layers[1].notes[0]
    lines = str(found).splitlines()
    assert lines[0] == "N = 16"
    assert lines[1].split() == ["layer", "module", "dtype", "on", "forward", "backward", "together", "blocks", "units"]
    assert lines[2].split()[:6] == ["encoder", "LSTM", "80", "->", "256,", "2"]
    assert "bfloat16  H200" in lines[2]
    assert str(prnn.explain(torch.nn.Linear(3, 3), 1)) == "no recurrent layers"


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"module": 3}, TypeError, "module is a int; it must be a torch.nn.Module"),
        ({"batch": "x"}, TypeError, "batch is 'x'; .* sequences, their lengths, or a tensor"),
        ({"batch": 0}, ValueError, "batch is 0; it must be at least 1"),
        ({"batch": [3, 0]}, ValueError, r"batch is \[3, 0\]; lengths must be at least 1"),
        ({"batch": []}, ValueError, r"batch is \[\]; there must be at least one sequence"),
        ({"batch": torch.zeros(5)}, ValueError, r"batch is a tensor of shape \(5,\) and torch.float32; an input"),
        ({"batch": torch.zeros(5, 0, 3)}, ValueError, r"batch is a tensor of shape \(5, 0, 3\) and torch.float32; an"),
        ({"batch": torch.zeros(5, 2, 4)}, ValueError, r"batch is a tensor of shape \(5, 2, 4\) .* takes 3 features"),
        ({"batch": torch.zeros(5, 4)}, ValueError, "the model takes 3 features, the last dimension"),
        ({"module": transducer(), "batch": torch.zeros(2, 9, 4)}, ValueError, "the model takes 5 features"),
        ({"module": transducer().encoder, "batch": torch.zeros(2, 9, 4)}, ValueError, "the model takes 5 features"),
        ({"batch": 2**31}, ValueError, "batch is 2147483648; it must be at most 2147483647"),
        ({"batch": [2**40, 1]}, ValueError, "lengths must be at most 2147483647"),
        ({"gpu": "Voodoo 2"}, ValueError, "gpu is 'Voodoo 2'; the table has H200, "),
        ({"gpu": 3}, TypeError, "gpu is 3; it must be a string"),
        ({"dtype": torch.int32}, ValueError, "dtype is torch.int32; recurrent layers take"),
    ],
)
def test_bad_arguments(changes: dict[str, object], error: type[Exception], message: str) -> None:
    arguments = {"module": torch.nn.LSTM(3, 8), "batch": 1} | changes
    with pytest.raises(error, match=message):
        prnn.explain(**arguments)


def test_16_bit_layers_on_the_cpu_are_computed_in_float32() -> None:
    found = layer(prnn.nn.GRU(4, 8, dtype=torch.bfloat16), 4)
    assert (found.supported, found.forward, found.notes) == (True, "cpu", ("computed in float32",))
    assert layer(prnn.nn.GRU(4, 8), 4).notes == ()


def test_sequences_of_which_64_timesteps_have_too_many_rows() -> None:
    for batch in (2**25, 2**31 - 1):
        assert layer(prnn.nn.GRU(8, 8), batch, gpu="H200").supported
        assert _C.Rnn(_C.GRU, _C.HALF, 8, 1, 8, False).query_gpu("H200", batch)["supported"]


class Recogniser(torch.nn.Module):
    def __init__(self, batch_first: bool) -> None:
        super().__init__()
        self.embed = torch.nn.Linear(80, 512)
        self.rnn = torch.nn.LSTM(512, 1024, batch_first=batch_first)


@pytest.mark.parametrize(
    ("module", "shape", "dtype", "expected"),
    [
        (torch.nn.LSTM(3, 8), (5, 2, 3), torch.float32, [2] * 5),
        (prnn.nn.GRU(3, 8, batch_first=True), (5, 2, 3), torch.float32, [5] * 2),
        (prnn.nn.LayerNormLSTM(3, 8, batch_first=True), (5, 300, 3), torch.float32, [5] * 256),
        (torch.nn.LSTM(3, 8, batch_first=True), (5, 3), torch.float32, [1] * 5),
        (Recogniser(True), (7, 9, 80), torch.float32, [7] * 9),
        (Recogniser(False), (9, 7, 80), torch.float32, [7] * 9),
        (Recogniser(True), (7, 16000), torch.float32, [7] * 256),
        (Recogniser(False), (9, 7), torch.int64, [7] * 9),
        (torch.nn.Linear(3, 8), (9, 3), torch.float32, [9] * 256),
        (transducer(), (3, 300, 5), torch.float32, [3] * 256),
    ],
    ids=lambda value: "-".join(map(str, value)) if isinstance(value, tuple) else None,
)
def test_a_tensor_that_the_model_takes(
    module: torch.nn.Module, shape: tuple[int, ...], dtype: torch.dtype, expected: list[int]
) -> None:
    found = prnn.explain(module, torch.zeros(shape, dtype=dtype), gpu="H200")
    assert found.batch == expected[0]
    if not isinstance(module, prnn.nn.LayerNormLSTM) and found.layers:
        lengths = [len(expected)] * expected[0]
        assert found == prnn.explain(module, lengths, gpu="H200")
