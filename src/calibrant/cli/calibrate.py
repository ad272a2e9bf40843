"""`calibrant calibrate` and `calibrant apply`: fit a calibrator to the predictions of any model, and apply it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from calibrant.cli.evaluate import AsJson, AsLogits, Columns, Labels, Positive
from calibrant.cli.options import Decimal, Encoding
from calibrant.cli.shell import file_argument, notes_printed, options_for, print_json


def calibrate(
    ctx: typer.Context,
    predictions: Annotated[Path, file_argument("PREDICTIONS", "File of predictions with labels.")],
    out: Annotated[Path, typer.Option(help="Write the calibrator to this file.", readable=False, show_default=False)],
    method: Annotated[
        str, typer.Option(help="A calibrator (temperature, vector, …), or auto for the best one.")
    ] = "auto",
    labels: Labels = None,
    columns: Columns = None,
    logits: AsLogits = False,
    positive: Positive = None,
    decimal: Decimal = ".",
    encoding: Encoding = "utf-8",
    as_json: AsJson = False,
) -> None:
    """Fit a calibrator to a file of predictions; `calibrant apply` applies it to other files.

    Use rows that the model was not trained on. The method auto compares all calibrators by cross-validation, prints
    their scores, and keeps the predictions unchanged if no calibrator is clearly better.

    For example:

    calibrant calibrate validation.csv --out model.calibrator

    calibrant calibrate validation.csv --method temperature --labels churn --out model.calibrator
    """
    from calibrant.base.atomic_write import whole_file
    from calibrant.posthoc import Auto, save_calibrator
    from calibrant.posthoc.registry import check_calibrator
    from calibrant.report.evaluation.files import read_predictions
    from calibrant.report.evaluation.judging import fit_file
    from calibrant.report.provenance import as_json as plain

    check_calibrator(method, "--method")
    with notes_printed():
        file = read_predictions(predictions, **options_for(read_predictions, ctx))
    with whole_file(out) as unfinished:
        calibrator = fit_file(file, method, positive)
        save_calibrator(calibrator, unfinished)
    if as_json:
        content: dict[str, Any] = {"method": method, "rows": len(file), "file": str(out)}
        if isinstance(calibrator, Auto):
            content |= {"chosen": calibrator.choice_, "compared": plain(calibrator.comparison_)}
        print_json(content)
        return
    if isinstance(calibrator, Auto):
        typer.echo(calibrator.summary())
        typer.echo(f"Chosen: {calibrator.choice_}")
    typer.echo(f"Fitted to {len(file):,} rows. Written: {out}")


def apply(
    ctx: typer.Context,
    calibrator: Annotated[Path, file_argument("CALIBRATOR", "File written by `calibrant calibrate`.")],
    predictions: Annotated[Path, file_argument("PREDICTIONS", "File of predictions.")],
    out: Annotated[
        Path,
        typer.Option(help="Output file: .csv, .tsv, .parquet or .npz.", readable=False, show_default=False),
    ],
    columns: Columns = None,
    logits: AsLogits = False,
    decimal: Decimal = ".",
    encoding: Encoding = "utf-8",
    as_json: AsJson = False,
) -> None:
    """Calibrate a file of predictions: write its columns, and prob_<class>, predicted and confidence.

    The raw predictions are kept as raw_prob_<class>, raw_logit_<class> or confidence_raw.

    For example:

    calibrant apply model.calibrator new.csv --out calibrated.csv
    """
    from calibrant.posthoc import load_calibrator
    from calibrant.report.evaluation.applying import apply_file
    from calibrant.report.evaluation.files import read_predictions

    fitted = load_calibrator(calibrator)
    with notes_printed():
        file = read_predictions(predictions, need_labels=False, **options_for(read_predictions, ctx))
    apply_file(fitted, file, out)
    if as_json:
        print_json({"rows": len(file), "file": str(out)})
        return
    typer.echo(f"Calibrated {len(file):,} rows. Written: {out}")
