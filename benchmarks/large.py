"""Peak memory of the classifier on large tables, each fitted in a separate process.

Networks train for one epoch, because memory does not depend on the number of epochs.
``python -m benchmarks.large CASE [ROWS]`` fits one case, by default with all rows, and prints its record as JSON.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from typing import Any

import numpy as np

from benchmarks.harness import Record, record
from benchmarks.peak_memory import peak, resident
from calibrant import SelfCalibratedClassifier

GIGABYTES = 16.0
COLUMNS = 30
TOWNS = np.array(["Bern", "Genf", "Köln", "Paris", "Rom", "Wien", None], dtype=object)


def numbers(rows: int) -> tuple[Any, np.ndarray]:
    """Normal inputs; the class depends on the first one and on noise."""
    random = np.random.default_rng(0)
    X = random.normal(size=(rows, COLUMNS))
    return X, (X[:, 0] + random.normal(size=rows) > 0).astype(int)


def frame(rows: int) -> tuple[Any, np.ndarray]:
    """The same with missing values, two columns of text and one of dates."""
    import pandas as pd

    random = np.random.default_rng(1)
    X, y = numbers(rows)
    X[::10, 1] = np.nan
    table = pd.DataFrame(X[:, 3:], columns=[f"x{k}" for k in range(3, COLUMNS)])
    table["town"] = TOWNS[random.integers(0, len(TOWNS), rows)]
    table["class"] = np.where(X[:, 0] > 0, "upper", "lower")
    table["since"] = pd.Timestamp("2020-01-01") + pd.to_timedelta(random.integers(0, 1000, rows), unit="D")
    return table, y


def classes(rows: int) -> tuple[Any, np.ndarray]:
    """A thousand classes, each around its own centre."""
    random = np.random.default_rng(2)
    y = np.arange(rows) % 1000
    return random.normal(size=(1000, COLUMNS))[y] * 3 + random.normal(size=(rows, COLUMNS)), y


CASES = {
    "numbers": ("1,000,000 rows × 30 numbers", numbers, 1_000_000),
    "frame": ("1,000,000 rows × 27 numbers, 2 texts and a date", frame, 1_000_000),
    "classes": ("20,000 rows × 30 numbers, 1,000 classes", classes, 20_000),
}


def run() -> list[Record]:
    """One fit of each case."""
    return [_measure(case) for case in CASES]


def _measure(case: str) -> Record:
    done = subprocess.run([sys.executable, "-m", "benchmarks.large", case], capture_output=True, text=True, check=True)
    found = json.loads(done.stdout.splitlines()[-1])
    name = f"SelfCalibratedClassifier, {CASES[case][0]}, one epoch, peak gigabytes"
    return record(name, found.pop("gigabytes"), GIGABYTES, **found)


def main(case: str, rows: int | None = None) -> None:
    _, make, usual = CASES[case]
    X, y = make(rows or usual)
    before, begin = resident(), time.perf_counter()
    classifier = SelfCalibratedClassifier(epochs=1, random_state=0).fit(X, y)
    found = {"gigabytes": peak() / 1024, "before_gigabytes": before / 1024, "seconds": time.perf_counter() - begin}
    print(json.dumps(found | {"members": getattr(classifier, "members_", None)}))


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
