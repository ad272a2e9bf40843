"""`calibrant sweep` and `calibrant ablate`: settings and variants compared."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from calibrant.cli.options import (
    Criterion,
    Device,
    Epochs,
    Export,
    Folder,
    Fresh,
    ImageData,
    Images,
    Jobs,
    Limit,
    Minutes,
    Network,
    On,
    Out,
    Recipe,
    Seeds,
    Sets,
    Source,
    Sources,
    Training,
)
from calibrant.cli.shell import Experiment, call

sweep = typer.Typer(help="Search a grid of settings, judged on the validation split only.")
ablate = typer.Typer(help="Compare a method's variants.")


@sweep.command("bo4sc", cls=Experiment)
def sweep_bo4sc(
    steps: Annotated[list[int] | None, typer.Option(min=1, help="T, inner steps under one hypergradient.")] = None,
    weight_lr: Annotated[list[float] | None, typer.Option(help="η_w, step size of the sample weights.")] = None,
    alpha: Annotated[list[float] | None, typer.Option(help="α of the smooth maximum.")] = None,
    width: Annotated[list[int] | None, typer.Option(min=1, help="Hidden units of each layer.")] = None,
    epochs: Annotated[list[int] | None, typer.Option(min=1, help="Epochs of training.")] = None,
    lr: Annotated[list[float] | None, typer.Option(help="Learning rate of the network.")] = None,
    sets: Sets = None,
    criterion: Annotated[
        Criterion, typer.Option(help="What the chosen setting has the least of, on points that moved no weights.")
    ] = Criterion.bce,
    seeds: Annotated[int, typer.Option(min=1, help="How many seeds, counted from 10,000.")] = 3,
    out: Out = Path("out/bo4sc-grid"),
    device: On = Device.auto,
    jobs: Jobs = None,
    fresh: Fresh = False,
    source: Source = None,
) -> None:
    """The grid search of Sanguin et al. 2024: every combination of the values given.

    Each option takes several values, `--steps 5 10 20`; one that is not given keeps the experiment's own grid, which is
    for a GPU. The choice is written as settings.json, for `calibrant reproduce bo4sc --settings`; with --from too.
    """
    given = {"steps": steps, "weight_lr": weight_lr, "alpha": alpha, "width": width, "epochs": epochs, "lr": lr}
    grid = {name: values for name, values in given.items() if values}
    call(
        "bo4sc.grid.run",
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


@sweep.command("meta-reg", cls=Experiment)
def sweep_meta_reg(
    bandwidth: Annotated[list[float] | None, typer.Option(help="h, the bandwidth of SECE in flg-sece.")] = None,
    tau: Annotated[list[float] | None, typer.Option(help="τ of the published γ-Net.")] = None,
    meta_rate: Annotated[list[float] | None, typer.Option(help="Multiples of flg-sece's meta rate.")] = None,
    dataset: Images = ImageData.cifar10,
    data: Folder = None,
    model: Network = None,
    recipe: Training = Recipe.short,
    seeds: Annotated[int | None, typer.Option(min=1, help="How many seeds; 2, or 1 with --quick.")] = None,
    epochs: Epochs = None,
    limit: Limit = None,
    device: On = Device.auto,
    quick: Annotated[
        bool, typer.Option("--quick", help="On some of scikit-learn's digits: about a minute on two cores.")
    ] = False,
    out: Out = Path("out/meta-reg-sweep"),
    minutes: Minutes = None,
    fresh: Fresh = False,
    export: Export = None,
    source: Sources = None,
) -> None:
    """Settings of the second paper's method, one at a time: h, τ and the meta rate, judged on validation data.

    Each of the three options takes several values, `--tau 0.001 0.1`; one that is not given keeps the study's own.
    """
    call(
        "meta_reg.sweep",
        bandwidths=bandwidth or None,
        temperatures=tau or None,
        rates=meta_rate or None,
        dataset=dataset.value,
        data=data,
        model=model,
        recipe=recipe.value,
        seeds=seeds,
        epochs=epochs,
        limit=limit,
        device=device.value,
        quick=quick,
        out=out,
        minutes=minutes,
        fresh=fresh,
        export=export,
        source=source or None,
    )


@ablate.command("bo4sc", cls=Experiment)
def ablate_bo4sc(
    seeds: Seeds = 20,
    out: Out = Path("out/bo4sc-ablation"),
    device: On = Device.auto,
    jobs: Jobs = None,
    fresh: Fresh = False,
    source: Source = None,
) -> None:
    """BO4SC's variants (hypergradients, outer losses, weights, other outer variables) and self-calibrated's parts."""
    call("bo4sc.ablation.run", seeds=seeds, out=out, device=device.value, jobs=jobs, fresh=fresh, source=source)


@ablate.command("tables", cls=Experiment)
def ablate_tables(
    data: Annotated[
        Path | None,
        typer.Option(exists=True, file_okay=False, help="Folder of tables (CSV, TSV, Parquet); needed without --from."),
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, help="How many splits, counted from 100.")] = 2,
    rows: Annotated[int, typer.Option(min=1, help="The most rows of a table that are trained on.")] = 3000,
    only: Annotated[list[str] | None, typer.Option(help="Names of tables; the development tables by default.")] = None,
    methods: Annotated[list[str] | None, typer.Option(help="Names of variants; all where not given.")] = None,
    out: Out = Path("out/tables-ablation"),
    device: On = Device.auto,
    jobs: Jobs = None,
    fresh: Fresh = False,
    source: Source = None,
) -> None:
    """Networks of self-calibrated with and without embedded columns, on development data: NLL and time."""
    if data is None and source is None:
        raise typer.BadParameter("give a folder of tables, or a result file by --from.", param_hint="--data")
    call(
        "tables.ablation.run",
        data=data,
        seeds=seeds,
        rows=rows,
        only=only or None,
        methods=methods or None,
        out=out,
        device=device.value,
        jobs=jobs,
        fresh=fresh,
        source=source,
    )


@ablate.command("meta-reg", cls=Experiment)
def ablate_meta_reg(
    dataset: Images = ImageData.cifar10,
    data: Folder = None,
    model: Network = None,
    recipe: Training = Recipe.short,
    seeds: Seeds = 3,
    epochs: Epochs = None,
    limit: Limit = None,
    device: On = Device.auto,
    out: Out = Path("out/meta-reg-ablation"),
    minutes: Minutes = None,
    fresh: Fresh = False,
    export: Export = None,
    source: Sources = None,
) -> None:
    """Variants of the second paper's methods: φ, outer loss, hypergradient, meta rate, moving average, positive γ."""
    call(
        "meta_reg.ablate",
        dataset=dataset.value,
        data=data,
        model=model,
        recipe=recipe.value,
        seeds=seeds,
        epochs=epochs,
        limit=limit,
        device=device.value,
        out=out,
        minutes=minutes,
        fresh=fresh,
        export=export,
        source=source or None,
    )
