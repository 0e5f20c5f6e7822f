"""`lambent explain --html`: one page that needs no network, made of the files in this folder.

The data of `explain` stand in the page as JSON; `page.js` fills the sections with what `draw.js`
(elements and numbers), `graph.js` (layers, order, curves), `plots.js` and `kernels.js` make of
them. Nothing is loaded from anywhere, and the page's own policy forbids it.
"""

from __future__ import annotations

import html
import json
from importlib.resources import files
from typing import Any

from lambent.cli.output import finite

SCRIPTS = ("draw.js", "graph.js", "plots.js", "kernels.js", "page.js")


def page(found: dict[str, Any]) -> str:
    """The page of what `explain` found: a whole HTML document."""
    own = files(__package__)
    data = json.dumps(finite(found), separators=(",", ":"), allow_nan=False)
    parts = {
        "title": html.escape(f"{found['name']} · lambent"),
        "style": own.joinpath("page.css").read_text("utf-8"),
        "data": data.replace("<", "\\u003c"),  # nothing in it can end the element
        "script": "\n".join(own.joinpath(name).read_text("utf-8") for name in SCRIPTS),
    }
    head, *rest = own.joinpath("page.html").read_text("utf-8").split("{{")
    filled = [parts[name] + text for name, text in (piece.split("}}", 1) for piece in rest)]
    return head + "".join(filled)
