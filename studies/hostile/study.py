"""`studies bench hostile`: test the default classifier on data with defects, and compare with earlier versions."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import numpy as np

from calibrant.report.results import Record
from studies.common.jobs import run_jobs
from studies.common.keys import FIRST, Key, make_key
from studies.common.options import Jobs, Option, Seeds
from studies.common.records import ClassifierOutput, on_sample
from studies.common.runs import Meter, warm_up
from studies.common.shared import checked_methods
from studies.common.store import Store
from studies.common.study import Plan, Study
from studies.hostile.cases import CASES, Data
from studies.hostile.contenders import BEFORE, CONTENDERS, OWN, earlier, fitted, settings
from studies.hostile.page import make_report

SEEDS = 5
SCORES = ("accuracy", "nll", "ece15", "floor_self15", "smooth_ece", "brier", "aurc", "confidence_minus_accuracy")
"""The measured fields of a record."""


def plan(
    *,
    seeds: Seeds = SEEDS,
    only: Annotated[Sequence[str] | None, Option("Names of cases; default: all.")] = None,
    methods: Annotated[Sequence[str] | None, Option("Ids of contenders; default: all.")] = None,
    before: Annotated[
        Path | None, Option("The src folder of an earlier version, to measure it as `before`.", exists=True)
    ] = None,
    jobs: Jobs = None,
) -> Plan:
    """Test the default classifier on copies, groups, noise, outliers, few rows, and many columns or classes.

    It is compared with the class frequencies, each member of its pool alone, and scikit-learn's classifiers.
    """
    names = [name for name in checked_methods(methods, CONTENDERS) if name != BEFORE or before is not None]
    if before is None and BEFORE in (methods or ()):
        raise ValueError("before must name the folder with the package calibrant of an earlier version; got None.")
    if unknown := [name for name in only or () if name not in CASES]:
        raise ValueError(f"only must name cases among {', '.join(CASES)}; got {', '.join(unknown)}.")
    cases = [name for name in CASES if only is None or name in only]
    folder = None if before is None else Path(before).resolve()
    keys = HostileKeys(folder)
    wanted = [
        keys.key(case, method, seed)
        for seed in range(seeds)
        for case in cases
        for method in names
        if method not in CASES[case].slow
    ]

    def make(store: Store, missing: list[Key]) -> None:
        text = None if folder is None else str(folder)
        run_jobs(store, missing, beside=[[partial(measure, key, text)] for key in missing], workers=jobs)

    return Plan(wanted, {"cases": cases, "methods": names, "device": "cpu"}, make, keys.expected)


@dataclass(frozen=True)
class HostileKeys:
    """Makes the keys of runs, from the contenders' settings and code."""

    before: Path | None

    def key(self, dataset: str, method: str, seed: int) -> Key:
        """Return the key of one run."""
        code = FIRST
        if method == BEFORE:
            assert self.before is not None
            code = source_digest(self.before)
        return make_key(settings=settings(method), code=code, dataset=dataset, method=method, seed=seed)

    def expected(self, line: Mapping[str, Any]) -> Key | None:
        """Return the current key of a stored run; None if this command cannot know it."""
        fields = line["key"]
        unknown = fields["dataset"] not in CASES or fields["method"] not in CONTENDERS
        return None if unknown or (fields["method"] == BEFORE and self.before is None) else self.key(**fields)


def source_digest(folder: Path) -> str:
    """Return a digest of the package ``calibrant`` in a folder."""
    files = sorted((folder / "calibrant").rglob("*.py"))
    if not files:
        raise ValueError(f"--before must name the folder that holds a package calibrant; got {folder}, which does not.")
    found = hashlib.sha256()
    for path in files:
        found.update(path.relative_to(folder).as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    return found.hexdigest()[:12]


def measure(key: Key, before: str | None) -> dict[Key, Record]:
    """Return the record of one run: scores on the test rows, seconds, and memory beyond the data."""
    case, method, seed = key["dataset"], key["method"], key["seed"]
    data = CASES[case].make(seed)
    record: dict[str, Any] = {"dataset": case, "method": method, "seed": seed}
    try:
        probs, cost = (
            earlier(before, data, seed) if method == BEFORE and before is not None else _fit(method, data, seed)
        )
    except Exception as error:  # any error of a contender is recorded as its result
        reason = f"{type(error).__name__}: {error}".splitlines()[0][:300]
        return {
            key: record | dict.fromkeys((*SCORES, "seconds", "processor_seconds", "peak_memory")) | {"failure": reason}
        }
    return {key: record | score(probs, data.y_test) | dict(cost) | {"failure": None}}


def _fit(method: str, data: Data, seed: int) -> tuple[np.ndarray, dict[str, Any]]:
    if method in (OWN, "network"):
        warm_up("cpu")
    meter = Meter()
    with meter([0]):
        begin = time.process_time()
        model = fitted(method, data, seed)
        worked = time.process_time() - begin
    cost = meter.costs[0]
    found: dict[str, Any] = {
        "seconds": round(cost.seconds, 3),
        "processor_seconds": round(worked, 3),
        "peak_memory": cost.peak_memory,
    }
    if method == OWN:
        found["members"] = list(model.members_)
    return model.predict_proba(data.X_test), found


def score(probs: np.ndarray, labels: np.ndarray) -> dict[str, Any]:
    """Return the scores of probabilities whose columns are classes 0, 1, …"""
    if not np.isfinite(probs).all():
        raise ValueError("All probabilities must be finite; got NaN or infinity.")
    found = on_sample(ClassifierOutput(probs, probs.argmax(1), probs.max(1)), labels)
    return {name: float(f"{float(found[name]):.6g}") for name in SCORES}


def extend(config: Mapping[str, Any], records: list[Record]) -> dict[str, Any]:
    """The cases, methods and seeds of the records."""
    cases, methods, seeds = ({r[name] for r in records} for name in ("dataset", "method", "seed"))
    return {
        "cases": {name: case.story for name, case in CASES.items() if name in cases},
        "methods": {name: story for name, story in CONTENDERS.items() if name in methods},
        "seeds": sorted(seeds),
    }


STUDY = Study(
    "hostile",
    axes=("dataset", "method", "seed"),
    plan=plan,
    order=lambda config: {"dataset": CASES, "method": CONTENDERS, "seed": None},
    extend=extend,
    report=lambda results, path: make_report(results),
    needed=("cases", "methods", "seeds"),
)
run = STUDY.run
