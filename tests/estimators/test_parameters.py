"""Tests of BO4SCClassifier's parameters: the method object, and former names of both classifiers."""

import dataclasses
import pickle
import warnings

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV

from calibrant import BO4SCClassifier, SelfCalibratedClassifier
from calibrant.estimators.bo4sc import MOVED, PUBLISHED
from calibrant.methods import BO4SC
from tests.estimators.cases import three_classes

QUICK = {"epochs": 5, "random_state": 0}


def test_parameters_replace_fields_of_the_method():
    method = BO4SC(steps=3, alpha=50.0, also=("l2",))
    assert BO4SCClassifier()._method() == BO4SC()
    assert BO4SCClassifier(method=method)._method() == method
    given = BO4SCClassifier(8, steps=4, outer_learning_rate=2.0, method=method)._method()
    assert given == BO4SC(hidden=(8,), steps=4, outer_learning_rate=2.0, alpha=50.0, also=("l2",))


def test_parameters_and_moved_settings_are_all_fields_of_the_method():
    assert {*PUBLISHED.values(), *MOVED} == {field.name for field in dataclasses.fields(BO4SC)}
    assert set(PUBLISHED) <= set(BO4SCClassifier().get_params())
    assert not set(MOVED) & set(BO4SCClassifier().get_params())


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


FORMER = {
    "renamed": ({"outer_rate": 3.0}, {"outer_learning_rate": 3.0}),
    "moved": ({"inner": "sgd", "also": ["l2"]}, {"method": BO4SC(inner="sgd", also=("l2",))}),
    "moved and renamed": ({"also": ("l2",), "also_rate": 0.1}, {"method": BO4SC(also=("l2",), also_learning_rate=0.1)}),
    "moved, default": ({"inner": "adam"}, {"method": None}),
    "moved into a method": (
        {"inner": "sgd", "method": BO4SC(also=("l2",))},
        {"method": BO4SC(inner="sgd", also=("l2",))},
    ),
}


@pytest.mark.parametrize("name", FORMER)
def test_former_parameters_work_with_a_warning(name):
    former, present = FORMER[name]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        expected = BO4SCClassifier(**present).get_params()
    with pytest.warns(DeprecationWarning, match=r"is now called|moved to its parameter method") as caught:
        assert BO4SCClassifier(**former).get_params() == expected
    assert {warning.filename for warning in caught} == {__file__}
    with pytest.warns(DeprecationWarning, match=r"is now called|moved to its parameter method") as caught:
        assert BO4SCClassifier().set_params(**former).get_params() == expected
    assert {warning.filename for warning in caught} == {__file__}


def test_former_parameter_of_the_recommended_classifier():
    with pytest.warns(DeprecationWarning, match="is now called outer_learning_rate"):
        made = SelfCalibratedClassifier(outer_rate=0.3)
    assert made.outer_learning_rate == 0.3
    with pytest.warns(DeprecationWarning, match="is now called outer_learning_rate"):
        assert made.outer_rate == 0.3
    with pytest.raises(TypeError, match="both outer_learning_rate and its old name"):
        SelfCalibratedClassifier(outer_rate=0.3, outer_learning_rate=0.3)


@pytest.mark.parametrize("cls", [SelfCalibratedClassifier, BO4SCClassifier])
def test_displaying_a_classifier_does_not_warn(cls):
    made = cls()
    made.classes_ = np.arange(2)  # scikit-learn displays attributes of fitted classifiers
    made.model_ = None
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert "classes_" in made._repr_html_()
        assert {"fit", "classes_"} <= set(dir(made))
    assert "outer_rate" not in dir(made)


def test_former_attributes_read_the_method():
    made = BO4SCClassifier(method=BO4SC(inner="sgd"))
    with pytest.warns(DeprecationWarning, match=r"is now called BO4SCClassifier\.method\.inner"):
        assert made.inner == "sgd"


def test_files_with_former_parameters_are_read_without_a_warning(tmp_path, monkeypatch):
    """A file as it was written when BO4SCClassifier had all settings as parameters."""
    X, y = three_classes()
    fitted = BO4SCClassifier(4, method=BO4SC(also=("l2",)), outer_learning_rate=3.0, **QUICK).fit(X, y)
    former = (
        fitted.get_params() | {name: getattr(BO4SC(), name) for name in MOVED} | {"also": ("l2",), "outer_rate": 3.0}
    )
    del former["method"], former["outer_learning_rate"]
    monkeypatch.setattr(BO4SCClassifier, "get_params", lambda self, deep=True: former)
    fitted.save(tmp_path / "former.calibrant")
    monkeypatch.undo()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = BO4SCClassifier.load(tmp_path / "former.calibrant")
    assert found.get_params() == fitted.get_params()
    np.testing.assert_array_equal(found.predict_proba(X), fitted.predict_proba(X))
