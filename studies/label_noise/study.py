"""`studies bench noise`: train with flipped labels and a clean validation part.

A share of the training labels is changed to another class; validation and test labels stay clean. Every registered
method runs with its default setting. ``bo4sc`` therefore has one setting for all sets and rates, not that of a search.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from calibrant.report.results import Record
from studies.common.options import Device, FirstSeed, Jobs, Methods, Option, Seeds, Sets
from studies.common.pooled import chosen_methods, synthetic_methods
from studies.common.records import resolve_device
from studies.common.shared import SEEDS, checked_sets, settings_of
from studies.common.study import Plan, Study
from studies.common.synthetic import synthetic_plan
from studies.label_noise.measures import measure
from studies.label_noise.page import tell


def plan(
    *,
    rates: Annotated[Sequence[float], Option("Shares of flipped training labels.", names=("--rates",))] = (0.2, 0.4),
    seeds: Seeds = SEEDS,
    first_seed: FirstSeed = 0,
    device: Device = "auto",
    sets: Sets = None,
    methods: Methods = None,
    jobs: Jobs = None,
) -> Plan:
    """Compare methods on the five synthetic sets with flipped training labels and clean validation labels.

    The targets are for four of the sets. The fifth, bac, is shown only: its inputs determine its labels.
    """
    for rate in rates:
        if not 0 <= rate <= 1:
            raise ValueError(f"rates must be shares of labels to flip, between 0 and 1; got {rate}.")
    chosen, sets = chosen_methods(methods), checked_sets(sets)
    levels = [0.0, *sorted(set(rates) - {0.0})]
    return synthetic_plan(
        {(dataset, name): method for dataset in sets for name, method in chosen.items()},
        range(first_seed, first_seed + seeds),
        measure,
        {"rates": levels, "sets": sets},
        device=resolve_device(device),
        jobs=jobs,
        rates=levels,
    )


def extend(config: Mapping[str, Any], records: list[Record]) -> dict[str, Any]:
    """The rates, seeds and settings of the records."""
    rates, seeds = (sorted({record[name] for record in records}) for name in ("rate", "seed"))
    return {"rates": rates, "seeds": seeds, "methods": settings_of(records)}


STUDY = Study(
    "noise",
    axes=("dataset", "method", "rate", "seed"),
    plan=plan,
    order=lambda config: {"dataset": config["sets"], "method": synthetic_methods(), "rate": None, "seed": None},
    extend=extend,
    report=lambda results, path: tell(results),
    needed=("rates", "sets", "methods", "seeds"),
)
run = STUDY.run
