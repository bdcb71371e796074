"""Random trials of the whole product: C calls, Python functions, files and command lines (docs/testing.md)."""
