"""How commands behave: errors are sentences, lists are easy to give, experiments are loaded when they run."""

from __future__ import annotations

import importlib
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

# Wrong values, missing files and missing packages are the caller's to mend: a sentence says more than a traceback.
EXPECTED = (ValueError, FileNotFoundError, ImportError)


class Sentences(TyperGroup):
    """The top of the command line: an expected error is one sentence and exit status 1, unless --debug is given."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except EXPECTED as error:
            if ctx.params.get("debug"):
                raise
            typer.echo(f"calibrant: {one_line(error)}", err=True)
            raise typer.Exit(1) from None


class ListOptions(TyperCommand):
    """A command whose repeatable options also take several values at once: `--rates 0.2 0.4`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        lists = {name for p in self.params if getattr(p, "multiple", False) for name in p.opts}
        return super().parse_args(ctx, spread(args, lists))


def spread(args: Iterable[str], lists: Iterable[str]) -> list[str]:
    """Repeat the name of a list-valued option before each of its values.

    >>> spread(["--rates", "0.2", "0.4", "--seeds", "5"], {"--rates"})
    ['--rates', '0.2', '--rates', '0.4', '--seeds', '5']
    """
    lists, out, current = set(lists), list[str](), ""
    waiting = False  # the option's name stands there and its first value does not
    for arg in args:
        if arg.startswith("--"):
            current = arg if arg in lists else ""
            waiting = bool(current)
            out.append(arg)
        elif current and not waiting:
            out += [current, arg]
        else:
            waiting = False
            out.append(arg)
    return out


def call(function: str, **arguments: Any) -> None:
    """Run `calibrant.experiments.<module>.<name>` and say where its result lies and how long it took.

    The module is imported here and not above: `calibrant --help` must not wait for torch. A function returns text,
    which is printed, the path of what it wrote, or nothing. What its report needs is asked for before it trains.
    """
    from calibrant.report import require

    require()
    module, _, name = function.rpartition(".")
    begin = time.perf_counter()
    result = getattr(importlib.import_module(f"calibrant.experiments.{module}"), name)(**arguments)
    if isinstance(result, Path):
        typer.echo(f"Written: {result}")
    elif isinstance(result, str):
        typer.echo(result)
    typer.echo(f"Done in {duration(time.perf_counter() - begin)}.", err=True)


def duration(seconds: float) -> str:
    """Write a time for people: 12 s, 3 min 5 s, 1 h 2 min.

    >>> duration(3725.0)
    '1 h 2 min'
    """
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    return f"{whole // 60} min {whole % 60} s" if whole < 3600 else f"{whole // 3600} h {whole % 3600 // 60} min"


def one_line(error: BaseException) -> str:
    """Return what an error says in one line, or its kind where it says nothing."""
    return " ".join(str(error).split()) or type(error).__name__
