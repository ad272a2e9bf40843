"""One row for each equation, algorithm, table, figure, baseline and metric of both papers: its command and its runs.

The rows are in ``coverage.csv``. Its last column says which runs belong to a row: ``synthetic METHOD`` and ``images
METHOD …`` count seeds, ``set NAME METHOD …`` on one set of images, ``file NAME`` is a result file. A row without runs
is a test, or is computed.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from calibrant.base.words import count
from docs.generate.stored import RESULTS, stored
from studies.meta_reg.data import DATASETS
from studies.meta_reg.readings import READINGS
from studies.report import by_seed, to_markdown
from studies.sets import SETS

ROWS = Path(__file__).with_name("coverage.csv")
NONE = "not run"
IMAGES = ("cifar10", "cifar100", "tiny-imagenet")


def table(paper: str) -> str:
    """The rows of one paper, "first" or "second"."""
    rows = pd.read_csv(ROWS, keep_default_na=False).query("paper == @paper")
    cells = [[r.item, r.what, f"`{r.command}`", runs(r.runs)] for r in rows.itertuples()]
    return to_markdown(["paper", "what it is here", "command", "runs"], cells)


def runs(spec: str) -> str:
    """The stored runs that the last column of a row asks for."""
    kind, *names = spec.split() or ["none"]
    match kind:
        case "synthetic":
            records = [*stored("bo4sc").records, *stored("bo4sc-more-seeds").records]
            (method,) = names
            return count(min(len(by_seed(records, "accuracy", dataset=name, method=method)) for name in SETS), "seed")
        case "images":
            return "; ".join(f"{DATASETS[name].title} {on_one_set(name, names)}" for name in IMAGES)
        case "set":
            return on_one_set(names[0], names[1:])
        case "file":
            return f"`results/{names[0]}`" if (RESULTS / names[0]).exists() else NONE
        case "readings":
            number = len({record["method"] for record in stored("readings").records} & set(READINGS))
            return f"CIFAR-10: {number} of {len(READINGS)} readings, 1 seed; other sets {NONE}"
        case "paper-recipe":
            methods = dict.fromkeys(f"`{r['method']}`" for r in stored("meta-reg-350").records)
            return f"CIFAR-10, 1 seed: {', '.join(methods)}; other methods and sets {NONE}"
    return "needs none"


def seeds_of(name: str, methods: Sequence[str]) -> list[int]:
    """The number of seeds of each method on a set of images, short recipe."""
    files = [path.stem for path in RESULTS.glob("meta-reg-*.json")]
    records = [r for file in files for r in stored(file).records if r["dataset"] == name and not r["failure"]]
    short = [r for r in records if r["recipe"] == "short"]
    return [len({r["seed"] for r in short if r["method"] == method}) for method in methods]


def on_one_set(name: str, methods: Sequence[str]) -> str:
    """The seeds of all methods, or the number of methods with runs, if others have none."""
    seeds = seeds_of(name, methods)
    if not any(seeds):
        return NONE
    if not all(seeds):
        return f"{sum(map(bool, seeds))} of {len(seeds)} methods"
    low, high = min(seeds), max(seeds)
    return count(low, "seed") if low == high else f"{low} to {high} seeds"


SECTIONS = {"coverage-first": lambda: table("first"), "coverage-second": lambda: table("second")}
