"""`studies bench`: compare methods on tables."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from calibrant.cli.options import Device, On
from studies.cli.options import (
    Fresh,
    Jobs,
    Out,
    Seeds,
    Source,
)
from studies.cli.shell import experiment

bench = typer.Typer(help="Compare methods on tables.")


@experiment(bench, "tables", "tables.run")
def bench_tables(
    data: Annotated[
        Path | None,
        typer.Option(exists=True, help="Folder of tables (CSV, TSV, Parquet), or one table; needed without --from."),
    ] = None,
    target: Annotated[
        str | None, typer.Option(help="Column of the labels; default: the one called target, class, label or y.")
    ] = None,
    seeds: Seeds = 5,
    only: Annotated[list[str] | None, typer.Option(help="Names of tables; default: all.")] = None,
    methods: Annotated[
        list[str] | None,
        typer.Option(
            help="Ids of methods: those of `calibrant methods`, self-calibrated-network, self-calibrated-former, and "
            "the rivals: sklearn-mlp, hgb, lightgbm and catboost alone; sklearn-, hgb-, lightgbm- and catboost- with "
            "isotonic, sigmoid or temperature; hgb-cross-calibrated; realmlp-temperature. By default all; rivals that "
            "are not installed are skipped."
        ),
    ] = None,
    out: Out = Path("out/tables"),
    device: On = Device.auto,
    jobs: Jobs = None,
    fresh: Fresh = False,
    costs: Annotated[
        bool,
        typer.Option(
            "--costs",
            help="Measure seconds and memory of single fits instead of scores, on two threads and one split of each "
            "table; default methods: self-calibrated, self-calibrated-former and hgb-temperature.",
        ),
    ] = False,
    source: Source = None,
) -> None:
    """Compare every method on every table of a folder, on 60/20/20 splits: scores, ranks and paired differences.

    Results in --out are reused unless the table, the method's settings or its code changed.

    For example:

    python -m studies bench tables --data churn.csv --target churn --methods self-calibrated hgb --seeds 3
    """
    if data is None and source is None:
        raise typer.BadParameter("Give a folder of tables, or a result file with --from.", param_hint="--data")
