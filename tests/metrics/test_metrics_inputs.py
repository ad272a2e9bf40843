"""Tests of the inputs of metrics: each is accepted, or rejected in one sentence."""

import warnings

import numpy as np
import pytest
import torch
from metrics_cases import MATRIX_METRICS, PAIR_METRICS, name_of, random_pairs, random_probs

from calibrant import metrics
from calibrant.base.inputs import Logits, as_tensor, check_logits, check_probs
from calibrant.base.labels import check_labels

PROBS, LABELS = random_probs(40, 3)
CONFIDENCE, CORRECT = random_pairs(40)
NAN, INF = float("nan"), float("inf")


def changed(array, index, value):
    array = array.copy()
    array[index] = value
    return array


BAD_MATRICES = {
    "empty": (np.zeros((0, 3)), np.zeros(0, dtype=int), "at least one row"),
    "nan": (changed(PROBS, (3, 1), NAN), LABELS, "NaN"),
    "inf": (changed(PROBS, (3, 1), INF), LABELS, r"lie in \[0, 1\]"),
    "negative": (changed(PROBS, 3, [-0.5, 0.5, 1.0]), LABELS, r"lie in \[0, 1\]"),
    "above one": (changed(PROBS, 3, [1.5, 0.0, 0.0]), LABELS, "from_logits=True"),
    "unnormalised": (changed(PROBS, 3, [0.2, 0.2, 0.2]), LABELS, "must sum to 1; got 0.6 in row 3"),
    "one dimension": (PROBS[:, 0], LABELS, "for 2 classes"),
    "three dimensions": (PROBS[None], LABELS, "Flatten"),
    "integers": (np.eye(3, dtype=int)[LABELS], LABELS, "got int64"),
    "bools": (np.eye(3, dtype=bool)[LABELS], LABELS, "got bool"),
    "complex": (PROBS + 0j, LABELS, "got complex128"),
    "strings": (PROBS.astype(str), LABELS, "array of numbers"),
    "ragged": ([[0.5, 0.5], [1.0]], [0, 0], "unequal length"),
    "nothing": (None, LABELS, "together"),
    "no labels": (PROBS, None, "together"),
    "short labels": (PROBS, LABELS[:-1], "expected 40, got 39"),
    "label too large": (PROBS, changed(LABELS, 0, 3), r"0\.\.2"),
    "label negative": (PROBS, changed(LABELS, 0, -1), r"0\.\.2"),
    "label floats": (PROBS, LABELS.astype(float), "Cast them to int"),
    "label one-hot": (PROBS, np.eye(3, dtype=int)[LABELS], "argmax"),
    "label bools for three classes": (PROBS, LABELS == 1, "3 classes; got bool"),
    "label strings": (PROBS, np.where(LABELS == 2, "a", "b"), "2 classes for 3 columns"),
    "one column that is not 1": (PROBS[:, :1], np.zeros(40, dtype=int), r"pass a 1-D array: probs\[:, 0\]"),
    "percentages": (100 * PROBS, LABELS, "Divide percentages by 100"),
    "rounded": (0.98 * PROBS, LABELS, r"probs / probs\.sum\(axis=1, keepdims=True\)"),
}
BAD_PAIRS = {
    "empty": ([], [], "at least one row"),
    "nan": (changed(CONFIDENCE, 0, NAN), CORRECT, "NaN"),
    "inf": (changed(CONFIDENCE, 0, -INF), CORRECT, r"lie in \[0, 1\]"),
    "negative": (changed(CONFIDENCE, 0, -0.1), CORRECT, r"lie in \[0, 1\]"),
    "matrix": (PROBS, LABELS, "give a matrix|Give a matrix"),
    "integers": (np.ones(40, dtype=int), CORRECT, "floating point"),
    "correct as labels": (CONFIDENCE, np.arange(40), "got values from 0 to 39"),
    "correct nan": (CONFIDENCE, changed(CORRECT.astype(float), 0, NAN), "0/1"),
    "correct fraction": (CONFIDENCE, changed(CORRECT.astype(float), 0, 0.5), "0/1"),
    "correct short": (CONFIDENCE, CORRECT[:-1], "shape of confidence"),
    "correct missing": (CONFIDENCE, None, "got only one of them"),
    "confidence missing": (None, CORRECT, "got only one of them"),
    "logits": (Logits(CONFIDENCE), CORRECT, "describe probs, not confidence"),
}


@pytest.mark.parametrize("metric", MATRIX_METRICS, ids=name_of)
@pytest.mark.parametrize("case", BAD_MATRICES)
def test_bad_matrices_are_refused(metric, case):
    probs, labels, sentence = BAD_MATRICES[case]
    with pytest.raises(ValueError, match=sentence):
        metric(probs, labels)
    if isinstance(probs, np.ndarray) and isinstance(labels, np.ndarray) and "strings" not in case:
        with pytest.raises(ValueError, match=sentence):
            metric(torch.from_numpy(probs), torch.from_numpy(labels))


@pytest.mark.parametrize("metric", PAIR_METRICS, ids=name_of)
@pytest.mark.parametrize("case", BAD_PAIRS)
def test_bad_pairs_are_refused(metric, case):
    confidence, correct, sentence = BAD_PAIRS[case]
    with pytest.raises(ValueError, match=sentence):
        metric(confidence=confidence, correct=correct)


@pytest.mark.parametrize("metric", MATRIX_METRICS, ids=name_of)
@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"sample_weight": np.ones(39)}, "40 entries"),
        ({"sample_weight": -np.ones(40)}, "not negative"),
        ({"sample_weight": np.zeros(40)}, "not all zero"),
        ({"sample_weight": np.full(40, NAN)}, "finite"),
        ({"sample_weight": np.full(40, INF)}, "finite"),
        ({"groups": ["a", "b"]}, "groups must be 1-D with 40"),
        ({"groups": np.full(40, NAN)}, "got missing entries"),
        ({"groups": ["a", None] * 20}, "got missing entries"),
        ({"groups": np.full(40, "NaT", dtype="datetime64[D]")}, "got missing entries"),
        ({"confidence": CONFIDENCE, "correct": CORRECT}, "got both"),
    ],
    ids=str,
)
def test_bad_keywords_are_refused(metric, given, sentence):
    with pytest.raises(ValueError, match=sentence):
        metric(PROBS, LABELS, **given)


def test_groups_may_be_objects_and_labels_truth_values():
    names = ["a", "b"] * 20
    assert metrics.ece(PROBS, LABELS, groups=np.array(names, dtype=object)) == metrics.ece(PROBS, LABELS, groups=names)
    probs = np.stack([CONFIDENCE, 1 - CONFIDENCE], axis=1)
    assert metrics.ece(probs, CORRECT) == metrics.ece(probs, CORRECT.astype(int))


@pytest.mark.parametrize("metric", MATRIX_METRICS, ids=name_of)
def test_unknown_keywords_are_named(metric):
    with pytest.raises(TypeError, match=rf"{metric.__name__}\(\) has no argument 'weights'"):
        metric(PROBS, LABELS, weights=None)
    with pytest.raises(ValueError, match="got neither"):
        metric()


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda: metrics.ece(PROBS, LABELS, bins=0), "bins must be a positive whole number"),
        (lambda: metrics.ece(PROBS, LABELS, bins=2.5), "bins must be a positive whole number"),
        (lambda: metrics.ece(PROBS, LABELS, scheme="equal"), "'width' or 'mass'"),
        (lambda: metrics.ece(PROBS, LABELS, norm="l3"), "'l1', 'l2' or 'max'"),
        (lambda: metrics.ece(PROBS, LABELS, norm="max", debias=True), "no such correction"),
        (lambda: metrics.ece(PROBS[:, 0], LABELS == 0, binary="yes"), "'positive' or 'predicted'"),
        (lambda: metrics.ece(PROBS, LABELS, binary="positive"), "for a matrix"),
        (lambda: metrics.accuracy(PROBS[:, 0], LABELS == 0, binary="positive"), "binary must be 'predicted'"),
        (lambda: metrics.classwise_ece(PROBS, LABELS, average="micro"), "'macro' or None"),
        (lambda: metrics.classwise_ece(PROBS, LABELS, average=None, groups=LABELS), "cannot be combined"),
        (lambda: metrics.classwise_ece(confidence=CONFIDENCE, correct=CORRECT), "needs class probabilities"),
        (lambda: metrics.sece(PROBS, LABELS, bandwidth=0), "positive and finite"),
        (lambda: metrics.sece(PROBS[:1], LABELS[:1], leave_one_out=True), "at least 2 predictions"),
        (lambda: metrics.kde_ece(PROBS, LABELS, d=0.5), "at least 1"),
        (lambda: metrics.kde_ece(PROBS, LABELS, mode="all"), "'top' or 'full'"),
        (lambda: metrics.kde_ece(PROBS, LABELS, bandwidth=1e-9), "the grid's resolution"),
        (lambda: metrics.kde_ece(confidence=CONFIDENCE, correct=CORRECT, mode="full"), "class probabilities"),
        (lambda: metrics.share_below_chance(confidence=CONFIDENCE), "n_classes"),
        (lambda: metrics.share_below_chance(), "either probs"),
        (lambda: metrics.ece(PROBS, LABELS, groups=LABELS, sample_weight=LABELS != 1), "in each group"),
        (lambda: check_logits([[NAN, 0.0]]), "NaN"),
        (lambda: check_logits([[INF, 0.0]]), r"\+inf"),
        (lambda: check_logits([[-INF, -INF]]), "got -inf for every class in row 0"),
        (lambda: check_logits([0.0, 1.0]), r"shape \(n, C\)"),
        (lambda: check_labels(Logits([0]), 1, 2), "Only probs and logits"),
        (lambda: as_tensor(None, "labels"), "labels must be an array or a tensor"),
        (lambda: metrics.ece(np.ma.masked_greater(PROBS, 0.9), LABELS), "masked entries"),
        (lambda: metrics.smooth_ece(PROBS, LABELS, bandwidth=INF), "must be finite"),
        (lambda: metrics.noise_floor(0.5), r"shape \(n, C\)"),
        (lambda: metrics.noise_floor(confidence=0.5), "confidence must be 1-D"),
    ],
)
def test_bad_options_are_refused(call, sentence):
    with pytest.raises(ValueError, match=sentence):
        call()


@pytest.mark.parametrize("metric", MATRIX_METRICS, ids=name_of)
def test_logits_only_where_said(metric):
    logits = np.log(PROBS) + 3.0
    expected = metric(PROBS, LABELS)
    assert metric(logits, LABELS, from_logits=True) == pytest.approx(expected, abs=1e-6)
    assert metric(Logits(logits), LABELS) == pytest.approx(expected, abs=1e-6)
    assert metric(Logits(torch.from_numpy(logits)), torch.from_numpy(LABELS)) == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("metric", MATRIX_METRICS, ids=name_of)
def test_one_row_and_one_class(metric):
    one = metric(PROBS[:1], LABELS[:1])
    assert isinstance(one, float)
    assert np.isfinite(one)
    certain = metric(np.ones((4, 1)), np.zeros(4, dtype=int))
    # the kernel estimate compares the frequency with z around the confidence, not at it: off by its bandwidth
    tolerance = 1e-3 if metric is metrics.kde_ece else 1e-12
    assert certain == pytest.approx(1.0 if metric is metrics.accuracy else 0.0, abs=tolerance)


@pytest.mark.parametrize("metric", MATRIX_METRICS, ids=name_of)
@pytest.mark.parametrize(
    ("dtype", "tolerance"),
    [(torch.float32, 1e-5), (torch.float16, 2e-2), (torch.bfloat16, 5e-2)],
    ids=["float32", "float16", "bfloat16"],
)
def test_narrow_floats(metric, dtype, tolerance):
    # compared with the same rounded numbers in float64: the rounding is the user's, the rest must be ours
    rounded = torch.from_numpy(PROBS).to(dtype)
    wide = rounded.double()
    exact = metric(wide / wide.sum(dim=1, keepdim=True), torch.from_numpy(LABELS))
    assert metric(rounded, torch.from_numpy(LABELS)) == pytest.approx(exact, abs=tolerance)


@pytest.mark.parametrize("dtype", [np.uint8, np.int8, np.uint16, np.int32, np.int64, np.uint64])
def test_label_dtypes(dtype):
    expected = metrics.ece(PROBS, LABELS)
    assert metrics.ece(PROBS, LABELS.astype(dtype)) == expected
    assert metrics.ece(PROBS.tolist(), LABELS.astype(dtype).tolist()) == expected


@pytest.mark.parametrize("dtype", [bool, np.uint8, np.uint16, np.int64, np.float32, np.float64])
def test_correct_dtypes(dtype):
    expected = metrics.ece(confidence=CONFIDENCE, correct=CORRECT)
    assert metrics.ece(confidence=CONFIDENCE, correct=CORRECT.astype(dtype)) == expected


def test_odd_arrays_are_read():
    expected = metrics.ece(confidence=CONFIDENCE, correct=CORRECT)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        frozen = CONFIDENCE.copy()
        frozen.setflags(write=False)
        for confidence in (
            CONFIDENCE[::-1][::-1],
            CONFIDENCE.astype(">f8"),
            np.repeat(CONFIDENCE, 2)[::2],
            frozen,
            CONFIDENCE.astype(np.longdouble),
            torch.from_numpy(CONFIDENCE).requires_grad_(),
        ):
            assert metrics.ece(confidence=confidence, correct=CORRECT) == expected
            assert metrics.ace(confidence=confidence, correct=CORRECT) > 0


def test_rounding_just_outside_is_forgiven():
    assert metrics.ece(confidence=np.array([1 + 1e-9, -1e-12]), correct=[1, 0]) == 0.0
    probs = np.array([[0.33, 0.33, 0.3399]])  # three digits: the row sums to 0.9999
    assert check_probs(probs).shape == (1, 3)


def test_inputs_are_not_changed():
    probs, labels, weight = PROBS.copy(), LABELS.copy(), np.ones(40)
    for metric in MATRIX_METRICS:
        metric(probs, labels, sample_weight=weight)
    np.testing.assert_array_equal(probs, PROBS)
    np.testing.assert_array_equal(labels, LABELS)
    np.testing.assert_array_equal(weight, np.ones(40))


@pytest.mark.parametrize("binary", ["positive", "predicted"])
def test_binary_logits_do_not_underflow(binary):
    logits, labels = np.array([100.0, -3.0, 800.0, -0.5]), np.array([0, 1, 1, 0])
    exact = metrics.nll(np.stack([0 * logits, logits], axis=1), labels, from_logits=True)
    given = {"metric": metrics.nll, "binary": binary, "from_logits": True}
    assert metrics.nll(logits, labels, binary=binary, from_logits=True) == pytest.approx(exact, rel=1e-12)
    assert metrics.bootstrap_interval(logits, labels, n_resamples=50, **given).value == pytest.approx(exact, rel=1e-12)
    assert metrics.asymptotic_interval(logits, labels, **given).value == pytest.approx(exact, rel=1e-12)
    # an impossible outcome is still infinitely bad, and other scores do not notice how predictions were given
    assert metrics.nll(np.array([-INF]), np.array([1]), binary=binary, from_logits=True) == INF
    probs = 1 / (1 + np.exp(-logits))
    for metric in (metrics.brier, metrics.kde_ece):
        values = [
            metrics.bootstrap_interval(p, labels, metric=metric, binary=binary, from_logits=is_logits, n_resamples=50)
            for p, is_logits in ((logits, True), (probs, False))
        ]
        assert values[0].low == pytest.approx(values[1].low, abs=1e-12)


def test_ruled_out_classes_are_allowed_in_logits():
    assert metrics.nll([[-INF, 0.0]], [1], from_logits=True) == 0.0
    assert metrics.nll([[-INF, 0.0]], [0], from_logits=True) == INF


@pytest.mark.parametrize("metric", MATRIX_METRICS, ids=name_of)
def test_text_labels_and_single_scores_are_read_like_scikit_learn(metric):
    """Names are numbered in sorted order; a score is the probability of the class that sorts last."""
    names = np.array(["ant", "bee", "cat"])
    assert metric(PROBS, names[LABELS]) == metric(PROBS, LABELS)
    assert metric(PROBS, names[LABELS].astype(object).tolist()) == metric(PROBS, LABELS)
    score, labels = CONFIDENCE, np.arange(40) % 2
    matrix = np.stack([1 - score, score], axis=1)
    assert metric(score, np.array(["no", "yes"])[labels]) == metric(matrix, labels)
    logit = np.log(np.clip(score, 0.01, 0.99))
    pair = np.stack([np.zeros(40), logit], axis=1)
    assert metric(Logits(logit), labels) == metric(Logits(pair), labels) == metric(logit, labels, from_logits=True)


@pytest.mark.parametrize("metric", [metrics.ece, metrics.nll], ids=name_of)
def test_probabilities_given_as_logits_are_noticed(metric):
    with pytest.warns(UserWarning, match="These logits are probabilities"):
        metric(PROBS, LABELS, from_logits=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        metric(np.log(PROBS), LABELS, from_logits=True)
        metric(np.eye(3)[LABELS], LABELS, from_logits=True)  # zeros and ones can be logits
        metric(PROBS + 1e-2, LABELS, from_logits=True)


@pytest.mark.parametrize("metric", [metrics.nll, metrics.classwise_ece, metrics.ece], ids=name_of)
def test_columns_of_a_data_frame_are_classes_by_their_names(metric):
    pd = pytest.importorskip("pandas")
    names = np.array(["ant", "bee", "cat"])
    frame = pd.DataFrame(PROBS, columns=names)[["cat", "ant", "bee"]]
    assert metric(frame, names[LABELS]) == pytest.approx(metric(PROBS, LABELS))
    few = LABELS < 2  # not every class occurs
    assert metric(frame[few], names[LABELS[few]]) == pytest.approx(metric(PROBS[few], LABELS[few]))
    assert metric(frame.add_prefix("prob_"), names[LABELS]) == pytest.approx(metric(PROBS, LABELS))
    other = frame.rename(columns=str.upper)
    assert metric(other, names[LABELS]) == pytest.approx(metric(frame.to_numpy(), LABELS))  # in sorted order


@pytest.mark.parametrize("metric", [metrics.nll, metrics.classwise_ece, metrics.ece], ids=name_of)
def test_columns_are_classes_by_their_numbers(metric):
    pd = pytest.importorskip("pandas")
    expected = pytest.approx(metric(PROBS, LABELS))
    frame, order = pd.DataFrame(PROBS), [2, 0, 1]
    assert metric(frame, LABELS) == expected
    for labels in (LABELS, torch.tensor(LABELS), LABELS.tolist()):
        assert metric(frame[order], labels) == expected
    assert metric(metrics.Logits(np.log(frame[order])), LABELS) == expected
    assert metric(frame[order].add_prefix("prob_"), LABELS) == expected  # text that holds the numbers
    assert metric(frame[order].rename(columns=lambda k: k + 1), LABELS + 1) == expected
    assert metric(frame.set_axis([10, 20, 30], axis=1), LABELS) == expected  # by position: no label is a name
    few = LABELS < 2  # not every class occurs
    assert metric(frame[order][few], LABELS[few]) == pytest.approx(metric(PROBS[few], LABELS[few]))
    two, hits = PROBS[:, :2] / PROBS[:, :2].sum(axis=1, keepdims=True), LABELS == 1
    expected = pytest.approx(metric(two, hits))
    for names in ([False, True], ["False", "True"], [0, 1]):
        assert metric(pd.DataFrame(two[:, ::-1], columns=names[::-1]), hits) == expected


def test_labels_that_can_be_names_or_numbers_are_refused():
    pd = pytest.importorskip("pandas")
    frame, few = pd.DataFrame(PROBS, columns=[1, 2, 3]), np.isin(LABELS, [1, 2])
    with pytest.raises(ValueError, match="labels 1, 2 can be names of the columns 1, 2, 3, or column numbers"):
        metrics.ece(frame[few], LABELS[few])
    assert metrics.ece(frame[few].to_numpy(), LABELS[few]) == metrics.ece(PROBS[few], LABELS[few])
