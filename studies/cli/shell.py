"""Behaviour of the commands of all studies: modules are imported when they run, and the result is printed."""

from __future__ import annotations

import functools
import importlib
import inspect
import time
from collections.abc import Callable
from enum import Enum
from pathlib import Path
from typing import Any

import typer

from calibrant.base.words import duration
from calibrant.cli.shell import Command, Sentences, notes_at_once
from studies.cli.options import DryRun


class StudySentences(Sentences):
    """The top-level command, which prints an expected error as one sentence."""

    program = "studies"


class Experiment(Command):
    """The command of a study.

    With `--from`, an option that would have no effect is an error. With `--dry-run`, all options have an effect.
    """

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
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


def experiment(group: typer.Typer, name: str, function: str) -> Callable[[Callable[..., dict[str, Any] | None]], Any]:
    """Add a command that passes its options to `studies.<function>`; see `call`.

    The decorated function declares the options. It can return values that replace some of them. Every command has
    `--dry-run`. A study that declares it lists its runs itself, for example those in the files of `--from`.
    """

    def add(declared: Callable[..., dict[str, Any] | None]) -> Callable[..., None]:
        declarations = inspect.signature(declared, eval_str=True).parameters
        lists_itself = "dry_run" in declarations

        @functools.wraps(declared)
        def command(**options: Any) -> None:
            listing = False if lists_itself else options.pop("dry_run")
            chosen = options | (declared(**options) or {})
            call(function, listing=listing, **{key: _plain(value) for key, value in chosen.items()})

        if not lists_itself:
            option = inspect.Parameter("dry_run", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=DryRun)
            command.__signature__ = inspect.Signature([*declarations.values(), option])  # type: ignore[attr-defined]
        return group.command(name, cls=Experiment)(command)

    return add


def _plain(option: Any) -> Any:
    if isinstance(option, Enum):
        return option.value
    return None if option == [] else option


def call(function: str, *, listing: bool = False, **arguments: Any) -> None:
    """Run `studies.<module>.<name>`, and print the path of its result and the time it took.

    The module is imported here, so that `calibrant --help` need not wait for torch. The function returns a text to
    print, the path of the file that it wrote, or None. The packages that a report needs are checked before training.
    With ``listing``, the runs are listed instead of made.
    """
    from calibrant.report import require
    from studies.common.dry_run import list_instead

    require()
    module, _, name = function.rpartition(".")
    begin = time.perf_counter()
    try:
        with notes_at_once():
            study = getattr(importlib.import_module(f"studies.{module}"), name)
            result = list_instead(study, **arguments) if listing else study(**arguments)
    except KeyboardInterrupt:
        typer.echo("Interrupted. Run the same command again to continue.", err=True)
        raise typer.Exit(130) from None
    if isinstance(result, Path):
        typer.echo(f"Written: {result}")
    elif isinstance(result, str):
        typer.echo(result)
    typer.echo(f"Done in {duration(time.perf_counter() - begin)}.", err=True)
