"""Exceptions of prnn's own."""

from prnn._C import NotSupportedError

__all__ = ["NotSupportedError"]
