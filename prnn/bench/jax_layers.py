"""Recurrent layers in JAX: prnn.jax, lax.scan and jax.experimental.rnn in one run (options:
command_lines.jax_layers)."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import prnn.jax
from prnn.bench import command_lines
from prnn.bench.json_rows import write_rows

Program = Callable[[], Any]


def _cell(cell: str, layer: Any, h: Any, gates: Any) -> Any:
    """The next state of a timestep, (h, c) of an LSTM, given what the inputs add to the gates."""
    hidden = h[0] if cell == "lstm" else h
    recurrent = hidden @ layer["weight_hh"].T + layer["bias_hh"]
    if cell == "rnn":
        return jnp.tanh(gates + recurrent)
    if cell == "gru":
        (r, z, n), (r_h, z_h, n_h) = jnp.split(gates, 3, -1), jnp.split(recurrent, 3, -1)
        update = jax.nn.sigmoid(z + z_h)
        return (1 - update) * jnp.tanh(n + jax.nn.sigmoid(r + r_h) * n_h) + update * h
    i, f, g, o = jnp.split(gates + recurrent, 4, -1)
    c = jax.nn.sigmoid(f) * h[1] + jax.nn.sigmoid(i) * jnp.tanh(g)
    return jax.nn.sigmoid(o) * jnp.tanh(c), c


def scanned(cell: str, params: Any, x: Any, unroll: int) -> Any:
    """The layer's outputs by lax.scan."""
    layer = params[0]
    zeros = jnp.zeros((x.shape[1], layer["weight_hh"].shape[1]), x.dtype)

    def step(h: Any, gates: Any) -> Any:
        h = _cell(cell, layer, h, gates)
        return h, h[0] if cell == "lstm" else h

    start = (zeros, zeros) if cell == "lstm" else zeros
    return jax.lax.scan(step, start, x @ layer["weight_ih"].T + layer["bias_ih"], unroll=unroll)[1]


def _experimental(params: Any, x: Any) -> Any:
    """The LSTM of jax.experimental.rnn, of the same sizes: params are its flat weights."""
    from jax.experimental import rnn

    batch, steps, size = x.shape
    zeros = jnp.zeros((1, batch, size), x.dtype)
    lengths = jnp.full(batch, steps, jnp.int32)
    return rnn.lstm(x, zeros, zeros, params, lengths, size, size, 1, 0.0, False)[0]


def programs(cell: str, hidden: int, batch: int, steps: int, dtype: str, what: str) -> dict[str, Program]:
    """Compiled programs by their names."""
    draw = np.random.default_rng(0)
    x = jnp.asarray(draw.standard_normal((steps, batch, hidden)), dtype)
    params = prnn.jax.init_params(jax.random.key(0), cell, hidden, hidden, dtype=dtype)
    functions: dict[str, tuple[Callable[..., Any], Any, Any]] = {
        "prnn": (lambda params, x: getattr(prnn.jax, cell)(params, x)[0], params, x)
    }
    for unroll in (1, 8):
        functions[f"scan {unroll}"] = (lambda params, x, u=unroll: scanned(cell, params, x, u), params, x)
    if cell == "lstm" and dtype == "float32" and jax.default_backend() == "gpu":
        from jax.experimental import rnn

        weights = rnn.init_lstm_weight(jax.random.key(0), hidden, hidden, 1, False)
        functions["experimental"] = (_experimental, weights, x.swapaxes(0, 1))

    def compiled(function: Callable[..., Any], *given: Any) -> Program:
        def loss(params: Any, x: Any) -> Any:
            return jnp.square(function(params, x).astype(jnp.float32)).sum()

        run = jax.jit(function if what == "forward" else jax.grad(loss, (0, 1)))
        jax.block_until_ready(run(*given))
        return lambda: run(*given)

    return {name: compiled(*given) for name, given in functions.items()}


def measure(runs: dict[str, Program], seconds: float, steps: int, calls: int) -> dict[str, float]:
    """Microseconds a timestep of each, which run in turns of so many calls."""
    times: dict[str, list[float]] = {name: [] for name in runs}
    end = time.perf_counter() + seconds * len(runs)
    while not times["prnn"] or time.perf_counter() < end:
        for name, run in runs.items():
            begun = time.perf_counter()
            results = [run() for _ in range(calls)]
            jax.block_until_ready(results)
            times[name].append((time.perf_counter() - begun) / calls)
    found = {name: 1e6 * statistics.median(values) / steps for name, values in times.items()}
    scans = [found.pop(name) for name in list(found) if name.startswith("scan")]
    return found | {"scan": min(scans)}


def main(argv: Sequence[str], device: str) -> None:
    """device: "cpu" or "gpu"."""
    parser = command_lines.jax_layers()
    options = parser.parse_args(argv)
    if device == "gpu" and jax.default_backend() != "gpu":
        parser.error(f"jax can use no GPU here; its backend is {jax.default_backend()}")
    rows = []
    print("cell  H     N     what      us a timestep: prnn, scan, experimental | scan / prnn")
    with jax.default_device(jax.devices(device)[0]):
        for cell in options.cells:
            for hidden in options.hidden:
                for batch in options.batch:
                    for what in options.what:
                        runs = programs(cell, hidden, batch, options.steps, options.dtype, what)
                        found = measure(runs, options.seconds, options.steps, 8 if device == "gpu" else 1)
                        rows.append({"cell": cell, "hidden": hidden, "batch": batch, "what": what} | found)
                        names = ("prnn", "scan", "experimental")
                        times = " ".join(f"{found[name]:9.2f}" if name in found else "        –" for name in names)
                        ratio = found["scan"] / found["prnn"]
                        print(f"{cell:5} {hidden:<5} {batch:<5} {what:9} {times} | {ratio:.2f}", flush=True)
    if options.json:
        kind = jax.devices(device)[0].device_kind
        write_rows(options.json, rows, kind, jax=jax.__version__, dtype=options.dtype, steps=options.steps)
