from typing import Any

__version__: str

# The functions take raw pointers as integers; prnn/_ops/ gives them their types.
def __getattr__(name: str) -> Any: ...
