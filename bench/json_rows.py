"""How the GPU benchmarks write their rows: with the card, the date and the command."""

import json
import os
import sys
import time
from collections.abc import Sequence

import torch


def write_rows(path: str, rows: Sequence[object]) -> None:
    processes = os.environ.get("LOCAL_WORLD_SIZE")  # torchrun's
    program = f"torchrun --nproc-per-node {processes}" if processes else "python"
    run = {
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "command": " ".join([program, *sys.argv]),
        "rows": list(rows),
    }
    with open(path, "w") as file:
        json.dump(run, file, indent=1)
