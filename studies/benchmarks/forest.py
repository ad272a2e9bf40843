"""Whether a forest lowers the loss of the pool on small tables, by the number of classes.

``python -m studies.benchmarks.forest [DIR]`` fits the classifier with and without the forest to splits of
scikit-learn's small tables, prints the ratio of the test losses for each table, and then the means. ``DIR`` adds parts
of the tables on which settings were tried (the folder of ``python -m studies bench tables``), with 300 to 2,400
training rows. Rows come only from the training part of a split that is not reported.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
from sklearn.datasets import load_breast_cancer, load_digits, load_iris, load_wine
from sklearn.model_selection import train_test_split

from calibrant import SelfCalibratedClassifier
from calibrant.metrics import mean_interval, nll, smooth_ece
from calibrant.report import format_number
from studies.tables.data import DEVELOPMENT, find_tables, read

MEMBERS = ("network", "trees", "linear")
SPLITS, UNREPORTED = 3, 20261116
SIZES, TESTED = (300, 600, 1200, 2400), 3000


class Table(NamedTuple):
    """A table, and the number of training rows; None: three quarters of the rows."""

    name: str
    X: np.ndarray
    y: np.ndarray
    size: int | None = None


def tables(folder: Path | None) -> Iterator[Table]:
    """All tables of the study; those of a folder in several sizes, or whole if they are small."""
    for load in (load_wine, load_iris, load_breast_cancer, load_digits):
        yield Table(load.__name__.removeprefix("load_"), *load(return_X_y=True))
    for name, path in ({} if folder is None else find_tables(folder)).items():
        if name not in DEVELOPMENT:
            continue
        table = read(path)
        X = np.column_stack([column.astype(np.float64) for column in table.columns.values()])
        y = np.unique(table.labels, return_inverse=True)[1]
        X, _, y, _ = train_test_split(X, y, test_size=0.2, stratify=y, random_state=UNREPORTED)
        sizes = [size for size in SIZES if 2 * size <= len(y)] if len(y) > TESTED else [None]
        yield from (Table(name, X, y, size) for size in sizes)


def compare(table: Table, seed: int) -> tuple[float, float]:
    """The logarithm of the ratio of the losses with and without the forest, and the change of the smooth ECE."""
    most = None if table.size is None else min(TESTED, len(table.y) - table.size)
    X, X_test, y, y_test = train_test_split(
        table.X, table.y, train_size=table.size, test_size=most, stratify=table.y, random_state=seed
    )
    scores = []
    for members in (MEMBERS, (*MEMBERS, "forest")):
        probs = (
            SelfCalibratedClassifier(members=members, random_state=seed, device="cpu").fit(X, y).predict_proba(X_test)
        )
        scores.append((nll(probs, y_test), smooth_ece(probs, y_test)))
    (loss, gap), (other, wider) = scores
    return float(np.log(other / loss)), float(wider - gap)


def main(folder: Path | None) -> None:
    found: dict[bool, dict[str, list[tuple[float, float]]]] = {True: {}, False: {}}
    for table in tables(folder):
        two = len(np.unique(table.y)) == 2
        each = [compare(table, seed) for seed in range(SPLITS)]
        found[two].setdefault(table.name, []).extend(each)
        rows = len(table.y) * 3 // 4 if table.size is None else table.size
        ratios = ", ".join(f"{np.exp(ratio):.3f}" for ratio, _ in each)
        print(f"{table.name}, {rows} rows: NLL with the forest / without {ratios}", flush=True)
    for two, by_table in found.items():
        losses, gaps = zip(*(np.mean(each, axis=0) for each in by_table.values()), strict=True)
        name = "two classes" if two else "more classes"
        print(
            f"{name}, {len(losses)} tables: log ratio {format_number(mean_interval(losses), 4)}, "
            f"smooth ECE {format_number(mean_interval(gaps), 4)}"
        )


if __name__ == "__main__":
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        main(Path(sys.argv[1]) if len(sys.argv) > 1 else None)
