"""Writes the table of cuDNN's time over the resident kernels' into the build folder.

Measurements are CSV files, one a GPU, which prnn/bench/rnn_backends.py writes; prnn/bench/rnn_ratios.py makes ratios of
them. GPUs without a file go by the first row, DEFAULT's.
"""

import importlib.util
import pathlib

ROOT = pathlib.Path(__file__).resolve().parent.parent
PROGRAM = "prnn/bench/rnn_ratios.py"
POINTS = "bench/results/rnn_backends_*.csv"
DEFAULT = "H200"


def load_program():  # type: ignore[no-untyped-def]
    """prnn.bench.rnn_ratios without the package, which loads the library that is being built."""
    spec = importlib.util.spec_from_file_location("rnn_ratios", ROOT / PROGRAM)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def find_points() -> list[pathlib.Path]:
    return sorted(path.relative_to(ROOT) for path in ROOT.glob(POINTS))


def ratios_text() -> str:
    """A source file that defines kMeasuredKinds of src/rnn/plan/faster.h."""
    program = load_program()
    measured = dict(program.read([ROOT / file]) for file in find_points())
    arrays, kinds = [], []
    for gpu in sorted(measured, key=lambda gpu: (gpu != DEFAULT, gpu)):
        for fields, lines in program.table(measured[gpu]).items():
            name = f"kPoints{len(kinds)}"
            arrays += [f"constexpr MeasuredPoint {name}[] = {{", *lines, "};", ""]
            kinds.append(f'    {{"{gpu}", {fields}, {name}, {len(lines)}}},')
    lines = [f"// Written by site_scons/ratio_tables.py from {POINTS}.", '#include "rnn/plan/faster.h"', ""]
    lines += ["namespace prnn {", "namespace {", "", *arrays, "}  // namespace", ""]
    lines += ["const MeasuredKind kMeasuredKinds[] = {", *kinds, "};"]
    lines += [f"const int kMeasuredKindCount = {len(kinds)};", "", "}  // namespace prnn", ""]
    return "\n".join(lines)


def generate_ratios(env, folder: str):  # type: ignore[no-untyped-def]
    """The SCons node of the source file; none in a tree without measurements."""
    if not find_points():
        return []

    def write(target, source, env) -> None:  # type: ignore[no-untyped-def]
        pathlib.Path(target[0].get_path()).write_text(ratios_text())

    return env.Command(
        f"{folder}/rnn/plan/measured_ratios.cc",
        [*map(str, find_points()), PROGRAM, "site_scons/ratio_tables.py"],
        env.Action(write, "writing $TARGET"),
    )
