"""Sphinx settings: ``make docs`` builds the pages of this folder into out/docs."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "src"))

from calibrant import __version__

project = "Calibrant"
author = "The Calibrant developers"
copyright = author
version = release = __version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
]
source_suffix = {".md": "markdown", ".rst": "restructuredtext"}
exclude_patterns = ["generate"]
templates_path = ["_templates"]
default_role = "literal"  # `name` in docstrings is code
smartquotes_action = "qe"  # quotes and ellipses; two dashes belong to options such as --seeds

html_theme = "furo"
html_title = f"Calibrant {version}"
html_show_copyright = False
html_static_path = ["_static"]
html_css_files = ["calibrant.css"]

myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3

autosummary_generate = True
autosummary_ignore_module_all = False
autodoc_default_options = {"members": True}
autodoc_member_order = "bysource"
strip_signature_backslash = True  # napoleon writes the attribute ``classes_`` as ``classes\_``

# Types in docstrings are words such as "(n, 2) array"; "n" need not be the name of something documented.
suppress_warnings = ["ref.python"]


def skip_metadata_requests(app: Any, what: str, name: str, obj: Any, skip: bool, options: Any) -> bool | None:
    """Leave out the ``set_…_request`` methods that scikit-learn adds; their docstrings refer to its own pages."""
    return True if name.startswith("set_") and name.endswith("_request") else None


def escape_markup(app: Any, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Keep ``pool_weights_`` and ``|x|`` in plain text from being read as links and substitutions."""
    for k, line in enumerate(lines):
        pieces = re.split(r"(`+[^`]*`+)", line)
        pieces[::2] = [re.sub(r"(?<=\w)_(?=[\s,;.:)]|$)|\|", r"\\\g<0>", piece) for piece in pieces[::2]]
        if not line.startswith("    ") or ":" in line[:5]:
            lines[k] = "".join(pieces)


def setup(app: Any) -> None:
    """Connect the two functions above."""
    app.connect("autodoc-skip-member", skip_metadata_requests)
    app.connect("autodoc-process-docstring", escape_markup)
