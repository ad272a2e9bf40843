"""Small tables, and classifiers that train quickly."""

import numpy as np
import pytest

pytest.importorskip("pandas")
import pandas as pd

from calibrant.report.evaluation import numbers
from calibrant.tables import Order, methods, train
from calibrant.tables.read import read
from calibrant.tables.split import split
from tests.eager import train_eagerly

QUICK = {"epochs": 3, "folds": 2, "repeats": 1, "members": ("network",), "hidden_layer_sizes": (8,), "embedding": None}


@pytest.fixture
def quick(monkeypatch):
    """Networks of eight units that train for three epochs, and noise floors of a few draws."""
    make_quick(monkeypatch)


def make_quick(patch):
    cls = methods.SelfCalibratedClassifier
    entry = methods.TableMethod(lambda **given: cls(**{**QUICK, **given}), "quick", True)
    patch.setitem(methods.METHODS, "self-calibrated", entry)
    train_eagerly(patch)
    patch.setattr(numbers, "BUDGET", 1.0)


def churn(n=240, seed=0):
    """Numbers, categories, codes, dates, a constant and missing values, with names that need care."""
    rng = np.random.default_rng(seed)
    spent = rng.normal(size=n).round(4)
    plan = rng.choice(["basic", "plus", 'pro, "max"'], n)
    left = spent + (plan == "basic") + rng.normal(size=n) > 0.5
    table = pd.DataFrame(
        {
            "spent (€)": np.where(rng.random(n) < 0.1, np.nan, spent),
            "plan": plan,
            "post code": rng.choice(["007", "1.10", "1.1", "2b", "3"], n),
            "since": pd.date_range("2020-01-01", periods=n).strftime("%Y-%m-%d"),
            "visits": rng.integers(0, 9, n),
            "always": 1,
            "left?": np.where(left, "yes", "no"),
        }
    )
    return table.sample(frac=1, random_state=seed).reset_index(drop=True)


def parts_of(path, target="left?", **options):
    """The parts of a table, with the options of an order."""
    order = Order(path, target, "out", **options)
    return split(read(order), order)


@pytest.fixture
def table(tmp_path):
    path = tmp_path / "churn.csv"
    churn().to_csv(path, index=False)
    return path


@pytest.fixture(scope="session")
def trained(tmp_path_factory):
    """A folder with the five files, and the table that they come from."""
    folder = tmp_path_factory.mktemp("trained")
    path = folder / "churn.csv"
    churn().to_csv(path, index=False)
    with pytest.MonkeyPatch.context() as patch:
        make_quick(patch)
        train(Order(path, "left?", folder / "out", risk=0.25))
    return folder / "out", path
