"""Behaviour of all commands: one-line errors, options with several values, and experiments loaded when they run."""

from __future__ import annotations

import functools
import importlib
import json
import os
import sys
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from enum import Enum
from pathlib import Path
from typing import Any, TextIO

import typer
from typer.core import TyperCommand, TyperGroup

from calibrant._words import duration

# The user can fix wrong values, files and connections, and missing packages; a sentence helps more than a traceback.
EXPECTED = (ValueError, ImportError, OSError)
BROKEN_PIPE = 141
"""Exit status of a command whose reader closed the pipe: 128 + SIGPIPE, as in a shell."""


class Sentences(TyperGroup):
    """The top-level command: an expected error is one printed sentence and exit status 1, unless --debug is given."""

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
            typer.echo(f"calibrant: {one_line(error)}", err=True)
            raise typer.Exit(1) from None


class _Command(TyperCommand):
    """A command whose help is wrapped to the width of the terminal."""

    def __init__(self, *args: Any, help: str | None = None, **settings: Any) -> None:
        super().__init__(*args, help=None if help is None else wrapped(help), **settings)


def wrapped(text: str) -> str:
    """Return a docstring with each paragraph on one line, so that the help fits any terminal."""
    return "\n\n".join(" ".join(part.split()) for part in text.split("\n\n"))


class Tool(_Command):
    """A command on files of the user: any problem with them is printed as one sentence, with exit status 2.

    Repeatable options take several values at once, `--columns a b c FILE`; a file ends them.
    """

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        try:
            args = spread(args, _lists(self), is_argument=is_file)
        except ValueError as error:
            ctx.fail(str(error))
        return super().parse_args(ctx, args)

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


def _lists(command: TyperCommand) -> set[str]:
    return {name for p in command.params if getattr(p, "multiple", False) for name in p.opts}


class Experiment(_Command):
    """A command whose repeatable options take several values at once, such as `--rates 0.2 0.4`.

    With `--from`, an option that would have no effect is an error. With `--dry-run`, all options have an effect.
    """

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        try:
            args = spread(args, _lists(self))
        except ValueError as error:
            ctx.fail(str(error))
        left = super().parse_args(ctx, args)
        if ctx.params.get("source") and not ctx.params.get("dry_run"):
            idle = [p.opts[0] for p in self.params if p.name not in HEEDED and _given(ctx, p.name)]
            if idle:
                ctx.fail(
                    f"{' and '.join(idle)} cannot be combined with --from, which makes the report from an existing "
                    "result file. Leave it out, or leave out --from."
                )
        return left


HEEDED = ("source", "out", "export")
"""Parameters that can be combined with --from."""


def _given(ctx: Any, name: str | None) -> bool:
    """Whether the command line contains this option, even with its default value."""
    source = ctx.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


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


def experiment(group: typer.Typer, name: str, function: str) -> Callable[[Callable[..., dict[str, Any] | None]], Any]:
    """Add a command that passes its options to `studies.<function>`; see `call`.

    The decorated function declares the options. It can return values that replace some of them.
    """

    def add(declared: Callable[..., dict[str, Any] | None]) -> Callable[..., None]:
        @functools.wraps(declared)
        def command(**options: Any) -> None:
            call(function, **{key: _plain(value) for key, value in (options | (declared(**options) or {})).items()})

        return group.command(name, cls=Experiment)(command)

    return add


def _plain(option: Any) -> Any:
    if isinstance(option, Enum):
        return option.value
    return None if option == [] else option


def call(function: str, **arguments: Any) -> None:
    """Run `studies.<module>.<name>`, and print the path of its result and the time it took.

    The module is imported here, so that `calibrant --help` need not wait for torch. The function returns a text to
    print, the path of the file that it wrote, or None. The packages that a report needs are checked before training.
    """
    from calibrant.report import require

    require()
    module, _, name = function.rpartition(".")
    begin = time.perf_counter()
    try:
        with notes_at_once():
            result = getattr(importlib.import_module(f"studies.{module}"), name)(**arguments)
    except KeyboardInterrupt:
        typer.echo("Interrupted. Run the same command again to continue.", err=True)
        raise typer.Exit(130) from None
    if isinstance(result, Path):
        typer.echo(f"Written: {result}")
    elif isinstance(result, str):
        typer.echo(result)
    typer.echo(f"Done in {duration(time.perf_counter() - begin)}.", err=True)


@contextmanager
def notes_printed() -> Iterator[None]:
    """Print warnings as notes, one line each."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        yield
    for note in dict.fromkeys(str(w.message) for w in caught if issubclass(w.category, UserWarning)):
        typer.echo(f"Note: {note}", err=True)


@contextmanager
def notes_at_once() -> Iterator[None]:
    """Print warnings for users as notes when they arise, without the line of code; for commands that take long."""
    with warnings.catch_warnings():
        usual = warnings.showwarning

        def show(
            message: Warning | str,
            category: type[Warning],
            filename: str,
            lineno: int,
            file: TextIO | None = None,
            line: str | None = None,
        ) -> None:
            if issubclass(category, UserWarning):
                typer.echo(f"Note: {message}", err=True)
            else:
                usual(message, category, filename, lineno, file, line)

        warnings.showwarning = show
        yield


def file_argument(name: str, text: str) -> Any:
    """Return an argument for an input file. The command itself opens the file, and reports problems in one sentence."""
    return typer.Argument(help=text, metavar=name, readable=False, show_default=False)


def print_json(content: Any) -> None:
    """Print a result for programs: strict JSON, in UTF-8."""
    typer.echo(json.dumps(content, indent=1, allow_nan=False))


def one_line(error: BaseException) -> str:
    """Return an error's message in one line, or its type if it has no message."""
    return " ".join(str(error).split()) or type(error).__name__
