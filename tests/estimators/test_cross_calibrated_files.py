"""Files of CrossCalibrated: equal predictions for models that can be stored, a sentence for all others."""

import numpy as np
import pytest
from sklearn.ensemble import HistGradientBoostingClassifier, RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from calibrant import CrossCalibrated, SelfCalibratedClassifier
from calibrant.data import TableEncoder
from calibrant.estimators import load_classifier
from calibrant.posthoc import Isotonic

BOOSTING = HistGradientBoostingClassifier(max_iter=5, random_state=0)


def rows(classes, n=120, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 3))
    y = (np.argsort(np.argsort(X[:, 0] + 0.5 * rng.normal(size=n))) * classes) // n
    return X, np.array(["no", "perhaps", "yes"])[y]


CASES = {
    "boosting": {"estimator": BOOSTING},
    "logistic regression": {"estimator": LogisticRegression(C=0.5, random_state=1)},
    "pipeline": {"estimator": make_pipeline(StandardScaler(), LogisticRegression(class_weight="balanced"))},
    "one model": {"estimator": BOOSTING, "ensemble": False},
    "no calibrator": {"estimator": BOOSTING, "calibrator": None},
    "own calibrator": {"estimator": BOOSTING, "calibrator": Isotonic()},
}


@pytest.mark.parametrize("classes", [2, 3])
@pytest.mark.parametrize("case", CASES)
def test_predictions_are_equal_after_loading(case, classes, tmp_path):
    X, y = rows(classes)
    clf = CrossCalibrated(**CASES[case], cv=3, random_state=0).fit(X, y)
    new = np.vstack([rows(classes, seed=1)[0], 100 * X[:5]])
    if "logistic" not in case and "pipeline" not in case:
        new[::7, 1] = np.nan
    clf.save(tmp_path / "a", about={"note": "mine"})
    again = CrossCalibrated.load(tmp_path / "a")
    assert np.allclose(again.predict_proba(new), clf.predict_proba(new), rtol=0, atol=1e-12)
    assert again.predict(new).tolist() == clf.predict(new).tolist()
    assert again.rejection_rule(0.3) == clf.rejection_rule(0.3)
    assert np.array_equal(again.predict_set(new), clf.predict_set(new))
    assert repr(again.get_params()) == repr(clf.get_params())
    again.save(tmp_path / "b")
    assert np.allclose(load_classifier(tmp_path / "b").predict_proba(new), clf.predict_proba(new), rtol=0, atol=1e-12)
    again.fit(X, y)
    assert np.allclose(again.predict_proba(new), clf.predict_proba(new), rtol=0, atol=1e-12)


def test_a_data_frame_keeps_its_columns(tmp_path):
    pd = pytest.importorskip("pandas")
    X, y = rows(2)
    frame = pd.DataFrame({"a": X[:, 0], "kind": np.where(X[:, 1] > 0, "up", "down"), "c": X[:, 2]})
    encoded = make_pipeline(TableEncoder(), BOOSTING)
    clf = CrossCalibrated(encoded, cv=2, random_state=0).fit(frame, y)
    clf.save(tmp_path / "a")
    again = load_classifier(tmp_path / "a")
    assert again.feature_names_in_.tolist() == ["a", "kind", "c"]
    assert np.allclose(again.predict_proba(frame), clf.predict_proba(frame), rtol=0, atol=1e-12)
    plain = CrossCalibrated(BOOSTING, cv=2).fit(frame[["a", "c"]], y)
    plain.save(tmp_path / "b")
    with pytest.raises(ValueError, match="feature names"):
        load_classifier(tmp_path / "b").predict_proba(frame[["c", "a"]])


def test_a_fold_with_one_class_is_stored(tmp_path):
    X, y = rows(2, n=20)
    first, second = np.flatnonzero(y == "no"), np.flatnonzero(y != "no")
    clf = CrossCalibrated(LogisticRegression(), cv=[(first, second), (second, first)]).fit(X, y)
    clf.save(tmp_path / "a")
    again = CrossCalibrated.load(tmp_path / "a")
    assert np.allclose(again.predict_proba(X), clf.predict_proba(X), rtol=0, atol=1e-12)
    assert again.cv == 5  # a splitter cannot be written


@pytest.mark.parametrize(
    ("estimator", "words"),
    [
        (RandomForestClassifier(3), "got a RandomForestClassifier"),
        (make_pipeline(RandomForestClassifier(3)), "got a RandomForestClassifier"),
        (HistGradientBoostingClassifier(max_iter=2, categorical_features=[0]), "categorical columns"),
    ],
)
def test_other_estimators_are_a_sentence(estimator, words, tmp_path):
    X, y = rows(2)
    X[:, 0] = X[:, 0] > 0
    clf = CrossCalibrated(estimator, cv=2).fit(X, y)
    with pytest.raises(ValueError, match=words):
        clf.save(tmp_path / "a")
    assert not (tmp_path / "a").exists()


def test_a_damaged_or_other_file_is_refused(tmp_path):
    X, y = rows(2)
    clf = CrossCalibrated(BOOSTING, cv=2).fit(X[:, ::-1], y)
    clf.save(tmp_path / "a")
    with pytest.raises(ValueError, match="holds a CrossCalibrated, not a SelfCalibratedClassifier"):
        SelfCalibratedClassifier.load(tmp_path / "a")
    for model in clf.estimators_:
        model.n_features_in_ = 1  # trees that split a column which does not exist would read other memory
    clf.save(tmp_path / "b")
    with pytest.raises(ValueError, match="damaged"):
        load_classifier(tmp_path / "b")
