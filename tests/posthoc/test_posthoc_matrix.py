"""Tests of multinomial regression and its calibrators, against finite differences and other solvers."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from posthoc_cases import log_loss, overconfident
from scipy.special import log_softmax, softmax
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression

from calibrant.posthoc import Beta, Matrix, Platt, StructuredMatrix, Temperature, Vector
from calibrant.posthoc._multinomial import MultinomialProblem, _Objective, class_curvature, objective, solve
from calibrant.posthoc.matrix import ODIR_GRID


def problem(seed=0, penalty=0.01, lower=None, free=None):
    rng = np.random.default_rng(seed)
    design = rng.normal(size=(200, 4)) * [1, 10, 0.1, 1]
    labels = (design @ rng.normal(size=(4, 3)) * 0.2 + rng.gumbel(size=(200, 3))).argmax(axis=1)
    shape = (3, 5)
    return MultinomialProblem(
        design,
        labels,
        rng.uniform(0.5, 2, 200),
        rng.normal(size=shape) * 0.1,
        np.full(shape, penalty) * rng.uniform(0.5, 2, shape),
        np.ones(shape, dtype=bool) if free is None else free,
        lower,
    )


def gradient(p, coefficients, step=1e-5):
    """Central differences of the objective, in float64."""
    result = np.zeros_like(coefficients)
    for index in np.ndindex(*coefficients.shape):
        move = np.zeros_like(coefficients)
        move[index] = step
        result[index] = (objective(p, coefficients + move) - objective(p, coefficients - move)) / (2 * step)
    return result


def test_the_solution_is_stationary_by_finite_differences():
    p = problem()
    found = solve(p)
    assert np.abs(gradient(p, found) / [1, 10, 0.1, 1, 1]).max() < 2e-6


def test_the_curvature_is_the_slope_of_the_gradient():
    own, random = _Objective(problem()), np.random.default_rng(1)
    full, direction = random.normal(size=(2, 3, 5))
    assert own.value_and_gradient(full)[0] == pytest.approx(objective(problem(), full / own.scale), rel=1e-12)
    ahead, behind = (own.value_and_gradient(full + step * direction)[1] for step in (1e-5, -1e-5))
    np.testing.assert_allclose(own.hessian_product(full, direction), (ahead - behind) / 2e-5, rtol=1e-6, atol=1e-9)


def correlated(n=600, n_classes=12, strength=0.01):
    """An ill-conditioned problem: logits of a few common factors, one penalty for all coefficients but the diagonal."""
    rng = np.random.default_rng(4)
    logits = rng.normal(size=(n, 3)) @ rng.normal(size=(3, n_classes)) * 4 + rng.normal(size=(n, n_classes)) * 0.1
    labels = (logits / 3 + rng.gumbel(size=logits.shape)).argmax(axis=1)
    penalty = np.full((n_classes, n_classes + 1), strength / n)
    penalty[np.arange(n_classes), np.arange(n_classes)] *= 100
    centre = np.column_stack([np.eye(n_classes), np.zeros(n_classes)])
    return MultinomialProblem(logits, labels, np.ones(n), centre, penalty, np.ones_like(penalty, dtype=bool))


def test_an_ill_conditioned_problem_is_solved_with_any_curvature():
    p = correlated()
    found = solve(p)
    assert np.abs(gradient(p, found)).max() < 5e-6
    # Curvature from other rows changes the steps, not the solution.
    other = MultinomialProblem(p.design[::3], p.labels[::3], p.weights[::3], p.centre, p.penalty, p.free)
    again = solve(p, curvature=class_curvature(other))
    assert objective(p, again) == pytest.approx(objective(p, found), abs=1e-6)


def test_fixed_values_stay_and_bounds_hold():
    free = np.random.default_rng(1).random((3, 5)) < 0.6
    lower = np.zeros((3, 5))
    p = problem(free=free, lower=lower)
    p = MultinomialProblem(p.design, p.labels, p.weights, np.abs(p.centre), p.penalty, free, lower)
    found = solve(p)
    np.testing.assert_array_equal(found[~free], p.centre[~free])
    assert (found[free] >= 0).all()
    slope = gradient(p, found) / [1, 10, 0.1, 1, 1]
    inside = free & (found > 1e-9)
    assert np.abs(slope[inside]).max() < 2e-6
    assert slope[free & ~inside].min() > -2e-6
    assert (free & ~inside).any(), "a bound must be active for this to prove anything"


def test_without_a_minimum_a_warning_says_so():
    logits, labels = np.eye(3)[[0, 1, 2] * 10] * 5.0, np.array([0, 1, 2] * 10)
    with pytest.warns(ConvergenceWarning, match="grow without bound"):
        Vector(l2=0.0).fit(logits, labels)
    p = problem(penalty=0.0)
    separable = MultinomialProblem(p.design, p.design[:, :3].argmax(axis=1), p.weights, p.centre, p.penalty, p.free)
    with pytest.warns(ConvergenceWarning, match="grow without bound|did not converge"):
        solve(separable)


def test_unpenalised_matrix_scaling_is_multinomial_regression():
    logits, labels = overconfident(800, 4)
    centred = logits - logits.mean(axis=1, keepdims=True)
    reference = LogisticRegression(C=1e8, max_iter=10_000, tol=1e-10).fit(centred, labels)
    ours = Matrix(odir=1e-8).fit(logits, labels)
    # Ours also pulls the diagonal, by C / n: close, and no better on the calibration set.
    gap = log_loss(ours.predict_proba(logits), labels) - log_loss(reference.predict_proba(centred), labels)
    assert -1e-7 < gap < 2e-3


def test_strong_shrinkage_is_temperature_scaling():
    logits, labels = overconfident(400, 4)
    plain = Temperature().fit(logits, labels).predict_proba(logits)
    for calibrator in (Vector(l2=1e7), StructuredMatrix(1e7, 1e7, 1e7)):
        np.testing.assert_allclose(calibrator.fit(logits, labels).predict_proba(logits), plain, atol=1e-5)


def test_vector_scaling_centres_rows_where_that_helps():
    rng = np.random.default_rng(0)
    logits = 2 * rng.normal(size=(2000, 3))
    truth = (logits - logits.mean(axis=1, keepdims=True)) * [0.3, 1.0, 2.0]
    vector = Vector().fit(logits, (truth + rng.gumbel(size=truth.shape)).argmax(axis=1))
    assert vector.centred_
    x = log_softmax(logits / vector.temperature_, axis=1)
    x -= x.mean(axis=1, keepdims=True)
    mapped = x @ vector.coefficients_[:, :3].T + vector.coefficients_[:, 3]
    np.testing.assert_allclose(vector.predict_proba(logits), softmax(mapped, axis=1))
    assert not Vector().fit(*overconfident(90, 3, seed=11)).centred_


def test_structured_matrix_scaling_agrees_with_the_solver_of_probmetrics():
    calibrators = pytest.importorskip("probmetrics.calibrators")
    n, n_classes = 1000, 4
    logits, labels = overconfident(n, n_classes)
    ours = StructuredMatrix().fit(logits, labels)
    design = log_softmax(logits / ours.temperature_, axis=1)
    theirs = calibrators.SMSCalibrator()._fit_bfgs(
        torch.from_numpy(design),
        torch.from_numpy(labels),
        num_classes=n_classes,
        reg_intercept=n_classes / n,
        reg_diagonal=n_classes / n,
        reg_off_diagonal=n_classes * (n_classes - 1) / n,
    )
    np.testing.assert_allclose(ours.coefficients_, theirs, atol=1e-3)


def test_platt_scaling_agrees_with_scikit_learn():
    from sklearn.calibration import _SigmoidCalibration

    logits, labels = overconfident(500, 2)
    odds = logits[:, 1] - logits[:, 0]
    theirs = _SigmoidCalibration().fit(odds, labels).predict(odds)
    np.testing.assert_allclose(Platt().fit(logits, labels).predict_proba(logits)[:, 1], theirs, atol=1e-4)


def test_beta_calibration_is_monotone_and_finds_a_beta_map():
    rng = np.random.default_rng(0)
    odds = 2 * rng.normal(size=20_000)
    q = 1 / (1 + np.exp(-odds))
    truth = 1 / (1 + np.exp(-(0.5 * np.log(q) - 2.0 * np.log1p(-q) - 0.7)))
    labels = (rng.random(len(q)) < truth).astype(int)
    logits = np.column_stack([np.zeros_like(odds), odds])
    calibrator = Beta().fit(logits, labels)
    (a0, b0, c0), (a1, b1, c1) = calibrator.coefficients_
    assert a1 + b0 == pytest.approx(0.5, abs=0.1)
    assert b1 + a0 == pytest.approx(2.0, abs=0.15)
    assert c1 - c0 == pytest.approx(-0.7, abs=0.15)
    reversed_labels = Beta().fit(logits, 1 - labels)
    assert (reversed_labels.coefficients_[:, :2] >= 0).all()
    line = np.column_stack([np.zeros(200), np.linspace(-30, 30, 200)])
    for fitted in (calibrator, reversed_labels):
        assert (np.diff(fitted.predict_proba(line)[:, 1]) >= -1e-12).all()


@pytest.mark.parametrize(
    "calibrator", [Vector(l2=-1.0), StructuredMatrix(l2_bias=np.nan), Matrix(odir=-1), Beta(l2=-1), Matrix(folds=1)]
)
def test_wrong_strengths_are_refused(calibrator):
    with pytest.raises(ValueError, match=r"0 or above|at least 2"):
        calibrator.fit(*overconfident(30, 3))


def test_objective_by_hand():
    p = MultinomialProblem(
        np.array([[1.0]]), np.array([0]), np.ones(1), np.zeros((2, 2)), np.ones((2, 2)), np.ones((2, 2), bool)
    )
    coefficients = np.array([[1.0, 0.0], [0.0, 0.0]])
    assert objective(p, coefficients) == pytest.approx(1.0 - log_softmax([1.0, 0.0])[0])


def test_too_few_rows_get_the_strongest_penalty():
    logits = np.random.default_rng(0).normal(size=(5, 3))
    assert Matrix(folds=5).fit(logits, np.array([0, 1, 2, 0, 1])).odir_ == max(ODIR_GRID)
