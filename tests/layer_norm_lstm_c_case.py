"""prnn_layer_norm_lstm.h through ctypes: a layer on the CPU with all its arrays."""

import ctypes
from typing import Any

import capi
import torch

INPUTS = ("x", "h0", "c0", "recurrent", "gateGain", "gateBias", "cellGain", "cellBias", "zoneoutMask", "recurrentMask")
INPUTS += ("lengths",)
GRADIENTS = ("dx", "dh0", "dc0", "dRecurrent", "dGateGain", "dGateBias", "dCellGain", "dCellBias")
INPUT_SIZE = 5


class Options(ctypes.Structure):
    _fields_ = (
        ("dataType", ctypes.c_int),
        ("normalize", ctypes.c_int),
        ("steps", ctypes.c_int64),
        ("batch", ctypes.c_int64),
        ("hiddenSize", ctypes.c_int64),
        ("reverse", ctypes.c_int),
        ("epsilon", ctypes.c_double),
        ("zoneout", ctypes.c_double),
        ("allowTf32", ctypes.c_int),
    )


class Info(ctypes.Structure):
    _fields_ = (("engine", ctypes.c_int), ("clusters", ctypes.c_int), ("blocks", ctypes.c_int))


class CCase:
    """`call` names a function without LayerNormLSTM: "Forward". Arrays hold random numbers."""

    def __init__(self, dtype: torch.dtype = torch.float32, steps: int = 4, batch: int = 3, hidden: int = 6) -> None:
        data_type = {torch.float32: capi.FLOAT, torch.float64: capi.DOUBLE}[dtype]
        self.handle = capi.cpu_handle()
        self.options = Options(data_type, 0, steps, batch, hidden, 0, 1e-5, 0.0, 0)
        self.info, self.size = Info(), ctypes.c_size_t(1)
        shapes: dict[str, tuple[int, ...]] = {
            "x": (steps, batch, 4 * hidden),
            "h0": (batch, hidden),
            "c0": (batch, hidden),
            "recurrent": (4 * hidden, hidden),
            "gateGain": (4 * hidden,),
            "gateBias": (4 * hidden,),
            "cellGain": (hidden,),
            "cellBias": (hidden,),
            "y": (steps, batch, hidden),
            "cy": (batch, hidden),
            "input": (steps, batch, INPUT_SIZE),
            "weight": (4 * hidden, INPUT_SIZE),
        }
        shapes |= {"dInput": shapes["input"], "dWeight": shapes["weight"]}
        shapes |= {"dy": shapes["y"], "dcy": shapes["cy"], "zoneoutMask": shapes["y"], "recurrentMask": shapes["cy"]}
        shapes |= {f"d{name[0].upper() if len(name) > 2 else name[0]}{name[1:]}": shapes[name] for name in INPUTS[:8]}
        generator = torch.Generator().manual_seed(1)
        self.data: dict[str, torch.Tensor | None] = {
            name: torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)
            for name, shape in shapes.items()
        }
        self.data["zoneoutMask"] = self.data["recurrentMask"] = self.data["lengths"] = None
        for name in ("GetWorkspaceSize", "GetReserveSize"):
            assert self.call(name) == capi.SUCCESS, capi.message(self.handle.pointer)
            space = torch.zeros(self.size.value, dtype=torch.uint8)
            self.data["workspace" if "Work" in name else "reserveSpace"] = space

    @staticmethod
    def function(name: str) -> str:
        return {"Init": "InitLayerNormLSTMOptions", "Query": "QueryLayerNormLSTM"}.get(
            name, f"GetLayerNormLSTM{name[3:]}" if name.startswith("Get") else f"LayerNormLSTM{name}"
        )

    def pointers(self, names: tuple[str, ...]) -> ctypes.Array:
        values = [self.data[name] for name in names]
        return (ctypes.c_void_p * len(names))(*(None if x is None else x.data_ptr() for x in values))

    def call(self, name: str, **changes: Any) -> int:
        spare = Options()
        values: dict[str, Any] = {
            "handle": self.handle.pointer,
            "gpu": None,
            "inputSize": INPUT_SIZE,
            "options": ctypes.byref(spare if name == "Init" else self.options),
            "inputs": self.pointers(INPUTS) if "x" in self.data else None,
            "gradients": self.pointers(GRADIENTS) if "dx" in self.data else None,
            "info": ctypes.byref(self.info),
            "sizeInBytes": ctypes.byref(self.size),
        }
        for key, tensor in self.data.items():
            values[key] = None if tensor is None else tensor.data_ptr()
        for space in ("workspace", "reserve"):
            tensor = self.data.get("workspace" if space == "workspace" else "reserveSpace")
            values[f"{space}SizeInBytes"] = 0 if tensor is None else tensor.numel()
        function = self.function(name)
        parameters = capi.FUNCTIONS[f"prnn{function}"].parameters
        return int(capi.call(function, **{key: (values | changes)[key] for key in parameters}))

    def check(self, name: str, **changes: Any) -> None:
        assert self.call(name, **changes) == capi.SUCCESS, capi.message(self.handle.pointer)

    def outputs(self) -> list[Any]:
        return [*(self.data[name] for name in ("x", "dInput", "dWeight", "y", "cy", *GRADIENTS)), self.info, self.size]
