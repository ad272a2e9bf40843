"""`calibrant reproduce`: the papers' experiments."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from calibrant.cli.options import (
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
    NoisyLabels,
    On,
    Out,
    Recipe,
    Sets,
    Source,
    Sources,
    Training,
)
from calibrant.cli.shell import Experiment, call

reproduce = typer.Typer(help="Run a paper's experiments again: results, tables, figures, one HTML report.")


@reproduce.command("bo4sc", cls=Experiment)
def reproduce_bo4sc(
    seeds: Annotated[int | None, typer.Option(min=1, help="How many seeds; 20, or 3 with --quick.")] = None,
    out: Out = Path("out/bo4sc"),
    quick: Annotated[bool, typer.Option("--quick", help="Few seeds: minutes on two cores.")] = False,
    device: On = Device.auto,
    settings: Annotated[
        Path | None,
        typer.Option(
            exists=True,
            dir_okay=False,
            help="settings.json of `calibrant sweep bo4sc`; by default those that come with the package. If it has "
            "some of the sets only, name these by --sets.",
        ),
    ] = None,
    first_seed: Annotated[int, typer.Option(min=0, help="The first of the seeds.")] = 0,
    methods: Annotated[list[str] | None, typer.Option(help="Ids of methods; all where not given.")] = None,
    sets: Sets = None,
    jobs: Jobs = None,
    fresh: Fresh = False,
    source: Source = None,
) -> None:
    """Table 1 and Figures 1 to 3 of Sanguin et al. 2024, with intervals, noise floors and targets."""
    call(
        "bo4sc.reproduce",
        seeds=seeds,
        out=out,
        quick=quick,
        device=device.value,
        settings=settings,
        first_seed=first_seed,
        methods=methods,
        sets=sets,
        jobs=jobs,
        fresh=fresh,
        source=source,
    )


@reproduce.command("meta-reg", cls=Experiment)
def reproduce_meta_reg(
    dataset: Images = ImageData.cifar10,
    data: Folder = None,
    model: Network = None,
    recipe: Training = Recipe.short,
    methods: Annotated[
        list[str] | None, typer.Option(help="Ids of methods; by default all but those of the paper's Table 3.")
    ] = None,
    seeds: Annotated[
        int | None,
        typer.Option(min=1, help="How many seeds; by default 5 for the methods of the targets and 2 for the others."),
    ] = None,
    epochs: Epochs = None,
    limit: Limit = None,
    noisy_labels: NoisyLabels = None,
    device: On = Device.auto,
    quick: Annotated[
        bool, typer.Option("--quick", help="A few methods on scikit-learn's digits: about a minute on two cores.")
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option(file_okay=False, help="Folder for results, figures and report; by default out/meta-reg-DATASET."),
    ] = None,
    minutes: Minutes = None,
    fresh: Fresh = False,
    shared: Annotated[
        bool, typer.Option("--shared-device", help="Other work runs on the device: leave its times out of comparisons.")
    ] = False,
    export: Export = None,
    source: Sources = None,
) -> None:
    """Tables 1 to 3 and Figures 2 to 5 of the second paper (γ-Net, SECE), its claims, shifted images and targets."""
    if quick and (data is not None or dataset not in (ImageData.cifar10, ImageData.digits)):
        raise typer.BadParameter(
            "it runs on scikit-learn's digits; leave out --dataset and --data.", param_hint="--quick"
        )
    call(
        "meta_reg.reproduce",
        dataset=dataset.value,
        data=data,
        model=model,
        recipe=recipe.value,
        methods=methods or None,
        seeds=seeds,
        epochs=epochs,
        limit=limit,
        noisy_labels=noisy_labels,
        device=device.value,
        quick=quick,
        out=out,
        minutes=minutes,
        fresh=fresh,
        shared=shared,
        export=export,
        source=source or None,
    )
