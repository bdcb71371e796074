"""Streaming transducers: model, search, streaming. docs/transducer.md is the guide."""

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
