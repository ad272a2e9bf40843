"""The entry point of the command line, which needs none of the optional packages."""

from __future__ import annotations

import io
import sys


def main() -> None:
    """Run the command line, or say how to install what it needs."""
    escape_missing_characters()
    try:
        import typer  # noqa: F401
    except ImportError:
        print(
            "calibrant: the command line needs typer, which is not installed. "
            "Install it with: pip install 'calibrant[cli,report]'.",
            file=sys.stderr,
        )
        raise SystemExit(1) from None
    from calibrant.cli.commands import app

    app(prog_name="calibrant")


def escape_missing_characters() -> None:
    """Escape what the encoding of a terminal lacks: a command must not fail because of a minus sign."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
