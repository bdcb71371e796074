"""How the GPU benchmarks write their rows: with the card, the date and the command."""

import json
import os
import sys
import time
from collections.abc import Sequence

import torch


def write_rows(path: str, rows: Sequence[object]) -> None:
    # sys.argv[0] is the name of a program, or "prnn bench FAMILY".
    command = sys.argv if sys.argv[0].startswith("prnn ") else ["python", *sys.argv]
    processes = os.environ.get("LOCAL_WORLD_SIZE")  # torchrun's
    if processes:
        command = ["torchrun", "--nproc-per-node", processes, *(["-m", *sys.argv] if command is sys.argv else sys.argv)]
    run = {
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "command": " ".join(command),
        "rows": list(rows),
    }
    with open(path, "w") as file:
        json.dump(run, file, indent=1)
