"""Links lead somewhere and are words, and README's table is of the measurements."""

import json
import math
import re
import statistics

from c_program import ROOT


def test_links() -> None:
    for page in [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]:
        for link in re.findall(r"\]\(([^)#:]+)\)", page.read_text()):
            assert (page.parent / link).exists(), f"{page.name} links to {link}, which is not there"
        assert re.findall(r"\[[\w/]+\.md\]", page.read_text()) == [], (
            f"{page.name}: the text of a link is a file's name"
        )


TYPES = ("float16", "bfloat16", "float32")


def measured(dtype: str) -> dict[tuple[str, int, int, int], tuple[float, ...]]:
    """Cell, layers, hidden size and batch: prnn's times and the ratios, forward and training step."""
    rows = json.loads((ROOT / "bench/results/rnn_h200.json").read_text())["rows"]
    return {
        (row["cell"], row["layers"], row["hidden"], row["batch"]): (*row["prnn"], *row["ratio"])
        for row in rows
        if row["dtype"] == dtype
    }


def test_table_is_of_the_measurements() -> None:
    points = {dtype: measured(dtype) for dtype in TYPES}
    rows = ["| all points: geometric means | |"]
    for dtype in TYPES:
        means = [math.exp(statistics.fmean(math.log(point[i]) for point in points[dtype].values())) for i in (2, 3)]
        rows[0] += f" ({means[0]:.1f} / {means[1]:.1f}), {len(points[dtype])} points |"
    for name, key in (
        ("LSTM 512", ("lstm", 1, 512, 4)),
        ("LSTM 512", ("lstm", 1, 512, 32)),
        ("GRU 1024", ("gru", 1, 1024, 8)),
        ("five LSTM 512", ("lstm", 5, 512, 8)),
        ("five LSTM 1024", ("lstm", 5, 1024, 8)),
    ):
        cells = [points[dtype][key] for dtype in TYPES]
        rows.append(
            f"| {name} | {key[3]} |" + "".join(" {:.2f} / {:.2f} ({:.1f} / {:.1f}) |".format(*cell) for cell in cells)
        )
    assert "\n".join(rows) in (ROOT / "README.md").read_text(), "README's table is to be:\n" + "\n".join(rows)
