"""The `calibrant` command: its subcommands and global options."""

from __future__ import annotations

from typing import Annotated

import typer

from calibrant._version import __version__
from calibrant.cli.calibrate import apply, calibrate
from calibrant.cli.evaluate import evaluate
from calibrant.cli.info import info
from calibrant.cli.predict import predict
from calibrant.cli.shell import Sentences, Tool
from calibrant.cli.train import train

app = typer.Typer(
    cls=Sentences,
    help="Measure, correct and train classifiers whose confidence can be believed.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
for _command in (train, predict, evaluate, calibrate, apply):
    app.command(cls=Tool, no_args_is_help=True)(_command)
app.command()(info)


def _print_version(requested: bool) -> None:
    if requested:
        typer.echo(__version__)
        raise typer.Exit


@app.callback()
def _top(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of every error.")] = False,
) -> None:
    pass
