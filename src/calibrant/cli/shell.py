"""Behaviour of all commands: one-line errors, options with several values, and notes."""

from __future__ import annotations

import inspect
import json
import os
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from enum import Enum
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

# The user can fix wrong values, files and connections, and missing packages; a sentence helps more than a traceback.
EXPECTED = (ValueError, ImportError, OSError)
BROKEN_PIPE = 141
"""Exit status of a command whose reader closed the pipe: 128 + SIGPIPE, as in a shell."""


class Sentences(TyperGroup):
    """The top-level command: an expected error is one printed sentence and exit status 1, unless --debug is given."""

    program = "calibrant"

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except BrokenPipeError:  # the reader, such as `head`, has seen enough
            for stream in (sys.stdout, sys.stderr):  # Python flushes both at exit
                with suppress(OSError):
                    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
            raise typer.Exit(BROKEN_PIPE) from None
        except EXPECTED as error:
            if ctx.params.get("debug"):
                raise
            typer.echo(f"{self.program}: {one_line(error)}", err=True)
            raise typer.Exit(1) from None


class Command(TyperCommand):
    """A command whose help is wrapped to the width of the terminal.

    Repeatable options take several values at once, such as `--columns a b c`.
    """

    def __init__(self, *args: Any, help: str | None = None, **settings: Any) -> None:
        super().__init__(*args, help=None if help is None else wrapped(help), **settings)

    def is_argument(self, word: str) -> bool:
        """Whether a word ends the values of an option because it is an argument of the command."""
        return False

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        repeatable = {name for p in self.params if getattr(p, "multiple", False) for name in p.opts}
        try:
            args = spread(args, repeatable, is_argument=self.is_argument)
        except ValueError as error:
            ctx.fail(str(error))
        return super().parse_args(ctx, args)


def wrapped(text: str) -> str:
    """Return a docstring with each paragraph on one line, so that the help fits any terminal."""
    return "\n\n".join(" ".join(part.split()) for part in text.split("\n\n"))


class Tool(Command):
    """A command on files of the user: any problem with them is printed as one sentence, with exit status 2.

    A file ends the values of a repeatable option.
    """

    def is_argument(self, word: str) -> bool:
        return is_file(word)

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except (*EXPECTED, MemoryError) as error:
            if ctx.find_root().params.get("debug") or isinstance(error, BrokenPipeError):
                raise
            typer.echo(f"calibrant: {one_line(error)}", err=True)
            raise typer.Exit(2) from None


FILES = (".csv", ".tsv", ".parquet", ".pq", ".npz", ".npy", ".csv.gz", ".tsv.gz", ".parquet.gz")


def is_file(word: str) -> bool:
    """Whether a word of a command line is a file: there is one of that name, or its ending says so."""
    return os.path.isfile(word) or word.lower().endswith(FILES)


def spread(args: Iterable[str], lists: Iterable[str], is_argument: Callable[[str], bool] | None = None) -> list[str]:
    """Repeat the name of an option with several values before each value; an option without a value is an error.

    `is_argument` recognises arguments of the command, such as existing files, which end the list of values.

    >>> spread(["--rates", "0.2", "0.4", "--seeds", "5"], {"--rates"})
    ['--rates', '0.2', '--rates', '0.4', '--seeds', '5']
    """
    lists, out, current = set(lists), list[str](), ""
    waiting = False  # the option has no value yet
    for arg in [*args, "--"]:
        if arg.startswith("--"):
            if waiting:
                raise ValueError(f"{current} needs at least one value; got none.")
            name, equals, _ = arg.partition("=")
            current = name if name in lists else ""
            waiting = bool(current) and not equals
            out.append(arg)
        elif current and not waiting and not (is_argument is not None and is_argument(arg)):
            out += [current, arg]
        else:
            current = current if waiting else ""
            waiting = False
            out.append(arg)
    return out[:-1]


def options_for(function: Callable[..., Any], ctx: Any) -> dict[str, Any]:
    """Return the options of a command that a function takes, by name; those without a value keep its default."""
    names = inspect.signature(function).parameters
    options = {name: value for name, value in ctx.params.items() if name in names and value is not None}
    return {name: str(value) if isinstance(value, Enum) else value for name, value in options.items()}


@contextmanager
def notes_printed() -> Iterator[None]:
    """Print warnings as notes, one line each."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        yield
    for note in dict.fromkeys(str(w.message) for w in caught if issubclass(w.category, UserWarning)):
        typer.echo(f"Note: {note}", err=True)


def file_argument(name: str, text: str) -> Any:
    """Return an argument for an input file. The command itself opens the file, and reports problems in one sentence."""
    return typer.Argument(help=text, metavar=name, readable=False, show_default=False)


def print_json(content: Any) -> None:
    """Print a result for programs: strict JSON, in UTF-8."""
    typer.echo(json.dumps(content, indent=1, allow_nan=False))


def one_line(error: BaseException) -> str:
    """Return an error's message in one line, or its type if it has no message."""
    return " ".join(str(error).split()) or type(error).__name__
