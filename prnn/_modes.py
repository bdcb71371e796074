"""The kinds of layers, by the names that torch.nn's layers have as their `mode`."""

from prnn import _C

_TABLE = (  # name, the C API's number, gates, and the states of a unit that go through cx and cy: c, or c, n and m
    ("RNN_RELU", _C.RNN_RELU, 1, 0),
    ("RNN_TANH", _C.RNN_TANH, 1, 0),
    ("LSTM", _C.LSTM, 4, 1),
    ("GRU", _C.GRU, 3, 0),
    ("sLSTM", _C.SLSTM, 4, 3),
    ("sLSTM_EXP", _C.SLSTM_EXP, 4, 3),
)

NORMALIZE = {"gates": _C.NORMALIZE_GATES, "products": _C.NORMALIZE_PRODUCTS, "none": _C.NORMALIZE_NONE}

MODES = {name: number for name, number, _, _ in _TABLE}
GATES = {name: gates for name, _, gates, _ in _TABLE}
CELL_STATES = {name: states for name, _, _, states in _TABLE if states > 0}
