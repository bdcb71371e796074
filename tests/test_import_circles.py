"""Imports of the package when it is loaded: no circle, and none from the operators up to the modules that use them."""

import ast
from graphlib import TopologicalSorter
from pathlib import Path

import prnn

FOLDER = Path(prnn.__file__).parent
FILES = {
    ".".join(file.relative_to(FOLDER.parent).with_suffix("").parts).removesuffix(".__init__"): file
    for file in FOLDER.rglob("*.py")
}
NOT_MODULES = ("_C", "__version__")  # of prnn, which has them before it imports others


def imported(name: str) -> set[str]:
    """The modules of the package that a module imports outside of functions, and not for type checkers alone."""
    file, found = FILES[name], set()
    package = name if file.name == "__init__.py" else name.rpartition(".")[0]
    waiting: list[ast.AST] = [ast.parse(file.read_text())]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            continue
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            waiting += node.orelse
            continue
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(package.split(".")[: len(package.split(".")) + 1 - node.level]) if node.level else ""
            source = ".".join(filter(None, (base, node.module)))
            names = [alias.name for alias in node.names if alias.name not in NOT_MODULES]
            found |= {f"{source}.{part}" if f"{source}.{part}" in FILES else source for part in names}
        waiting += ast.iter_child_nodes(node)
    return found & FILES.keys() - {name}


def test_no_circles() -> None:
    order = list(TopologicalSorter({name: imported(name) for name in FILES}).static_order())  # raises of a circle
    assert order.index("prnn._ops._call") < order.index("prnn._calls") < order.index("prnn.nn")


def test_operators_do_not_import_what_uses_them() -> None:
    below = ("prnn._ops", "prnn._compiler", "prnn._errors", "prnn._modes")
    for name in FILES:
        if name.startswith("prnn._ops"):
            assert {found for found in imported(name) if not found.startswith(below)} == set(), name
