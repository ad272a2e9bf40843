"""Options that several commands share, with their help texts."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer


class Criterion(StrEnum):
    """The score that a search minimises."""

    bce = "bce"
    nll = "nll"
    ece10 = "ece10"


class ImageData(StrEnum):
    """Image data sets of the second paper's study."""

    cifar10 = "cifar10"
    cifar100 = "cifar100"
    tiny_imagenet = "tiny-imagenet"
    fashion_mnist = "fashion-mnist"
    digits = "digits"
    cifar10n_worse = "cifar10n-worse"
    cifar10n_aggregate = "cifar10n-aggregate"
    cifar10n_random = "cifar10n-random"


class RecipeName(StrEnum):
    """Training recipes for image networks."""

    short = "short"
    paper = "paper"


Seeds = Annotated[int, typer.Option(min=1, help="Number of seeds, starting at 0.")]
FirstSeed = Annotated[int, typer.Option(min=0, help="The first seed.")]
Out = Annotated[Path, typer.Option(file_okay=False, help="Folder for results, figures and report.")]
Sets = Annotated[list[str] | None, typer.Option(help="Names of synthetic sets; default: all five.")]
Source = Annotated[
    Path | None,
    typer.Option(
        "--from",
        exists=True,
        dir_okay=False,
        help="Make the report from this result file or store (results.json, results.jsonl) of the same command, "
        "without training. Combine it only with --out.",
    ),
]
Jobs = Annotated[
    int | None,
    typer.Option(min=1, help="Number of processes at the same time; default: one, or more with a GPU."),
]
Fresh = Annotated[
    bool, typer.Option("--fresh", help="Repeat runs that --out already holds; default: make only the missing runs.")
]

Images = Annotated[
    ImageData | None,
    typer.Option(
        help="Image data set; digits come with scikit-learn and need no --data. Default: cifar10, or digits with "
        "--quick and no --data."
    ),
]
Folder = Annotated[
    Path | None,
    typer.Option(
        file_okay=False, help="Folder with the files of the data set, in any common layout or as downloaded archives."
    ),
]
Download = Annotated[
    bool, typer.Option("--download", help="Download the published files into --data if they are not there.")
]
NoisyLabels = Annotated[
    Path | None,
    typer.Option(
        exists=True,
        dir_okay=False,
        help="For the data sets cifar10n-…: an .npz file with the labels of CIFAR-10N (worse_label …). --data must "
        "hold the images of CIFAR-10.",
    ),
]
Network = Annotated[
    str | None,
    typer.Option(help="resnet18, resnet50, wide-resnet or small-cnn; the default depends on the data set."),
]
Training = Annotated[
    RecipeName,
    typer.Option(help="short: 30 epochs, one-cycle. paper: 350 epochs, weights of lowest validation error."),
]
Epochs = Annotated[int | None, typer.Option(min=1, help="Epochs; default: those of the recipe.")]
Limit = Annotated[
    int | None,
    typer.Option(
        min=1,
        help="Number of training images, in proportion to the classes, with a fifth as many test images. Up to 10,000 "
        "images, the defaults are those of a small study: few methods, 2 seeds, 15 epochs.",
    ),
]
Export = Annotated[
    Path | None,
    typer.Option(dir_okay=False, help="Also write the results to this file, such as results/meta-reg-cifar10.json."),
]
Minutes = Annotated[
    float | None, typer.Option(min=0.0, help="Stop after this many minutes; run the same command again to continue.")
]
Sources = Annotated[
    list[Path] | None,
    typer.Option(
        "--from",
        exists=True,
        dir_okay=False,
        help="Make the report from these result files or stores, of one or several data sets, without training. "
        "Combine it only with --out and --export.",
    ),
]
DryRun = Annotated[
    bool,
    typer.Option(
        "--dry-run",
        help="List the runs of this command as done or missing, and exit. Nothing is trained, downloaded or written. "
        "Stored runs are looked up in --out, or in the files of --from.",
    ),
]
