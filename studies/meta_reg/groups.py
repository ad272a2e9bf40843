"""Group records by setup, and turn nested values into fields."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from statistics import mean as average
from statistics import stdev
from typing import Any, NamedTuple

from calibrant.methods.image_networks import RECIPES
from calibrant.metrics import Estimate
from studies.common.verdicts import methods as methods_of
from studies.meta_reg.data import DATASETS
from studies.report import Record

Records = Sequence[Mapping[str, Any]]


SMALL = 10_000
"""Up to this many training images, a study has few epochs, methods and seeds by default, and judges no claims."""


class RunGroup(NamedTuple):
    """Finished runs with the same data set, network, recipe and size, which differ only in method and seed."""

    label: str
    dataset: str
    records: list[Record]
    failed: tuple[str, ...] = ()
    """The runs that failed, such as "ce-dece, seed 0"; they are not among the records."""

    @property
    def name(self) -> str:
        """A short name: the data set, and in what its runs differ from full runs of its network, short recipe."""
        first = self.records[0]
        recipe, model, epochs, limit = (first[name] for name in ("recipe", "model", "epochs", "limit"))
        parts = [
            f"{recipe} recipe" if recipe != "short" else "",
            f"{epochs} epochs" if epochs != RECIPES[recipe].epochs else "",
            model if model != DATASETS[self.dataset].model else "",
            f"{limit:,} images" if limit else "",
        ]
        told = ", ".join(part for part in parts if part)
        return f"{self.dataset} ({told})" if told else self.dataset

    @property
    def small(self) -> bool:
        """Whether the runs have too few images to judge targets and claims."""
        return self.dataset == "digits" or 0 < self.records[0]["limit"] <= SMALL

    @property
    def methods(self) -> list[str]:
        """The methods in the order of the records."""
        return methods_of(self.records)

    def of(self, method: str) -> list[Record]:
        """The runs of a method, in the order of the seeds."""
        return [r for r in self.records if r["method"] == method]

    def values(self, method: str, metric: str) -> list[float]:
        """A metric of all seeds of a method; missing values are left out."""
        return [r[metric] for r in self.of(method) if r.get(metric) is not None]


SETUP = ("dataset", "model", "recipe", "epochs", "limit")
"""The fields that the runs of a group share."""


def setup_of(record: Mapping[str, Any]) -> tuple[Any, ...]:
    """The setup of a record: its values of ``SETUP``."""
    return tuple(record[name] for name in SETUP)


def groups(records: Iterable[Mapping[str, Any]]) -> list[RunGroup]:
    """Group records by setup; failed runs are only named, and nested values become fields.

    The groups of a data set with the short recipe, which the targets are set for, come before its other groups.
    """
    found: dict[tuple[Any, ...], list[Record]] = {}
    failed: dict[tuple[Any, ...], list[str]] = {}
    for record in records:
        if record.get("failure"):
            failed.setdefault(setup_of(record), []).append(f"{record['method']}, seed {record['seed']}")
        else:
            found.setdefault(setup_of(record), []).append(flat(record))
    datasets = list(dict.fromkeys(place[0] for place in found))
    places = sorted(found, key=lambda place: (datasets.index(place[0]), place[2] != "short"))
    return [RunGroup(label(*place), place[0], found[place], tuple(failed.get(place, ()))) for place in places]


def label(dataset: str, model: str, recipe: str, epochs: int, limit: int) -> str:
    """A description of a setup."""
    images = f", {limit:,} training images" if limit else ""
    return f"{DATASETS[dataset].title}, {model}, {recipe} recipe, {epochs} epochs{images}"


def flat(record: Mapping[str, Any]) -> Record:
    """A record with one field per shift and per number of bins, such as ``ece@noise-1`` and ``ece/50``."""
    found = dict(record)
    for shift, scores in record.get("shifts", {}).items():
        found |= {f"{name}@{shift}": value for name, value in scores.items()}
    table = record.get("bins", {})
    for name in ("ece", "mce", "ece_floor", "mce_floor"):
        found |= {f"{name}/{m}": value for m, value in zip(table.get("bins", ()), table.get(name, ()), strict=True)}
    return found


def spread(values: Sequence[float], digits: int, scale: float = 1.0) -> str | None:
    """Mean ± standard deviation over seeds, as in the paper; a single value without ±, and None without values."""
    if not values:
        return None
    scaled = [scale * value for value in values]
    if len(scaled) == 1:
        return f"{scaled[0]:.{digits}f}"
    return f"{average(scaled):.{digits}f} ± {stdev(scaled):.{digits}f}"


def times(value: Estimate, factor: float) -> Estimate:
    """An estimate multiplied by a factor, to change its unit."""
    return Estimate(factor * value.value, factor * value.low, factor * value.high, value.level, value.method)
