"""Command-line options that several commands have."""

from __future__ import annotations

from prnn._fields import Within, number_parser

BEAM = number_parser(int, Within(1, 1000))
