"""Tests of the log-linear pool: it recovers the truth, drops noise, and predicts class frequencies without signal."""

import itertools

import numpy as np
import pytest
from scipy.optimize import approx_fprime
from scipy.special import log_softmax

from calibrant.methods.blend import SMALL, Judged, pruned
from calibrant.methods.crossfit.crossfit import fit_last_step
from calibrant.pool.pool import FLOOR, Objective, Pool, class_shares, even_share, fit_pool, least_lapse, probabilities


def members(n: int, count: int = 3, classes: int = 3, *, scale: float = 2.0, seed: int = 0) -> np.ndarray:
    """Log-probabilities of independent members, (count, n, classes)."""
    return log_softmax(scale * np.random.default_rng(seed).normal(size=(count, n, classes)), axis=2)


def drawn(probs: np.ndarray, seed: int = 1) -> np.ndarray:
    """A label for each row of probabilities."""
    return (probs.cumsum(1) > np.random.default_rng(seed).random((len(probs), 1))).argmax(1)


def pooled(log_probs: np.ndarray, *parts: object) -> np.ndarray:
    return Pool(*parts).probs(log_probs)


def loss(probs: np.ndarray, labels: np.ndarray) -> np.ndarray:
    return -np.log(probs[np.arange(len(labels)), labels])


def test_what_made_the_labels_is_found():
    log_probs = members(40_000)
    weights, bias, lapse = np.array([0.9, 0.4, 0.1]), np.array([0.4, -0.1, -0.3]), 0.05
    labels = drawn(pooled(log_probs, weights, bias, lapse))
    found = fit_pool(log_probs, labels)
    assert found.weights == pytest.approx(weights, abs=0.05)
    assert found.bias - found.bias.mean() == pytest.approx(bias, abs=0.06)
    assert found.lapse == pytest.approx(lapse, abs=0.015)
    assert found.temperature == pytest.approx(1 / 1.4, rel=0.05)


def test_members_that_mislead_are_left_out():
    """A member whose truth is a negative weight gets exactly 0."""
    log_probs = members(5_000, 2)
    found = fit_pool(log_probs, drawn(pooled(log_probs, np.array([1.0, -0.2]), np.zeros(3), 0.0)))
    assert found.weights[1] == 0
    assert found.weights[0] == pytest.approx(1, abs=0.1)


def test_a_member_of_pure_noise_hardly_counts():
    log_probs = members(5_000, 2)
    found = fit_pool(log_probs, drawn(np.exp(log_probs[0])))
    assert found.weights[1] < 0.05


@pytest.mark.parametrize("share", [0.5, 0.9])
@pytest.mark.parametrize("n", [100, 5_000])
def test_labels_that_nothing_explains_give_the_class_frequencies(n, share):
    """The loss of fresh labels exceeds that of the frequencies by less than the parameters could cost by chance."""
    excess = []
    for seed in range(10):
        log_probs = members(n, 3, 2, seed=seed)
        labels = (np.random.default_rng(100 + seed).random(n) > share).astype(int)
        found = fit_pool(log_probs, labels)
        fresh = members(4_000, 3, 2, seed=200 + seed)
        probs = found.probs(fresh)
        truth = np.array([share, 1 - share])
        excess.append(float((truth * (np.log(truth) - np.log(probs))).sum(1).mean()))
    assert np.mean(excess) < 3 / n  # Kullback-Leibler divergence from the truth; one parameter costs 1/(2n)


@pytest.mark.parametrize("wrong", [0.1, 0.2])
def test_labels_that_are_wrong_at_random_become_a_lapse(wrong):
    """Small weights without a lapse are a local optimum, too, and prior and search must not end there."""
    random = np.random.default_rng(0)
    truth = random.normal(size=400) > 0
    scores = 4 * truth - 2 + (0.6 if wrong == 0.1 else 1.2) * random.normal(size=400)
    own = log_softmax(np.stack([0 * scores, scores], axis=1), axis=1)
    log_probs = np.concatenate([own[None], members(400, 2, 2, scale=0.5)])
    found = fit_pool(log_probs, (truth ^ (random.random(400) < wrong)).astype(int))
    assert found.lapse == pytest.approx(2 * wrong, abs=0.15)
    assert found.weights[0] > 1.2


@pytest.mark.parametrize("name", ["spread", "bias_spread", "lapse_spread"])
def test_the_width_of_each_prior_counts(name):
    log_probs = members(100, scale=6.0)
    labels = drawn(pooled(log_probs, np.array([0.9, 0.4, 0.1]), np.array([0.4, -0.1, -0.3]), 0.3))
    widths = {"spread": 0.5, "bias_spread": 0.5, "lapse_spread": 2.0}
    expected, found = fit_pool(log_probs, labels), fit_pool(log_probs, labels, **widths)
    assert (found.lapse, *found.weights, *found.bias) == (expected.lapse, *expected.weights, *expected.bias)
    other = fit_pool(log_probs, labels, **widths | {name: 1.1 * widths[name]})
    assert abs(other.lapse - found.lapse) + np.abs(other.weights - found.weights).sum() > 1e-4


def test_few_samples_leave_equal_weights():
    log_probs = members(5)
    found = fit_pool(log_probs, drawn(np.exp(log_probs[0]))[:5])
    assert np.abs(found.weights - 1 / 3).max() < 0.6
    assert 0.3 < found.weights.sum() < 2


def test_the_order_of_members_does_not_matter():
    log_probs = members(400)
    labels = drawn(pooled(log_probs, np.array([0.7, 0.3, 0.0]), np.zeros(3), 0.02))
    expected = fit_pool(log_probs, labels)
    for order in itertools.permutations(range(3)):
        found = fit_pool(log_probs[list(order)], labels)
        assert found.weights == pytest.approx(expected.weights[list(order)], abs=1e-4)
        assert found.bias == pytest.approx(expected.bias, abs=1e-4)


def test_weights_of_samples_count_and_their_scale_does_not():
    log_probs = members(300)
    labels = drawn(np.exp(log_probs[0]))
    weights = np.random.default_rng(2).integers(1, 4, 300).astype(float)
    expected, scaled = fit_pool(log_probs, labels, weights), fit_pool(log_probs, labels, 7 * weights)
    assert scaled.weights == pytest.approx(expected.weights, abs=1e-5)
    assert np.abs(expected.weights - fit_pool(log_probs, labels).weights).max() > 1e-3


def test_the_gradient_is_that_of_the_objective():
    log_probs = members(200)
    labels = drawn(np.exp(log_probs[0]))
    prior = np.log(class_shares(labels, 3))
    objective = Objective(log_probs - prior, prior, labels, np.linspace(0.5, 2, 200), (1.0, 0.5, 2.0))
    at = objective.centre + np.linspace(-0.2, 0.9, 7)
    numeric = approx_fprime(at, lambda v: objective(v)[0], 1e-7)
    assert objective(at)[1] == pytest.approx(numeric, rel=1e-3, abs=1e-3)


def test_one_member_is_calibrated_as_by_the_last_step():
    log_probs = members(3_000, 1)
    labels = drawn(pooled(log_probs, np.array([0.5]), np.array([0.3, 0.0, -0.3]), 0.05))
    found, step = fit_pool(log_probs, labels), fit_last_step(log_probs[0], labels)
    fresh = members(2_000, 1, seed=5)
    expected = pooled(fresh, np.array([1 / step.temperature]), step.bias, step.lapse)
    assert found.probs(fresh) == pytest.approx(expected, abs=0.02)


def test_probabilities_of_zero_are_survived():
    log_probs = members(500, 2)
    labels = drawn(np.exp(log_probs[1]))
    log_probs[0, np.arange(20), labels[:20]] = -np.inf
    found = fit_pool(log_probs, labels)
    assert np.isfinite(loss(found.probs(log_probs), labels)).all()
    assert found.probs(np.full((2, 1, 3), FLOOR)).sum() == pytest.approx(1)


@pytest.mark.parametrize(
    ("log_probs", "words"),
    [(np.zeros((5, 3)), "shape"), (np.zeros((1, 4, 3)), "shape"), (np.full((1, 5, 3), np.nan), "NaN")],
)
def test_inputs_are_checked(log_probs, words):
    with pytest.raises(ValueError, match=words):
        fit_pool(log_probs, np.zeros(5, dtype=int))


def test_noise_is_given_up_and_a_signal_is_not():
    """Most of ten samples without a signal get exactly the class frequencies. With a signal, the weights stay."""
    silent, heard, kept = [], [], []
    for seed in range(10):
        log_probs = members(400, 2, 2, seed=seed)
        labels = np.random.default_rng(300 + seed).integers(0, 2, 400)
        silent.append(fit_pool(log_probs, labels).weights.sum())
        labels = drawn(np.exp(log_probs[0]), seed)
        heard.append(fit_pool(log_probs, labels).weights.sum())
        kept.append(fit_pool(log_probs, labels, doubt=False).weights.sum())
    assert np.mean(np.array(silent) == 0) >= 0.7
    assert heard == pytest.approx(kept, rel=1e-3)
    found = fit_pool(members(400, 2, 2), np.random.default_rng(300).integers(0, 2, 400))
    assert found.weights.sum() == 0
    assert found.temperature == np.inf
    assert np.ptp(found.probs(members(50, 2, 2, seed=9)), axis=0).max() < 1e-12


def test_few_samples_without_doubt_keep_the_prior():
    log_probs = members(6, 2, 2)
    labels = np.array([0, 1, 0, 1, 0, 1])
    assert fit_pool(log_probs, labels, doubt=False).weights.sum() >= fit_pool(log_probs, labels).weights.sum()


@pytest.mark.parametrize(("size", "classes", "most"), [(2, 2, 0.75), (2, 10, 0.75), (998, 2, 0.999)])
def test_confidence_follows_the_rule_of_succession(size, classes, most):
    lapse = least_lapse(size, classes)
    assert 1 - lapse + lapse / classes == pytest.approx(most)


def test_samples_that_were_all_right_leave_room_for_an_error():
    log_probs = np.log(np.array([[[0.999, 0.001]] * 10 + [[0.001, 0.999]] * 10]))
    labels = np.repeat([0, 1], 10)
    assert fit_pool(log_probs, labels).probs(log_probs).max() <= 21 / 22
    copies = np.tile(log_probs, (1, 5, 1)), np.tile(labels, 5)
    assert fit_pool(*copies, groups=np.arange(100) % 20).probs(log_probs).max() <= 21 / 22 + 1e-9
    assert fit_pool(*copies).probs(log_probs).max() > 21 / 22


def test_copies_change_nothing():
    log_probs = members(60)
    labels = drawn(np.exp(log_probs[0]))
    copies = np.tile(log_probs, (1, 4, 1)), np.tile(labels, 4)
    once, often = fit_pool(log_probs, labels), fit_pool(*copies, groups=np.arange(240) % 60)
    assert often.weights == pytest.approx(once.weights, abs=1e-3)


def judged(labels: np.ndarray) -> Judged:
    return Judged(labels, np.ones(len(labels)), None, np.ones(len(labels), dtype=bool))


def test_a_member_of_little_weight_is_dropped_unless_needed():
    """The prior gives a useless member some weight, which costs a little on new rows."""
    random = np.random.default_rng(0)
    labels = np.tile([0, 1], 60)
    good = np.tile(np.where(labels == 1, 1.2, -1.2)[:60] + 0.9 * random.normal(size=60), 2)
    noise = np.repeat([1.0, -1.0], 60)  # each label and each value of the other member occurs with both signs
    known = {name: log_softmax(np.stack([-own, own], axis=1), axis=1) for name, own in (("a", good), ("b", noise))}
    held = judged(labels)
    both = held.pool(known).weights
    assert both[1] > SMALL * both.sum()
    kept, pool = pruned(known, held)
    assert list(kept) == ["a"]
    assert pool.weights.tolist() == held.pool({"a": known["a"]}).weights.tolist()
    half = [np.where(random.random(120) < 0.5, good, 0.3 * good) for _ in range(2)]  # each knows something
    known = {str(k): log_softmax(np.stack([-own, own], axis=1), axis=1) for k, own in enumerate(half)}
    assert list(pruned(known, held)[0]) == ["0", "1"]


def test_members_that_know_nothing_are_all_left_out():
    labels = np.random.default_rng(0).integers(0, 2, 200)
    noise = np.random.default_rng(1).normal(size=(2, 200, 2))
    kept, pool = pruned(dict(zip("ab", log_softmax(noise, axis=2), strict=True)), judged(labels))
    assert kept == {}
    assert len(pool.weights) == 0
    assert pool.probs(np.empty((0, 3, 2))) == pytest.approx(np.tile(np.bincount(labels) / 200, (3, 1)), abs=0.01)


def test_uneven_weights_count_as_fewer_samples():
    assert even_share(np.full(5, 3.0)) == pytest.approx(1)
    assert even_share(np.array([1.0, 0.0, 0.0, 1.0])) == pytest.approx(1 / 2)  # two of four samples
    labels = np.arange(40) % 2
    sure = log_softmax(np.stack([-5.0 * labels, 5.0 * labels], axis=1), axis=1)[None]
    weights = np.where(np.arange(40) < 4, 1000.0, 1.0)
    assert fit_pool(sure, labels, weights).lapse > fit_pool(sure, labels).lapse


def test_probabilities_are_those_of_log_softmax():
    scores = 30 * np.random.default_rng(0).normal(size=(50, 7))
    np.testing.assert_array_equal(probabilities(scores.copy()), np.exp(log_softmax(scores, axis=1)))


def test_the_memory_layout_of_log_probabilities_does_not_matter():
    rng = np.random.default_rng(0)
    log_probs, labels = log_softmax(rng.normal(size=(2, 60, 3)), axis=2), rng.integers(0, 3, 60)
    turned = np.ascontiguousarray(log_probs.transpose(1, 0, 2)).transpose(1, 0, 2)
    for one, other in zip(fit_pool(log_probs, labels), fit_pool(turned, labels), strict=True):
        np.testing.assert_array_equal(one, other)
