"""prnn.compat.k2 beside k2 on the CPU, each in an environment of its own, since one Python seldom has both (options:
command_lines.compat_cpu)."""

import importlib
import json
import statistics
import sys
import time

import numpy
import torch

RNNT_SHAPES = [(16, 150, 40, 28), (4, 150, 20, 5000), (1, 1500, 300, 50)]  # N, T, U, V
CTC_SHAPES = [(16, 150, 40, 28), (8, 500, 80, 500)]
RANGE = 5  # symbols that the pruned loss keeps of each frame


def rnnt_calls(package, shape):
    """Name, inputs that get gradients, and the loss of them."""
    n, t, u, v = shape
    random = numpy.random.default_rng(0)
    symbols = torch.from_numpy(random.integers(1, v, (n, u)))
    boundary = torch.tensor([[0, 0, u, t]]).repeat(n, 1)

    def tensor(*sizes):
        return torch.from_numpy(random.standard_normal(sizes, dtype=numpy.float32))

    yield "rnnt_loss", [tensor(n, t, u + 1, v)], lambda x: package.rnnt_loss(x, symbols, 0, boundary, reduction="sum")
    both = [tensor(n, u + 1, v), tensor(n, t, v)]
    options = dict(boundary=boundary, reduction="sum")
    yield "rnnt_loss_simple", both, lambda lm, am: package.rnnt_loss_simple(lm, am, symbols, 0, **options)
    yield "rnnt_loss_smoothed", both, lambda lm, am: package.rnnt_loss_smoothed(lm, am, symbols, 0, **options)
    simple = package.rnnt_loss_simple(both[0], both[1], symbols, 0, return_grad=True, **options)
    ranges = package.get_rnnt_prune_ranges(*simple[1], boundary, min(RANGE, u + 1))

    def pruned(lm, am):
        am, lm = package.do_rnnt_pruning(am, lm, ranges)
        return package.rnnt_loss_pruned(am + lm, symbols, ranges, 0, **options)

    yield "rnnt_loss_pruned", both, pruned


def ctc_calls(package, shape):
    n, t, u, v = shape
    random = numpy.random.default_rng(0)
    graph = package.ctc_graph(random.integers(1, v, (n, u)).tolist())
    segments = torch.tensor([[i, 0, t] for i in range(n)], dtype=torch.int32)

    def loss(x):
        # k2's default beam drops paths of such flat inputs, and a tenth of its time.
        return package.ctc_loss(graph, package.DenseFsaVec(x.log_softmax(2), segments), output_beam=1e3)

    yield "ctc_loss", [torch.from_numpy(random.standard_normal((n, t, v), dtype=numpy.float32))], loss


def measure(name, path):
    package = importlib.import_module(name)
    found, rows = {}, []
    for shapes, calls in ((RNNT_SHAPES, rnnt_calls), (CTC_SHAPES, ctc_calls)):
        for shape in shapes:
            for call, inputs, loss in calls(package, shape):
                key = " ".join(map(str, (call, *shape)))
                times = []
                for _ in range(6):
                    given = [x.clone().requires_grad_() for x in inputs]
                    begun = time.process_time()
                    cost = loss(*given)
                    gradients = torch.autograd.grad(cost, given)
                    times.append(1e3 * (time.process_time() - begun))
                found[key] = cost.detach().numpy()
                found.update({f"{key} d{i}": gradient.numpy() for i, gradient in enumerate(gradients)})
                rows.append((key, statistics.median(times[1:])))
                print(name, *rows[-1], flush=True)
    numpy.savez(path, rows=json.dumps(rows), **found)


def compare(ours, theirs):
    ours, theirs = numpy.load(ours), numpy.load(theirs)
    their_times = dict(json.loads(str(theirs["rows"])))
    print("| function, N, T, U, V | prnn.compat.k2 | k2 | ratio | costs differ by | gradients |")
    print("|---|---|---|---|---|---|")
    for key, milliseconds in json.loads(str(ours["rows"])):
        cost = abs(ours[key] - theirs[key]) / abs(theirs[key])
        pairs = [(ours[name], theirs[name]) for name in ours.files if name.startswith(f"{key} d")]
        gradient = max(abs(a - b).max() / abs(b).max() for a, b in pairs)
        ratio = their_times[key] / milliseconds
        print(f"| {key} | {milliseconds:.1f} | {their_times[key]:.1f} | {ratio:.1f} | {cost:.0e} | {gradient:.0e} |")


def main():
    from prnn.bench import command_lines

    arguments = command_lines.compat_cpu().parse_args()
    if arguments.command == "measure":
        measure(arguments.package, arguments.file)
    else:
        compare(arguments.ours, arguments.theirs)


if __name__ == "__main__":  # where prnn is not: in k2's environment
    if len(sys.argv) != 4 or sys.argv[1] != "measure":
        sys.exit("usage: python prnn/bench/compat_cpu.py measure k2 FILE.npz")
    measure(*sys.argv[2:])
