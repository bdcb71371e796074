"""Other packages' RNN-T losses in prnn.compat: the names, order and defaults of their arguments."""

import inspect

import pytest

from prnn.compat import (
    fast_rnnt,
    k2,
    nemo,
    optimized_transducer,
    speechbrain,
    torchaudio,
    warp_rnnt,
    warprnnt_pytorch,
)

EMPTY = inspect.Parameter.empty
SIGNATURES = [
    (
        warp_rnnt.rnnt_loss,
        {
            "log_probs": EMPTY,
            "labels": EMPTY,
            "frames_lengths": EMPTY,
            "labels_lengths": EMPTY,
            "average_frames": False,
            "reduction": "none",
            "blank": 0,
            "gather": False,
            "fastemit_lambda": 0.0,
            "compact": False,
        },
    ),
    (
        warprnnt_pytorch.rnnt_loss,
        {"acts": EMPTY, "labels": EMPTY, "act_lens": EMPTY, "label_lens": EMPTY, "blank": 0, "reduction": "mean"},
    ),
    (warprnnt_pytorch.RNNTLoss, {"blank": 0, "reduction": "mean"}),
    (
        torchaudio.functional.rnnt_loss,
        {
            "logits": EMPTY,
            "targets": EMPTY,
            "logit_lengths": EMPTY,
            "target_lengths": EMPTY,
            "blank": -1,
            "clamp": -1,
            "reduction": "mean",
            "fused_log_softmax": True,
        },
    ),
    (torchaudio.transforms.RNNTLoss, {"blank": -1, "clamp": -1.0, "reduction": "mean", "fused_log_softmax": True}),
    (
        optimized_transducer.transducer_loss,
        {
            "logits": EMPTY,
            "targets": EMPTY,
            "logit_lengths": EMPTY,
            "target_lengths": EMPTY,
            "blank": EMPTY,
            "from_log_softmax": EMPTY,
            "one_sym_per_frame": False,
            "reduction": "mean",
        },
    ),
    (optimized_transducer.TransducerLoss, {"blank": EMPTY, "reduction": "mean"}),
    (nemo.RNNTLossNumba, {"blank": 0, "reduction": "mean", "fastemit_lambda": 0.0, "clamp": -1}),
    (
        nemo.MultiblankRNNTLossNumba,
        {
            "blank": EMPTY,
            "big_blank_durations": EMPTY,
            "reduction": "mean",
            "fastemit_lambda": 0.0,
            "clamp": -1,
            "sigma": 0.0,
        },
    ),
    (
        nemo.multiblank_rnnt_loss,
        {
            "acts": EMPTY,
            "labels": EMPTY,
            "act_lens": EMPTY,
            "label_lens": EMPTY,
            "blank": EMPTY,
            "big_blank_durations": (),
            "reduction": "mean",
            "fastemit_lambda": 0.0,
            "clamp": 0.0,
        },
    ),
    (
        nemo.tdt_loss,
        {
            "acts": EMPTY,
            "labels": EMPTY,
            "act_lens": EMPTY,
            "label_lens": EMPTY,
            "blank": EMPTY,
            "durations": (),
            "reduction": "mean",
            "fastemit_lambda": 0.0,
            "clamp": 0.0,
        },
    ),
    (
        nemo.TDTLossNumba,
        {
            "blank": EMPTY,
            "durations": None,
            "reduction": "mean",
            "fastemit_lambda": 0.0,
            "clamp": -1,
            "sigma": 0.0,
            "omega": 0.0,
        },
    ),
    (
        speechbrain.transducer_loss,
        {
            "logits": EMPTY,
            "targets": EMPTY,
            "input_lens": EMPTY,
            "target_lens": EMPTY,
            "blank_index": EMPTY,
            "reduction": "mean",
            "use_torchaudio": False,
        },
    ),
    (speechbrain.TransducerLoss, {"blank": 0, "reduction": "mean"}),
    (
        k2.rnnt_loss_pruned,
        {
            "logits": EMPTY,
            "symbols": EMPTY,
            "ranges": EMPTY,
            "termination_symbol": EMPTY,
            "boundary": None,
            "rnnt_type": "regular",
            "delay_penalty": 0.0,
            "reduction": "mean",
            "use_hat_loss": False,
        },
    ),
    (
        fast_rnnt.rnnt_loss_pruned,
        {
            "logits": EMPTY,
            "symbols": EMPTY,
            "ranges": EMPTY,
            "termination_symbol": EMPTY,
            "boundary": None,
            "rnnt_type": "regular",
            "delay_penalty": 0.0,
            "reduction": "mean",
            "return_grad": False,
        },
    ),
    (
        k2.get_rnnt_logprobs_joint,
        {"logits": EMPTY, "symbols": EMPTY, "termination_symbol": EMPTY, "rnnt_type": "regular", "boundary": None},
    ),
]


@pytest.mark.parametrize(("function", "expected"), SIGNATURES, ids=lambda value: getattr(value, "__qualname__", ""))
def test_signature(function, expected):
    parameters = inspect.signature(function).parameters
    assert [(name, parameter.default) for name, parameter in parameters.items()] == list(expected.items())
