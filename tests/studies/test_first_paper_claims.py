"""The claims of the first paper's Section 4, on records made up so that each verdict is known."""

import math
import statistics

import numpy as np
import pytest

from studies.bo4sc.claims import bundles, claims

SETS = ("blobs-1.7", "spirals-2.5", "spirals-3.5")
METHODS = ("standard", "isotonic", "bo4sc", "standard-matched")
JITTER = 0.001


def records(ece, *, below_chance=0.0, low_weight=0.3):
    found = []
    for dataset in SETS:
        for position, method in enumerate(METHODS, 1):
            for seed in range(5):
                jitter = JITTER * math.sin(position * (seed + 1))
                found.append(
                    {
                        "dataset": dataset,
                        "method": method,
                        "seed": seed,
                        "ece10": ece[method] + jitter,
                        "accuracy": 0.8 + jitter,
                        "confidence_minus_accuracy": ece[method] + jitter,
                        "share_below_chance": below_chance,
                        "share_map_above_90": 0.5 + ece[method] + jitter,
                        "misclassified_low_weight": low_weight + jitter,
                        "correct_high_weight": 0.9 + jitter,
                        "seconds": 3.0 if method == "bo4sc" else 1.0,
                        "members": 5 if method == "standard" else 1,
                    }
                )
    return found


def by_sentence(found):
    return {claim.sentence: claim for claim in found}


def test_verdicts_follow_signs_and_intervals():
    low = {"standard": 0.1, "isotonic": 0.05, "bo4sc": 0.02, "standard-matched": 0.05}
    found = by_sentence(claims(records(low), {}))
    claim = found["ECE of BO4SC below that of Standard"]
    assert (claim.verdict, claim.runs) == ("yes", 5)
    assert claim.paper == "blobs-1.7 −0.058; spirals-2.5 −0.039; spirals-3.5 −0.042"
    gaps = [-0.08 + JITTER * (math.sin(3 * (seed + 1)) - math.sin(seed + 1)) for seed in range(5)]
    z = [(printed - statistics.mean(gaps)) / statistics.stdev(gaps) for printed in (-0.058, -0.039, -0.042)]
    assert claim.z == "; ".join(f"{value:.1f}" for value in z)
    worse = found["ECE of isotonic regression above that of Standard on Spiral 3.5"]
    assert worse.verdict == "no; the opposite on spirals-3.5"
    below = "isotonic regression gives confidences below 0.5 on the spirals (share of runs)"
    assert found[below].verdict == "no"
    assert by_sentence(claims(records(low, below_chance=0.1), {}))[below].verdict == "yes"


@pytest.mark.parametrize(("share", "verdict"), [(0.3, "no"), (0.7, "yes")])
def test_most_is_more_than_half(share, verdict):
    equal = dict.fromkeys(METHODS, 0.05)
    found = claims(records(equal, low_weight=share), {})
    assert next(c for c in found if c.sentence.startswith("most misclassified")).verdict == verdict


def test_equal_methods_confirm_no_order():
    equal = dict.fromkeys(METHODS, 0.05)
    found = by_sentence(claims(records(equal), {}))
    smaller = "BO4SC has a smaller gap between confidence and accuracy than isotonic regression (difference)"
    assert found[smaller].verdict == "no"


def test_weights_that_move_with_their_neighbours_are_bundles():
    generator = np.random.default_rng(0)
    trends = generator.normal(size=(60, 2)).cumsum(0)
    inputs = np.concatenate([generator.normal(size=(40, 2)), generator.normal(size=(40, 2)) + 50])
    history = np.repeat(trends, 40, axis=1)
    history[:, 0] = 1.0  # a weight that never moves
    near, any_two = bundles(history, inputs, np.zeros(80, dtype=int))
    assert near == pytest.approx(1)
    assert any_two < 0.8
