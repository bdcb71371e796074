"""Speech recognition with a transducer: manifests, features, training, transcription. docs/recipe_digits.md is the
guide.

Needs the packages of the extra ``asr``: ``pip install "prnn[asr]"``.
"""

from .errors import InputError
from .features import FeatureConfig, OnlineFeatures, compute_features
from .manifest import Utterance, read_manifest, write_manifest
from .recogniser import Recogniser, RecogniserStream
from .tokenizer import CharTokenizer

__all__ = [
    "CharTokenizer",
    "FeatureConfig",
    "InputError",
    "OnlineFeatures",
    "Recogniser",
    "RecogniserStream",
    "Utterance",
    "compute_features",
    "read_manifest",
    "write_manifest",
]
