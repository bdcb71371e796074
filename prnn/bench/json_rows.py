"""How the benchmarks write their rows: with the card or the processor's kernels, the date and the command."""

import json
import os
import sys
import time
from collections.abc import Sequence

import torch

from prnn import _C


def processor() -> str:
    """What serves the CPU ("CPU AVX-512"), and torch's number of threads."""
    layer = _C.Rnn(_C.LSTM, _C.FLOAT, 8, 1, 8, False)
    return f"{layer.query(_C.Handle.cpu(), 1)['device']}, {torch.get_num_threads()} threads"


def write_rows(path: str, rows: Sequence[object], device: str | None = None) -> None:
    """Writes a JSON object with `rows`, one a line. device: what was measured; None: the GPU."""
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
    }
    with open(path, "w") as file:
        lines = (f"  {json.dumps(row)}" for row in rows)
        file.write(json.dumps(run, indent=1)[:-2] + ',\n "rows": [\n' + ",\n".join(lines) + "\n ]\n}\n")
