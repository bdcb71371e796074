"""The version, which stands in include/prnn_types.h alone."""

import pathlib
import re

HEADER = pathlib.Path(__file__).resolve().parent.parent / "include" / "prnn_types.h"


def read_version() -> str:
    text = HEADER.read_text()
    parts = [re.search(rf"#define PRNN_{name} (\d+)", text) for name in ("MAJOR", "MINOR", "PATCHLEVEL")]
    return ".".join(part.group(1) for part in parts if part)
