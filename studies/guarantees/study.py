"""`studies bench guarantees`: judge rules and sets from out-of-fold probabilities by known posteriors."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

from calibrant.report import Results
from studies.common.command import begin, export, open_store, usable_folder
from studies.common.contents import in_order, position, read_own
from studies.common.jobs import run_jobs
from studies.common.keys import Key, make_key
from studies.common.shared import checked_sets, made
from studies.common.store import Line
from studies.guarantees import measures
from studies.guarantees.learners import LEARNERS, NETWORK
from studies.guarantees.page import tell
from studies.sets import NOISE_FREE, SETS

NAME = "guarantees"
NOISY = tuple(name for name in SETS if name not in NOISE_FREE)
"""Sets with label noise, where every classifier makes errors."""


def run(
    *,
    seeds: int = 200,
    network_seeds: int = 15,
    out: str | Path = "out/guarantees",
    sets: Sequence[str] = NOISY,
    learners: Sequence[str] | None = None,
    source: str | Path | None = None,
    jobs: int | None = None,
    fresh: bool = False,
) -> Path:
    """Fit every learner on new data sets and measure its guarantees; returns the path of the report.

    Parameters
    ----------
    seeds, network_seeds : number of data sets for the fast learners, and for the self-calibrated classifier
    out : folder for results and report
    sets : names of synthetic sets
    learners : names of learners; default: all
    source : a result file or a store of this command; the report is made from it without fitting
    jobs : the number of processes that work at the same time
    fresh : repeat the runs that ``out`` already holds
    """
    if source is not None:
        return write_report(Path(source), usable_folder(out))
    chosen = list(learners or LEARNERS)
    if unknown := [name for name in chosen if name not in LEARNERS]:
        raise ValueError(f"learners must be among {', '.join(LEARNERS)}; got {', '.join(unknown)}.")
    store, names = open_store(out, NAME), checked_sets(sets)
    config = {
        "experiment": NAME,
        "sets": names,
        "learners": chosen,
        "rows": measures.ROWS,
        "new_rows": measures.NEW_ROWS,
        "risks": list(measures.RISKS),
        "confidence": measures.CONFIDENCE,
        "coverage": measures.COVERAGE,
        **made(),
    }
    keys = [
        key_of(dataset, learner, seed)
        for learner in chosen
        for dataset in names
        for seed in range(network_seeds if learner == NETWORK else seeds)
    ]
    missing = begin(store, config, keys, expected=expected, fresh=fresh)
    run_jobs(store, missing, beside=[[partial(measures.measure, key)] for key in missing], workers=jobs)
    return write_report(export(store, arrange), store.folder)


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


def arrange(results: Results) -> Results:
    """Sort records by set and learner."""
    order = position(results.config["sets"], LEARNERS)
    records = in_order(results.records, lambda r: (order.get(r["dataset"]), order.get(r["learner"]), r["seed"]))
    return results._replace(records=records)


def write_report(results: Path, out: Path) -> Path:
    """Write and print the report from a result file or a store."""
    report = tell(read_own(results, NAME, arrange))
    print(report.to_markdown())
    return report.write(out)
