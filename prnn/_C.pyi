# Types of the extension module. Pointers are integers, 0 is NULL; prnn/_ops/ gives them their types.
from collections.abc import Sequence
from typing import Any, overload

__version__: str
BUILT_FOR: str  # "CPU", or the CUDA toolkit and compute capabilities: "CUDA 13.0: 8.0, 9.0a"

FLOAT: int
DOUBLE: int
HALF: int
BFLOAT16: int
RNN_RELU: int
RNN_TANH: int
LSTM: int
SLSTM: int
SLSTM_EXP: int
GRU: int
PERSISTENT_BACKEND: int
CUDNN_BACKEND: int
BEST_BACKEND: int
ENGINE_MMA: int
ENGINE_WGMMA: int
ENGINE_WGMMA_SPLIT_K: int
DEFAULT_MATH: int
TF32_MATH: int
WGRAD_MODE_SET: int
NORMALIZE_GATES: int
NORMALIZE_PRODUCTS: int
NORMALIZE_NONE: int

class NotSupportedError(NotImplementedError): ...

class Handle:
    @staticmethod
    def cpu() -> Handle: ...
    @staticmethod
    def cuda() -> Handle: ...
    def set_stream(self, stream: int) -> None: ...
    def dropout_states_size(self) -> int: ...

def pack_sequences(
    handle: Handle,
    batch_sizes: Sequence[int],
    order: Sequence[int] | None,
    row_bytes: int,
    padded: int,
    step_stride: int,
    sequence_stride: int,
    packed: int,
) -> None: ...
def unpack_sequences(
    handle: Handle,
    batch_sizes: Sequence[int],
    order: Sequence[int] | None,
    row_bytes: int,
    packed: int,
    padded: int,
    padded_length: int,
    step_stride: int,
    sequence_stride: int,
) -> None: ...

class Sequences:
    @overload
    def __init__(self, sizes: list[int]) -> None: ...
    @overload
    def __init__(self, lengths: Sequence[int], steps: int) -> None: ...
    @staticmethod
    def even(steps: int, batch: int) -> Sequences: ...
    @staticmethod
    def of_lengths(lengths: Any, steps: int, batch: int) -> Sequences | None: ...
    @staticmethod
    def of_sizes(sizes: Any, rows: int) -> Sequences | None: ...
    def __len__(self) -> int: ...
    def __getitem__(self, index: int) -> int: ...
    @property
    def sizes(self) -> list[int]: ...
    @property
    def rows(self) -> int: ...
    @property
    def order(self) -> list[int] | None: ...
    @property
    def shape(self) -> tuple[int, int, int, bool]: ...
    @property
    def batch(self) -> int: ...
    @property
    def is_padded(self) -> bool: ...
    @property
    def lengths(self) -> list[int]: ...

class Rnn:
    def __init__(
        self,
        mode: int,
        dtype: int,
        hidden: int,
        layers: int,
        input: int,
        bidirectional: bool,
        skip_input: bool = False,
        projection: int = 0,
        dropout: float = 0.0,
        heads: int = 1,
        gates_input: bool = False,
        reverse: bool = False,
        normalize: int = ...,
        epsilon: float = 0.0,
    ) -> None: ...
    def params_size(self) -> int: ...
    def layer_offsets(self, layer: int, direction: int) -> tuple[int, int, int, int, int]: ...
    def set_backend(self, backend: int) -> None: ...
    def set_math(self, math: int) -> None: ...
    def set_wgrad_mode(self, mode: int) -> None: ...
    def set_frozen_layers(self, layers: int) -> None: ...
    def set_plan(
        self, forward: tuple[int, int, int, int, int] | None, backward: tuple[int, int, int, int, int] | None
    ) -> None: ...
    def set_extras(self, reset: int, cells: int, dcells: int) -> None: ...
    def set_masks(self, recurrent: int, zoneout: int, zoneout_expectation: float) -> None: ...
    def set_dropout(self, handle: Handle, dropout: float, states: int, states_size: int, seed: int) -> None: ...
    def restore_dropout(self, handle: Handle, dropout: float, states: int, states_size: int) -> None: ...
    def workspace_size(self, handle: Handle, batch_sizes: Sequences | Sequence[int]) -> int: ...
    def reserve_size(self, handle: Handle, batch_sizes: Sequences | Sequence[int]) -> int: ...
    def temp_space_sizes(
        self, handle: Handle, training: bool, batch_sizes: Sequences | Sequence[int]
    ) -> tuple[int, int]: ...
    def query(self, handle: Handle, batch: int | Sequence[int]) -> dict[str, Any]: ...
    def query_gpu(self, gpu: str, batch: int | Sequence[int]) -> dict[str, Any]: ...
    def forward(
        self,
        handle: Handle,
        batch_sizes: Sequences | Sequence[int],
        x: int,
        hx: int,
        cx: int,
        w: int,
        y: int,
        hy: int,
        cy: int,
        workspace: int,
        workspace_size: int,
        reserve: int,
        reserve_size: int,
    ) -> None: ...
    def run_forward(
        self,
        handle: Handle,
        sequences: Sequences,
        x: int,
        step_stride: int,
        sequence_stride: int,
        hx: int,
        cx: int,
        w: int,
        y: int,
        hy: int,
        cy: int,
        cells: int,
        workspace: int,
        workspace_size: int,
        reserve: int,
        reserve_size: int,
        options: Sequence[int] | None,
    ) -> None: ...
    def run_backward(
        self,
        handle: Handle,
        sequences: Sequences,
        x: int,
        step_stride: int,
        sequence_stride: int,
        hx: int,
        cx: int,
        w: int,
        y: int,
        dy: int,
        dy_step_stride: int,
        dy_sequence_stride: int,
        dhy: int,
        dcy: int,
        dcells: int,
        dx: int,
        dhx: int,
        dcx: int,
        initial: int,
        dw: int,
        workspace: int,
        workspace_size: int,
        reserve: int,
        reserve_size: int,
        options: Sequence[int] | None,
    ) -> None: ...
    def spaces(self, handle: Handle, training: bool, sequences: Sequences) -> tuple[int, int]: ...
    def gates_input_forward(
        self, handle: Handle, rows: int, input_size: int, input: int, weight: int, x: int
    ) -> None: ...
    def gates_input_backward(
        self, handle: Handle, rows: int, input_size: int, input: int, weight: int, dx: int, dinput: int, dweight: int
    ) -> None: ...
    def backward_space(self, handle: Handle, sequences: Sequences, has_dcells: bool, has_dx: bool) -> int: ...
    def backward_data(
        self,
        handle: Handle,
        batch_sizes: Sequences | Sequence[int],
        y: int,
        dy: int,
        dhy: int,
        dcy: int,
        w: int,
        hx: int,
        cx: int,
        dx: int,
        dhx: int,
        dcx: int,
        workspace: int,
        workspace_size: int,
        reserve: int,
        reserve_size: int,
    ) -> None: ...
    def backward_weights(
        self,
        handle: Handle,
        batch_sizes: Sequences | Sequence[int],
        x: int,
        hx: int,
        y: int,
        dw: int,
        workspace: int,
        workspace_size: int,
        reserve: int,
        reserve_size: int,
    ) -> None: ...

def canonical_length(length: int) -> int: ...
def gpu_names() -> list[str]: ...
def describe_gpu(handle: Handle) -> str: ...
def __getattr__(name: str) -> Any: ...  # the losses

PREDICTOR_STATELESS: int
PREDICTOR_LSTM: int
PREDICTOR_GRU: int
BEAM_MODIFIED: int
BEAM_STANDARD: int

class StreamLayers:
    def __init__(self, dtype: int, mode: int, layers: int, input: int, hidden: int, projection: int) -> None: ...

class TransducerModel:
    def __init__(
        self,
        dtype: int,
        predictor: int,
        layers: int,
        context: int,
        predictor_relu: bool,
        embedding: int,
        hidden: int,
        encoder: int,
        joiner: int,
        relu: bool,
        classes: int,
        blank: int,
        durations: Sequence[int],
    ) -> None: ...

def stream_layers_prepared_size(handle: Handle, layers: StreamLayers) -> int: ...
def stream_layers_prepare(
    handle: Handle, layers: StreamLayers, addresses: Sequence[Sequence[int]], prepared: int, size: int
) -> None: ...
def stream_layers_workspace_size(handle: Handle, layers: StreamLayers, batch: int, frames: int) -> int: ...
def stream_layers_run(
    handle: Handle,
    layers: StreamLayers,
    prepared: int,
    batch: int,
    frames: int,
    arrays: Sequence[int],
    workspace: int,
    workspace_size: int,
) -> None: ...
def transducer_prepared_size(handle: Handle, model: TransducerModel) -> int: ...
def transducer_prepare(
    handle: Handle,
    model: TransducerModel,
    others: Sequence[int],
    layers: Sequence[Sequence[int]],
    prepared: int,
    size: int,
) -> None: ...
def transducer_workspace_size(handle: Handle, model: TransducerModel, sizes: tuple[int, int, int]) -> int: ...
def transducer_search(
    handle: Handle,
    model: TransducerModel,
    prepared: int,
    sizes: tuple[int, int, int],
    frames: int,
    lengths: int,
    bias: tuple[int, int, int] | None,
    state: Sequence[int] | None,
    outputs: Sequence[int],
    workspace: int,
    workspace_size: int,
) -> None: ...
def transducer_beam_workspace_size(
    handle: Handle, model: TransducerModel, sizes: tuple[int, int, int, int, int]
) -> int: ...
def transducer_beam_search(
    handle: Handle,
    model: TransducerModel,
    prepared: int,
    sizes: tuple[int, int, int, int, int],
    frames: int,
    lengths: int,
    bias: tuple[int, int, int] | None,
    state: Sequence[int] | None,
    outputs: Sequence[int],
    workspace: int,
    workspace_size: int,
) -> None: ...
