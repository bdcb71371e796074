"""A folder in the shape of Parakeet's published checkpoints, with a small model of random weights: for machines that
cannot have those of a hub.

    python -m recipes.finetune.checkpoint --manifest data/train.jsonl --output checkpoint

The tokenizer's pieces are learnt from the manifest's texts.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import (
    ParakeetFeatureExtractor,
    ParakeetForTDT,
    ParakeetProcessor,
    ParakeetTDTConfig,
    ParakeetTokenizer,
)

from prnn.asr import read_manifest

SPECIAL = ("<unk>", "<s>", "<pad>")
BLANK = "<blank>"


def make_tokenizer(texts: list[str], pieces: int) -> ParakeetTokenizer:
    """Word pieces by byte-pair encoding, at most `pieces` with the special ones, and the blank after them."""
    tokenizer = Tokenizer(models.BPE(unk_token=SPECIAL[0]))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    trainer = trainers.BpeTrainer(vocab_size=pieces, special_tokens=list(SPECIAL), show_progress=False)
    tokenizer.train_from_iterator(texts, trainer)
    own = ParakeetTokenizer(tokenizer_object=tokenizer, unk_token=SPECIAL[0], pad_token=SPECIAL[2])
    own.add_tokens([BLANK], special_tokens=True)
    return own


def make_checkpoint(folder: Path, texts: list[str], pieces: int = 64, seed: int = 0) -> None:
    """Writes model, tokenizer and feature extractor to `folder`, as `save_pretrained` does."""
    tokenizer = make_tokenizer(texts, pieces)
    features = ParakeetFeatureExtractor(feature_size=80)
    processor = ParakeetProcessor(features, tokenizer, blank_token=BLANK, decoder_type="tdt")
    config = ParakeetTDTConfig(
        vocab_size=len(tokenizer),
        blank_token_id=processor.blank_token_id,
        pad_token_id=tokenizer.pad_token_id,
        decoder_hidden_size=128,
        num_decoder_layers=1,
        encoder_config={
            "hidden_size": 144,
            "num_hidden_layers": 3,
            "num_attention_heads": 4,
            "intermediate_size": 288,
            "subsampling_conv_channels": 24,
            "num_mel_bins": features.feature_size,
            "dropout": 0.0,
            "activation_dropout": 0.0,
            "attention_dropout": 0.0,
            "layerdrop": 0.0,
            "initializer_range": 0.06,
        },
    )
    torch.manual_seed(seed)
    model = ParakeetForTDT(config)
    model.generation_config.decoder_start_token_id = processor.blank_token_id
    model.save_pretrained(folder)
    processor.save_pretrained(folder)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--manifest", type=Path, required=True, help="whose texts the tokenizer learns its pieces from")
    parser.add_argument("--output", type=Path, required=True, help="the folder to write")
    parser.add_argument("--pieces", type=int, default=64, help="pieces of the tokenizer, at most (%(default)s)")
    arguments = parser.parse_args()
    make_checkpoint(
        arguments.output, [utterance.text for utterance in read_manifest(arguments.manifest)], arguments.pieces
    )


if __name__ == "__main__":
    main()
