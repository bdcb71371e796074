"""Where the build finds the headers of XLA's FFI."""

import importlib.util
import pathlib


def find_headers():
    """The folder of XLA's FFI headers in the installed jaxlib, or None."""
    found = importlib.util.find_spec("jaxlib")
    folder = pathlib.Path(found.origin).parent / "include" if found and found.origin else None
    return str(folder) if folder and (folder / "xla/ffi/api/ffi.h").exists() else None
