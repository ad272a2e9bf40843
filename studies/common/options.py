"""Options of commands: the annotation of an argument says how it is given on the command line."""

from __future__ import annotations

import argparse
import inspect
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, get_args, get_origin


@dataclass(frozen=True)
class Option:
    """How an argument is given: its help, its names if they are not the argument's, and which values are allowed."""

    help: str
    names: tuple[str, ...] = ()
    least: float | None = None
    choices: Sequence[str] | None = None
    exists: bool = False
    """Whether the value must be the path of something that exists."""


Seeds = Annotated[int, Option("Number of seeds, starting at 0.", least=1)]
FirstSeed = Annotated[int, Option("The first seed.", least=0)]
Device = Annotated[str, Option("Device; auto uses a GPU if there is one.", choices=("auto", "cpu", "cuda"))]
Sets = Annotated[Sequence[str] | None, Option("Names of synthetic sets; default: all five.")]
Methods = Annotated[Sequence[str] | None, Option("Ids of methods; default: all except self-calibrated-pool.")]
Tables = Annotated[
    Path | None, Option("Folder of tables (CSV, TSV, Parquet), or one table; needed without --from.", exists=True)
]
Jobs = Annotated[int | None, Option("Number of processes at the same time; default: one, or more with a GPU.", least=1)]
Out = Annotated[str | Path | None, Option("Folder for results, figures and report.")]
Fresh = Annotated[bool, Option("Repeat runs that --out already holds; default: make only the missing runs.")]
Sources = Annotated[
    Sequence[str | Path] | str | Path | None,
    Option(
        "Make the report from these result files or stores (results.json, results.jsonl) of the same command, without "
        "training. Combine it only with --out and --export.",
        names=("--from",),
        exists=True,
    ),
]
Export = Annotated[str | Path | None, Option("Also write the results to this file, such as results/bo4sc.json.")]
DryRun = Annotated[
    bool,
    Option(
        "List the runs of this command as done or missing, and exit. Nothing is trained, downloaded or written. Stored "
        "runs are looked up in --out, or in the files of --from."
    ),
]


def add_options(parser: argparse.ArgumentParser, arguments: Iterable[inspect.Parameter]) -> dict[str, str]:
    """Add an option for each annotated argument, and return the options by argument.

    Only options that are given become results of the parser.
    """
    first: dict[str, str] = {}
    for argument in arguments:
        if get_origin(argument.annotation) is not Annotated:
            continue
        annotation, option = get_args(argument.annotation)
        names = option.names or (f"--{argument.name.replace('_', '-')}",)
        first[argument.name] = names[0]
        about: dict[str, Any] = {"dest": argument.name, "default": argparse.SUPPRESS}
        kind, several = _kind(annotation)
        shown = "" if several or argument.default in (None, False, inspect.Parameter.empty) else argument.default
        about["help"] = (option.help + (f" Default: {shown}." if shown != "" else "")).replace("%", "%%")
        if kind is bool:
            parser.add_argument(*names, action="store_true", **about)
            continue
        if several:
            about |= {"nargs": "+", "action": "extend"}
        metavar = None if option.choices else kind.__name__.upper()
        parser.add_argument(*names, type=_reader(kind, option), choices=option.choices, metavar=metavar, **about)
    return first


def _kind(annotation: Any) -> tuple[type, bool]:
    """The type of one value, and whether an option takes several."""
    parts = [part for part in get_args(annotation) or (annotation,) if part is not NoneType]
    several = get_args(parts[0]) if get_origin(parts[0]) is Sequence else ()
    if get_origin(annotation) is Sequence:
        several = get_args(annotation)
    kinds = get_args(several[0]) or several if several else parts
    return (Path if Path in kinds else kinds[0]), bool(several)


def _reader(kind: type, option: Option) -> Callable[[str], Any]:
    def read(text: str) -> Any:
        value = kind(text)
        if option.least is not None and value < option.least:
            raise argparse.ArgumentTypeError(f"The number must be at least {option.least}; got {text}.")
        if option.exists and not value.exists():
            raise argparse.ArgumentTypeError(f"The path must exist; got {text}, which does not.")
        return value

    read.__name__ = kind.__name__  # argparse names it in errors
    return read
