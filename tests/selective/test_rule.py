"""Tests of windows and rules: what they accept, their summaries, and JSON."""

import json
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from calibrant.selective import RejectionRule, Window, threshold_for_risk, uniform_risk_bound

RULE = RejectionRule(Window.below(0.9), "risk", 0.05, "a test", 100, 0.7, 0.02, 0.95, 0.05)


def test_limits_are_accepted_and_the_inside_is_not():
    confidence = np.array([0.0, 0.3, 0.31, 0.69, 0.7, 1.0])
    np.testing.assert_array_equal(Window(0.3, 0.7).accepts(confidence), [1, 1, 0, 0, 1, 1])
    np.testing.assert_array_equal(Window.below(0.7).accepts(confidence), [0, 0, 0, 0, 1, 1])
    assert not Window().accepts(confidence).any()
    assert Window(0.5, 0.5).accepts(confidence).all()
    assert Window.below(-math.inf).accepts(confidence).all()


@pytest.mark.parametrize("window", [Window(), Window(0.3, 0.7), Window.below(0.5), Window.below(-math.inf)])
def test_nan_is_never_accepted(window):
    assert not window.accepts(np.array([np.nan])).any()
    assert not window.accepts(torch.tensor([torch.nan])).any()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_tensors_stay_tensors_and_are_compared_exactly(dtype):
    confidence = torch.tensor([0.9, 0.95], dtype=dtype)
    accepted = Window.below(0.9).accepts(confidence)
    assert isinstance(accepted, torch.Tensor)
    # 0.9 is not a binary fraction: whether its rounding reaches 0.9 is decided in float64.
    assert accepted.tolist() == [float(confidence[0]) >= 0.9, True]


def test_a_float32_threshold_still_accepts_its_own_sample():
    generator = np.random.default_rng(0)
    confidence = generator.uniform(0.5, 1, 500).astype(np.float32)
    correct = np.ones(500, bool)
    rule = threshold_for_risk(confidence, correct, 0.05)
    assert rule.accepts(confidence).mean() == pytest.approx(rule.coverage)
    assert rule.accepts(torch.from_numpy(confidence)).double().mean() == pytest.approx(rule.coverage)


def test_window_refuses_reversed_and_nan_limits():
    with pytest.raises(ValueError, match="low must be at most high"):
        Window(0.7, 0.3)
    with pytest.raises(ValueError, match="low must be at most high"):
        Window(math.nan, 0.3)


limits = st.floats(allow_nan=False)


@given(limits, limits, st.floats(0, 1) | st.just(math.nan))
def test_json_round_trip(a, b, risk):
    rule = RejectionRule(Window(min(a, b), max(a, b)), "cost", 1.5, "a test", 10, 0.5, risk)
    again = RejectionRule.from_json(rule.to_json())
    assert again.window == rule.window
    assert repr(again) == repr(rule)


def test_json_is_strict():
    def refuse(token):
        raise AssertionError(token)

    fields = json.loads(RULE.to_json(), parse_constant=refuse)
    assert fields["window"] == {"low": "-inf", "high": 0.9}


@pytest.mark.parametrize("text", ["[]", "{}", '{"format": "other"}'])
def test_foreign_json_is_refused(text):
    with pytest.raises(ValueError, match="to_json"):
        RejectionRule.from_json(text)


@pytest.mark.parametrize("change", [{"window": 3}, {"window": {"middle": 1}}, {"extra": 1}])
def test_damaged_json_is_refused_with_a_sentence(change):
    fields = json.loads(RULE.to_json()) | change
    with pytest.raises(ValueError, match="incomplete or has unknown fields"):
        RejectionRule.from_json(json.dumps(fields))
    del fields["risk"]
    with pytest.raises(ValueError, match="incomplete or has unknown fields"):
        RejectionRule.from_json(json.dumps(fields))


def test_summary_says_what_was_asked_and_what_holds():
    text = str(RULE)
    for part in ("withheld below confidence 0.9", "70.0%", "2.00%", "With confidence 0.95", "at most 5.00%"):
        assert part in text


@pytest.mark.parametrize("method", ["ranks", "uniform", "fixed-sequence"])
def test_an_unreachable_target_is_said_plainly(method):
    rule = threshold_for_risk([0.9, 0.8, 0.7], [True, True, False], 0.01, method=method)
    assert not rule.found
    assert rule.window is None
    assert "No window was found for risk 0.01" in rule.summary()
    assert "more samples" in rule.summary()
    with pytest.raises(ValueError, match="No window was found"):
        rule.accepts(np.array([0.99]))
    assert repr(RejectionRule.from_json(rule.to_json())) == repr(rule)


def test_rule_for_a_window_chosen_by_hand():
    generator = np.random.default_rng(0)
    confidence = generator.uniform(0, 1, 400)
    correct = generator.random(400) < np.maximum(confidence, 1 - confidence)
    bound = uniform_risk_bound(confidence, correct)
    rule = bound.rule_for(Window(0.1, 0.9))
    assert rule.found
    assert rule.coverage == pytest.approx(((confidence <= 0.1) | (confidence >= 0.9)).mean())
    assert rule.risk < rule.risk_bound == bound.risk(0.1, 0.9) < 0.5
    assert "by hand" in rule.summary()
