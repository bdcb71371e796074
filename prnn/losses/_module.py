"""What the losses' modules share."""

from torch import nn

from prnn._errors import NotSupportedError


class LossModule(nn.Module):
    """A module that torch.compile takes and torch.jit.script does not."""

    def __prepare_scriptable__(self) -> nn.Module:
        """What torch.jit.script asks a module for before it compiles it."""
        raise NotSupportedError(
            f"prnn.{type(self).__name__} cannot be compiled by torch.jit.script; torch.compile takes it, and "
            "prnn.compat.torchaudio.RNNTLoss is an RNN-T loss that can be scripted"
        )
