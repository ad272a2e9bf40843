"""Run a study: ``python -m studies reproduce | sweep | ablate | bench …``, from the root of the repository."""

from __future__ import annotations

import argparse
import importlib
import sys
import time
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from calibrant.base.words import duration
from calibrant.cli.entry import escape_missing_characters
from studies.common.commands import COMMANDS
from studies.common.options import add_options

PROGRAM = "python -m studies"
EXPECTED = (ValueError, ImportError, OSError)
"""The user can fix wrong values, files and missing packages; a sentence helps more than a traceback."""
BESIDE_FROM = {"source", "out", "export", "dry_run"}
"""Options that can be combined with --from."""


def parse(words: Sequence[str]) -> tuple[Any, dict[str, Any]]:
    """The study that a command line names, and the options that it gives."""
    top = argparse.ArgumentParser(
        prog=PROGRAM,
        description="Reproduce the results of two papers, and compare the methods of Calibrant with others.",
        epilog=f"Commands: {', '.join(COMMANDS)}. Each has its own --help.",
    )
    top.add_argument("command", choices=list(COMMANDS), metavar="COMMAND")
    name = top.parse_args([" ".join(words[:2])] if words else ["--help"]).command
    study = getattr(importlib.import_module(COMMANDS[name].module), COMMANDS[name].study)
    parser = argparse.ArgumentParser(
        prog=f"{PROGRAM} {name}", description=study.plan.__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    names = add_options(parser, study.arguments())
    options = vars(parser.parse_args(words[2:]))
    if "source" in options and (idle := sorted(options.keys() - BESIDE_FROM)) and "dry_run" not in options:
        parser.error(
            f"{' and '.join(names[option] for option in idle)} cannot be combined with --from, which makes the report "
            "from an existing result file. Leave it out, or leave out --from."
        )
    return study, options


def main(words: Sequence[str]) -> int:
    """Run a command, and print the path of its report or the text that it returns."""
    debug, words = "--debug" in words, [word for word in words if word != "--debug"]
    begin = time.perf_counter()
    try:
        study, options = parse(words)
        from studies.report import require

        require()
        with warnings.catch_warnings():
            warnings.showwarning = lambda message, *_, **__: print(f"Note: {message}", file=sys.stderr)
            result = study.run(**options)
    except KeyboardInterrupt:
        print("Interrupted. Run the same command again to continue.", file=sys.stderr)
        return 130
    except EXPECTED as error:
        if debug:
            raise
        print(f"studies: {' '.join(str(error).split()) or type(error).__name__}", file=sys.stderr)
        return 1
    print(f"Written: {result}" if isinstance(result, Path) else result)
    print(f"Done in {duration(time.perf_counter() - begin)}.", file=sys.stderr)
    return 0


if __name__ == "__main__":
    escape_missing_characters()
    sys.exit(main(sys.argv[1:]))
