"""cuBLAS's products of a layer by how the matrices lie, in microseconds.

    CUBLAS_WORKSPACE_CONFIG=:32768:1 python bench/gemm_layouts.py

An LSTM's gates' gradients times its matrices (4 H, H), the same with a transposed copy of them, and the gradients of
the weights. The workspace is as large as the library's (src/core/cuda/cublas.cc). Replayed from CUDA graphs.
"""

from collections.abc import Callable
from functools import partial

import torch

from prnn.bench.rnn_gpu import time_graph

TYPES = [("float32", torch.float32, False), ("tf32", torch.float32, True), ("bfloat16", torch.bfloat16, False)]
HIDDEN = (256, 512, 640, 1024, 1536, 2048)
ROWS = (1024, 4096, 16384, 65536)
MOST = 2**26  # elements of H columns
PRODUCTS = 4  # in a graph


def repeat(product: Callable[[], torch.Tensor]) -> None:
    for _ in range(PRODUCTS):
        product()


def times_of(hidden: int, rows: int, dtype: torch.dtype) -> list[float]:
    matrices = torch.randn(4 * hidden, hidden, device="cuda", dtype=dtype)
    transposed = matrices.t().contiguous()
    gradients = torch.randn(rows, 4 * hidden, device="cuda", dtype=dtype)
    input = torch.randn(rows, hidden, device="cuda", dtype=dtype)
    out, sums = torch.empty_like(input), torch.empty_like(matrices)
    products = [
        lambda: torch.mm(gradients, matrices, out=out),
        lambda: torch.mm(gradients, transposed.t(), out=out),
        lambda: torch.mm(gradients.t(), input, out=sums),
    ]
    return [time_graph(partial(repeat, product), 9) / PRODUCTS for product in products]


def main() -> None:
    print("| type | H | rows | as they lie | transposed | the weights' |\n|---|---|---|---|---|---|")
    for name, dtype, tf32 in TYPES:
        torch.backends.cuda.matmul.allow_tf32 = tf32
        for hidden in HIDDEN:
            for rows in ROWS:
                if rows * hidden <= MOST:
                    columns = " | ".join(f"{time:.1f}" for time in times_of(hidden, rows, dtype))
                    print(f"| {name} | {hidden} | {rows} | {columns} |", flush=True)


if __name__ == "__main__":
    main()
