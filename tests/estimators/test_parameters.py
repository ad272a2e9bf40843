"""Tests of BO4SCClassifier's parameters: the method object, and former names of both classifiers."""

import dataclasses
import pickle

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV

from calibrant import BO4SCClassifier
from calibrant.estimators.bo4sc import PUBLISHED
from calibrant.methods import BO4SC
from tests.estimators.cases import three_classes

QUICK = {"epochs": 5, "random_state": 0}


def test_parameters_replace_fields_of_the_method():
    method = BO4SC(steps=3, alpha=50.0, also=("l2",))
    assert BO4SCClassifier()._method() == BO4SC()
    assert BO4SCClassifier(method=method)._method() == method
    given = BO4SCClassifier(8, steps=4, outer_learning_rate=2.0, method=method)._method()
    assert given == BO4SC(hidden=(8,), steps=4, outer_learning_rate=2.0, alpha=50.0, also=("l2",))


def test_parameters_of_the_paper_set_fields_of_the_method():
    assert set(PUBLISHED.values()) <= {field.name for field in dataclasses.fields(BO4SC)}
    assert set(PUBLISHED) <= set(BO4SCClassifier().get_params())


@pytest.mark.parametrize("method", ["bo4sc", BO4SC, {"steps": 3}])
def test_other_methods_are_refused(method):
    with pytest.raises(ValueError, match=r"method must be a calibrant\.methods\.BO4SC"):
        BO4SCClassifier(method=method).fit(*three_classes())


def test_settings_of_the_method_are_checked_in_fit():
    with pytest.raises(ValueError, match="batch_size must be a positive whole number"):
        BO4SCClassifier(method=BO4SC(batch_size=0)).fit(*three_classes())


def test_copies_and_files_keep_the_method(tmp_path):
    X, y = three_classes()
    fitted = BO4SCClassifier(4, method=BO4SC(also=("l2",), batch_size=20), **QUICK).fit(X, y)
    fitted.save(tmp_path / "model.calibrant")
    copies = [BO4SCClassifier.load(tmp_path / "model.calibrant"), pickle.loads(pickle.dumps(fitted))]
    for copy in copies:
        assert copy.get_params() == fitted.get_params()
        np.testing.assert_array_equal(copy.predict_proba(X), fitted.predict_proba(X))
    assert clone(fitted).method == fitted.method


def test_methods_can_be_searched():
    X, y = three_classes(60)
    methods = [BO4SC(), BO4SC(inner="sgd", learning_rate=1e-9)]
    search = GridSearchCV(BO4SCClassifier(8, epochs=40, random_state=0), {"method": methods}, cv=2).fit(X, y)
    assert search.best_params_["method"] == methods[0]
