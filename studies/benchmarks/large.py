"""Seconds and peak memory of the classifiers on large tables; for the memory, each is fitted in a separate process.

Networks train for one epoch, because memory does not depend on the number of epochs. ``python -m
studies.benchmarks.large CASE [ROWS]`` fits one case, by default with all rows, prints its record as JSON, and adds it
to ``results/bench.json``. The record's name contains the number of rows.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import numpy as np
from sklearn.datasets import make_classification

from calibrant import BO4SCClassifier, SelfCalibratedClassifier
from calibrant.metrics import accuracy, ece, nll, noise_floor
from studies.benchmarks.harness import Record, in_process, megabytes, print_records, record

GIGABYTES, LIMIT = 16.0, 300.0
"""The most memory and the most seconds of a fit, on two cores."""
FITTED, TESTED = 50_000, 10_000
"""Rows of the fits that are timed."""
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
    "numbers": ("30 numbers", numbers, 1_000_000),
    "frame": ("27 numbers, 2 texts and a date", frame, 1_000_000),
    "classes": ("30 numbers, 1,000 classes", classes, 20_000),
}
"""What the columns hold, the function that draws the rows, and their number."""


def seconds_to_fit(classifier: Any) -> Record:
    """Fit a table with 5 % random labels; the time of such a long fit varies little."""
    X, y = make_classification(FITTED + TESTED, 50, n_informative=20, n_classes=4, flip_y=0.05, random_state=0)
    begin = time.perf_counter()
    classifier.fit(X[:FITTED], y[:FITTED])
    seconds = time.perf_counter() - begin
    probs, labels = classifier.predict_proba(X[FITTED:]), y[FITTED:]
    return record(
        f"{type(classifier).__name__}, 50,000 rows × 50 columns, 4 classes, fit, seconds",
        seconds,
        LIMIT,
        accuracy=accuracy(probs, labels),
        nll=nll(probs, labels),
        ece15=ece(probs, labels),
        floor_self15=noise_floor(probs).mean,
        lapse=getattr(classifier, "lapse_", None),
    )


def run() -> list[Record]:
    """The seconds of two classifiers, and the peak memory of each case."""
    seconds = [seconds_to_fit(kind(random_state=0)) for kind in (SelfCalibratedClassifier, BO4SCClassifier)]
    return seconds + [record_of_case for case in CASES for record_of_case in in_process("large", case, "--print-only")]


def measure(case: str, rows: int | None = None) -> Record:
    """Fit one case in this process, and return the record of its peak memory."""
    columns, make, usual = CASES[case]
    X, y = make(rows or usual)
    before, begin, worked = megabytes("VmRSS"), time.perf_counter(), time.process_time()
    classifier = SelfCalibratedClassifier(epochs=1, random_state=0, device="cpu").fit(X, y)
    return record(
        f"SelfCalibratedClassifier, {len(y):,} rows × {columns}, one epoch, peak gigabytes",
        megabytes("VmHWM") / 1024,
        GIGABYTES,
        before_gigabytes=before / 1024,
        seconds=time.perf_counter() - begin,
        processor_seconds=time.process_time() - worked,
        members=classifier.members_,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("case", choices=CASES)
    parser.add_argument("rows", nargs="?", type=int, help="the number of rows; default: all")
    print_records(parser, lambda arguments: [measure(arguments.case, arguments.rows)])


if __name__ == "__main__":
    main()
