"""torch operators over the C library, in the namespace torch.ops.prnn."""
