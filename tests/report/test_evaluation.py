"""Tests of `calibrant.evaluate`: inputs, verdicts, and numbers equal to the metrics."""

import json
import re
import warnings
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from scipy.special import softmax

import calibrant
from calibrant import metrics
from calibrant.base.inputs import Logits
from calibrant.report.evaluation.numbers import off
from calibrant.report.evaluation.reading import read_matrix
from calibrant.report.evaluation.rows import measure_rows
from calibrant.report.evaluation.verdict import judge
from calibrant.report.numbers import format_signed
from calibrant.selective import aurc


def predictions(n=1500, n_classes=3, temperature=2.0, seed=0):
    """Probabilities that are over-confident where the temperature is above 1, and labels."""
    rng = np.random.default_rng(seed)
    truth = rng.normal(size=(n, n_classes)) * 2
    labels = (truth + rng.gumbel(size=truth.shape)).argmax(axis=1)
    return softmax(temperature * truth, axis=1), labels


@pytest.fixture(scope="module")
def over():
    probs, labels = predictions()
    return probs, labels, calibrant.evaluate(probs, labels, n_resamples=20)


def test_the_numbers_are_those_of_the_metrics(over):
    probs, labels, result = over
    measures = result.models["model"].measures
    for key, metric in (
        ("accuracy", metrics.accuracy),
        ("nll", metrics.nll),
        ("brier", metrics.brier),
        ("ece", metrics.ece),
        ("mce", metrics.mce),
        ("smooth_ece", metrics.smooth_ece),
        ("classwise_ece", metrics.classwise_ece),
    ):
        assert measures[key].value == pytest.approx(metric(probs, labels)), key
    split = result.models["model"].split
    assert split["miscalibration"] - split["discrimination"] + split["uncertainty"] == pytest.approx(split["brier"])
    assert result.models["model"].risk["aurc"] == pytest.approx(aurc(probs.max(axis=1), probs.argmax(axis=1) == labels))
    points = result.models["model"].risk["points"]
    assert [point["coverage"] for point in points] == pytest.approx([0.5, 0.8, 0.9, 0.95], abs=1 / len(labels))
    for measure in measures.values():
        assert measure.low is None or measure.low <= measure.value <= measure.high
    assert 0 < measures["ece"].floor < measures["ece"].value


@pytest.mark.parametrize(("temperature", "kind"), [(2.0, "over-confident"), (0.4, "under-confident")])
def test_the_verdict_says_which_way_and_by_how_much(temperature, kind):
    probs, labels = predictions(temperature=temperature)
    result = calibrant.evaluate(probs, labels, n_resamples=20)
    assert result.verdict.kind == kind
    gap = abs(probs.max(axis=1).mean() - (probs.argmax(axis=1) == labels).mean())
    assert f"{kind.capitalize()} by {100 * gap:.1f} points" in result.verdict.sentence
    floor = result.models["model"].measures["ece"].floor
    assert f"noise floor for this sample is {100 * floor:.1f}" in result.verdict.sentence
    assert result.verdict.sentence in str(result)


def test_calibrated_models_are_mostly_called_so():
    kinds = [calibrant.evaluate(*predictions(400, 3, 1.0, seed), n_resamples=20).verdict.kind for seed in range(6)]
    assert kinds.count("calibrated") >= 4


def test_opposite_errors_are_miscalibration_without_a_direction():
    rng = np.random.default_rng(0)
    confidence = np.repeat([0.6, 0.9], 2000)
    correct = rng.random(4000) < np.repeat([0.75, 0.75], 2000)
    verdict = calibrant.evaluate(confidence=confidence, correct=correct, n_resamples=20).verdict
    assert verdict.kind == "miscalibrated"
    assert "too high in some places and too low in others" in verdict.sentence


def test_the_verdict_compares_the_accuracy_with_the_largest_class():
    labels = np.arange(1000) % 10 < 6
    shares = np.tile([0.4, 0.6], (1000, 1))
    verdict = calibrant.evaluate(shares, labels, classes=["stay", "churn"]).verdict
    assert verdict.sentence.startswith(
        "Accuracy is not clearly above that of always predicting churn, which is right in 60.0% of the rows: 60.0%"
    )
    better = np.where(labels[:, None], [0.2, 0.8], [0.8, 0.2])
    assert "always predicting" not in str(calibrant.evaluate(better, labels).verdict)


def test_few_rows_are_no_verdict():
    rng = np.random.default_rng(1)
    confidence = rng.uniform(0.5, 1, 30)
    assert calibrant.evaluate(confidence=confidence, correct=rng.random(30) < confidence).verdict.kind == "undecided"


def test_logits_scores_and_names_give_the_same_numbers(over):
    probs, labels, result = over
    reference = {k: m.value for k, m in result.models["model"].measures.items()}
    names = np.array(["cat", "dog", "ape"])
    forms = {
        "logits": calibrant.evaluate(Logits(np.log(probs) + 3), labels, n_resamples=20),
        "from_logits": calibrant.evaluate(torch.from_numpy(np.log(probs)), labels, from_logits=True, n_resamples=20),
        "names": calibrant.evaluate(probs, names[labels], classes=names, n_resamples=20),
        "sorted": calibrant.evaluate(probs[:, [2, 0, 1]], names[labels], n_resamples=20),
        "floats": calibrant.evaluate(probs, labels.astype(float), n_resamples=20),
        "numbers": calibrant.evaluate(probs, 10 * labels + 5, n_resamples=20),
    }
    for form, other in forms.items():
        for key, value in reference.items():
            assert other.models["model"].measures[key].value == pytest.approx(value), (form, key)
    assert [row["name"] for row in forms["names"].models["model"].classes] == ["cat", "dog", "ape"]
    assert [row["name"] for row in forms["sorted"].models["model"].classes] == ["ape", "cat", "dog"]


def test_one_binary_score_is_two_columns():
    probs, labels = predictions(600, 2)
    wide = calibrant.evaluate(probs, labels, n_resamples=20)
    narrow = calibrant.evaluate(probs[:, 1], np.array(["no", "yes"])[labels], n_resamples=20)
    log_odds = np.log(probs[:, 1] / probs[:, 0])
    logit = calibrant.evaluate(log_odds, labels, from_logits=True, n_resamples=20)
    for key, measure in wide.models["model"].measures.items():
        assert narrow.models["model"].measures[key].value == pytest.approx(measure.value)
        assert logit.models["model"].measures[key].value == pytest.approx(measure.value)


def test_classes_and_groups_are_judged_each(over):
    probs, labels, _ = over
    confident = np.where(np.arange(len(labels)) % 3 == 0, "third", "rest")
    result = calibrant.evaluate(probs, labels, groups=confident, n_resamples=20)
    groups = {row["name"]: row for row in result.models["model"].groups}
    third = confident == "third"
    hits = probs.argmax(axis=1) == labels
    assert groups["third"]["n"] == third.sum()
    assert groups["third"]["ece"] == pytest.approx(metrics.ece(probs[third], labels[third]))
    assert groups["rest"]["gap"] == pytest.approx(probs.max(axis=1)[~third].mean() - hits[~third].mean())
    assert groups["rest"]["gap_low"] < groups["rest"]["gap"] < groups["rest"]["gap_high"]
    classes = result.models["model"].classes
    assert [row["ece"] for row in classes] == pytest.approx(list(metrics.classwise_ece(probs, labels, average=None)))
    assert "groups confidence is off by more than chance" in str(result.verdict)


def test_a_rare_class_that_never_came_is_not_marked():
    rng = np.random.default_rng(0)
    probs = np.column_stack([np.full(300, 0.995), np.full(300, 0.005)])
    probs[:, 1] += rng.uniform(-0.001, 0.001, 300)
    probs[:, 0] = 1 - probs[:, 1]
    rare = calibrant.evaluate(probs, np.zeros(300, dtype=int), n_resamples=20).models["model"].classes[1]
    assert rare["gap_low"] < 0 < rare["gap_high"]


def test_intervals_of_many_calibrated_classes_hold_together():
    marked = 0
    for seed in range(6):
        probs, labels = predictions(500, 12, 1.0, seed)
        marked += bool(off(calibrant.evaluate(probs, labels, n_resamples=20).models["model"].classes))
    assert marked <= 2


def test_models_are_compared_by_paired_differences(over):
    probs, labels, _ = over
    better = predictions(temperature=1.0)[0]
    result = calibrant.evaluate({"old": probs, "new": better}, labels, n_resamples=20)
    (entry,) = result.differences
    assert (entry["model"], entry["minus"]) == ("new", "old")
    rows = np.arange(len(labels))
    gaps = -np.log(better[rows, labels]) + np.log(probs[rows, labels])
    assert entry["nll"]["value"] == pytest.approx(gaps.mean())
    half = 1.959964 * gaps.std(ddof=1) / np.sqrt(len(gaps))
    assert entry["nll"]["low"] == pytest.approx(gaps.mean() - half)
    assert entry["accuracy"]["value"] == 0
    assert "new minus old" in str(result)
    assert "new minus old" in result._repr_html_()


def test_json_holds_everything_and_rows_only_where_wanted(over):
    probs, labels, _ = over
    rows = [{"patient": f"secret-{i}"} for i in range(len(labels))]
    result = calibrant.evaluate(probs, labels, rows=rows, n_resamples=20)
    text = json.dumps(result.to_dict(), allow_nan=False)
    mistakes = result.to_dict()["models"][0]["mistakes"]
    wrong = np.flatnonzero(probs.argmax(axis=1) != labels)
    worst = wrong[probs.max(axis=1)[wrong].argmax()]
    assert mistakes[0]["row"] == worst
    assert mistakes[0]["values"] == {"patient": f"secret-{worst}"}
    assert "secret" in text
    assert "secret" not in json.dumps(result.to_dict(rows=False))


def test_columns_of_a_data_frame_are_classes_by_their_names():
    rng = np.random.default_rng(0)
    probs = rng.dirichlet([1, 1, 1], 200)
    names = np.array(["cat", "dog", "emu"])
    labels = names[(probs.cumsum(axis=1) > rng.random((200, 1))).argmax(axis=1)]
    frame = pd.DataFrame(probs, columns=names)
    turned = frame[["emu", "cat", "dog"]]
    wanted = calibrant.evaluate(probs, labels, classes=names, n_resamples=5).models["model"].measures["nll"].value
    wanted = pytest.approx(wanted)
    for models in (turned, {"a": turned, "b": frame}, {"a": frame, "b": turned}):
        found = calibrant.evaluate(models, labels, n_resamples=5)
        assert [own.measures["nll"].value for own in found.models.values()] == [wanted] * len(found.models)
    numbered = pd.DataFrame(probs[:, [2, 0, 1]], columns=[2, 0, 1])
    codes = np.searchsorted(names, labels)
    for known in (codes, codes.astype(float)):
        assert calibrant.evaluate(numbered, known, n_resamples=5).models["model"].measures["nll"].value == wanted
    with pytest.raises(ValueError, match="or column numbers"):
        calibrant.evaluate(numbered.set_axis([1, 2, 3], axis=1)[codes > 0], codes[codes > 0])
    other = frame.set_axis(["x", "y", "z"], axis=1)
    assert calibrant.evaluate(other, labels, n_resamples=5).models["model"].measures["nll"].value == wanted
    with pytest.raises(ValueError, match="must have the same columns"):
        calibrant.evaluate({"a": frame, "b": other}, labels)


def test_mistakes_have_the_row_numbers_of_the_data(over):
    probs, labels, _ = over
    own = np.arange(len(labels)) * 2 + 7
    counted, numbered = (calibrant.evaluate(probs, labels, row_numbers=n, n_resamples=20) for n in (None, own))
    pairs = zip(*(r.to_dict()["models"][0]["mistakes"] for r in (counted, numbered)), strict=True)
    assert all(b["row"] == own[a["row"]] for a, b in pairs)
    assert "counted from 0" in counted.to_html()
    assert "counted from 0" not in numbered.to_html()


def test_probability_zero_of_what_happened_is_said(over):
    result = calibrant.evaluate(np.tile([[1.0, 0.0], [0.5, 0.5]], (50, 1)), np.tile([1, 0], 50), n_resamples=20)
    assert result.models["model"].measures["nll"].value == np.inf
    assert "the NLL is infinite" in str(result)
    json.dumps(result.to_dict(), allow_nan=False)


def test_html_for_notebooks_is_escaped():
    probs, labels = predictions(300, 2)
    names = ["<script>alert(1)</script>", "b"]
    page = calibrant.evaluate({"<b>": probs}, np.array(names)[labels], classes=names, n_resamples=20)._repr_html_()
    assert "<script>" not in page
    assert "<b>" not in page


TWO, THREE = np.ones((3, 2)) / 2, np.eye(3)[[0, 1, 2]]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({}, "neither"),
        ({"probs": TWO}, "together"),
        ({"probs": TWO[:1], "labels": [0]}, "at least 2 rows"),
        ({"probs": np.full((3, 2), np.nan), "labels": [0, 1, 0]}, "NaN"),
        ({"probs": TWO, "labels": [0, 1]}, "one per prediction"),
        ({"probs": TWO, "labels": [[0], [1], [0]]}, r"Use labels\[:, 0\]"),
        ({"probs": TWO, "labels": TWO}, r"labels\.argmax\(axis=1\)"),
        ({"probs": TWO, "labels": ["a", "b", "c"]}, "match the 2 columns; got 3"),
        ({"probs": TWO, "labels": ["a", "b", "c"], "classes": ["a", "b"]}, "among the classes"),
        (
            {"probs": THREE, "labels": [0, 1, 2], "classes": [1, 2, 3]},
            "labels must be among the classes 1, 2, 3; got '0'",
        ),
        ({"probs": TWO, "labels": [0, 1, 0], "classes": ["a"]}, "2 different names"),
        ({"probs": TWO, "labels": [0, 1, 0], "classes": ["a", "a"]}, "2 different names"),
        ({"probs": TWO, "labels": [0, 1, 0], "classes": ["a", "b", "c"]}, "2 different names"),
        ({"probs": TWO, "labels": ["a", None, "b"]}, "missing entries"),
        ({"probs": TWO, "labels": [0.0, 1.0, np.inf]}, "match the 2 columns; got 3"),
        ({"probs": [0, 1, 0], "labels": TWO}, "labels come second"),
        ({"probs": ["a", "b", "c"], "labels": TWO}, r"The order of arguments is probs, labels\."),
        ({"probs": TWO, "labels": [0, 1, 0], "groups": ["x"]}, "groups must be 1-D"),
        ({"probs": TWO, "labels": [0, 1, 0], "rows": [1]}, "rows must have 3 entries"),
        ({"probs": TWO, "labels": [0, 1, 0], "row_numbers": [1, 2]}, "row_numbers must be"),
        ({"probs": TWO, "labels": [0, 1, 0], "row_numbers": [1.0, 2.0, 3.0]}, "row_numbers must be"),
        ({"probs": TWO, "labels": [0, 1, 0], "sample_weight": [1, 1]}, "sample_weight must be"),
        ({"probs": TWO, "labels": [0, 1, 0], "sample_weight": [1, 0, 1]}, "sample_weight must be"),
        ({"probs": TWO, "labels": [0, 1, 0], "sample_weight": [1, -1, 1]}, "sample_weight must be"),
        ({"probs": {"a": TWO, "b": TWO[:2]}, "labels": [0, 1, 0]}, "one per prediction"),
        ({"confidence": {"a": [0.5, 0.6], "b": [0.5]}, "correct": {"a": [1, 0], "b": [1]}}, "at least 2 rows"),
        ({"confidence": {"a": [0.5, 0.6, 0.7], "b": [0.5, 0.6]}, "correct": {"a": [1, 0, 1], "b": [1, 0]}}, "a 3, b 2"),
        ({"confidence": {"a": [0.5, 0.6]}, "correct": {"b": [1, 0]}}, "must name the same models"),
        ({"confidence": [0.5, 0.6]}, "together"),
        ({"probs": [0.5, np.inf], "labels": [0, 1], "from_logits": True}, r"\+inf"),
        ({"probs": [0.5, np.inf], "labels": [0, 1]}, "must lie in"),
    ],
)
def test_mistakes_give_an_error_of_one_sentence(given, words):
    with pytest.raises(ValueError, match=words):
        calibrant.evaluate(**given)


def test_the_figure_has_three_axes_for_each_model(over):
    pytest.importorskip("matplotlib")
    axes = over[2].plot().axes
    assert len(axes) == 3
    assert all(axis.has_data() for axis in axes)


def test_whole_weights_are_copies_of_rows():
    """Weighted values equal those of a table with repeated rows."""
    random = np.random.default_rng(0)
    logits = random.normal(size=(300, 3)) * 2
    labels = (logits / 2 + random.gumbel(size=(300, 3))).argmax(1)
    probs, other = (np.exp(z) / np.exp(z).sum(1, keepdims=True) for z in (logits, logits / 3))
    weight, groups = random.integers(1, 4, 300), np.where(logits[:, 0] > 0, "a", "b")
    rows = np.repeat(np.arange(300), weight)
    weighted = calibrant.evaluate({"m": probs, "o": other}, labels, sample_weight=weight, groups=groups)
    copied = calibrant.evaluate({"m": probs[rows], "o": other[rows]}, labels[rows], groups=groups[rows])
    for name in ("m", "o"):
        one, two = weighted.models[name], copied.models[name]
        for key, measure in one.measures.items():
            assert measure.value == pytest.approx(two.measures[key].value, rel=1e-9), key
        assert one.mean_confidence == pytest.approx(two.mean_confidence)
        assert one.gap.value == pytest.approx(two.gap.value)
        assert one.split == pytest.approx(two.split)
        for parts in ("classes", "groups"):
            for own, copy in zip(
                *(sorted(getattr(m, parts), key=lambda p: p["name"]) for m in (one, two)), strict=True
            ):
                for key in ("mean_confidence", "frequency", "gap", "ece", "recall", "precision"):
                    assert own.get(key) == pytest.approx(copy.get(key)), key
                assert own["n"] <= copy["n"]
                assert own["gap_high"] - own["gap_low"] > copy["gap_high"] - copy["gap_low"]  # copies tell nothing new
    for key in ("accuracy", "nll", "brier", "ece"):
        assert weighted.differences[0][key]["value"] == pytest.approx(copied.differences[0][key]["value"])
    tenfold = calibrant.evaluate({"m": probs, "o": other}, labels, sample_weight=10 * weight, groups=groups)
    for key in ("accuracy", "nll", "brier", "ece"):
        one, two = (result.models["m"].measures[key] for result in (weighted, tenfold))
        assert [one.value, one.low, one.high] == pytest.approx([two.value, two.low, two.high], rel=1e-9), key
    assert "the rejection window count each row once" in str(weighted)
    assert "each row once" not in str(copied)
    assert "Rows are weighted" in weighted.to_html()


def test_equal_confidences_are_told_once_and_zero_without_sign():
    text = str(calibrant.evaluate(np.full((40, 2), [0.75, 0.25]), (np.arange(40) % 4 == 0).astype(int), n_resamples=20))
    assert text.count("of the surest 100%") == 1
    assert "-0.0000" not in text


def test_rows_are_paired_by_position_and_another_order_is_noticed():
    probs, labels = predictions(60)
    frame, series = pd.DataFrame(probs), pd.Series(labels)
    with pytest.warns(UserWarning, match="probs and labels have the same index in different orders"):
        turned = calibrant.evaluate(frame, series.iloc[::-1], n_resamples=20)
    assert turned.models["model"].measures["nll"].value == pytest.approx(metrics.nll(probs, labels[::-1]))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        calibrant.evaluate(frame.iloc[::-1], series.iloc[::-1], n_resamples=20)
        calibrant.evaluate(frame, series.set_axis(range(100, 160)), n_resamples=20)
        calibrant.evaluate(frame, series.set_axis([*range(59), "last"]), n_resamples=20)


def test_classes_name_the_columns_of_whole_numbers(over):
    probs, labels, plain = over
    named = calibrant.evaluate(probs, labels, classes=["cat", "dog", "emu"], n_resamples=20).models["model"]
    assert [part["name"] for part in named.classes] == ["cat", "dog", "emu"]
    assert named.measures == plain.models["model"].measures


def test_a_score_of_the_other_class_is_noticed():
    rng = np.random.default_rng(0)
    score = rng.random(200)
    labels = np.where(rng.random(200) < score, "churn", "stay")
    with pytest.warns(UserWarning, match=r"read as probabilities of 'stay', .*classes=\['stay', 'churn'\]"):
        calibrant.evaluate(score, labels, n_resamples=20)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        right = calibrant.evaluate(score, labels, classes=["stay", "churn"], n_resamples=20)
        calibrant.evaluate(rng.random(200), labels, n_resamples=20)  # no better than chance
        calibrant.evaluate(score[:8], labels[:8], n_resamples=20)
    assert right.models["model"].measures["nll"].value < np.log(2)


def two_groups(gap, n=4000):
    """A calibrated model as a whole: confidence is too high by ``gap`` in one group, and too low in the other."""
    rng = np.random.default_rng(0)
    confidence, high = rng.uniform(0.6, 0.9, n), np.arange(n) % 2 == 0
    correct = rng.random(n) < confidence - np.where(high, gap, -gap)
    return {"confidence": confidence, "correct": correct, "groups": np.where(high, "high", "low")}


def test_a_good_verdict_names_the_parts_that_are_off():
    for gap, words in ((0.0, "No sign of miscalibration: "), (0.1, "No sign of miscalibration over all rows: ")):
        result = calibrant.evaluate(**two_groups(gap), n_resamples=20)
        assert result.verdict.kind == "calibrated"
        assert result.verdict.sentence.startswith(words)
        assert ("But for 2 of 2 groups confidence is off by more than chance" in str(result)) == (gap > 0)
        assert ('class="verdict partly"' in result.to_html()) == (gap > 0)


def shifted(n_classes, n=4000):
    """Probabilities that are too high for the last class and too low for the first one."""
    rng = np.random.default_rng(0)
    probs = rng.dirichlet(np.full(n_classes, 4.0), n)
    true = probs + np.array([0.08, *[0.0] * (n_classes - 2), -0.08])
    return probs, (true.cumsum(axis=1) > rng.random((n, 1))).argmax(axis=1)


def test_the_classes_that_are_off_are_told():
    text = str(calibrant.evaluate(*shifted(3), classes=["a", "b", "c"], n_resamples=20).verdict)
    assert re.search(
        r"or 2 of 3 classes its probability is off by more than chance: the worst is [ac], \d+\.\d poi", text
    )
    text = str(calibrant.evaluate(*shifted(2), classes=["no", "yes"], n_resamples=20).verdict)
    assert re.search(r"or class yes its probability is off by more than chance: \d+\.\d points too high", text)


@pytest.mark.parametrize(("p_value", "kind"), [(0.052, "calibrated"), (0.049, "miscalibrated")])
def test_the_verdict_turns_at_a_p_value_of_one_twentieth(p_value, kind):
    numbers = calibrant.evaluate(**two_groups(0.0), n_resamples=20).models["model"]
    assert judge(replace(numbers, test=replace(numbers.test, p_value=p_value))).kind == kind


def test_printed_gaps_of_groups_are_points():
    result = calibrant.evaluate(**two_groups(0.1), n_resamples=20)
    lines = {line.split()[0]: line for line in str(result).splitlines() if line.startswith(("high ", "low "))}
    page = result.to_html()
    for row in result.models["model"].groups:
        ends = [f"{100 * row[key]:+.1f}".replace("-", "−") for key in ("gap", "gap_low", "gap_high")]
        assert lines[row["name"]].split()[-4:] == [ends[0], ends[1], "to", ends[2]]
        assert f'">{ends[0]}</td>' in page
        assert f">{ends[1]} to {ends[2]}</td>" in page
        shares = [f"{100 * row[key]:.1f}" for key in ("mean_confidence", "frequency")]
        assert lines[row["name"]].split()[1:6] == ["2,000", shares[0], "%", shares[1], "%"]
    many = calibrant.evaluate(**two_groups(0.0, 600) | {"groups": np.arange(600) % 25}, n_resamples=5)
    assert "and 5 more" in str(many)


@pytest.mark.parametrize(
    ("value", "text"), [(0.04, "0.0"), (-0.04, "0.0"), (-0.06, "−0.1"), (1.0, "+1.0"), (None, "–")]
)
def test_differences_have_a_sign_unless_they_round_to_zero(value, text):
    assert format_signed(value) == text


def test_an_interval_that_says_nothing_is_left_out(over):
    numbers = over[2].models["model"]
    for high, text in ((1.0, "cannot be told"), (0.99, "0.00 % to 99.00 %")):
        measures = numbers.measures | {"mce": replace(numbers.measures["mce"], low=0.0, high=high)}
        (mce,) = [row for row in measure_rows(replace(numbers, measures=measures)) if row[0] == "MCE"]
        assert mce[2] == text


def test_a_score_without_information_is_rarely_called_reversed():
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for seed in range(20):
            rng = np.random.default_rng(seed)
            read_matrix(rng.random(300), rng.integers(0, 2, 300))
    assert len(caught) <= 1
