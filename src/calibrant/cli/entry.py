"""The entry point of the command line, which needs none of the optional packages."""

from __future__ import annotations

import io
import sys


def main() -> None:
    """Run the command line, or say how to install what it needs."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a command must not fail because an encoding lacks a minus sign
            stream.reconfigure(errors="backslashreplace")
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
