"""Limits of the searches that the command line names, too."""

# Symbols in an encoder frame, of every search unless told otherwise: fast speech spells a short word in 40 ms.
MAX_SYMBOLS = 8
