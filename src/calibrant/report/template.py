"""Templates of pages: self-contained HTML, written with Jinja2."""

from __future__ import annotations

import re
from collections.abc import Callable
from importlib import import_module, resources
from typing import Any


def need_jinja() -> None:
    """Raise an ImportError that says how to install Jinja2 if it is missing."""
    need("jinja2", "writes HTML with Jinja2")


def need(package: str, purpose: str) -> None:
    """Raise an ImportError that says how to install a package for reports if it is missing."""
    try:
        import_module(package)
    except ImportError as error:
        raise ImportError(
            f"The package calibrant.report {purpose}, which is not installed. Install it with: pip install "
            "'calibrant[report]'."
        ) from error


def template(name: str, package: str = "calibrant.report", **filters: Callable[..., Any]) -> Any:
    """A template of a package with its own filters; values are escaped. Style and script may be those of this room."""
    need_jinja()
    from jinja2 import Environment, FunctionLoader, StrictUndefined
    from markupsafe import Markup, escape

    def asset(name: str) -> str:
        folders = (resources.files(home) / "assets" for home in (package, "calibrant.report"))
        return next(folder / name for folder in folders if (folder / name).is_file()).read_text(encoding="utf-8")

    environment = Environment(
        loader=FunctionLoader(asset), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    # Only files of the packages are inserted unescaped.
    environment.globals["asset"] = lambda name: Markup(asset(name))
    environment.filters["code"] = lambda text: Markup(re.sub(r"`([^`]+)`", r"<code>\1</code>", str(escape(text))))
    environment.filters.update(filters)
    return environment.get_template(name)
