"""The picture of the README: microseconds of a timestep, prnn's beside cuDNN's, from bench/results.

python bench/plot_timesteps.py        # writes docs/timesteps.svg
"""

import pathlib
import re
from typing import NamedTuple

ROOT = pathlib.Path(__file__).resolve().parents[1]
RESULTS = ROOT / "bench/results/rnn_h200_bfloat16.md"
PICTURE = ROOT / "docs/timesteps.svg"
LAYERS = (("lstm", 512), ("lstm", 1024), ("gru", 1024))
BATCHES = (1, 8, 32, 64)
PRNN, CUDNN, INK = "#1f6feb", "#9aa4b2", "#24292f"
PANEL, HEIGHT, TOP, BAR = 250, 190, 64, 19


class Step(NamedTuple):
    """Microseconds of a timestep of a training step."""

    prnn: float
    cudnn: float


def read_steps(text: str) -> dict[tuple[str, int, int], Step]:
    """Those of one layer in the table, by cell, hidden size and batch."""
    rows = re.findall(
        r"^\| (\w+) \| 1 \| (\d+) \| (\d+) \| [\d.]+ / ([\d.]+) \| [\d.]+ / ([\d.]+) \|", text, re.MULTILINE
    )
    return {(cell, int(size), int(batch)): Step(float(a), float(b)) for cell, size, batch, a, b in rows}


def draw(steps: dict[tuple[str, int, int], Step]) -> str:
    """The picture: a panel for each layer, two bars for each batch, on one scale."""
    shown = {layer: [steps[*layer, batch] for batch in BATCHES] for layer in LAYERS}
    scale = HEIGHT / max(max(step) for panel in shown.values() for step in panel)
    width, height = 20 + PANEL * len(LAYERS), TOP + HEIGHT + 48
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" '
        'font-family="Helvetica, Arial, sans-serif" font-size="12">',
        "<title>Microseconds of a timestep in training, prnn and cuDNN</title>",
        f'<rect width="{width}" height="{height}" fill="white"/>',
    ]

    def text(x: float, y: float, content: str, anchor: str = "middle", color: str = INK, size: int = 12) -> None:
        style = f'text-anchor="{anchor}" fill="{color}" font-size="{size}"'
        parts.append(f'<text x="{x:.1f}" y="{y:.1f}" {style}>{content}</text>')

    text(20, 22, "Training, microseconds a timestep (one H200, bfloat16, T = 256); less is better", "start", size=14)
    for index, (name, color) in enumerate((("prnn", PRNN), ("cuDNN, its fastest algorithm", CUDNN))):
        parts.append(f'<rect x="{20 + 70 * index}" y="32" width="11" height="11" fill="{color}"/>')
        text(36 + 70 * index, 42, name, "start")
    bottom = TOP + HEIGHT
    for panel, ((cell, size), values) in enumerate(shown.items()):
        left = 20 + PANEL * panel
        parts.append(f'<path d="M{left} {bottom}h{PANEL - 20}" stroke="{INK}"/>')
        text(left + (PANEL - 20) / 2, bottom + 38, f"{cell.upper()} {size}", size=13)
        for index, (batch, step) in enumerate(zip(BATCHES, values, strict=True)):
            center = left + (PANEL - 20) / len(BATCHES) * (index + 0.5)
            text(center, bottom + 18, f"N = {batch}")
            for x, value, color in ((center - BAR - 1, step.prnn, PRNN), (center + 1, step.cudnn, CUDNN)):
                y = bottom - value * scale
                parts.append(
                    f'<rect x="{x:.1f}" y="{y:.1f}" width="{BAR}" height="{value * scale:.1f}" fill="{color}"/>'
                )
                text(x + BAR / 2, y - 4, f"{value:.1f}", size=11)
    return "\n".join([*parts, "</svg>\n"])


if __name__ == "__main__":
    PICTURE.write_text(draw(read_steps(RESULTS.read_text())))
    print(PICTURE)
