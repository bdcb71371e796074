"""How the benchmarks write their rows: with the card or the processor's kernels, the date and the command.

Many write them after each row, so that what was measured stays if a later one fails: on standard output the last text
alone is printed, at the end.
"""

import argparse
import contextlib
import json
import os
import sys
import time
from collections.abc import Iterator, Sequence


def processor() -> str:
    """Names the CPU's kernels ("CPU AVX-512") and torch's number of threads."""
    import torch

    from prnn import _C

    layer = _C.Rnn(_C.LSTM, _C.FLOAT, 8, 1, 8, False)
    return f"{layer.query(_C.Handle.cpu(), 1)['device']}, {torch.get_num_threads()} threads"


_kept: list[str] | None = None  # the text for standard output, which rows_printed() prints at the end


@contextlib.contextmanager
def rows_printed(options: Sequence[str]) -> Iterator[None]:
    """Runs a program with these options. With `--json -` its rows go to standard output, also if it fails after some,
    and what it prints to standard error."""
    global _kept
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--json", nargs="?")
    if parser.parse_known_args(options)[0].json != "-":
        yield
        return
    kept: list[str] = []
    _kept = kept
    try:
        with contextlib.redirect_stdout(sys.stderr):
            yield
    finally:
        _kept = None
        print("".join(kept), end="")


def write_rows(path: str, rows: Sequence[object], device: str | None = None, **more: object) -> None:
    """Writes a JSON object with `rows`, one a line, to a file, or to standard output ("-").

    device: what was measured; None: the GPU. more: what else the object says before its rows.
    """
    import torch

    # sys.argv[0] is the name of a program, or "prnn bench FAMILY".
    command = sys.argv if sys.argv[0].startswith("prnn ") else ["python", *sys.argv]
    processes = os.environ.get("LOCAL_WORLD_SIZE")  # torchrun's
    if processes:
        command = ["torchrun", "--nproc-per-node", processes, *(["-m", *sys.argv] if command is sys.argv else sys.argv)]
    run = {
        "device": device or torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "command": " ".join(command),
        **more,
    }
    lines = ",\n".join(f"  {json.dumps(row)}" for row in rows)
    text = f'{json.dumps(run, indent=1)[:-2]},\n "rows": [\n{lines}\n ]\n}}\n'
    if path != "-":
        with open(path, "w") as file:
            file.write(text)
    elif _kept is None:
        print(text, end="")
    else:
        _kept[:] = [text]
