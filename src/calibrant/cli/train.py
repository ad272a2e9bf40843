"""`calibrant train`: train a calibrated classifier on a table, score it and write a report."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

from calibrant.cli.evaluate import AsJson
from calibrant.cli.options import Decimal, Device, Encoding, On, Thousands
from calibrant.cli.shell import file_argument, options_for, print_json


def train(
    ctx: typer.Context,
    table: Annotated[Path, file_argument("TABLE", "CSV, TSV or Parquet file.")],
    target: Annotated[str, typer.Option(help="Column with the classes to predict.", show_default=False)],
    out: Annotated[Path, typer.Option(help="Folder for model, scores and report.", show_default=False)],
    method: Annotated[
        str, typer.Option(help="self-calibrated, self-calibrated-network (only its networks) or bo4sc.")
    ] = "self-calibrated",
    test: Annotated[
        str, typer.Option(help="Rows that the model is tested on: a share of the table, or a file.")
    ] = "0.2",
    val: Annotated[
        Path | None,
        typer.Option(help="File of validation rows, with more reliable labels than the others.", show_default=False),
    ] = None,
    groups: Annotated[
        str | None, typer.Option(help="Column of groups, such as patients; a group is never split between parts.")
    ] = None,
    test_overlap: Annotated[
        bool, typer.Option("--test-overlap", help="Accept test rows of groups that are also in training.")
    ] = False,
    time: Annotated[
        str | None,
        typer.Option(help="Column of dates or numbers, not used as an input; the newest rows are the test part."),
    ] = None,
    weight: Annotated[
        str | None, typer.Option(help="Column of weights of the rows, for training and scores. Not an input.")
    ] = None,
    drop: Annotated[list[str] | None, typer.Option(help="Columns to leave out.")] = None,
    categorical: Annotated[
        list[str] | None, typer.Option(help="Columns whose numbers are codes, not quantities.")
    ] = None,
    text: Annotated[
        list[str] | None, typer.Option(help="Columns of free text that are not recognised as such.")
    ] = None,
    decimal: Decimal = ".",
    thousands: Thousands = "",
    dates: Annotated[
        list[str] | None, typer.Option(help="Formats of dates, such as %d.%m.%Y; 2024-12-31 needs none.")
    ] = None,
    encoding: Encoding = "utf-8",
    risk: Annotated[
        float, typer.Option(help="Withhold uncertain predictions, so that at most this share of the others is wrong.")
    ] = 0.05,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the split and of training.")] = 0,
    device: On = Device.auto,
    rows: Annotated[
        bool, typer.Option("--rows/--no-rows", help="Show values of the table in the report and in suspects.csv.")
    ] = True,
    as_json: AsJson = False,
) -> None:
    """Train a calibrated classifier on a table and test it on held-out rows.

    The command writes model.calibrant (for `calibrant predict`), report.html, metrics.json, predictions.csv (the
    held-out rows) and suspects.csv (training rows whose label is doubtful) to the folder.

    For example:

    calibrant train churn.csv --target churn --out churn

    calibrant train visits.parquet --target diagnosis --groups patient --drop visit_id --risk 0.02 --out visits
    """
    from calibrant.base.words import duration
    from calibrant.tables import Order
    from calibrant.tables import train as train_on
    from calibrant.tables.results import doubtful

    order = Order(**options_for(Order, ctx))
    try:
        result = train_on(order, lambda line: typer.echo(line, err=True), show_progress=True)
    except KeyboardInterrupt:
        typer.echo("Interrupted. The results are not complete; run the same command again.", err=True)
        raise typer.Exit(130) from None
    if as_json:
        print_json(result.metrics)
        return
    metrics = result.metrics
    typer.echo(f"\nOn {metrics['data']['rows']['test']:,} held-out rows:\n{result.evaluation}\n")
    rule = metrics["rule"]
    if not rule["found"]:
        typer.echo(
            f"All predictions are withheld: no threshold is sure to keep the share of errors below {risk:.3g}. Use a "
            "larger --risk, or more rows."
        )
    else:
        typer.echo(rule["summary"])
        errors = rule["test_errors_among_kept"]
        wrong = "" if errors is None else f", {errors:.1%} of them wrong"
        typer.echo(f"Of the held-out rows {rule['test_kept']:.1%} are kept{wrong}.")
    if about := doubtful(metrics):
        typer.echo(about)
    typer.echo(f"\nTrained in {duration(metrics['seconds']['training'])}. Written: {out / 'report.html'}")
    typer.echo(f"Predict other tables: {shlex.join(['calibrant', 'predict', str(out / 'model.calibrant')])} TABLE")
