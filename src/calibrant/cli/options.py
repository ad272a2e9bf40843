"""Options that several commands share."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer


class Device(StrEnum):
    """Where to compute."""

    auto = "auto"
    cpu = "cpu"
    cuda = "cuda"


class Criterion(StrEnum):
    """What is least at the setting that a search chooses."""

    bce = "bce"
    nll = "nll"
    ece10 = "ece10"


class ImageData(StrEnum):
    """Images of the second paper's study."""

    cifar10 = "cifar10"
    cifar100 = "cifar100"
    tiny_imagenet = "tiny-imagenet"
    fashion_mnist = "fashion-mnist"
    digits = "digits"
    cifar10n_worse = "cifar10n-worse"
    cifar10n_aggregate = "cifar10n-aggregate"
    cifar10n_random = "cifar10n-random"


class Recipe(StrEnum):
    """How image networks are trained."""

    short = "short"
    paper = "paper"


Seeds = Annotated[int, typer.Option(min=1, help="How many seeds, counted from 0.")]
Out = Annotated[Path, typer.Option(file_okay=False, help="Folder for results, figures and report.")]
Sets = Annotated[list[str] | None, typer.Option(help="Names of synthetic sets; all five where not given.")]
On = Annotated[Device, typer.Option(help="Where to compute; auto takes a GPU where there is one.")]
Source = Annotated[
    Path | None,
    typer.Option(
        "--from",
        exists=True,
        dir_okay=False,
        help="Make the report from this result file or store (results.json, results.jsonl) of the same command; train "
        "nothing. Only --out goes with it.",
    ),
]
Jobs = Annotated[
    int | None,
    typer.Option(min=1, help="How many processes work at the same time; by default one, and more beside a GPU."),
]
Fresh = Annotated[
    bool, typer.Option("--fresh", help="Run again what --out holds already; by default only missing runs are done.")
]

Images = Annotated[ImageData, typer.Option(help="The images; digits come with scikit-learn and need no --data.")]
Folder = Annotated[
    Path | None,
    typer.Option(exists=True, file_okay=False, help="Folder with the files of the data set, in any usual layout."),
]
NoisyLabels = Annotated[
    Path | None,
    typer.Option(
        exists=True,
        dir_okay=False,
        help="For the data sets cifar10n-…: an .npz file with the labels of CIFAR-10N (worse_label …); --data has the "
        "images of CIFAR-10.",
    ),
]
Network = Annotated[
    str | None,
    typer.Option(help="resnet18, resnet50, wide-resnet or small-cnn; by default the one of the data set."),
]
Training = Annotated[
    Recipe, typer.Option(help="short: 30 epochs, one-cycle. paper: 350 epochs, the state of least validation error.")
]
Epochs = Annotated[int | None, typer.Option(min=1, help="Epochs; by default the recipe's.")]
Limit = Annotated[
    int | None,
    typer.Option(
        min=1,
        help="Take so many training images, every class in proportion, and a fifth as many test images. Up to 10,000 "
        "mean a small study: by default few methods, 2 seeds, 6 epochs.",
    ),
]
Export = Annotated[
    Path | None,
    typer.Option(dir_okay=False, help="Write the results into this file as well, results/meta-reg-cifar10.json say."),
]
Minutes = Annotated[
    float | None, typer.Option(min=0.0, help="Stop after so many minutes; the same command goes on later.")
]
Sources = Annotated[
    list[Path] | None,
    typer.Option(
        "--from",
        exists=True,
        dir_okay=False,
        help="Make the report from these result files or stores, of one data set or several; train nothing. Only "
        "--out goes with it.",
    ),
]
