"""NCCL's all-reduce by size: what averaging gradients over GPUs costs.

    torchrun --nproc-per-node 4 bench/allreduce_gpu.py [--json FILE]
    NCCL_ALGO=Ring torchrun --nproc-per-node 4 bench/allreduce_gpu.py

Groups of 2, 4, ... processes up to all, a GPU each; bfloat16, from 8 bytes to 512 MiB. A row has the microseconds of an
all-reduce (the mean of a series, launched by the host one after the other) and the bus bandwidth as nccl-tests define
it, 2 (n - 1) / n bytes / time.
"""

import argparse
import os

import torch
from torch.distributed import ProcessGroup, all_reduce, barrier, destroy_process_group, init_process_group, new_group

from prnn.bench.json_rows import write_rows

SIZES = [2**exponent for exponent in range(3, 30, 2)]


def microseconds(size: int, group: ProcessGroup) -> float:
    """An all-reduce of `size` bytes."""
    tensor = torch.zeros(size // 2, dtype=torch.bfloat16, device="cuda")
    calls = 200 if size < 2**20 else 20
    times = []
    for series in range(4):  # the first warms up
        barrier(group)
        events = [torch.cuda.Event(enable_timing=True) for _ in range(2)]
        events[0].record()
        for _ in range(calls):
            all_reduce(tensor, group=group)
        events[1].record()
        torch.cuda.synchronize()
        if series:
            times.append(events[0].elapsed_time(events[1]) / calls * 1000)
    return sorted(times)[1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", help="file to write the rows to")
    options = parser.parse_args()
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    init_process_group("nccl", device_id=torch.device("cuda", torch.cuda.current_device()))
    algorithm = os.environ.get("NCCL_ALGO", "NCCL's choice")
    rows = []
    processes = 2
    while processes <= world:
        group = new_group(list(range(processes)))
        for size in SIZES if rank < processes else []:
            time = microseconds(size, group)
            bandwidth = 2 * (processes - 1) / processes * size / time / 1000
            row = {"GPUs": processes, "algorithm": algorithm, "bytes": size, "us": round(time, 1)}
            rows.append(row | {"GB/s": round(bandwidth, 2)})
            if rank == 0:
                print(", ".join(f"{name} {value}" for name, value in rows[-1].items()), flush=True)
        barrier()
        processes *= 2
    if options.json and rank == 0:
        write_rows(options.json, rows)
    destroy_process_group()


if __name__ == "__main__":
    main()
