"""Plan the runs of the study and their order."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from difflib import get_close_matches
from functools import cache
from importlib import resources
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
from studies.meta_reg.noisy import COMPARED, NOISY_METHODS
from studies.meta_reg.noisy import SEEDS as NOISY_SEEDS
from studies.meta_reg.variants import variants

FIRST = ("ce", "ce-ts", "ce-average", "ce-average-ts", "focal", "focal-control", "flg-sece", "recommended")
"""The methods of the targets, which have the most seeds."""
ABLATION = ("ce", "ce-average-ts", "focal-control", "flg-sece", "flg-sece-published", "recommended")
"""The methods that the variants are compared with."""
SEEDS, OTHER_SEEDS = 5, 2
"""Number of seeds in a full study: of the first methods, and of all others except those of Table 3, which have one."""
VERSION = "1"
"""Part of every key. Raise it if a change of the code makes stored runs out of date."""
NETWORK_VERSIONS = {"small-cnn": "2"}
"""The same for runs of one network, after a change of its default layers."""
STEPS = 20
"""Minimum number of steps per epoch; a small training part gets smaller batches."""


def known_methods() -> dict[str, Method]:
    """All methods of the study by id, with the default recipe."""
    return {name: entry.method for name, entry in (IMAGE_METHODS | TABLE_3 | NOISY_METHODS).items()} | variants()


@cache
def descriptions() -> dict[str, str]:
    """What each method is, or what its variant changes, by id."""
    known: dict[str, str] = {}
    for entries in (IMAGE_METHODS, TABLE_3, NOISY_METHODS):
        previous = ""
        for name, entry in entries.items():
            # A list may show the methods in another order.
            known[name] = re.sub(r"^the same\b", f"like {previous}", entry.summary)
            previous = name
    text = (resources.files("studies.meta_reg") / "variants.toml").read_text(encoding="utf-8")
    return known | tomllib.loads(text)


def described(methods: Iterable[str]) -> tuple[str, ...]:
    """What methods are, such as "`ce`: cross-entropy"; methods with the same description share a line."""
    named: dict[str, list[str]] = {}
    for method in dict.fromkeys(methods):
        named.setdefault(descriptions().get(method, "no description"), []).append(f"`{method}`")
    return tuple(f"{', '.join(names)}: {text}" for text, names in named.items())


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
        choices: tuple[tuple[str, str | None, Mapping[str, Any]], ...] = (
            ("--dataset", self.dataset, DATASETS),
            ("--recipe", self.recipe, RECIPES),
            ("--model", self.model, MODELS),
        )
        for option, name, known in choices:
            if name is not None and name not in known:
                raise ValueError(f"{option} must be one of {', '.join(known)}; got {name!r}.")
        for option, number in (("--epochs", self.epochs), ("--limit", self.limit)):
            if number is not None and number < 1:
                raise ValueError(f"{option} must be at least 1; got {number}.")
        dataset = DATASETS[self.dataset]
        if self.folder is None and dataset.files:
            raise ValueError(f"--data must name the folder with the files of {dataset.title}; got none.")
        if self.folder is not None and not self.folder.is_dir():
            raise ValueError(f"--data must be an existing folder; got {self.folder}. With --download it is created.")
        if dataset.noisy and self.labels is None:
            raise ValueError(f"--noisy-labels must name the file with the labels of {dataset.title}; got none.")
        if self.labels is not None and not dataset.noisy:
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
        batch_size = max(8, min(recipe.batch_size, len(self.prepared(0).task.train) // STEPS))
        return replace(recipe, epochs=self.epochs or recipe.epochs, batch_size=batch_size)


def runs(
    setup: Setup, methods: Sequence[str] | None, seeds: int | None, further: Mapping[str, Method] | None = None
) -> list[Planned]:
    """All runs of a setup, seed by seed.

    ``seeds`` is the number of seeds per method. None means five for the methods of the targets, two for the others, one
    for Table 3, and three for all methods if the training labels are noisy. ``further`` are methods without an id, by
    name.
    """
    if seeds is not None and seeds < 1:
        raise ValueError(f"--seeds must be at least 1; got {seeds}.")
    noisy = DATASETS[setup.dataset].noisy is not None
    known = known_methods() | dict(further or {})
    names = chosen_methods(methods or (COMPARED if noisy else IMAGE_METHODS), known)
    recipe, data = setup.trained_by(), digest(setup.dataset, setup.folder, setup.labels)
    chosen = {name: with_recipe(known[name], recipe) for name in names}
    shared: dict[str, Any] = {
        "code": NETWORK_VERSIONS.get(setup.network, VERSION),
        "data": data,
        "dataset": setup.dataset,
        "model": setup.network,
        "recipe": setup.recipe,
        "epochs": recipe.epochs,
        "limit": setup.limit or 0,
    }
    return [
        (make_key(settings=settings_text(chosen[name]), **shared, method=name, seed=seed), chosen[name])
        for name, seed in in_order(names, seeds or (NOISY_SEEDS if noisy else None))
    ]


def chosen_methods(methods: Iterable[str], known: Mapping[str, Method]) -> list[str]:
    """The chosen methods, in the order of ``known``; for an unknown id, the error suggests similar ones."""
    methods = list(methods)
    if unknown := [name for name in methods if name not in known]:
        near = get_close_matches(unknown[0].lower().replace("_", "-"), known, n=3, cutoff=0.75)
        hint = f" Did you mean {' or '.join(near)}?" if near else ""
        raise ValueError(f"methods must be among {listed(known, len(IMAGE_METHODS))}; got {', '.join(unknown)}.{hint}")
    return [name for name in known if name in methods]


def in_order(names: Sequence[str], seeds: int | None) -> Iterator[tuple[str, int]]:
    """Yield methods and seeds in the order of the runs."""
    most = {name: seeds or (SEEDS if name in FIRST else 1 if name in TABLE_3 else OTHER_SEEDS) for name in names}
    for seed in range(max(most.values(), default=0)):
        yield from ((name, seed) for name in names if seed < most[name])


def own_training(method: Method) -> Method:
    """The method that trains the network: the base of a calibrator, or the method itself."""
    return method.base if isinstance(method, Calibrated) else method


def trained(method: Method) -> Method:
    """The method whose training gives this method its network.

    Cross-entropy with a moving average has the same network as ``recommended``, whose training does not depend on its
    confidence map. One run serves both, so they differ only in the map.
    """
    training = own_training(method)
    recommended = IMAGE_METHODS["recommended"].method
    assert isinstance(recommended, LearnedConfidence)
    if (
        isinstance(training, NetworkTraining)
        and training == NetworkTraining(training.recipe)
        and training.recipe.average is not None
    ):
        return replace(recommended, recipe=training.recipe)
    return training


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
    training = own_training(method)
    hidden = [f for f in fields(training) if not f.repr and getattr(training, f.name) != f.default]
    return " ".join([text, *(f"{f.name}={getattr(training, f.name)!r}" for f in hidden)])
