"""The cases of hostile data: each draws training rows with a defect, and clean test rows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from scipy import sparse

TEST = 2000
"""The number of test rows."""
Rows = tuple[Any, np.ndarray]
Generator = np.random.Generator


@dataclass(frozen=True)
class Data:
    """Training rows, test rows, and groups of the training rows if the case has them."""

    X: Any
    y: np.ndarray
    X_test: Any
    y_test: np.ndarray
    groups: np.ndarray | None = None


@dataclass(frozen=True)
class HostileCase:
    """A kind of defect in data."""

    story: str
    draw: Callable[[Generator], Data]
    slow: tuple[str, ...] = ()
    """Methods that are skipped, because they take many times as long as all others together."""

    def make(self, seed: int) -> Data:
        """Draw the data of one seed."""
        return self.draw(np.random.default_rng([seed, *self.story.encode()]))


def curved(rng: Generator, rows: int, columns: int = 5, flipped: float = 0.1) -> Rows:
    """Two classes, separated by a curved surface; a share of the labels is flipped."""
    X = rng.normal(size=(rows, columns))
    y = X[:, 0] + X[:, 1] * X[:, 2] > 0
    return X, (y ^ (rng.random(rows) < flipped)).astype(int)


def train_and_test(rng: Generator, draw: Callable[[Generator, int], Rows], rows: int, test_rows: int = TEST) -> Data:
    """Training and test rows from the same distribution."""
    return Data(*draw(rng, rows), *draw(rng, test_rows))


def case(
    story: str, draw: Callable[..., Rows], rows: int, slow: tuple[str, ...] = (), test_rows: int = TEST, **options: Any
) -> HostileCase:
    """A case with a number of training rows, all rows drawn by ``draw`` with these options."""
    return HostileCase(story, lambda rng: train_and_test(rng, partial(draw, **options), rows, test_rows), slow)


def repeated(rng: Generator, times: int, jitter: float = 0.0, grouped: bool = False) -> Data:
    """One hundred rows, each several times, exactly or with small changes."""
    data = train_and_test(rng, curved, 100)
    X = np.tile(data.X, (times, 1))
    groups = np.tile(np.arange(100), times) if grouped else None
    return Data(X + jitter * rng.normal(size=X.shape), np.tile(data.y, times), data.X_test, data.y_test, groups)


def oversampled(rng: Generator) -> Data:
    """One row in ten has the second class and is repeated until the classes are balanced; the test is balanced too."""

    def draw(rng: Generator, each: int) -> np.ndarray:
        return np.concatenate([rng.normal(size=(each, 5)), rng.normal(size=(each, 5)) + 0.7])

    common, rare = rng.normal(size=(360, 5)), rng.normal(size=(40, 5)) + 0.7
    X = np.concatenate([common, rare[np.arange(360) % 40]])
    return Data(X, np.repeat([0, 1], 360), draw(rng, TEST // 2), np.repeat([0, 1], TEST // 2))


def grouped(rng: Generator) -> Data:
    """Sixty patients with ten similar visits and one label each. The test rows are of new patients."""

    def draw(rng: Generator, patients: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        centre, y = curved(rng, patients, 8, 0.15)
        X = np.repeat(centre, 10, axis=0) + 0.3 * rng.normal(size=(10 * patients, 8))
        return X, np.repeat(y, 10), np.repeat(np.arange(patients), 10)

    X, y, groups = draw(rng, 60)
    return Data(X, y, *draw(rng, TEST // 10)[:2], groups)


def coins(rng: Generator, rows: int, n_classes: int = 2) -> Rows:
    """Labels that are independent of the inputs."""
    return rng.normal(size=(rows, 10)), rng.integers(0, n_classes, rows)


def wide(rng: Generator, rows: int) -> Rows:
    """5,000 columns, five of which are informative."""
    X = rng.normal(size=(rows, 5000))
    return X, (X[:, :5].sum(1) + rng.normal(size=rows) > 0).astype(int)


def picture(rng: Generator) -> Data:
    """3,200 rows with 784 columns of rank 20 and noise, ten classes: the size of a small set of images."""
    mixing, centres = rng.normal(size=(20, 784)), 1.3 * rng.normal(size=(10, 20))

    def draw(rng: Generator, rows: int) -> Rows:
        y = rng.integers(0, 10, rows)
        return (centres[y] + rng.normal(size=(rows, 20))) @ mixing + 4 * rng.normal(size=(rows, 784)), y

    return train_and_test(rng, draw, 3200)


def few(rng: Generator, rows: int) -> Rows:
    """Half of the rows are of each class."""
    y = np.arange(rows) % 2
    return rng.normal(size=(rows, 3)) + y[:, None], y


def lonely(rng: Generator) -> Data:
    """200 rows of three classes; one further class has a single row."""

    def draw(rng: Generator, rows: int, rare: int) -> Rows:
        y = np.concatenate([rng.integers(0, 3, rows - rare), np.full(rare, 3)])
        return rng.normal(size=(rows, 4)) + 2 * np.eye(4)[y], y

    return Data(*draw(rng, 201, 1), *draw(rng, TEST, TEST // 201))


def imbalanced(rng: Generator, rows: int) -> Rows:
    """One row in a thousand has the second class."""
    y = (np.arange(rows) % 1000 == 0).astype(int)
    return rng.normal(size=(rows, 5)) + 2 * y[:, None], y


def outliers(rng: Generator, rows: int) -> Rows:
    """One number in a hundred is 1e12, in training and test rows."""
    X, y = curved(rng, rows)
    X[rng.random(X.shape) < 0.01] = 1e12
    return X, y


def useless_columns(rng: Generator, rows: int) -> Rows:
    """Ten constant columns, and five copies of each informative column."""
    X, y = curved(rng, rows)
    return np.hstack([np.tile(X, (1, 5)), np.full((rows, 10), 7.0)]), y


def heavy_tails(rng: Generator, rows: int) -> Rows:
    """Heavy-tailed columns: the inputs' signed eighth power, and Cauchy noise."""
    X, y = curved(rng, rows)
    return np.hstack([np.sign(X) * np.abs(X) ** 8, rng.standard_cauchy(size=(rows, 3))]), y


def codes(rng: Generator) -> Data:
    """Integers that are identifiers: each of 40 shops has its own rate, which does not depend on its number."""
    rates = rng.beta(0.7, 0.7, 40)

    def draw(rng: Generator, rows: int) -> Rows:
        shop = rng.integers(0, 40, rows)
        return np.column_stack([shop, rng.normal(size=rows)]), (rng.random(rows) < rates[shop]).astype(int)

    return train_and_test(rng, draw, 1500)


def many_classes(rng: Generator) -> Data:
    """1,000 classes with five rows each."""
    centres = 1.5 * rng.normal(size=(1000, 10))

    def draw(rng: Generator, rows: int) -> Rows:
        y = np.arange(rows) % 1000
        return centres[y] + 0.5 * rng.normal(size=(rows, 10)), y

    return train_and_test(rng, draw, 5000)


def sparse_columns(rng: Generator) -> Data:
    """A sparse matrix, as from OneHotEncoder: 300 words, ten of which are informative."""
    effect = np.zeros(300)
    effect[:10] = 3 * rng.choice([-1, 1], 10)

    def draw(rng: Generator, rows: int) -> Rows:
        dense = rng.random((rows, 300)) < 0.1
        y = dense @ effect + rng.logistic(size=rows) > 0
        return sparse.csr_array(dense.astype(float)), y.astype(int)

    return train_and_test(rng, draw, 500)


def missing(rng: Generator, rows: int) -> Rows:
    """One number in five is missing."""
    X, y = curved(rng, rows)
    X[rng.random(X.shape) < 0.2] = np.nan
    return X, y


TREES = ("trees", "hist-gradient-boosting", "cross-calibrated")
CASES = {
    "rows once": case("100 rows, a tenth of the labels flipped", curved, 100),
    "copies": HostileCase("the same 100 rows, ten times each", lambda rng: repeated(rng, 10)),
    "near copies": HostileCase("100 rows, six times each with changes of 1 %", lambda rng: repeated(rng, 6, 0.01)),
    "near copies, groups": HostileCase("the same, with groups", lambda rng: repeated(rng, 6, 0.01, True)),
    "oversampled": HostileCase("40 rows of a class repeated nine times, to balance 360", oversampled),
    "grouped": HostileCase("60 patients with 10 visits, with groups; new patients are tested", grouped),
    "coin flips": case("300 rows, two classes at random", coins, 300),
    "five-sided coins": case("300 rows, five classes at random", coins, 300, n_classes=5),
    "200 x 5,000": case("five informative columns of 5,000", wide, 200),
    "3,200 x 784": HostileCase("ten classes, the size of a small set of images", picture, slow=TREES[1:]),
    "two rows": case("two rows, two classes", few, 2),
    "ten rows": case("ten rows, two classes", few, 10),
    "one lonely row": HostileCase("200 rows of three classes, one row of a fourth", lonely),
    "1 in 1,000": case("four rows of the second class in 4,000", imbalanced, 4000, test_rows=4 * TEST),
    "outliers": case("one number in a hundred is 1e12", outliers, 400),
    "useless columns": case("ten constant columns, and five copies of each informative one", useless_columns, 400),
    "heavy tails": case("columns without a variance", heavy_tails, 400),
    "codes": HostileCase("numbers of 40 shops, each with a rate of its own", codes),
    "1,000 classes": HostileCase("five rows of each class", many_classes, slow=TREES),
    "noisy labels": case("30 % of the labels flipped", curved, 600, flipped=0.3),
    "sparse": HostileCase("a sparse matrix of 300 columns", sparse_columns),
    "missing": case("a fifth of the numbers is missing", missing, 600),
}
"""The cases by name, in the order of the report."""
