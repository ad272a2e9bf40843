"""Sizes of a quick run: `--quick` of the commands `reproduce`, `sweep` and `ablate meta-reg`."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

EPOCHS, TRIAL_EPOCHS = 12, 3
"""Epochs of a quick study, and of a quick search or ablation, which have many runs."""
SEEDS, TRIAL_SEEDS = 2, 1
DIGITS_LIMIT, LIMIT = 600, 2_000
"""Training images of a quick search or ablation on digits, and of every quick run on other images.

2,000 are the fewest that leave an image of each of Tiny-ImageNet's 200 classes in every part.
"""
MODEL = "small-cnn"


class Sizes(NamedTuple):
    """The sizes of a run."""

    model: str | None
    seeds: int | None
    epochs: int | None
    limit: int | None


def chosen_dataset(dataset: str | None, data: str | Path | None, quick: bool) -> str:
    """The data set of a command; default: CIFAR-10, or scikit-learn's digits in a quick run without ``data``."""
    if dataset is not None:
        return dataset
    return "digits" if quick and data is None else "cifar10"


def quick_sizes(dataset: str, given: Sizes, *, trial: bool = False) -> Sizes:
    """The sizes of a quick run; those that the user has given stay. ``trial`` is a search or an ablation."""
    if dataset == "digits":
        limit = DIGITS_LIMIT if trial else None
    else:
        limit = LIMIT
    return Sizes(
        given.model or MODEL,
        given.seeds or (TRIAL_SEEDS if trial else SEEDS),
        given.epochs or (TRIAL_EPOCHS if trial else EPOCHS),
        given.limit or limit,
    )
