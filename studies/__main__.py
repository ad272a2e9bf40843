"""Run a study: ``python -m studies reproduce | sweep | ablate | bench …``, from the root of the repository."""

from __future__ import annotations

from typing import Annotated

import typer

from calibrant.cli.entry import escape_missing_characters
from studies.cli.bench import bench
from studies.cli.reproduce import reproduce
from studies.cli.search import ablate, sweep
from studies.cli.shell import StudySentences

app = typer.Typer(
    cls=StudySentences,
    help="Reproduce the results of two papers, and compare the methods of Calibrant with others.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
for _group, _name in ((reproduce, "reproduce"), (sweep, "sweep"), (ablate, "ablate"), (bench, "bench")):
    # Without a callback, Typer would drop the command's name in a group that has a single command.
    _group.callback()(lambda: None)
    app.add_typer(_group, name=_name, no_args_is_help=True)


@app.callback()
def _top(debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of every error.")] = False) -> None:
    pass


if __name__ == "__main__":
    escape_missing_characters()
    app(prog_name="python -m studies")
