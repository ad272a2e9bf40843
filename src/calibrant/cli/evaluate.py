"""`calibrant evaluate`: test whether the predictions of any model are calibrated."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from calibrant.cli.options import Decimal, Encoding
from calibrant.cli.shell import file_argument, notes_printed, options_for, print_json

Files = Annotated[list[Path], file_argument("PREDICTIONS", "Files of predictions: CSV, TSV, Parquet, npz or npy.")]
Labels = Annotated[
    str | None,
    typer.Option(help="Column with the true classes, or a file of them; default: found by its name (label, y, …)."),
]
Columns = Annotated[
    list[str] | None,
    typer.Option(help="Columns of the predictions, in the order of the classes; default: found by their names."),
]
AsLogits = Annotated[bool, typer.Option("--logits", help="The predictions are logits, not probabilities.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print only JSON.")]
Positive = Annotated[str | None, typer.Option(help="For a single score column: the label whose probability it is.")]


def evaluate(
    ctx: typer.Context,
    predictions: Files,
    labels: Labels = None,
    group: Annotated[str | None, typer.Option(help="Column with groups; each is evaluated separately.")] = None,
    weight: Annotated[
        str | None, typer.Option(help="Column with positive weights of the rows, for all scores and differences.")
    ] = None,
    columns: Columns = None,
    logits: AsLogits = False,
    positive: Positive = None,
    decimal: Decimal = ".",
    encoding: Encoding = "utf-8",
    recalibrate: Annotated[
        str | None,
        typer.Option(
            metavar="METHOD",
            help="Fit this calibrator (temperature, vector, …, auto) to half of the rows and report on the other half.",
        ),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Write the report page to this HTML file.")] = None,
    rows: Annotated[
        bool, typer.Option("--rows/--no-rows", help="Show the other columns of the most confident mistakes.")
    ] = True,
    as_json: AsJson = False,
    title: Annotated[str, typer.Option(help="Title of the page.")] = "Calibration report",
    level: Annotated[float, typer.Option(min=0.5, max=0.999, help="Level of intervals and bounds.")] = 0.95,
    bins: Annotated[int, typer.Option(min=1, help="Number of bins of ECE and MCE.")] = 15,
    seed: Annotated[int, typer.Option(min=0, help="Seed of noise floors and of the split of --recalibrate.")] = 0,
) -> None:
    """Is a model calibrated? Evaluate its predictions on rows that it was not trained on.

    A file has one row per prediction, with the columns prob_<class> (or logit_<class>, or a single column score) and
    label, or with confidence and correct, or with predicted, confidence and label. An npy file holds a matrix of
    probabilities or logits; its labels are in a file of their own. Several files of the same rows are compared by
    paired differences.

    For example:

    calibrant evaluate predictions.csv --out report.html

    calibrant evaluate old.csv new.csv --labels churn --group country

    calibrant evaluate logits.npy --logits --labels labels.npy --recalibrate auto --json
    """
    from calibrant.posthoc.registry import check_calibrator
    from calibrant.report.evaluation.files import read_predictions
    from calibrant.report.evaluation.judging import judge_files

    if out is not None:
        from calibrant.report.template import need_jinja

        need_jinja()
    if recalibrate is not None:
        check_calibrator(recalibrate, "--recalibrate")
    with notes_printed():
        files = [read_predictions(path, **options_for(read_predictions, ctx)) for path in predictions]
    with notes_printed():
        result, fitted = judge_files(files, **options_for(judge_files, ctx))
    choices = {name: calibrator.choice_ for name, calibrator in fitted.items() if hasattr(calibrator, "choice_")}
    if out is not None:  # before anything is printed, because the reader of standard output may stop reading
        card = {"predictions": ", ".join(path.name for path in predictions)}
        if recalibrate is not None:
            card["recalibrated"] = f"{recalibrate}, fitted to {len(files[0]) - len(files[0]) // 2:,} other rows"
            card |= {f"chosen for {name}": choice for name, choice in choices.items()}
        result.to_html(out, rows=rows, title=title, card=card)
    if as_json:
        content = result.to_dict(rows=rows)
        if choices:
            content["chosen"] = choices
        print_json(content)
        return
    typer.echo(str(result))
    for name, choice in choices.items():
        typer.echo(f"\nChosen for {name}: {choice}")
    if out is not None:
        typer.echo(f"\nWritten: {out}")
