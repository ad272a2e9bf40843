"""`studies bench`: compare methods on tables, networks, wrong labels and difficult data, and test guarantees."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from calibrant.cli.options import Device, On
from studies.cli.options import (
    FirstSeed,
    Fresh,
    Jobs,
    Out,
    Seeds,
    Source,
)
from studies.cli.shell import experiment

bench = typer.Typer(help="Compare methods on tables, networks, wrong labels and difficult data; test guarantees.")


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


@experiment(bench, "noise", "label_noise.run")
def bench_noise(
    rates: Annotated[
        list[float] | None,
        typer.Option(min=0.0, max=1.0, help="Shares of flipped training labels; default: 0.2 0.4."),
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, help="Number of seeds, starting at --first-seed.")] = 20,
    first_seed: FirstSeed = 0,
    methods: Annotated[
        list[str] | None, typer.Option(help="Ids of methods; default: all except self-calibrated-pool.")
    ] = None,
    out: Out = Path("out/noise"),
    device: On = Device.auto,
    jobs: Jobs = None,
    fresh: Fresh = False,
    source: Source = None,
) -> dict[str, Any]:
    """Compare methods on the five synthetic sets with flipped training labels and clean validation labels.

    The targets are for four of the sets. The fifth, bac, is shown only: its inputs determine its labels.
    """
    return {"rates": rates or [0.2, 0.4]}


@experiment(bench, "hostile", "hostile.run")
def bench_hostile(
    seeds: Seeds = 5,
    only: Annotated[list[str] | None, typer.Option(help="Names of cases; default: all.")] = None,
    methods: Annotated[list[str] | None, typer.Option(help="Ids of contenders; default: all.")] = None,
    before: Annotated[
        Path | None,
        typer.Option(
            exists=True, file_okay=False, help="The src folder of an earlier version, to measure it as `before`."
        ),
    ] = None,
    out: Out = Path("out/hostile"),
    jobs: Jobs = None,
    fresh: Fresh = False,
    source: Source = None,
) -> None:
    """Test the default classifier on copies, groups, noise, outliers, few rows, and many columns or classes.

    It is compared with the class frequencies, each member of its pool alone, and scikit-learn's classifiers.
    """


@experiment(bench, "guarantees", "guarantees.run")
def bench_guarantees(
    seeds: Annotated[int, typer.Option(min=1, help="Number of data sets for each fast learner and set.")] = 200,
    network_seeds: Annotated[
        int, typer.Option(min=1, help="Number of data sets for the self-calibrated classifier on each set.")
    ] = 15,
    learners: Annotated[
        list[str] | None,
        typer.Option(help="Some of logistic, neighbours, tree and self-calibrated; default: all."),
    ] = None,
    out: Out = Path("out/guarantees"),
    jobs: Jobs = None,
    fresh: Fresh = False,
    source: Source = None,
) -> None:
    """Measure how often rejection rules and prediction sets keep their guarantees, on sets with a known posterior."""


@experiment(bench, "networks", "networks.run")
def bench_networks(
    seeds: Seeds = 5,
    only: Annotated[
        list[str] | None, typer.Option(help="Some of digits, languages, reviews and table; default: all.")
    ] = None,
    starts: Annotated[list[str] | None, typer.Option(help="scratch or tuned; default: all.")] = None,
    out: Out = Path("out/networks"),
    jobs: Jobs = None,
    fresh: Fresh = False,
    source: Source = None,
) -> None:
    """Compare `calibrant.fit` with plain training in the same time, on a CNN, LSTM, transformer and tabular network.

    Each network is trained from scratch on few samples, and fine-tuned after a related task. The report
    has paired differences of NLL.
    """
