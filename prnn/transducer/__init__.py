"""Streaming transducers: model, search, streaming. docs/transducer.md is the guide.

Modules are imported with the first name that needs them: the options of a command line need config.py alone, and
no torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from prnn.transducer.biasing import PhraseBias, SymbolBias
    from prnn.transducer.config import TransducerConfig
    from prnn.transducer.encoder import Encoder
    from prnn.transducer.hypothesis import Hypothesis
    from prnn.transducer.joiner import Joiner
    from prnn.transducer.model import LossParts, Transducer
    from prnn.transducer.ngram import NgramBias
    from prnn.transducer.pool import StreamPool
    from prnn.transducer.predictor import Predictor, RecurrentPredictor, StatelessPredictor
    from prnn.transducer.search import TransducerSearchResult, TransducerSearchState, transducer_search
    from prnn.transducer.stacking import EncoderState, StackingEncoder
    from prnn.transducer.step_result import StepResult
    from prnn.transducer.streaming import StreamState

_MODULES = {
    "Encoder": "encoder",
    "EncoderState": "stacking",
    "Hypothesis": "hypothesis",
    "Joiner": "joiner",
    "LossParts": "model",
    "NgramBias": "ngram",
    "PhraseBias": "biasing",
    "Predictor": "predictor",
    "RecurrentPredictor": "predictor",
    "StackingEncoder": "stacking",
    "StatelessPredictor": "predictor",
    "StepResult": "step_result",
    "StreamPool": "pool",
    "StreamState": "streaming",
    "SymbolBias": "biasing",
    "Transducer": "model",
    "TransducerConfig": "config",
    "TransducerSearchResult": "search",
    "TransducerSearchState": "search",
    "transducer_search": "search",
}

__all__ = [
    "Encoder",
    "EncoderState",
    "Hypothesis",
    "Joiner",
    "LossParts",
    "NgramBias",
    "PhraseBias",
    "Predictor",
    "RecurrentPredictor",
    "StackingEncoder",
    "StatelessPredictor",
    "StepResult",
    "StreamPool",
    "StreamState",
    "SymbolBias",
    "Transducer",
    "TransducerConfig",
    "TransducerSearchResult",
    "TransducerSearchState",
    "transducer_search",
]


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{_MODULES[name]}", __name__), name)
