"""Speech recognition with a transducer: manifests, features, training, transcription. docs/recipe_digits.md is the
guide.

Needs the packages of the extra ``asr``: ``pip install "prnn[asr]"``. They are imported with the first name that needs
them, so that the command line can say which one is missing.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .endpoint import EndpointRules
    from .errors import InputError, InputWarning
    from .feature_config import FeatureConfig
    from .features import OnlineFeatures, compute_features
    from .manifest import Utterance, read_manifest, write_manifest
    from .recogniser import Recogniser, RecogniserStream
    from .tokenizer import CharTokenizer, PieceTokenizer, Tokenizer
    from .transcript import Alternative, Transcript, Word

_MODULES = {
    "Alternative": "transcript",
    "CharTokenizer": "tokenizer",
    "EndpointRules": "endpoint",
    "FeatureConfig": "feature_config",
    "InputError": "errors",
    "InputWarning": "errors",
    "OnlineFeatures": "features",
    "PieceTokenizer": "tokenizer",
    "Recogniser": "recogniser",
    "RecogniserStream": "recogniser",
    "Tokenizer": "tokenizer",
    "Transcript": "transcript",
    "Utterance": "manifest",
    "Word": "transcript",
    "compute_features": "features",
    "read_manifest": "manifest",
    "write_manifest": "manifest",
}

__all__ = [
    "Alternative",
    "CharTokenizer",
    "EndpointRules",
    "FeatureConfig",
    "InputError",
    "InputWarning",
    "OnlineFeatures",
    "PieceTokenizer",
    "Recogniser",
    "RecogniserStream",
    "Tokenizer",
    "Transcript",
    "Utterance",
    "Word",
    "compute_features",
    "read_manifest",
    "write_manifest",
]


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{_MODULES[name]}", __name__), name)
