"""Tests of messages about tables: every kind is accepted, or rejected in a sentence that says what to do."""

import numpy as np
import pandas as pd
import pytest
from scipy import sparse
from sklearn.base import clone
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.feature_extraction.text import CountVectorizer
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.pipeline import make_pipeline

from calibrant import BO4SCClassifier, CrossCalibrated, SelfCalibratedClassifier, metrics
from calibrant.base.settings import shown
from calibrant.data import TableEncoder
from tests.estimators.cases import QUICK

ROWS = 48
Y = np.arange(ROWS) % 2
_RANDOM = np.random.default_rng(0)
PLAIN = pd.DataFrame({"a": _RANDOM.normal(size=ROWS) + Y, "b": _RANDOM.normal(size=ROWS)})
TABLES = {
    "category and bool": PLAIN.assign(c=pd.Categorical(np.where(Y, "x", "z")), t=np.arange(ROWS) % 3 == 0),
    "datetime": PLAIN.assign(d=pd.date_range("2020-01-01", periods=ROWS)),
    "duration": PLAIN.assign(d=pd.to_timedelta(np.arange(ROWS), unit="D")),
    "text": PLAIN.assign(s=np.where(Y, "u", "v")),
    "gaps": PLAIN.where(_RANDOM.random(PLAIN.shape) > 0.1),
    "pandas' own types": PLAIN.assign(i=pd.array([None, *range(ROWS - 1)], dtype="Int64")),
    "sparse frame": PLAIN.astype(pd.SparseDtype(float, 0.0)),
    "sparse frame with gaps": PLAIN.where(PLAIN > 0).astype(pd.SparseDtype(float)),
    "sparse frame with ones": PLAIN.round().astype(pd.SparseDtype(float, 1.0)),
    "sparse": sparse.csr_matrix(PLAIN.to_numpy()),
}
TAKEN = {"sparse", "sparse frame"}
"""What a logistic regression takes by itself."""


@pytest.mark.filterwarnings("ignore:Column 'd' holds dates")
@pytest.mark.parametrize("kind", ["bo4sc", "self-calibrated"])
@pytest.mark.parametrize("name", TABLES)
def test_our_classifiers_take_every_table(name, kind):
    members = {"members": ("network",), "epochs": 2} if kind == "self-calibrated" else {"epochs": 2}
    fitted = clone(QUICK[kind]).set_params(**members).fit(TABLES[name], Y)
    assert np.isfinite(fitted.predict_proba(TABLES[name])).all()


@pytest.mark.filterwarnings("ignore:Column 'd' holds dates")
@pytest.mark.parametrize("name", TABLES)
def test_errors_of_foreign_classifiers_name_the_encoder(name):
    table = TABLES[name]
    if name not in TAKEN:
        with pytest.raises(ValueError, match=r"LogisticRegression cannot take .*TableEncoder\(\), LogisticRegression"):
            CrossCalibrated(LogisticRegression(), cv=2).fit(table, Y)
        encoded = make_pipeline(TableEncoder(), LogisticRegression())
        assert np.isfinite(CrossCalibrated(encoded, cv=2).fit(table, Y).predict_proba(table)).all()
    else:
        CrossCalibrated(LogisticRegression(), cv=2).fit(table, Y)
    if name == "sparse":
        with pytest.raises(ValueError, match=r"cannot take this sparse matrix: give X\.toarray\(\)"):
            CrossCalibrated(HistGradientBoostingClassifier(), cv=2).fit(table, Y)


@pytest.mark.parametrize(
    "model", [QUICK["bo4sc"], CrossCalibrated(LogisticRegression(), cv=2)], ids=["network", "cross"]
)
def test_an_index_in_another_order_is_noticed(model):
    with pytest.warns(UserWarning, match="X and y have the same index in different orders"):
        clone(model).fit(PLAIN, pd.Series(Y).iloc[::-1])


def test_only_instances_of_classifiers_are_cross_calibrated():
    for wrong in (LogisticRegression, LinearRegression(), 3):
        with pytest.raises(TypeError, match=r"estimator must be a classifier, such as LogisticRegression\(\); got"):
            CrossCalibrated(wrong).fit(PLAIN, Y)


@pytest.mark.parametrize("kind", [list, pd.Series, np.array])
def test_documents_and_unhashable_values_can_be_rows(kind):
    documents = kind([f"{'good' if y else 'bad'} {k}" for k, y in enumerate(Y)])
    words = make_pipeline(CountVectorizer(), LogisticRegression())
    assert CrossCalibrated(words, cv=2).fit(documents, Y).score(documents, Y) > 0.9
    lists = PLAIN.assign(tags=[["x"]] * ROWS)
    encoded = make_pipeline(TableEncoder(), LogisticRegression())
    CrossCalibrated(encoded, cv=2).fit(lists, Y)


@pytest.mark.parametrize("kind", [BO4SCClassifier, SelfCalibratedClassifier])
def test_complex_numbers_are_a_short_sentence(kind):
    with pytest.raises(ValueError, match="give real and imaginary parts") as error:
        kind().fit(PLAIN.assign(z=1j), Y)
    assert len(str(error.value)) < 120


PROBS, LABELS = np.full((4, 2), 0.5), np.array([0, 1, 0, 1])
WRONG = [
    lambda: BO4SCClassifier().fit(PLAIN, np.zeros(ROWS, dtype=np.int64)),
    lambda: SelfCalibratedClassifier().fit(PLAIN, np.array(["one"] * ROWS)),
    lambda: CrossCalibrated(LogisticRegression()).fit(PLAIN, np.ones(ROWS, dtype=np.int32)),
    lambda: BO4SCClassifier(learning_rate=np.float64(-1)).fit(PLAIN, Y),
    lambda: BO4SCClassifier(epochs=np.int64(-1)).fit(PLAIN, Y),
    lambda: BO4SCClassifier(np.array([-3])).fit(PLAIN, Y),
    lambda: BO4SCClassifier(validation_fraction=np.float32(2)).fit(PLAIN, Y),
    lambda: BO4SCClassifier(class_weight={np.int64(0): np.float64(-1), np.int64(1): 1}).fit(PLAIN, Y),
    lambda: CrossCalibrated(cv=np.int64(1)).fit(PLAIN, Y),
    lambda: metrics.ece(PROBS, LABELS, bins=np.int64(0)),
    lambda: metrics.ece(PROBS, LABELS, groups=LABELS, sample_weight=LABELS.astype(float)),
    lambda: metrics.ece(PROBS, np.array([0, 1, 2, 1])),
]


@pytest.mark.parametrize("wrong", WRONG, ids=range(len(WRONG)))
def test_messages_have_plain_values(wrong):
    with pytest.raises(ValueError, match=r".") as error:
        wrong()
    assert "np." not in str(error.value)
    assert "array(" not in str(error.value)


def test_values_in_messages():
    assert shown(np.int64(0)) == "0"
    assert shown([np.str_("a"), (np.float32(0.5),)]) == "['a', (0.5,)]"
    assert shown({np.int64(1): np.array([1.0, 2.0])}) == "{1: [1.0, 2.0]}"
    assert shown("text") == "'text'"
