"""Commands of `python -m studies sweep` and `python -m studies ablate`: compare settings and variants of methods."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from calibrant.cli.options import Device, On
from studies.cli.options import (
    Criterion,
    Download,
    DryRun,
    Epochs,
    Export,
    Folder,
    Fresh,
    Images,
    Jobs,
    Limit,
    Minutes,
    Network,
    Out,
    RecipeName,
    Seeds,
    Sets,
    Source,
    Sources,
    Training,
)
from studies.cli.shell import Experiment, call, experiment

sweep = typer.Typer(help="Search for settings on validation data.")
ablate = typer.Typer(help="Compare variants of a method.")


@sweep.command("bo4sc", cls=Experiment)
def sweep_bo4sc(
    steps: Annotated[list[int] | None, typer.Option(min=1, help="T, inner steps per hypergradient.")] = None,
    outer_learning_rate: Annotated[
        list[float] | None, typer.Option("--outer-learning-rate", "--weight-lr", help="η_w, of the sample weights.")
    ] = None,
    alpha: Annotated[list[float] | None, typer.Option(help="α of the smooth maximum.")] = None,
    width: Annotated[list[int] | None, typer.Option(min=1, help="Hidden units per layer.")] = None,
    epochs: Annotated[list[int] | None, typer.Option(min=1, help="Training epochs.")] = None,
    learning_rate: Annotated[
        list[float] | None, typer.Option("--learning-rate", "--lr", help="η_θ, of the network.")
    ] = None,
    sets: Sets = None,
    criterion: Annotated[
        Criterion, typer.Option(help="Score that the chosen setting minimises, on points that do not move the weights.")
    ] = Criterion.bce,
    seeds: Annotated[int, typer.Option(min=1, help="Number of seeds, starting at 10,000.")] = 3,
    out: Out = Path("out/bo4sc-grid"),
    device: On = Device.auto,
    jobs: Jobs = None,
    fresh: Fresh = False,
    source: Source = None,
    dry_run: DryRun = False,
) -> None:
    """Run the grid search of Sanguin et al. 2024 over all combinations of the given values.

    Each option takes several values, such as `--steps 5 10 20`. Options that are not given keep the default grid, which
    needs a GPU. The chosen settings are written to settings.json (also with --from), for
    `python -m studies reproduce bo4sc --settings`.
    """
    given = {
        "steps": steps,
        "outer_learning_rate": outer_learning_rate,
        "alpha": alpha,
        "width": width,
        "epochs": epochs,
        "learning_rate": learning_rate,
    }
    grid = {name: values for name, values in given.items() if values}
    call(
        "bo4sc.grid.run",
        listing=dry_run,
        grid=grid,
        seeds=seeds,
        out=out,
        device=device.value,
        sets=sets,
        criterion=criterion.value,
        jobs=jobs,
        fresh=fresh,
        source=source,
    )


@experiment(sweep, "meta-reg", "meta_reg.sweep")
def sweep_meta_reg(
    bandwidths: Annotated[
        list[float] | None, typer.Option("--bandwidth", help="h, the bandwidth of SECE in flg-sece.")
    ] = None,
    temperatures: Annotated[list[float] | None, typer.Option("--tau", help="τ of the published γ-Net.")] = None,
    rates: Annotated[
        list[float] | None,
        typer.Option("--outer-learning-rate", "--meta-rate", help="Multiples of flg-sece's outer learning rate."),
    ] = None,
    strengths: Annotated[
        list[float] | None,
        typer.Option("--strength", help="Strength of SECE beside cross-entropy in flg-sece's outer loss."),
    ] = None,
    dataset: Images = None,
    data: Folder = None,
    download: Download = False,
    model: Network = None,
    recipe: Training = RecipeName.short,
    seeds: Annotated[int | None, typer.Option(min=1, help="Number of seeds; default: 2, or 1 with --quick.")] = None,
    epochs: Epochs = None,
    limit: Limit = None,
    device: On = Device.auto,
    quick: Annotated[
        bool,
        typer.Option(
            "--quick",
            help="3 epochs of small-cnn on 600 of scikit-learn's digits, which takes about a minute on two cores. "
            "With --dataset, uses 2,000 of its training images.",
        ),
    ] = False,
    out: Out = Path("out/meta-reg-sweep"),
    minutes: Minutes = None,
    fresh: Fresh = False,
    dry_run: DryRun = False,
    export: Export = None,
    source: Sources = None,
) -> None:
    """Search settings of the second paper's method, on validation data: h, τ, outer learning rate, strength.

    Each of these four options takes several values, such as `--tau 0.001 0.1`. Options that are not given keep their
    default values.
    """


@experiment(ablate, "bo4sc", "bo4sc.ablation.run")
def ablate_bo4sc(
    seeds: Seeds = 20,
    out: Out = Path("out/bo4sc-ablation"),
    device: On = Device.auto,
    jobs: Jobs = None,
    fresh: Fresh = False,
    source: Source = None,
) -> None:
    """Compare variants of BO4SC (hypergradient, outer loss, weights, outer variables) and of self-calibrated."""


@experiment(ablate, "tables", "tables.ablation.run")
def ablate_tables(
    data: Annotated[
        Path | None,
        typer.Option(
            exists=True, file_okay=False, help="Folder of tables (CSV, TSV, Parquet); required without --from."
        ),
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, help="Number of splits, with seeds from 100.")] = 2,
    rows: Annotated[int, typer.Option(min=1, help="Maximum number of training rows per table.")] = 3000,
    only: Annotated[list[str] | None, typer.Option(help="Names of tables; default: the development tables.")] = None,
    methods: Annotated[list[str] | None, typer.Option(help="Names of variants; default: all.")] = None,
    out: Out = Path("out/tables-ablation"),
    device: On = Device.auto,
    jobs: Jobs = None,
    fresh: Fresh = False,
    source: Source = None,
) -> None:
    """Compare networks of self-calibrated with and without embedded columns, on development data: NLL and time."""
    if data is None and source is None:
        raise typer.BadParameter("Give a folder of tables, or a result file with --from.", param_hint="--data")


@experiment(ablate, "meta-reg", "meta_reg.ablate")
def ablate_meta_reg(
    dataset: Images = None,
    data: Folder = None,
    download: Download = False,
    model: Network = None,
    recipe: Training = RecipeName.short,
    seeds: Annotated[int | None, typer.Option(min=1, help="Number of seeds; default: 3, or 1 with --quick.")] = None,
    epochs: Epochs = None,
    limit: Limit = None,
    device: On = Device.auto,
    quick: Annotated[
        bool,
        typer.Option(
            "--quick",
            help="3 epochs of small-cnn on 600 of scikit-learn's digits, which takes a few minutes on two cores. "
            "With --dataset, uses 2,000 of its training images.",
        ),
    ] = False,
    out: Out = Path("out/meta-reg-ablation"),
    minutes: Minutes = None,
    fresh: Fresh = False,
    dry_run: DryRun = False,
    export: Export = None,
    source: Sources = None,
) -> None:
    """Compare variants of the second paper's methods: φ, outer loss and rate, hypergradient, moving average, γ."""
