"""Warnings name the user's line, whatever the depth of the call."""

import numpy as np
import pandas as pd
import pytest
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline

from calibrant import CrossCalibrated, metrics
from calibrant.base.warning import warn
from calibrant.data import TableEncoder

from .source import FILES, name_of

X = np.random.default_rng(0).normal(size=(40, 2))
Y = np.arange(40) % 2
PROBS = np.stack([Y / 2 + 0.25, 0.75 - Y / 2], axis=1)


def weighted():
    CrossCalibrated(KNeighborsClassifier(3), cv=2).fit(X, Y, sample_weight=np.arange(1.0, 41))


def numbers_as_text_in_a_pipeline():
    table = pd.DataFrame({"a": [str(number) for number in range(40)]})
    make_pipeline(TableEncoder(), HistGradientBoostingClassifier(max_iter=1)).fit(table, Y)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (weighted, "does not accept sample_weight"),
        (numbers_as_text_in_a_pipeline, "is taken as numbers"),
        (lambda: metrics.nll(metrics.Logits(PROBS), Y), "These logits are probabilities"),
        (lambda: warn("mine", FutureWarning), "mine"),
    ],
)
def test_a_warning_names_the_line_of_the_user(call, words):
    with pytest.warns(Warning, match=words) as caught:
        call()
    assert {w.filename for w in caught if words in str(w.message)} == {__file__}


def test_one_function_warns():
    assert [name_of(file) for file in FILES if "warnings.warn(" in file.read_text(encoding="utf-8")] == [
        "src/calibrant/base/warning.py"
    ]
