"""Hooks of mkdocs: what mkdocstrings does not have an option for."""

import re
from typing import Any


def on_page_content(html: str, **_: Any) -> str:
    """An entry of several parameters, "px, py", has no default of its own, for which it is said to be required."""
    several = re.compile(r"(\A\s*<td>\s*<code>[^<]*[ ,][^<]*</code>.*?)<em>required</em>", re.DOTALL)
    start = '<tr class="doc-section-item">'
    return start.join(several.sub(r"\1", row) for row in html.split(start))
