"""Tests of Auto: the choice, its table, two stages, and no harm to calibrated models."""

from __future__ import annotations

import numpy as np
import pytest
from posthoc_cases import log_loss, overconfident
from scipy.special import log_softmax, softmax

from calibrant.posthoc import (
    Auto,
    IsotonicConfidence,
    NeuralCalibrator,
    Temperature,
    Vector,
    load_calibrator,
    make_calibrator,
    save_calibrator,
)
from calibrant.posthoc.auto import Row, choose, difference, pattern_p_values

QUICK = ("temperature", "platt", "vector", "isotonic", "isotonic-confidence", "histogram")


def expected_loss(probs, posterior):
    """Log-loss over all labels, weighted by their true probability: no sampling noise from labels."""
    return float(-(posterior * np.log(probs)).sum(axis=1).mean())


def test_an_overconfident_model_gets_a_temperature():
    logits, labels = overconfident(1500, 4)
    auto = Auto(QUICK).fit(logits, labels)
    new, y = overconfident(2000, 4, seed=9)
    assert auto.choice_ == "temperature"
    alone = Temperature().fit(logits, labels)
    np.testing.assert_allclose(auto.predict_proba(new), alone.predict_proba(new), rtol=1e-9)
    assert log_loss(auto.predict_proba(new), y) < log_loss(softmax(new, axis=1), y)


def test_classes_of_unequal_bias_get_a_map_that_changes_classes():
    truth, labels = overconfident(2000, 3, temperature=1.0)
    auto = Auto(QUICK).fit(truth * [1.0, 2.0, 0.5] + [0.0, 1.5, -1.5], labels)
    assert auto.choice_.split(", ")[0] in ("vector", "platt", "isotonic")
    assert auto.stages_[0].can_change_prediction


def test_a_second_stage_mends_the_confidence_that_the_first_leaves():
    # The classes need a shift, and beyond that only 70 % of the confident predictions are right.
    rng = np.random.default_rng(0)
    n = 6000
    truth = rng.normal(size=(n, 3)) * 3
    labels = (truth + rng.gumbel(size=truth.shape)).argmax(axis=1)
    spoiled = (truth.max(axis=1) > 3.5) & (rng.random(n) < 0.4)
    labels[spoiled] = rng.integers(0, 3, spoiled.sum())
    logits = truth * 2 + [0.0, 2.0, -2.0]
    auto = Auto(("temperature", "vector", "isotonic-confidence")).fit(logits[:4000], labels[:4000])
    assert auto.choice_ == "vector, isotonic-confidence"
    assert [type(stage) for stage in auto.stages_] == [Vector, IsotonicConfidence]
    single = Vector().fit(logits[:4000], labels[:4000])
    new, y = logits[4000:], labels[4000:]
    assert log_loss(auto.predict_proba(new), y) < log_loss(single.predict_proba(new), y)
    np.testing.assert_array_equal(auto.predict(new), single.predict(new))
    one = Auto(("temperature", "vector", "isotonic-confidence"), stages=1).fit(logits[:4000], labels[:4000])
    assert "," not in one.choice_


def test_a_calibrated_model_is_left_alone_and_never_harmed():
    excess, kept = [], 0
    new = overconfident(2000, 3, temperature=1.0, seed=500)[0]
    posterior = softmax(new, axis=1)
    for seed in range(15):
        auto = Auto(QUICK).fit(*overconfident(150, 3, temperature=1.0, seed=seed))
        kept += auto.choice_ == "raw"
        excess.append(expected_loss(auto.predict_proba(new), posterior) - expected_loss(posterior, posterior))
    # A one-sided error of 2.5 % per candidate; five candidates that mostly lose together.
    assert kept >= 12
    assert np.mean(excess) < 0.01 * expected_loss(posterior, posterior)


def test_the_rule_on_losses_that_are_given():
    rng = np.random.default_rng(0)
    base = rng.normal(size=400)
    weights = np.ones(400)
    noise = rng.normal(size=400)
    noise -= noise.mean()
    raw = Row("raw", (), base, 0.0)
    error = float(np.sqrt((noise**2).mean() / 400))

    def row(name, gain):
        return Row(name, (name,), base + noise - gain * error, 0.0)

    assert choose([raw, row("temperature", 1.9)], weights, 2.0) is raw
    better = row("isotonic", 3.0)
    assert choose([raw, better], weights, 2.0) is better
    # Equal noise cancels between these two, so the simpler one is not within one standard error.
    assert choose([raw, row("temperature", 2.5), better], weights, 2.0) is better
    other = Row("temperature", ("temperature",), base - noise[::-1] - 2.8 * error, 0.0)
    assert choose([raw, other, better], weights, 2.0) is other
    assert choose([raw, Row("matrix", ("matrix",), None, 0.0, "failed")], weights, 2.0) is raw


def test_the_standard_error_is_that_of_the_weighted_mean():
    a, b = Row("a", (), np.array([1.0, 2.0, 4.0]), 0.0), Row("b", (), np.array([0.0, 2.0, 1.0]), 0.0)
    mean, error = difference(a, b, np.array([1.0, 1.0, 2.0]))
    assert mean == pytest.approx(7 / 4)
    gaps = np.array([1.0, 0.0, 3.0]) - 7 / 4
    assert error == pytest.approx(np.sqrt((np.array([1, 1, 4]) / 16) @ gaps**2))


def test_the_table_names_every_candidate_and_the_choice():
    auto = Auto(QUICK).fit(*overconfident(300, 3))
    names = [entry["name"] for entry in auto.comparison_]
    assert {"raw", *QUICK} <= set(names)
    assert any(", " in name for name in names)
    assert [entry["name"] for entry in auto.comparison_ if entry["chosen"]] == [auto.choice_]
    losses = [entry["nll"] for entry in auto.comparison_]
    assert losses == sorted(losses)
    text = auto.summary()
    assert all(name in text for name in names)
    assert f"→ {auto.choice_}" in text


def test_raw_losses_are_those_of_the_scores():
    logits, labels = overconfident(300, 3)
    raw = next(entry for entry in Auto(QUICK).fit(logits, labels).comparison_ if entry["name"] == "raw")
    assert raw["nll"] == pytest.approx(log_loss(softmax(logits, axis=1), labels))
    weights = np.random.default_rng(0).uniform(0, 2, 300)
    raw = next(e for e in Auto(QUICK).fit(logits, labels, weights).comparison_ if e["name"] == "raw")
    own = -log_softmax(logits, axis=1)[np.arange(300), labels]
    assert raw["nll"] == pytest.approx(np.average(own, weights=weights))


def test_weights_decide():
    logits, labels = overconfident(600, 3)
    rubbish = np.random.default_rng(0).integers(0, 3, 600)
    both = np.concatenate([logits, logits]), np.concatenate([labels, rubbish])
    weights = np.repeat([1.0, 0.0], 600)
    one, other = Auto(QUICK).fit(logits, labels), Auto(QUICK).fit(*both, sample_weight=weights)
    np.testing.assert_array_equal(one.predict_proba(logits), other.predict_proba(logits))


@pytest.mark.parametrize("candidates", [QUICK, ("isotonic-confidence", "vector")])
def test_a_round_trip_is_exact(candidates, tmp_path):
    logits, labels = overconfident(500, 3)
    auto = Auto(candidates).fit(logits + [0.0, 3.0, -3.0], labels)
    save_calibrator(auto, tmp_path / "auto.calibrant")
    again = load_calibrator(tmp_path / "auto.calibrant")
    np.testing.assert_array_equal(again.predict_proba(logits), auto.predict_proba(logits))
    np.testing.assert_array_equal(again.predict(logits), auto.predict(logits))
    assert again.comparison_ == auto.comparison_
    assert again.summary() == auto.summary()


def bent(rows, seed):
    """Scores whose first class needs a correction by the size of the second score: neither linear nor monotone."""
    rng = np.random.default_rng(seed)
    scores = 2 * rng.normal(size=(rows, 3))
    truth = scores + np.stack([3 * np.abs(scores[:, 1]) - 4, np.zeros(rows), np.zeros(rows)], axis=1)
    return scores, (truth + rng.gumbel(size=truth.shape)).argmax(axis=1)


def test_the_neural_calibrator_is_fitted_where_it_may_win(monkeypatch):
    names = ("neural", "temperature", "vector", "isotonic")
    assert Auto(names, stages=1).fit(*bent(1500, 0)).choice_ == "neural"
    monkeypatch.setattr(NeuralCalibrator, "fit", lambda *_: pytest.fail("the neural calibrator was fitted"))
    auto = Auto(names, stages=1).fit(*overconfident(1500, 4))
    assert auto.choice_ == "temperature"
    assert "neural" in auto.summary()
    assert "not tried: the errors of the best have no pattern" in auto.summary()


def test_few_rows_keep_the_raw_scores(tmp_path):
    logits, labels = overconfident(12, 3)
    auto = Auto().fit(logits, labels)
    assert auto.choice_ == "raw"
    assert "too few" in auto.summary()
    np.testing.assert_allclose(auto.predict_proba(logits), softmax(logits, axis=1), atol=1e-12)
    save_calibrator(auto, tmp_path / "raw")
    np.testing.assert_array_equal(load_calibrator(tmp_path / "raw").predict_proba(logits), auto.predict_proba(logits))


@pytest.mark.parametrize("name", ["auto", "temperature"])
def test_one_score_per_row_is_the_difference_of_two_logits(name):
    logits, labels = overconfident(600, 2)
    score = logits[:, 1] - logits[:, 0]
    settings = {"candidates": QUICK} if name == "auto" else {}
    wide, narrow = (make_calibrator(name, **settings).fit(x, labels).predict_proba(x) for x in (logits, score))
    np.testing.assert_allclose(narrow, wide, atol=1e-9)
    p = 1 / (1 + np.exp(-score))
    probs = make_calibrator(name, from_probs=True, **settings).fit(p, labels).predict_proba(p)
    np.testing.assert_allclose(probs, wide, atol=1e-6)


def test_mistakes_give_an_error_of_one_sentence():
    logits, labels = overconfident(100, 3)
    for settings, words in (
        ({"candidates": ("best",)}, "got 'best'"),
        ({"candidates": "temperature"}, "candidates must be a list"),
        ({"folds": 1}, "folds must be at least 2"),
        ({"stages": 3}, "stages must be 1 or 2"),
        ({"margin": -1}, "margin must be a finite number"),
    ):
        with pytest.raises(ValueError, match=words):
            make_calibrator("auto", **settings).fit(logits, labels)
    with pytest.raises(ValueError, match="must be one of 'auto', 'temperature'"):
        make_calibrator("temprature")


def test_rare_classes_and_one_class_are_handled():
    logits, labels = overconfident(200, 4)
    labels = np.where(labels == 3, 0, labels)
    labels[:2] = 3
    probs = Auto(QUICK).fit(logits, labels).predict_proba(logits)
    assert np.isfinite(np.log(probs)).all()
    same = Auto(QUICK).fit(logits, np.zeros(200, dtype=int)).predict_proba(logits)
    assert np.isfinite(same).all()


@pytest.mark.parametrize(
    ("temperature", "seed", "p_values"),
    [(3, 0, [0.98, 0.61]), (2, 0, [0.04, 0.02]), (2.5, 1, [0.47, 0.09]), (4, 2, [0.88, 0.14])],
)
def test_p_values_of_a_pattern(temperature, seed, p_values):
    """Each is a share of 99 drawn samples and the given one, so rounding does not move it."""
    logits, labels = overconfident(200, 3, seed=1)
    weights = np.random.default_rng(0).uniform(0.5, 2, 200)
    assert pattern_p_values(log_softmax(logits / temperature, axis=1), labels, weights, seed) == p_values
