"""The command line: `calibrant …` or `python -m calibrant …`."""

from calibrant.cli.entry import main

__all__ = ["main"]
