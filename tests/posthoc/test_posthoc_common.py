"""Common tests of all calibrators; a new calibrator is one more row of the table."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from posthoc_cases import NAMES, SITUATIONS, WITHOUT_SPLIT, fitted, log_loss, overconfident
from scipy.special import softmax
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning, NotFittedError

import calibrant.posthoc as posthoc
from calibrant.base.inputs import Logits
from calibrant.posthoc import CALIBRATORS, make_calibrator

every = pytest.mark.parametrize("name", NAMES)
EXPECTED = {
    "temperature": (0.037039, 0.582770, 0.266651),
    "attended-temperature": (0.030392, 0.594586, 0.261023),
    "ensemble-temperature": (0.035347, 0.592160, 0.260300),
    "platt": (0.077269, 0.551877, 0.370551),
    "vector": (0.071295, 0.615536, 0.350376),
    "beta": (0.092717, 0.603528, 0.291375),
    "order-preserving-isotonic": (0.087150, 0.458985, 0.272265),
    "isotonic-confidence": (0.003319, 0.401870, 0.321586),
    "structured-matrix": (0.047337, 0.629533, 0.302428),
    "matrix": (0.025211, 0.642627, 0.247635),
    "dirichlet": (0.049778, 0.639210, 0.288781),
    "neural": (0.045151, 0.624443, 0.310725),
    "histogram": (0.119846, 0.442185, 0.419908),
    "isotonic": (0.139603, 0.425236, 0.399042),
}
"""Probabilities of two rows by calibrators with default settings. They change if a default or a formula does."""
classes = pytest.mark.parametrize("n_classes", [2, 4])


@every
@classes
def test_probabilities_are_probabilities_and_better_than_the_raw_ones(name, n_classes):
    logits, labels = overconfident(1000, n_classes, seed=3)
    calibrator = fitted(name, "overconfident", n_classes)
    probs = calibrator.predict_proba(logits)
    assert probs.shape == logits.shape
    assert probs.dtype == np.float64
    assert (probs >= 0).all()
    np.testing.assert_allclose(probs.sum(axis=1), 1, atol=1e-12)
    assert log_loss(probs, labels) < log_loss(softmax(logits, axis=1), labels)
    np.testing.assert_array_equal(calibrator.classes_, np.arange(n_classes))
    assert 0 < calibrator.score(logits, labels) <= 1


@every
def test_the_defaults_give_the_probabilities_that_they_gave(name):
    logits, labels = overconfident(90, 3, seed=11)
    weights = np.random.default_rng(0).uniform(0.5, 2, 90)
    probs = make_calibrator(name).fit(logits, labels, weights).predict_proba(logits[:2] + [0.0, 0.5, 0.0])
    assert (*probs[0, :2], probs[1, 0]) == pytest.approx(EXPECTED[name], abs=2e-5)


@every
def test_it_is_a_scikit_learn_estimator(name):
    calibrator = make_calibrator(name)
    before = calibrator.get_params()
    assert not [key for key in vars(calibrator) if key not in before], "__init__ only stores"
    with pytest.raises(NotFittedError):
        calibrator.predict_proba(np.zeros((1, 3)))
    logits, labels = overconfident(120, 3)
    assert calibrator.fit(logits, labels) is calibrator
    assert calibrator.get_params() == before
    again = clone(calibrator)
    assert not hasattr(again, "classes_")
    np.testing.assert_array_equal(again.fit(logits, labels).predict_proba(logits), calibrator.predict_proba(logits))


@every
@classes
def test_logits_and_probabilities_of_one_model_give_one_answer(name, n_classes):
    logits, labels = overconfident(200, n_classes)
    probs = softmax(logits, axis=1)
    from_logits = make_calibrator(name).fit(logits, labels).predict_proba(logits)
    from_probs = make_calibrator(name, from_probs=True).fit(probs, labels).predict_proba(probs)
    shifted = make_calibrator(name).fit(logits - 7.0, labels).predict_proba(logits + 100.0)
    np.testing.assert_allclose(from_probs, from_logits, atol=1e-5)
    np.testing.assert_allclose(shifted, from_logits, atol=1e-5)


@every
@classes
def test_an_integer_weight_repeats_rows_and_zero_removes_them(name, n_classes):
    logits, labels = overconfident(150, n_classes)
    weights = np.random.default_rng(0).integers(0, 4, len(labels))
    params = WITHOUT_SPLIT.get(name, {})
    weighted = make_calibrator(name, **params).fit(logits, labels, sample_weight=weights)
    repeated = make_calibrator(name, **params).fit(logits.repeat(weights, axis=0), labels.repeat(weights))
    np.testing.assert_allclose(weighted.predict_proba(logits), repeated.predict_proba(logits), atol=1e-5)


@every
def test_the_order_of_the_samples_does_not_matter(name):
    logits, labels = overconfident(150, 3)
    order = np.random.default_rng(0).permutation(len(labels))
    params = WITHOUT_SPLIT.get(name, {})
    one = make_calibrator(name, **params).fit(logits, labels)
    other = make_calibrator(name, **params).fit(logits[order], labels[order])
    np.testing.assert_allclose(one.predict_proba(logits), other.predict_proba(logits), atol=1e-6)


@every
def test_a_tensor_comes_back_as_a_tensor(name):
    logits, labels = overconfident(100, 3)
    narrow = torch.from_numpy(logits).half()
    calibrator = make_calibrator(name).fit(narrow, torch.from_numpy(labels))
    probs = calibrator.predict_proba(narrow)
    assert isinstance(probs, torch.Tensor)
    assert probs.dtype == torch.float64
    np.testing.assert_array_equal(probs.numpy(), calibrator.predict_proba(narrow.numpy()))
    assert isinstance(calibrator.predict(narrow), torch.Tensor)
    assert isinstance(calibrator.confidence(narrow), torch.Tensor)
    typed = calibrator.predict_proba(Logits(narrow))
    assert isinstance(typed, torch.Tensor)
    torch.testing.assert_close(typed, probs, rtol=0, atol=0)


@every
@classes
@pytest.mark.parametrize("situation", SITUATIONS)
def test_hard_situations_give_finite_probabilities(name, n_classes, situation):
    calibrator = fitted(name, situation, n_classes)
    extreme = np.array([[1e4] + [0.0] * (n_classes - 1), [0.0] * n_classes, [-1e4] + [0.0] * (n_classes - 1)])
    probs = calibrator.predict_proba(extreme)
    assert np.isfinite(probs).all()
    np.testing.assert_allclose(probs.sum(axis=1), 1, atol=1e-12)


@every
@pytest.mark.parametrize("n_classes", [2, 3])
def test_one_sample_one_class_and_exact_zeros(name, n_classes):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        one = make_calibrator(name).fit(np.eye(n_classes)[:1], [0])
        zeros = make_calibrator(name, from_probs=True).fit(np.eye(n_classes), np.arange(n_classes))
    assert np.isfinite(one.predict_proba(np.eye(n_classes))).all()
    hard = np.eye(n_classes)
    assert np.isfinite(zeros.predict_proba(hard)).all()
    with np.errstate(divide="ignore"):
        ruled_out = np.log(hard)
    assert np.isfinite(one.predict_proba(ruled_out)).all()


BAD = {
    "NaN": (np.array([[np.nan, 0.0]]), [0], "NaN"),
    "plus infinity": (np.array([[np.inf, 0.0]]), [0], r"\+inf"),
    "three dimensions": (np.zeros((2, 2, 2)), [0, 1], r"shape \(n, C\)"),
    "one column": (np.zeros((3, 1)), [0, 0, 0], "two columns"),
    "no rows": (np.zeros((0, 2)), [], "at least one row"),
    "label too large": (np.zeros((2, 2)), [0, 2], r"0\.\.1"),
    "label too small": (np.zeros((2, 2)), [0, -1], r"0\.\.1"),
    "too few labels": (np.zeros((2, 2)), [0], "one entry per row"),
    "labels as floats": (np.zeros((2, 2)), [0.0, 1.0], "integers"),
    "integer logits": (np.zeros((2, 2), dtype=int), [0, 1], "floating point"),
}


@every
@pytest.mark.parametrize("case", BAD)
def test_mistakes_give_an_error_of_one_sentence(name, case):
    logits, labels, words = BAD[case]
    with pytest.raises(ValueError, match=words):
        make_calibrator(name).fit(logits, labels)


@every
def test_other_mistakes(name):
    calibrator = fitted(name, "overconfident", 4)
    with pytest.raises(ValueError, match="must have 4 columns"):
        calibrator.predict_proba(np.zeros((2, 3)))
    logits, labels = overconfident(10, 3)
    with pytest.raises(ValueError, match="sample_weight"):
        make_calibrator(name).fit(logits, labels, sample_weight=-np.ones(10))
    with pytest.raises(ValueError, match=r"sum to 1|lie in"):
        make_calibrator(name, from_probs=True).fit(logits, labels)


# Few distinct values make ties; neighbours in floating point make ties by rounding.
VALUES = st.one_of(
    st.integers(-3, 3).map(float),
    st.sampled_from([0.0, 1e-17, 1.0, np.nextafter(1.0, 2.0), 30.0, 1e4, -1e4, -np.inf]),
    st.floats(-50, 50),
)


@st.composite
def any_logits(draw, n_classes):
    row = st.lists(VALUES, min_size=n_classes, max_size=n_classes).filter(lambda r: max(r) > -np.inf)
    return np.array(draw(st.lists(row, min_size=1, max_size=6)))


@every
@classes
@pytest.mark.parametrize("situation", SITUATIONS)
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_the_claims_hold_for_every_input(name, n_classes, situation, data):
    calibrator = fitted(name, situation, n_classes)
    logits = data.draw(any_logits(n_classes))
    rows = np.arange(len(logits))
    probs, predicted = calibrator.predict_proba(logits), calibrator.predict(logits)
    np.testing.assert_array_equal(calibrator.confidence(logits), probs[rows, predicted])
    if not calibrator.can_change_prediction:
        np.testing.assert_array_equal(predicted, logits.argmax(axis=1))
    if not calibrator.can_fall_below_chance:
        np.testing.assert_array_equal(probs[rows, predicted], probs.max(axis=1))
        assert (probs[rows, predicted] >= 1 / n_classes - 1e-15).all()


@every
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_the_claims_hold_for_probabilities_one_rounding_apart(name, data):
    calibrator = clone(fitted(name, "few", 4)).set_params(from_probs=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        logits, labels = SITUATIONS["few"](4, 4)
        calibrator.fit(softmax(logits, axis=1), labels)
    tie = data.draw(st.floats(0.2, 0.4))
    row = np.array([tie, np.nextafter(tie, 1), 0.0, 0.0])
    row[2] = 1 - row.sum()
    probs = np.array([np.roll(row, shift) for shift in range(4)])
    predicted = calibrator.predict(probs)
    if not calibrator.can_change_prediction:
        np.testing.assert_array_equal(predicted, probs.argmax(axis=1))
    if not calibrator.can_fall_below_chance:
        calibrated = calibrator.predict_proba(probs)
        np.testing.assert_array_equal(calibrated[np.arange(4), predicted], calibrated.max(axis=1))


@every
def test_what_is_said_to_be_possible_happens(name):
    cls = CALIBRATORS[name]
    corners = np.array(np.meshgrid(*[[0.0, 1.0]] * 4)).T.reshape(-1, 4)
    logits = np.concatenate([overconfident(2000, 4, seed=5)[0], corners])
    changed = below = False
    for situation in SITUATIONS:
        calibrator = fitted(name, situation, 4)
        changed |= bool((calibrator.predict(logits) != logits.argmax(axis=1)).any())
        below |= bool((calibrator.confidence(logits) < 0.25 - 1e-12).any())
    assert changed == cls.can_change_prediction
    assert below == cls.can_fall_below_chance


def test_the_table_in_the_docstring_is_the_registry():
    said = {}
    for line in posthoc.__doc__.splitlines():
        words = line.split()
        if words and words[0] in CALIBRATORS:
            said[words[0]] = (words[1].strip("`"), words[2] == "yes", words[3] == "yes")
    assert said == {
        name: (cls.__name__, cls.can_change_prediction, cls.can_fall_below_chance) for name, cls in CALIBRATORS.items()
    }


@every
@pytest.mark.parametrize("mask", [-1e9, -65504.0, float(np.finfo(np.float32).min)])
def test_a_mask_of_any_size_is_a_class_ruled_out(name, mask):
    logits, labels = overconfident(300, 4)
    hidden = np.random.default_rng(3).random(logits.shape) < 0.2
    hidden[np.arange(300), labels] = False
    masked, exact = (np.where(hidden, value, logits) for value in (mask, -np.inf))
    probs = [make_calibrator(name).fit(x, labels).predict_proba(x) for x in (masked, exact)]
    np.testing.assert_allclose(probs[0], probs[1], rtol=0, atol=1e-12)


def test_large_logits_without_a_gap_are_not_masks():
    logits, labels = overconfident(500, 4)
    small, large = (make_calibrator("temperature").fit(scale * logits, labels) for scale in (1.0, 1e5))
    assert large.temperature_ == pytest.approx(1e5 * small.temperature_, rel=1e-9)


@every
def test_logits_whose_squares_overflow_are_refused(name):
    logits, labels = overconfident(50, 3)
    with pytest.raises(ValueError, match="must differ by less"):
        make_calibrator(name).fit(1e200 * logits, labels)


def test_probabilities_instead_of_logits_are_noticed():
    logits, labels = overconfident(100, 3, seed=0)
    with pytest.warns(UserWarning, match="These logits are probabilities.* pass from_probs=True"):
        make_calibrator("temperature").fit(softmax(logits, axis=1), labels)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        make_calibrator("temperature", from_probs=True).fit(softmax(logits, axis=1), labels)
        make_calibrator("temperature").fit(logits, labels)
