"""Plan the runs of the study and their order."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from calibrant.base.words import listed
from calibrant.methods import Calibrated, Fitted, Method
from calibrant.methods.catalogue import IMAGE_METHODS, RECIPES, TABLE_3, Recipe, with_recipe
from calibrant.methods.confidence import LearnedConfidence, Mapped
from calibrant.methods.image_networks import NetworkTraining
from studies.common.keys import make_key
from studies.common.runs import Planned
from studies.meta_reg.data import DATASETS, MODELS, PreparedImages, digest, prepare
from studies.meta_reg.noisy import COMPARED, NOISY_METHODS, has_noisy_labels
from studies.meta_reg.noisy import SEEDS as NOISY_SEEDS
from studies.meta_reg.variants import variants

FIRST = ("ce", "ce-ts", "ce-average", "ce-average-ts", "focal", "focal-control", "flg-sece", "recommended")
"""The methods of the targets; they run first and with the most seeds."""
ABLATION = ("ce", "ce-average-ts", "focal-control", "flg-sece", "flg-sece-published", "recommended")
"""The methods that the variants are compared with."""
QUICK = ("ce", "ce-ts", "ce-average", "ce-average-ts", "focal", "flg-sece", "focal-control", "recommended")
SEEDS = {"first": 5, "others": 2, "table 3": 1}
"""Number of seeds in a full study, by group of methods."""
EARLY = 3
"""Number of seeds of the first group that run before all other methods."""
VERSION = "1"
"""Part of every key. Raise it if a change of the code makes stored runs out of date."""
NETWORK_VERSIONS = {"small-cnn": "2"}
"""The same for runs of one network, after a change of its default layers."""
STEPS = 20
"""Minimum number of steps per epoch; a small training part gets smaller batches."""


def known_methods() -> dict[str, Method]:
    """All methods of the study by id, with the default recipe."""
    return {name: entry.method for name, entry in (IMAGE_METHODS | TABLE_3 | NOISY_METHODS).items()} | variants()


def default_methods(dataset: str) -> list[str]:
    """The default methods: the paper's and ours, without those of Table 3 and without variants.

    With noisy labels, they are those of :mod:`studies.meta_reg.noisy`.
    """
    return list(COMPARED if has_noisy_labels(dataset) else IMAGE_METHODS)


@dataclass(frozen=True)
class Setup:
    """The settings that all runs of a command share.

    ``limit`` is the number of training images (None: all), ``epochs`` the number of epochs (None: the recipe's), and
    ``labels`` the file with the labels of CIFAR-10N.
    """

    dataset: str
    folder: Path | None = None
    model: str | None = None
    recipe: str = "short"
    epochs: int | None = None
    limit: int | None = None
    labels: Path | None = None

    def __post_init__(self) -> None:
        known: Mapping[str, Any]
        for what, name, known in (
            ("--dataset", self.dataset, DATASETS),
            ("--recipe", self.recipe, RECIPES),
            ("--model", self.model, MODELS),
        ):
            if name is not None and name not in known:
                raise ValueError(f"{what} must be one of {', '.join(known)}; got {name!r}.")
        for what, number in (("--epochs", self.epochs), ("--limit", self.limit)):
            if number is not None and number < 1:
                raise ValueError(f"{what} must be at least 1; got {number}.")
        if self.folder is None and DATASETS[self.dataset].files:
            raise ValueError(f"--data must name the folder with the files of {DATASETS[self.dataset].title}; got none.")
        if self.folder is not None and not self.folder.is_dir():
            raise ValueError(f"--data must be an existing folder; got {self.folder}. With --download it is created.")
        noisy, title = has_noisy_labels(self.dataset), DATASETS[self.dataset].title
        if noisy and self.labels is None:
            raise ValueError(f"--noisy-labels must name the file with the labels of {title}; got none.")
        if self.labels is not None and not noisy:
            raise ValueError(
                f"--noisy-labels must be left out except with CIFAR-10N; got it with --dataset {self.dataset}."
            )

    def prepared(self, seed: int) -> PreparedImages:
        """The training task and the test part of a seed."""
        return prepare(self.dataset, self.folder, seed, model=self.model, limit=self.limit, labels=self.labels)

    @property
    def network(self) -> str:
        """The name of the network."""
        return self.model or DATASETS[self.dataset].model

    def trained_by(self) -> Recipe:
        """The recipe with the epochs of this setup, and with batches that allow at least ``STEPS`` steps per epoch."""
        recipe = RECIPES[self.recipe]
        samples = len(self.prepared(0).task.train)
        return replace(
            recipe, epochs=self.epochs or recipe.epochs, batch_size=max(8, min(recipe.batch_size, samples // STEPS))
        )

    def fields(self, recipe: Recipe) -> dict[str, Any]:
        """The fields that identify the runs of this setup, besides method and seed."""
        return {
            "dataset": self.dataset,
            "model": self.network,
            "recipe": self.recipe,
            "epochs": recipe.epochs,
            "limit": self.limit or 0,
        }


def runs(
    setup: Setup, methods: Sequence[str] | None, seeds: int | None, further: Mapping[str, Method] | None = None
) -> list[Planned]:
    """All runs of a setup, in order.

    First come three seeds of the methods of the targets, then the other methods, then further seeds. ``seeds`` is the
    number of seeds per method. None means five for the first group, two for the others, one for Table 3, and three for
    all methods if the training labels are noisy. ``further`` are methods without an id, by name.
    """
    if seeds is not None and seeds < 1:
        raise ValueError(f"--seeds must be at least 1; got {seeds}.")
    known = known_methods() | dict(further or {})
    names = chosen_methods(methods, known) if methods is not None else default_methods(setup.dataset)
    if seeds is None and has_noisy_labels(setup.dataset):
        seeds = NOISY_SEEDS
    recipe, data = setup.trained_by(), digest(setup.dataset, setup.folder, setup.labels)
    chosen = {name: with_recipe(known[name], recipe) for name in names}
    found = []
    for name, seed in in_order(names, seeds):
        key = make_key(
            settings=settings_text(chosen[name]),
            code=NETWORK_VERSIONS.get(setup.network, VERSION),
            data=data,
            **setup.fields(recipe),
            method=name,
            seed=seed,
        )
        found.append((key, chosen[name]))
    return found


def chosen_methods(methods: Sequence[str], known: Mapping[str, Method]) -> list[str]:
    """The chosen methods, in the order of ``known``; for an unknown id, the error suggests similar ones."""
    if unknown := [name for name in methods if name not in known]:
        near = get_close_matches(unknown[0].lower().replace("_", "-"), known, n=3, cutoff=0.75)
        hint = f" Did you mean {' or '.join(near)}?" if near else ""
        raise ValueError(f"methods must be among {listed(known, len(IMAGE_METHODS))}; got {', '.join(unknown)}.{hint}")
    return [name for name in known if name in methods]


def in_order(names: Sequence[str], seeds: int | None) -> Iterator[tuple[str, int]]:
    """Yield methods and seeds in the order of the runs."""

    def count(name: str) -> int:
        if seeds is not None:
            return seeds
        return SEEDS["first" if name in FIRST else "table 3" if name in TABLE_3 else "others"]

    stages = (
        [(n, s) for s in range(EARLY) for n in names if n in FIRST],
        [(n, s) for s in range(EARLY) for n in names if n not in FIRST],
        [(n, s) for s in range(EARLY, max(map(count, names), default=0)) for n in names],
    )
    yield from ((name, seed) for stage in stages for name, seed in stage if seed < count(name))


def own_training(method: Method) -> Method:
    """The method that trains the network: the base of a calibrator, or the method itself."""
    return method.base if isinstance(method, Calibrated) else method


def trained(method: Method) -> Method:
    """The method whose training gives this method its network.

    Cross-entropy with a moving average has the same network as ``recommended``, whose training does not depend on its
    confidence map. One run serves both, so they differ only in the map.
    """
    own = own_training(method)
    recommended = IMAGE_METHODS["recommended"].method
    assert isinstance(recommended, LearnedConfidence)
    if isinstance(own, NetworkTraining) and own == NetworkTraining(own.recipe) and own.recipe.average is not None:
        return replace(recommended, recipe=own.recipe)
    return own


def network_of(method: Method, fitted: Fitted) -> Fitted:
    """The trained model for a method, without the confidence map if the method has none."""
    mapped = isinstance(own_training(method), LearnedConfidence)
    return fitted if mapped or not isinstance(fitted, Mapped) else fitted.model


STORED_NAMES = {"outer_learning_rate": "meta_rate", "outer_batch_size": "meta_batch"}
"""Fields of methods with their former names. The texts of stored runs keep these, so that the runs are found."""


def settings_text(method: Method) -> str:
    """A method as text that is the same in every process: without memory addresses of functions.

    Settings that ``repr`` leaves out are added if they are not the default. ``STORED_NAMES`` keeps the text equal to
    that of the stored runs.
    """
    text = re.sub(r"<function (\S+) at 0x[0-9a-f]+>", r"\1", repr(method))
    for name, stored in STORED_NAMES.items():
        text = re.sub(rf"\b{name}=", f"{stored}=", text)
    text = text.replace("Direct(steps=4)", "Direct(steps=4, scope='head')")  # Direct once had a scope
    own = own_training(method)
    hidden = [f for f in fields(own) if not f.repr and getattr(own, f.name) != f.default]
    return " ".join([text, *(f"{f.name}={getattr(own, f.name)!r}" for f in hidden)])
