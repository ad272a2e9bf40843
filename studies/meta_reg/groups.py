"""Group records by setup, and turn nested values into fields."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from statistics import mean, stdev
from typing import Any, NamedTuple

import pandas as pd

from calibrant.methods.catalogue import RECIPES
from calibrant.metrics import Estimate
from studies.common.verdicts import difference
from studies.common.verdicts import methods as methods_of
from studies.meta_reg.data import DATASETS
from studies.report import Record

SETUP = ("dataset", "model", "recipe", "epochs", "limit")
"""The fields that the runs of a group share."""
SMALL = 10_000
"""Runs with at most this many training images judge no targets and no claims."""


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
        _, model, recipe, epochs, limit = setup_of(self.records[0])
        parts = {
            f"{recipe} recipe": recipe != "short",
            f"{epochs} epochs": epochs != RECIPES[recipe].epochs,
            model: model != DATASETS[self.dataset].model,
            f"{limit:,} images": bool(limit),
        }
        unusual = ", ".join(part for part, differs in parts.items() if differs)
        return f"{self.dataset} ({unusual})" if unusual else self.dataset

    @property
    def small(self) -> bool:
        """Whether the runs have too few images to judge targets and claims."""
        return self.dataset == "digits" or 0 < self.records[0]["limit"] <= SMALL

    @property
    def noisy(self) -> bool:
        """Whether the training labels are noisy."""
        return DATASETS[self.dataset].noisy is not None

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

    def gap(self, metric: str, method: str, rival: str) -> Estimate:
        """The mean of a method minus that of its rival over their common seeds, with its paired interval."""
        return difference(self.records, metric, self.dataset, method, rival)

    def seeds(self, methods: Sequence[str]) -> set[int]:
        """The seeds that all these methods have. A method with other seeds would be compared by luck."""
        return set.intersection(*({r["seed"] for r in self.of(method)} for method in methods))

    def means(self, methods: Sequence[str], metric: str) -> pd.Series:
        """The mean of a metric by method, over the seeds that all methods have, or over all seeds if there are none."""
        values = pd.DataFrame(self.records).pivot(index="seed", columns="method", values=metric)[list(methods)]
        shared = values.loc[sorted(self.seeds(methods))]
        return (values if shared.empty else shared).mean()


def setup_of(record: Mapping[str, Any]) -> tuple[Any, ...]:
    """The setup of a record: its values of ``SETUP``."""
    return tuple(record[name] for name in SETUP)


def groups(records: Iterable[Mapping[str, Any]]) -> list[RunGroup]:
    """Group records by setup; failed runs are only named, and nested values become fields.

    The groups of a data set with the short recipe, which the targets are set for, come before its other groups.
    """
    finished: dict[tuple[Any, ...], list[Record]] = {}
    failed: dict[tuple[Any, ...], list[str]] = {}
    for record in records:
        if record.get("failure"):
            failed.setdefault(setup_of(record), []).append(f"{record['method']}, seed {record['seed']}")
        else:
            finished.setdefault(setup_of(record), []).append(flat(record))
    datasets = list(dict.fromkeys(place[0] for place in finished))
    places = sorted(finished, key=lambda place: (datasets.index(place[0]), place[2] != "short"))
    return [RunGroup(label(*place), place[0], finished[place], tuple(failed.get(place, ()))) for place in places]


def label(dataset: str, model: str, recipe: str, epochs: int, limit: int) -> str:
    """A description of a setup."""
    images = f", {limit:,} training images" if limit else ""
    return f"{DATASETS[dataset].title}, {model}, {recipe} recipe, {epochs} epochs{images}"


def flat(record: Mapping[str, Any]) -> Record:
    """A record with one field per shift and per number of bins, such as ``ece@noise-1`` and ``ece/50``."""
    fields = dict(record)
    for shift, scores in record.get("shifts", {}).items():
        fields |= {f"{name}@{shift}": value for name, value in scores.items()}
    table = record.get("bins", {"bins": ()})
    for name in table.keys() - {"bins"}:
        fields |= {f"{name}/{m}": value for m, value in zip(table["bins"], table[name], strict=True)}
    return fields


def spread(values: Sequence[float], digits: int, scale: float = 1.0) -> str | None:
    """Mean ± standard deviation over seeds, as in the paper; a single value without ±, and None without values."""
    if not values:
        return None
    scaled = [scale * value for value in values]
    std = f" ± {stdev(scaled):.{digits}f}" if len(scaled) > 1 else ""
    return f"{mean(scaled):.{digits}f}{std}"


def times(value: Estimate, factor: float) -> Estimate:
    """An estimate multiplied by a factor, to change its unit."""
    return Estimate(factor * value.value, factor * value.low, factor * value.high, value.level, value.method)
