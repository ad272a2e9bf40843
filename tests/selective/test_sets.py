"""Tests of prediction sets: coverage by simulation (a valid rule fails once in a million), and properties."""

import json
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from scipy.stats import binom

from calibrant.selective import APS, LAC, RAPS, CrossSetRule, SetRule, conformal_rule, cross_conformal_rule
from calibrant.selective.conformal import order_statistic
from calibrant.selective.set_scores import rank_classes
from tests.blobs import blobs

RARE = 1e-6
SCORES = {
    "lac": LAC(),
    "aps": APS(),
    "raps": RAPS(k_reg=1, penalty=0.1),
    "aps randomised": APS(randomised=True),
    "raps randomised": RAPS(randomised=True, k_reg=1, penalty=0.1),
}
every_score = pytest.mark.parametrize("score", SCORES.values(), ids=SCORES)


class World:
    """1,500 equally likely inputs whose posterior is known: the coverage of a rule on new data is a finite sum."""

    def __init__(self, power):
        data = blobs(1500, seed=0)
        self.posterior = data.posterior(data.inputs)
        self.probs = self.posterior**power / (self.posterior**power).sum(1, keepdims=True)

    def sample(self, generator, n):
        rows = generator.integers(0, len(self.probs), n)
        labels = (generator.random((n, 1)) > np.cumsum(self.posterior[rows], axis=1)).sum(1).clip(max=4)
        return self.probs[rows], labels


ASKED = 0.95
"""More than the share of rows whose most probable class is right (0.875): sets of one class are not enough."""


def hits(world, score, trials, n, seed, *, coverage=ASKED, **options):
    """How often a rule from n rows covers one further row, over fresh samples."""
    generator, count = np.random.default_rng(seed), 0
    for _ in range(trials):
        probs, labels = world.sample(generator, n + 1)
        rule = conformal_rule(probs[:-1], labels[:-1], coverage, score=score, seed=generator, **options)
        count += rule.apply(probs[-1:], seed=generator)[0, labels[-1]]
    return count


@every_score
def test_coverage_is_reached(score):
    trials = 250
    assert hits(World(1.0), score, trials, 30, seed=0) >= binom.ppf(RARE, trials, ASKED)


@pytest.mark.parametrize("power", [4.0, 0.3], ids=["overconfident", "diffident"])
def test_coverage_needs_no_calibrated_probabilities(power):
    trials = 250
    assert hits(World(power), APS(), trials, 30, seed=0) >= binom.ppf(RARE, trials, ASKED)


def test_randomised_sets_do_not_cover_more_than_asked_for():
    trials, n = 600, 99  # (n + 1)·0.8 is whole, and the scores have no ties: the coverage is 0.8
    count = hits(World(1.0), APS(randomised=True), trials, n, seed=1, coverage=0.8, allow_empty=True)
    assert binom.ppf(RARE, trials, 0.8) <= count <= binom.isf(RARE, trials, 0.8)


def test_coverage_by_class():
    """Rows of one class: the sets hold that class as often as asked for, also where the model rarely finds it."""
    world, generator, trials = World(1.0), np.random.default_rng(2), 120
    world.probs = world.probs * [1, 1, 1, 1, 0.01] / (world.probs * [1, 1, 1, 1, 0.01]).sum(1, keepdims=True)
    found, plain, rows = 0, 0, 0
    for _ in range(trials):
        probs, labels = world.sample(generator, 200)
        held = np.flatnonzero(labels[100:] == 4)[:1] + 100  # one row for each sample: they are independent
        for by_class in (True, False):
            rule = conformal_rule(probs[:100], labels[:100], 0.8, score="lac", by_class=by_class)
            count = rule.apply(probs[held])[:, 4].sum()
            found, plain = found + count * by_class, plain + count * (not by_class)
        rows += len(held)
    assert found >= binom.ppf(RARE, rows, 0.8)
    assert plain < binom.ppf(RARE, rows, 0.8)


@pytest.mark.parametrize("score", [LAC(), APS()], ids=["lac", "aps"])
def test_coverage_with_a_level_holds_for_that_share_of_samples(score):
    world, generator, trials = World(1.0), np.random.default_rng(3), 150
    reached = 0
    for _ in range(trials):
        rule = conformal_rule(*world.sample(generator, 60), ASKED, score=score, level=0.9)
        reached += (rule.apply(world.probs) * world.posterior).sum(1).mean() >= ASKED
    assert reached >= binom.ppf(RARE, trials, 0.9)


def test_cross_conformal_coverage_with_models_of_the_folds():
    """Five nearest-mean classifiers, each without a fold; the guarantee is 1 − 2α less a little."""
    trials, n, k, asked = 150, 40, 5, 0.9
    data = blobs(trials * (n + 1), seed=4)
    inputs, labels = data.inputs.reshape(trials, n + 1, 2), data.labels.reshape(trials, n + 1)
    folds, count = np.arange(n) % k, 0
    for x, y in zip(inputs, labels, strict=True):
        models = [_nearest_mean(x[:n][folds != f], y[:n][folds != f], x) for f in range(k)]
        oof = np.stack([models[f][i] for i, f in enumerate(folds)])
        rule = cross_conformal_rule(oof, y[:n], folds, asked)
        count += rule.apply([m[n:] for m in models])[0, y[n]]
    slack = min(2 * (1 - 1 / k) / (n / k + 1), (1 - k / n) / (k + 1))
    assert count >= binom.ppf(RARE, trials, 1 - 2 * (1 - asked) - slack)


def _nearest_mean(x, y, new):
    overall = x.mean(0)
    means = np.stack([x[y == c].mean(0) if (y == c).any() else overall for c in range(5)])
    logits = -np.square(new[:, None] - means).sum(2) / 6
    odds = np.exp(logits - logits.max(1, keepdims=True))
    return odds / odds.sum(1, keepdims=True)


@every_score
@pytest.mark.parametrize("by_class", [False, True])
def test_one_fold_is_split_conformal(score, by_class):
    world, generator = World(1.0), np.random.default_rng(5)
    probs, labels = world.sample(generator, 120)
    options = {"score": score, "by_class": by_class, "allow_empty": True, "seed": 1}
    split = conformal_rule(probs, labels, 0.9, **options)
    cross = cross_conformal_rule(probs, labels, np.zeros(120, int), 0.9, **options)
    np.testing.assert_array_equal(split.apply(world.probs, seed=2), cross.apply([world.probs], seed=2))


@every_score
def test_the_row_whose_score_is_the_quantile_is_covered(score):
    probs, labels = World(1.0).sample(np.random.default_rng(11), 99)
    rule = conformal_rule(probs, labels, 0.9, score=score, allow_empty=True, seed=1)
    own = rule.apply(probs, seed=1)[np.arange(99), labels]  # the same random numbers, so the same scores
    scores = score(rank_classes(probs).at(labels), np.random.default_rng(1).random(99))
    np.testing.assert_array_equal(own, scores <= np.sort(scores)[89])


def test_cross_conformal_sets_follow_the_definition():
    generator = np.random.default_rng(6)
    oof, new = generator.dirichlet(np.ones(4), 30), generator.dirichlet(np.ones(4), (3, 20))
    labels, folds = generator.integers(0, 4, 30), generator.integers(0, 3, 30)
    sets = cross_conformal_rule(oof, labels, folds, 0.7, score="lac", allow_empty=True).apply(new)
    for row in range(20):
        for c in range(4):
            beaten = sum(1 - oof[i, labels[i]] < 1 - new[folds[i], row, c] for i in range(30))
            assert sets[row, c] == (beaten < 0.7 * 31)


def probabilities(rows):
    values = arrays.arrays(np.float64, (rows, 4), elements=st.integers(1, 6).map(float))
    return values.map(lambda v: v / v.sum(1, keepdims=True))


@every_score
@settings(max_examples=15)
@given(probs=probabilities(25), new=probabilities(8), labels=st.lists(st.integers(0, 3), min_size=25, max_size=25))
def test_sets_are_nested_and_hold_at_least_the_top_class(score, probs, new, labels):
    sets = [conformal_rule(probs, labels, c, score=score, seed=0).apply(new, seed=1) for c in (0.5, 0.8, 0.99)]
    assert (sets[0] <= sets[1]).all()
    assert (sets[1] <= sets[2]).all()
    assert sets[2].all()  # 25 rows are too few for 99 %
    bare = conformal_rule(probs, labels, 0.5, score=score, allow_empty=True, seed=0).apply(new, seed=1)
    top = np.eye(4, dtype=bool)[new.argmax(1)]
    np.testing.assert_array_equal(sets[0], bare | (top & ~bare.any(1, keepdims=True)))


def test_ranks_with_ties_by_hand():
    ranked = rank_classes(np.array([[0.2, 0.4, 0.4], [0.5, 0.3, 0.2]]))
    np.testing.assert_array_equal(ranked.rank, [[3, 1, 2], [1, 2, 3]])
    np.testing.assert_array_equal(ranked.above, [[0.8, 0.0, 0.4], [0.0, 0.5, 0.8]])
    np.testing.assert_allclose(
        RAPS(True, k_reg=1, penalty=0.1)(ranked, 0.5)[0], [0.8 + 0.1 + 0.2, 0.2, 0.4 + 0.2 + 0.1]
    )
    np.testing.assert_array_equal(RAPS(penalty=0)(ranked, 0.0), APS()(ranked, 0.0))
    np.testing.assert_allclose(RAPS(k_reg=0)(ranked, 0.0)[1], [0.01, 0.5 + 0.02, 0.8 + 0.03])


def test_two_classes_are_told_apart_without_random_numbers():
    """A model that is wrong more often than allowed still gives single classes where it is sure."""
    confidence = np.linspace(0.5, 1.0, 400)
    probs = np.stack([confidence, 1 - confidence], axis=1)
    labels = (np.random.default_rng(7).random(400) > confidence).astype(int)
    sizes = conformal_rule(probs, labels, 0.9).apply(probs).sum(1)
    assert (sizes[0], sizes[-1]) == (2, 1)


@pytest.mark.parametrize(
    ("n", "coverage", "k"), [(9, 0.7, 7), (9, 0.9, 9), (8, 0.9, 9), (99, 0.95, 95), (19, 0.951, 20)]
)
def test_the_order_statistic_is_the_exact_one(n, coverage, k):
    assert order_statistic(n, coverage) == k
    for level in (0.5, 0.95):
        enough = binom.cdf(np.arange(n + 1), n, coverage) >= level  # P(Bin(n, coverage) < k) for k = 1, 2, …
        assert order_statistic(n, coverage, level) == np.argmax(enough) + 1


def test_rules_survive_json_and_take_tensors():
    world = World(1.0)
    probs, labels = world.sample(np.random.default_rng(8), 20)
    for rule in (
        conformal_rule(probs, labels, 0.9, score=RAPS(True, 2, 0.5), level=0.5, by_class=True, seed=0),
        cross_conformal_rule(torch.tensor(probs), torch.tensor(labels), np.arange(20) % 2, 0.9),
    ):
        text = rule.to_json()
        json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))
        assert type(rule).from_json(text) == rule
    with pytest.raises(ValueError, match="must be JSON with format"):
        SetRule.from_json(CrossSetRule(LAC(), 0.9, (0.1,), (0,), (0,), 2).to_json())
    with pytest.raises(ValueError, match="incomplete or has unknown fields"):
        SetRule.from_json('{"format": "calibrant.set-rule/1", "score": {"name": "lac"}}')


def test_summary_says_when_classes_cannot_be_left_out():
    probs, labels = World(1.0).sample(np.random.default_rng(9), 40)
    assert "All classes are in every set" in str(conformal_rule(probs[:5], labels[:5], 0.9))
    rule = conformal_rule(probs, np.where(labels == 4, 0, labels), 0.9, by_class=True)
    assert math.isinf(rule.quantile[4])
    assert "of 5 classes are in every set" in rule.summary()


def test_errors_are_sentences():
    probs, labels = World(1.0).sample(np.random.default_rng(10), 20)
    for arguments, options, message in (
        ((probs, labels, 90), {}, "coverage must be a fraction"),
        ((probs, labels), {"score": "naive"}, "score must be one of 'lac', 'aps', 'raps'"),
        ((probs[:, 0], labels), {}, "probs must have shape"),
        ((probs, labels + 1), {}, "labels must lie in"),
    ):
        with pytest.raises(ValueError, match=message):
            conformal_rule(*arguments, **options)
    with pytest.raises(ValueError, match="probs must have 5 columns"):
        conformal_rule(probs, labels).apply(probs[:, :2] / probs[:, :2].sum(1, keepdims=True))
    for folds in (np.zeros(3, int), np.zeros(20), np.arange(20) - 1):
        with pytest.raises(ValueError, match="folds must hold a whole number"):
            cross_conformal_rule(probs, labels, folds)
    with pytest.raises(ValueError, match="fold_probs must be of 2 models"):
        cross_conformal_rule(probs, labels, np.arange(20) % 2).apply([probs])
    for wrong in ({"k_reg": -1}, {"penalty": -0.1}, {"penalty": math.inf}):
        with pytest.raises(ValueError, match=f"{next(iter(wrong))} must be"):
            RAPS(**wrong)


def test_columns_of_a_data_frame_are_classes_by_their_names():
    pd = pytest.importorskip("pandas")
    probs, labels = World(1.0).sample(np.random.default_rng(0), 200)
    names = np.array(["ant", "bee", "cat", "dog", "emu"])
    frame = pd.DataFrame(probs, columns=names)[names[::-1]]
    expected = conformal_rule(probs[:, ::-1], 4 - labels, 0.9)
    assert conformal_rule(frame, names[labels], 0.9) == expected
    assert conformal_rule(frame.set_axis(range(4, -1, -1), axis=1), labels, 0.9) == expected
    folds = np.arange(200) % 2
    found = cross_conformal_rule(frame, names[labels], folds, 0.9)
    assert found.to_json() == cross_conformal_rule(probs[:, ::-1], 4 - labels, folds, 0.9).to_json()


@pytest.mark.parametrize("cross", [False, True])
def test_a_rule_by_class_refuses_columns_in_another_order(cross):
    pd = pytest.importorskip("pandas")
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(rng.dirichlet([1, 2, 4], 300), columns=["cat", "dog", "emu"])
    labels = [rng.choice(frame.columns, p=row) for row in frame.to_numpy()]
    folds = np.arange(300) % 2

    def fit(probs, names, **options):
        return (
            cross_conformal_rule(probs, names, folds, **options) if cross else conformal_rule(probs, names, **options)
        )

    def apply(rule, probs):
        return rule.apply([probs, probs]) if cross else rule.apply(probs)

    rule = fit(frame, labels, by_class=True)
    for one in (rule, type(rule).from_json(rule.to_json())):
        assert one == rule
        assert (apply(one, frame) == apply(one, frame.to_numpy())).all()
        assert (apply(one, frame) == apply(one, pd.DataFrame(frame.to_numpy()))).all()
        for other in (frame[["emu", "cat", "dog"]], frame.rename(columns={"emu": "owl"})):
            with pytest.raises(ValueError, match="columns cat, dog, emu in this order"):
                apply(one, other)
    together = fit(frame, labels)  # one limit for all classes: the order does not matter
    assert json.loads(together.to_json())["columns"] is None
    assert (apply(together, frame[["emu", "cat", "dog"]]) == apply(together, frame)[:, [2, 0, 1]]).all()
