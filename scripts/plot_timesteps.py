"""The pictures of the README: microseconds of a timestep in training, prnn's beside cuDNN's, from bench/results.

python scripts/plot_timesteps.py      # writes docs/timesteps.svg and docs/batches.svg
"""

import math
import pathlib
import re
from typing import NamedTuple

ROOT = pathlib.Path(__file__).resolve().parents[1]
TYPES = ("float16", "bfloat16", "float32")
LAYERS = (("lstm", 512), ("lstm", 1024), ("gru", 1024))
BATCHES = (1, 8, 32, 64)  # of the bars
ALL_BATCHES = (1, 4, 8, 16, 32, 64)  # of the lines
TICKS = (2, 4, 8, 16, 32, 64, 128)  # microseconds
PRNN, CUDNN, INK, GRID = "#1f6feb", "#9aa4b2", "#24292f", "#e6e8eb"
PANEL, HEIGHT, TOP, BAR = 250, 190, 64, 19
KEY = (("prnn", PRNN), ("cuDNN, its fastest algorithm", CUDNN))


class Step(NamedTuple):
    """Microseconds of a timestep of a training step."""

    prnn: float
    cudnn: float


Steps = dict[tuple[str, int, int], Step]  # of one layer, by cell, hidden size and batch


def read_steps(dtype: str) -> Steps:
    """Reads the microseconds of a type's table of results."""
    table = (ROOT / f"bench/results/rnn_h200_{dtype}.md").read_text()
    rows = re.findall(
        r"^\| (\w+) \| 1 \| (\d+) \| (\d+) \| [\d.]+ / ([\d.]+) \| [\d.]+ / ([\d.]+) \|", table, re.MULTILINE
    )
    return {(cell, int(size), int(batch)): Step(float(a), float(b)) for cell, size, batch, a, b in rows}


class Picture:
    """Panels side by side under a title and a key."""

    def __init__(self, title: str, panels: int) -> None:
        width, height = 20 + PANEL * panels, TOP + HEIGHT + 48
        self.parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
            f'viewBox="0 0 {width} {height}" font-family="Helvetica, Arial, sans-serif" font-size="12">',
            f"<title>{title}</title>",
            f'<rect width="{width}" height="{height}" fill="white"/>',
        ]
        self.bottom = TOP + HEIGHT
        self.text(20, 22, title, "start", size=14)
        for index, (name, color) in enumerate(KEY):
            self.parts.append(f'<rect x="{20 + 70 * index}" y="32" width="11" height="11" fill="{color}"/>')
            self.text(36 + 70 * index, 42, name, "start")

    def text(self, x: float, y: float, content: str, anchor: str = "middle", color: str = INK, size: int = 12) -> None:
        style = f'text-anchor="{anchor}" fill="{color}" font-size="{size}"'
        self.parts.append(f'<text x="{x:.1f}" y="{y:.1f}" {style}>{content}</text>')

    def panel(self, left: float, name: str) -> None:
        self.parts.append(f'<path d="M{left} {self.bottom}h{PANEL - 20}" stroke="{INK}"/>')
        self.text(left + (PANEL - 20) / 2, self.bottom + 38, name, size=13)

    def drawn(self) -> str:
        return "\n".join([*self.parts, "</svg>\n"])


def draw_layers() -> str:
    """A panel for each layer, two bars for each batch, on one scale."""
    steps = read_steps("bfloat16")
    shown = {layer: [steps[*layer, batch] for batch in BATCHES] for layer in LAYERS}
    scale = HEIGHT / max(max(step) for panel in shown.values() for step in panel)
    picture = Picture("Training, microseconds a timestep (one H200, bfloat16, T = 256); less is better", len(LAYERS))
    for panel, ((cell, size), values) in enumerate(shown.items()):
        left = 20 + PANEL * panel
        picture.panel(left, f"{cell.upper()} {size}")
        for index, (batch, step) in enumerate(zip(BATCHES, values, strict=True)):
            center = left + (PANEL - 20) / len(BATCHES) * (index + 0.5)
            picture.text(center, picture.bottom + 18, f"N = {batch}")
            for x, value, color in ((center - BAR - 1, step.prnn, PRNN), (center + 1, step.cudnn, CUDNN)):
                y = picture.bottom - value * scale
                picture.parts.append(
                    f'<rect x="{x:.1f}" y="{y:.1f}" width="{BAR}" height="{value * scale:.1f}" fill="{color}"/>'
                )
                picture.text(x + BAR / 2, y - 4, f"{value:.1f}", size=11)
    return picture.drawn()


def draw_batches() -> str:
    """A panel for each type, a line for each library over the batch, of an LSTM of 1024 units; both axes are
    logarithmic."""
    picture = Picture(
        "Training an LSTM of 1024 units, microseconds a timestep over the batch (one H200, T = 256)", len(TYPES)
    )

    def across(left: float, batch: int) -> float:
        return left + 34 + (PANEL - 74) * math.log(batch / ALL_BATCHES[0]) / math.log(ALL_BATCHES[-1] / ALL_BATCHES[0])

    def up(value: float) -> float:
        return picture.bottom - HEIGHT * math.log(value / TICKS[0]) / math.log(TICKS[-1] / TICKS[0])

    for panel, dtype in enumerate(TYPES):
        left, steps = 20 + PANEL * panel, read_steps(dtype)
        for tick in TICKS:
            picture.parts.append(f'<path d="M{left + 24} {up(tick):.1f}h{PANEL - 44}" stroke="{GRID}"/>')
            if tick != TICKS[0]:
                picture.text(left + 20, up(tick) + 4, f"{tick}", "end", size=11)
        picture.panel(left, dtype)
        for batch in ALL_BATCHES:
            picture.text(across(left, batch), picture.bottom + 18, f"{batch}", size=11)
        for library, color in ((0, PRNN), (1, CUDNN)):
            points = [
                (across(left, batch), up(steps["lstm", 1024, batch][library]), steps["lstm", 1024, batch][library])
                for batch in ALL_BATCHES
            ]
            line = " ".join(f"{x:.1f},{y:.1f}" for x, y, _ in points)
            picture.parts.append(f'<polyline points="{line}" fill="none" stroke="{color}" stroke-width="2.5"/>')
            for x, y, value in points:
                picture.parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.5" fill="{color}"/>')
                picture.text(x + (7, -7)[library], y + (16, -8)[library], f"{value:.1f}", size=10)
    return picture.drawn()


PICTURES = {ROOT / "docs/timesteps.svg": draw_layers, ROOT / "docs/batches.svg": draw_batches}

if __name__ == "__main__":
    for path, draw in PICTURES.items():
        path.write_text(draw())
        print(path)
