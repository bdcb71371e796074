"""Logs a few validation utterances: their audio, and pictures of where the model finds their symbols."""

from __future__ import annotations

import lightning
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.loggers import TensorBoardLogger
from matplotlib import pyplot

from .dataset import Shown
from .plots import alignment_figure, boxes_for_unknown_glyphs
from .recogniser import Recogniser
from .task import TransducerTask


class Pictures(Callback):
    """Puts utterances into TensorBoard after each validation: an alignment (of models without durations), and once
    their audio.

    Args:
        utterances: which.
    """

    def __init__(self, utterances: list[Shown]) -> None:
        self._utterances = utterances
        self._heard = False

    def on_validation_epoch_end(self, trainer: lightning.Trainer, module: lightning.LightningModule) -> None:
        if not trainer.is_global_zero or not isinstance(trainer.logger, TensorBoardLogger):
            return
        assert isinstance(module, TransducerTask)
        assert module.model.config is not None
        log, step = trainer.logger.experiment, trainer.global_step
        recogniser = Recogniser(module.model, module.features, module.tokenizer)
        for number, (audio, features, text) in enumerate(self._utterances):
            if not self._heard and audio is not None:
                log.add_audio(f"valid/{number}", audio.clamp(-1, 1), step, module.features.sample_rate)
            if module.model.config.loss != "tdt":
                figure = alignment_figure(recogniser, features, text)
                with boxes_for_unknown_glyphs():
                    log.add_figure(f"valid/{number}", figure, step)
                pyplot.close(figure)
        self._heard = True
