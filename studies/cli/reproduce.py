"""Commands of `python -m studies reproduce`: the experiments of the two papers."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from calibrant.cli.options import Device, On
from studies.cli.options import (
    Download,
    DryRun,
    Epochs,
    Export,
    FirstSeed,
    Folder,
    Fresh,
    Images,
    Jobs,
    Limit,
    Minutes,
    Network,
    NoisyLabels,
    Out,
    RecipeName,
    Sets,
    Source,
    Sources,
    Training,
)
from studies.cli.shell import experiment

reproduce = typer.Typer(help="Reproduce a paper's experiments, with tables, figures and an HTML report.")


@experiment(reproduce, "bo4sc", "bo4sc.reproduce")
def reproduce_bo4sc(
    seeds: Annotated[int | None, typer.Option(min=1, help="Number of seeds; default: 20, or 3 with --quick.")] = None,
    out: Out = Path("out/bo4sc"),
    quick: Annotated[bool, typer.Option("--quick", help="Few seeds; takes minutes on two cores.")] = False,
    device: On = Device.auto,
    settings: Annotated[
        Path | None,
        typer.Option(
            exists=True,
            dir_okay=False,
            help="settings.json of `python -m studies sweep bo4sc`; default: those of the paper's sets. If the file "
            "lacks some sets, choose the others with --sets.",
        ),
    ] = None,
    first_seed: FirstSeed = 0,
    methods: Annotated[
        list[str] | None, typer.Option(help="Ids of methods; default: all except self-calibrated-pool.")
    ] = None,
    sets: Sets = None,
    jobs: Jobs = None,
    fresh: Fresh = False,
    source: Source = None,
) -> None:
    """Reproduce Table 1 and Figures 1 to 3 of Sanguin et al. 2024, with intervals, noise floors and targets."""


@experiment(reproduce, "meta-reg", "meta_reg.reproduce")
def reproduce_meta_reg(
    dataset: Images = None,
    data: Folder = None,
    download: Download = False,
    model: Network = None,
    recipe: Training = RecipeName.short,
    methods: Annotated[
        list[str] | None, typer.Option(help="Ids of methods; default: all except those of the paper's Table 3.")
    ] = None,
    seeds: Annotated[
        int | None,
        typer.Option(min=1, help="Number of seeds; default: 5 for the methods of the targets, 2 for the others."),
    ] = None,
    epochs: Epochs = None,
    limit: Limit = None,
    noisy_labels: NoisyLabels = None,
    device: On = Device.auto,
    quick: Annotated[
        bool,
        typer.Option(
            "--quick",
            help="A small study: few methods, 2 seeds, 12 epochs, small-cnn. Takes about a minute on two cores for "
            "scikit-learn's digits; with --dataset, uses 2,000 of its training images.",
        ),
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option(file_okay=False, help="Folder for results, figures and report; default: out/meta-reg-DATASET."),
    ] = None,
    minutes: Minutes = None,
    fresh: Fresh = False,
    shared: Annotated[
        bool,
        typer.Option(
            "--shared-device", help="Other programs use the device: leave these training times out of comparisons."
        ),
    ] = False,
    dry_run: DryRun = False,
    export: Export = None,
    source: Sources = None,
) -> None:
    """Reproduce Tables 1 to 3 and Figures 2 to 5 of the second paper (γ-Net, SECE), with claims and targets."""
