"""Tests of the classifiers with scikit-learn's checks and tools."""

import dataclasses
import inspect

import numpy as np
import pandas as pd
import pytest
import sklearn
from sklearn.base import clone
from sklearn.calibration import CalibratedClassifierCV
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

from calibrant import BO4SCClassifier, SelfCalibratedClassifier
from calibrant.methods import SelfCalibrated
from calibrant.methods.blend import MEMBERS
from tests.estimators.cases import QUICK, three_classes

X, y = three_classes()

CHECKED = [
    BO4SCClassifier((8,), epochs=15, steps=3, learning_rate=0.1),
    SelfCalibratedClassifier((8,), folds=2, epochs=15, steps=5, learning_rate=0.1),
]
REPEATED = (
    "rows are dealt out at random to the two levels, so that copies of a row may stand on both sides, while a row of "
    "weight two stands on one"
)
EXPECTED_FAILURES = {f"check_sample_weight_equivalence_on_{kind}_data": REPEATED for kind in ("dense", "sparse")}
each = pytest.mark.parametrize("quick", QUICK.values(), ids=QUICK)


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@parametrize_with_checks(CHECKED, expected_failed_checks=lambda estimator: EXPECTED_FAILURES)
def test_scikit_learns_own_checks(estimator, check):
    check(estimator)


def test_every_method_setting_is_a_parameter_with_its_default():
    defaults = {name: p.default for name, p in inspect.signature(SelfCalibratedClassifier).parameters.items()}
    assert defaults.pop("members") == MEMBERS  # the method is for any network, the classifier for a table
    defaults["members"] = SelfCalibrated.members
    for field in dataclasses.fields(SelfCalibrated):
        assert defaults["hidden_layer_sizes" if field.name == "hidden" else field.name] == field.default
        assert field.name == "hidden" or f"{field.name} :" in SelfCalibratedClassifier.__doc__


@each
def test_pipeline_and_cross_validation(quick):
    pipe = make_pipeline(StandardScaler(), quick)
    assert cross_val_score(pipe, X, y, cv=3).mean() > 0.8
    assert (pipe.fit(X, y).predict(X, reject_below=1.0) == -1).all()


@pytest.mark.slow
@each
def test_grid_search_in_two_processes(quick):
    grid = {"epochs": [1, 20], "hidden_layer_sizes": [4, (8, 8)]}
    search = GridSearchCV(quick, grid, cv=2, n_jobs=2, scoring="neg_log_loss").fit(X, y)
    assert search.best_params_["epochs"] == 20
    assert search.best_estimator_.score(X, y) > 0.8  # score is the accuracy


def test_parameters_of_lists_serve_as_tuples():
    given = BO4SCClassifier([8], epochs=5, random_state=0).fit(X, y)
    usual = BO4SCClassifier((8,), epochs=5, random_state=0).fit(X, y)
    np.testing.assert_array_equal(given.predict_proba(X), usual.predict_proba(X))


def test_sample_weights_are_routed():
    seen = {}

    class Watched(SelfCalibratedClassifier):
        def fit(self, X, y, sample_weight=None, **others):
            seen["weights"] = sample_weight
            return super().fit(X, y, sample_weight, **others)

    with sklearn.config_context(enable_metadata_routing=True):
        inner = Watched(8, folds=2, epochs=2, random_state=0).set_fit_request(sample_weight=True)
        model = CalibratedClassifierCV(inner, method="sigmoid", cv=2)
        model.fit(X, y, sample_weight=np.arange(90.0))
    assert seen["weights"].max() > 1


@each
def test_predictions_do_not_depend_on_their_company(quick):
    fitted = clone(quick).fit(X, y)
    whole = fitted.predict_proba(X)
    np.testing.assert_allclose(np.vstack([fitted.predict_proba(row[None]) for row in X]), whole, rtol=1e-12)
    np.testing.assert_allclose(fitted.predict_proba(X[::-1])[::-1], whole, rtol=1e-12)
    np.testing.assert_allclose(fitted.predict_proba(np.repeat(X, 200, 0))[::200], whole, rtol=1e-12)


@each
def test_output_setting_leaves_probabilities_arrays(quick):
    """``set_output`` is for transformers; a pipeline set to pandas must still work, by column names."""
    frame = pd.DataFrame(X, columns=["a", "b"])
    pipe = make_pipeline(StandardScaler(), clone(quick)).set_output(transform="pandas").fit(frame, y)
    assert isinstance(pipe.predict_proba(frame), np.ndarray)
    assert list(pipe[-1].feature_names_in_) == ["a", "b"]
