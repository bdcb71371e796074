"""An LSTM on the input of its gates, normalised or not, through prnn_call.h by ctypes: a layer with all its arrays."""

import ctypes
from typing import Any

import capi
import torch

PARAMETERS = tuple(name for name, _ in capi.Norm._fields_)
INPUTS = ("x", "hx", "cx", "w", *PARAMETERS, "zoneout", "recurrent", "lengths")
GRADIENTS = ("dx", "dhx", "dcx", "dw", *(f"d{name}" for name in PARAMETERS))
NONE = 2  # PRNN_NORMALIZE_NONE
INPUT_SIZE = 5
RUNS = {"Forward": "RunRNNForward", "Backward": "RunRNNBackward"}


def fill_args(args: ctypes.Structure, data: dict[str, Any], normalizes: bool, expectation: float = 0.0) -> None:
    """Gives a run's arguments the arrays of `data`, NULL where there is none, and keeps their structs alive."""

    def address(name: str) -> int | None:
        array = data.get(name)
        return None if array is None else array.data_ptr()

    args.kept = (
        capi.Masks(address("recurrent"), address("zoneout"), expectation),
        capi.Norm(*map(address, PARAMETERS)),
        capi.Norm(*(address(f"d{name}") for name in PARAMETERS)),
    )
    structs = dict(zip(("masks", "norm", "normGradients"), map(ctypes.addressof, args.kept), strict=True))
    for field, _ in args._fields_:
        if field in ("norm", "normGradients") and not normalizes:
            continue
        if field in structs:
            setattr(args, field, structs[field])
        elif field.endswith("Size"):
            space = data.get(field.removesuffix("Size"))
            setattr(args, field, 0 if space is None else space.numel())
        else:
            setattr(args, field, address(field))


def shapes_of(steps: int, batch: int, hidden: int) -> dict[str, tuple[int, ...]]:
    """Shapes of all arrays but masks, lengths and spaces."""
    shapes: dict[str, tuple[int, ...]] = {
        "x": (steps, batch, 4 * hidden),
        "hx": (batch, hidden),
        "cx": (batch, hidden),
        "w": (4 * hidden, hidden),
        "gateGain": (4 * hidden,),
        "gateBias": (4 * hidden,),
        "cellGain": (hidden,),
        "cellBias": (hidden,),
    }
    shapes |= {f"d{name}": shape for name, shape in shapes.items()}
    shapes |= {"y": (steps, batch, hidden), "hy": (batch, hidden), "cy": (batch, hidden)}
    return shapes | {"dy": shapes["y"], "dcy": shapes["cy"]}


class CCase:
    """Arrays hold random numbers. Functions by name: "Forward" and "Backward", runs of the prepared call, "Prepare",
    "CallInfo", "InputForward" and "InputBackward"."""

    def __init__(
        self,
        dtype: torch.dtype = torch.float32,
        steps: int = 4,
        batch: int = 3,
        hidden: int = 6,
        *,
        normalize: int = 0,
        direction: int = 0,
        zoneout: bool = False,
        device: str = "cpu",
    ) -> None:
        self.sizes, self.normalize, self.expectation = (steps, batch, hidden), normalize, 0.0
        self.handle = capi.cpu_handle() if device == "cpu" else capi.Object("Create", "Destroy")
        self.rnn = capi.descriptor("RNN")
        types = {torch.float32: capi.FLOAT, torch.float64: capi.DOUBLE, torch.bfloat16: capi.BFLOAT16}
        data_type = types[dtype]
        layer = dict(hiddenSize=hidden, numLayers=1, dropoutDesc=None, inputMode=2, direction=direction, mode=2)
        capi.check("SetRNNDescriptor", rnnDesc=self.rnn.pointer, dataType=data_type, **layer)
        capi.check("SetRNNNormalization", rnnDesc=self.rnn.pointer, kind=normalize, epsilon=1e-5)
        generator = torch.Generator().manual_seed(1)
        shapes = shapes_of(steps, batch, hidden)
        shapes |= {"input": (steps, batch, INPUT_SIZE), "weight": (4 * hidden, INPUT_SIZE)}
        shapes |= {"dInput": shapes["input"], "dWeight": shapes["weight"]}
        self.data: dict[str, Any] = {
            name: torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype).to(device)
            for name, shape in shapes.items()
            if normalize != NONE or name.removeprefix("d") not in PARAMETERS
        }
        if zoneout:
            self.data["zoneout"] = (torch.rand(shapes["y"], generator=generator) < 0.5).to(dtype).to(device)
            masks = capi.Masks(zoneout=self.data["zoneout"].data_ptr())
            capi.check("SetRNNMasks", rnnDesc=self.rnn.pointer, masks=ctypes.byref(masks))
        self.prepared, self.info = ctypes.c_void_p(), capi.CallInfo()
        self.check("Prepare")
        self.check("CallInfo")
        for space in ("workspace", "reserve"):
            self.data[space] = torch.zeros(getattr(self.info, f"{space}Size"), dtype=torch.uint8, device=device)

    def __del__(self) -> None:
        capi.call("DestroyRNNCall", call=self.prepared)

    def args(self, name: str, **changes: Any) -> ctypes.Structure:
        args = capi.RUN_ARGS[RUNS[name]]()
        fill_args(args, self.data, self.normalize != NONE, self.expectation)
        for field, value in changes.items():
            setattr(args, field, value)
        return args

    def call(self, name: str, **changes: Any) -> int:
        """changes: parameters, or fields of a run's arguments."""
        if name in RUNS:
            args = None if "args" in changes else ctypes.byref(self.args(name, **changes))
            return int(capi.call(RUNS[name], call=self.prepared, args=args))
        steps, batch, hidden = self.sizes
        values: dict[str, Any] = {
            "handle": self.handle.pointer,
            "rnnDesc": self.rnn.pointer,
            "mode": 1,
            "inputSize": 4 * hidden if name == "Prepare" else INPUT_SIZE,
            "seqLength": steps,
            "batchSizes": capi.ints([batch] * steps),
            "info": ctypes.byref(self.info),
            "call": ctypes.byref(self.prepared) if name == "Prepare" else self.prepared,
            "rows": steps * batch,
        }
        values |= {key: array.data_ptr() for key, array in self.data.items() if isinstance(array, torch.Tensor)}
        function = {"Prepare": "PrepareRNN", "CallInfo": "GetRNNCallInfo"}.get(name, f"RNNGates{name}")
        parameters = capi.FUNCTIONS[f"prnn{function}"].parameters
        return int(capi.call(function, **{key: (values | changes)[key] for key in parameters}))

    def check(self, name: str, **changes: Any) -> None:
        assert self.call(name, **changes) == capi.SUCCESS, self.message()

    def message(self) -> str:
        return capi.message(self.handle.pointer)

    def outputs(self) -> list[Any]:
        names = ("x", "dInput", "dWeight", "y", "hy", "cy", *GRADIENTS)
        return [*(self.data[name] for name in names if name in self.data), self.info]
