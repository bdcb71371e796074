"""Small random models of Transformers' four transducers with prnn in them, on the device of the first argument; prints
OK. Run by tests/test_transformers_models.py and tests/test_transformers_models_cuda.py."""

import os
import sys
import tempfile
from typing import Any

import torch
import transformers
from torch import Tensor, nn

import prnn.compat
from prnn.compat import _transformers_search

DEVICE = torch.device(sys.argv[1])
CLASSES = ("ParakeetForRNNT", "ParakeetForTDT", "NemotronAsrStreamingForRNNT", "Nemotron3_5AsrForRNNT")
PAD, BLANK, FRAMES = 2, 19, (120, 100, 77)


def make(name: str) -> Any:
    torch.manual_seed(0)
    encoder = {
        "hidden_size": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "intermediate_size": 16,
        "subsampling_conv_channels": 4,
        **dict.fromkeys(("dropout", "layerdrop", "activation_dropout", "attention_dropout"), 0.0),
    }
    options: dict[str, Any] = {"vocab_size": BLANK + 1, "blank_token_id": BLANK, "pad_token_id": PAD}
    if name.startswith("Nemotron"):
        encoder |= {"sliding_window": 20, "model_type": "nemotron_asr_streaming_encoder"}
    if name == "Nemotron3_5AsrForRNNT":
        options |= {"num_prompts": 6, "prompt_intermediate_size": 16, "default_prompt_id": 1}
    config = getattr(transformers, getattr(transformers, name).config_class.__name__)
    model = getattr(transformers, name)(config(decoder_hidden_size=24, encoder_config=encoder, **options))
    model.generation_config.decoder_start_token_id = BLANK
    with torch.no_grad():  # symbols of all kinds, not blanks alone, and no logit of a duration above all others
        for parameter in model.parameters():
            parameter *= 4 if parameter.dim() > 1 and parameter.shape[-1] == 24 else 1
        model.encoder_projector.weight *= 8
        model.joint.head.bias[BLANK + 1 :] -= 20
    return model.to(DEVICE).train()


def batch(name: str) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(1)
    mask = (torch.arange(FRAMES[0]) < torch.tensor(FRAMES)[:, None]).long()
    labels = torch.randint(3, BLANK, (3, 5), generator=generator)
    labels[1, 3:] = BLANK if name == "ParakeetForRNNT" else PAD
    given = {
        "input_features": torch.randn(3, FRAMES[0], 80, generator=generator),
        "attention_mask": mask,
        "decoder_input_ids": torch.cat([torch.full((3, 1), BLANK), labels], 1),
        "labels": labels,
    }
    return {name: value.to(DEVICE) for name, value in given.items()}


def step(model: Any, given: dict[str, Tensor], is_fused: bool = True, **options: Any) -> Tensor:
    """The loss; gradients are left in the model."""
    model.zero_grad()
    output = model(**given, **options)
    assert (output.logits is None) is is_fused
    output.loss.backward()
    loss: Tensor = output.loss.detach()
    return loss


def gradients(model: nn.Module) -> dict[str, Tensor]:
    return {
        name: parameter.grad.clone()
        for name, parameter in model.named_parameters()
        if parameter.grad is not None and "depthwise_conv.bias" not in name  # zero but for rounding
    }


def count_equal_symbols(found: Any, wanted: Any, frames: list[int]) -> int:
    """How many symbols two outputs of `generate` have in each sequence's own frames, where they must be equal."""
    symbols = 0
    for n, count in enumerate(frames):
        own = int((wanted.durations[n].cumsum(0) - wanted.durations[n] < count).sum())
        assert torch.equal(found.sequences[n, :own], wanted.sequences[n, :own])
        assert torch.equal(found.durations[n, :own], wanted.durations[n, :own])
        symbols += int((wanted.sequences[n, :own] != BLANK).sum())
    return symbols


def check(name: str, reference: dict[str, Any]) -> None:
    given = batch(name)
    model = make(name)
    loss, slopes = step(model, given), gradients(model)
    if name in reference:
        torch.testing.assert_close(loss, reference[name][0])
    whole = make(name)
    torch.testing.assert_close(step(whole, given, False, output_logits=True), loss)
    torch.testing.assert_close(
        gradients(whole), slopes, rtol=1e-3, atol=1e-4 * max(x.abs().max() for x in slopes.values())
    )

    checkpointed = make(name)
    names = "activation_checkpointing_enable", "gradient_checkpointing_enable"  # by the version
    next(getattr(checkpointed, name) for name in names if hasattr(checkpointed, name))()
    torch.testing.assert_close(step(checkpointed, given), loss)
    torch.testing.assert_close(gradients(checkpointed), slopes)
    with torch.autocast(DEVICE.type, torch.bfloat16):
        torch.testing.assert_close(step(make(name), given), loss, rtol=2e-2, atol=0)
    if name in ("ParakeetForTDT", "NemotronAsrStreamingForRNNT"):  # of each encoder
        compiled = make(name)
        compiled.encoder.compile(backend="aot_eager")
        torch.testing.assert_close(step(compiled, given), loss)
    parallel = nn.parallel.DistributedDataParallel(make(name))
    torch.testing.assert_close(step(parallel, given), loss)
    torch.testing.assert_close(gradients(parallel.module), slopes)

    # In double where there is one: hundreds of steps enlarge what the two round differently. No GPU kernel searches it.
    dtype = torch.float64 if DEVICE.type == "cpu" else torch.float32
    model.eval().to(dtype)
    features = {"input_features": given["input_features"].to(dtype), "attention_mask": given["attention_mask"]}
    found = model.generate(**features)
    assert _transformers_search._search(model, *features.values(), {}) is not None
    wanted = type(model).generate._prnn_original(model, inputs=None, generation_config=None, **features)
    assert type(found) is type(wanted)
    frames = model.get_audio_features(**features, output_attention_mask=True).attention_mask.sum(-1)
    assert count_equal_symbols(found, wanted, frames.tolist()) > 3

    options = {"max_new_tokens": 9, "do_sample": False, "num_beams": 1}
    model._prepare_generated_length = None  # which the original's loop would call
    found = model.generate(**features, **options)
    del model._prepare_generated_length
    wanted = type(model).generate._prnn_original(model, inputs=None, generation_config=None, **features, **options)
    assert found.sequences.shape == wanted.sequences.shape
    assert count_equal_symbols(found, wanted, frames.tolist()) > 0


def main() -> None:
    torch.set_num_threads(1)
    torch.backends.cudnn.allow_tf32 = False
    transformers.logging.set_verbosity_error()
    model = make("ParakeetForTDT")
    reference = {"ParakeetForTDT": (step(model, batch("ParakeetForTDT"), False), gradients(model))}
    prnn.compat.install("transformers")
    with tempfile.TemporaryDirectory() as folder:
        store = f"file://{os.path.join(folder, 'store')}"
        torch.distributed.init_process_group("gloo", init_method=store, rank=0, world_size=1)
        for name in CLASSES:
            check(name, reference)
        torch.distributed.destroy_process_group()
    print("OK")


if __name__ == "__main__":
    main()
