"""`calibrant predict`: predict the rows of a table with a trained model."""

from __future__ import annotations

import io
import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer

from calibrant.cli.shell import file_argument, options_for, print_json


def predict(
    ctx: typer.Context,
    model: Annotated[Path, file_argument("MODEL", "model.calibrant, written by `train`.")],
    table: Annotated[Path, file_argument("TABLE", "CSV, TSV or Parquet file.")],
    out: Annotated[
        Path | None,
        typer.Option(help="Output file (.csv, .tsv, .parquet), complete or absent; default: standard output."),
    ] = None,
    keep: Annotated[list[str] | None, typer.Option(help="Columns of the table to copy, such as an id.")] = None,
    set_coverage: Annotated[
        float | None,
        typer.Option(help="Add a set of classes that contains the true class with this probability, e.g. 0.9."),
    ] = None,
    chunk: Annotated[int, typer.Option(min=1, help="Rows in memory at a time.")] = 20_000,
    score: Annotated[
        bool, typer.Option("--score/--no-score", help="Compare with the labels if the table has them.")
    ] = True,
    encoding: Annotated[
        str | None, typer.Option(help="Encoding of a text file; default: that of the training table.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print a summary as JSON; needs --out.")] = False,
) -> None:
    """Predict the rows of a table: class, confidence, a probability for each class, and whether it is withheld.

    Columns are matched by name; columns that the model does not know are ignored. The table is read in pieces, so it
    can be larger than memory. `withheld` is True if the model is not sure enough for the risk it was trained for.

    For example:

    calibrant predict churn/model.calibrant new.csv --out predictions.csv

    calibrant predict churn/model.calibrant new.csv --keep customer --set-coverage 0.9 | head
    """
    from calibrant.base.words import count
    from calibrant.tables import load_model
    from calibrant.tables import predict as predict_table

    if as_json and out is None:
        raise ValueError("--json needs --out FILE, because standard output would hold the predictions; got none.")
    loaded = load_model(model)
    if out is None and isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(encoding="utf-8", errors="strict")  # as in a file, and no value is changed
    target = sys.stdout if out is None else out
    summary = predict_table(**options_for(predict_table, ctx) | {"model": loaded, "out": target})
    sys.stdout.flush()
    if as_json:
        print_json(summary.to_dict() | {"file": str(out)})
        return
    for note in summary.notes:
        typer.echo(f"Note: {note}", err=True)
    if loaded.rule is not None and not loaded.rule.found:
        typer.echo(
            f"Note: all predictions are withheld, because training found no threshold that keeps the share of errors "
            f"below {loaded.rule.target:.3g}. Train again with a larger --risk, or with more rows.",
            err=True,
        )
    text = f"Predicted {count(summary.rows, 'row')}"
    text += "." if summary.withheld is None else f", {summary.withheld:,} of them withheld."
    typer.echo(text if out is None else f"{text} Written: {out}", err=True)
    if summary.labelled:
        accepted = ""
        if summary.withheld and summary.kept:
            accepted = f"; {summary.kept_correct / summary.kept:.1%} of those not withheld"
        typer.echo(
            f"Right on {count(summary.labelled, 'row')} with a label: {summary.accuracy:.1%}{accepted}. "
            f"ECE {summary.ece:.2%}.",
            err=True,
        )
    if summary.labels and summary.labelled == summary.rows and out is not None:  # evaluate needs all labels
        command = shlex.join(["calibrant", "evaluate", str(out), "--labels", summary.labels])
        keeps = loaded.target in (keep or ())
        first = "" if keeps else f" add {shlex.join(['--keep', str(loaded.target)])} to this command, then"
        typer.echo(f"To evaluate the predictions,{first} run: {command}", err=True)
