"""`studies bench guarantees`: judge rules and sets from out-of-fold probabilities by known posteriors."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Annotated

from studies.common.jobs import run_jobs
from studies.common.keys import Key, make_key
from studies.common.options import Jobs, Option
from studies.common.shared import checked_sets
from studies.common.store import Line, Store
from studies.common.study import Plan, Study
from studies.guarantees import measures
from studies.guarantees.learners import LEARNERS, NETWORK
from studies.guarantees.page import tell
from studies.sets import NOISE_FREE, SETS

NOISY = tuple(name for name in SETS if name not in NOISE_FREE)
"""Sets with label noise, where every classifier makes errors."""


def plan(
    *,
    seeds: Annotated[int, Option("Number of data sets for each fast learner and set.", least=1)] = 200,
    network_seeds: Annotated[
        int, Option("Number of data sets for the self-calibrated classifier on each set.", least=1)
    ] = 15,
    sets: Sequence[str] = NOISY,
    learners: Annotated[
        Sequence[str] | None, Option("Some of logistic, neighbours, tree and self-calibrated; default: all.")
    ] = None,
    jobs: Jobs = None,
) -> Plan:
    """Measure how often rejection rules and prediction sets keep their guarantees, on sets with a known posterior."""
    chosen = list(learners or LEARNERS)
    if unknown := [name for name in chosen if name not in LEARNERS]:
        raise ValueError(f"learners must be among {', '.join(LEARNERS)}; got {', '.join(unknown)}.")
    names = checked_sets(sets)
    config = {
        "sets": names,
        "learners": chosen,
        "rows": measures.ROWS,
        "new_rows": measures.NEW_ROWS,
        "risks": list(measures.RISKS),
        "confidence": measures.CONFIDENCE,
        "coverage": measures.COVERAGE,
    }
    keys = [
        key_of(dataset, learner, seed)
        for learner in chosen
        for dataset in names
        for seed in range(network_seeds if learner == NETWORK else seeds)
    ]

    def make(store: Store, missing: list[Key]) -> None:
        run_jobs(store, missing, beside=[[partial(measures.measure, key)] for key in missing], workers=jobs)

    return Plan(keys, config, make, expected)


def key_of(dataset: str, learner: str, seed: int) -> Key:
    """The key of one data set and learner."""
    return make_key(
        settings=f"{LEARNERS[learner]!r}, {measures.ROWS} rows",
        dataset=dataset,
        learner=learner,
        seed=seed,
    )


def expected(line: Line) -> Key | None:
    """The key that a stored run would have now."""
    return key_of(**line["key"]) if line["key"]["learner"] in LEARNERS else None


STUDY = Study(
    "guarantees",
    axes=("dataset", "learner", "seed"),
    plan=plan,
    order=lambda config: {"dataset": config["sets"], "learner": LEARNERS, "seed": None},
    report=lambda results, path: tell(results),
    needed=("sets", "rows", "new_rows", "risks", "confidence", "coverage"),
)
run = STUDY.run
