"""Tests of the page of an evaluation: self-contained, escaped, small, and exact."""

import json
import re

import numpy as np
import pytest
from scipy.special import softmax

import calibrant
from calibrant.report.evaluation.figures import MOST_LIMITS, reject
from calibrant.report.evaluation.reading import read_matrix
from calibrant.selective import RejectionRule, Window, threshold_for_risk, uniform_risk_bound

pytest.importorskip("jinja2")


def predictions(n, n_classes=3, seed=0):
    rng = np.random.default_rng(seed)
    truth = rng.normal(size=(n, n_classes)) * 2
    return softmax(1.8 * truth, axis=1), (truth + rng.gumbel(size=truth.shape)).argmax(axis=1)


def test_the_page_needs_nothing_else_and_escapes_everything(tmp_path):
    probs, labels = predictions(300)
    names = ["<script>alert(1)</script>", '"quoted" & co', "c"]
    rows = [{"<img src=x onerror=alert(2)>": "</script><b>"}] * 300
    result = calibrant.evaluate({"<i>m</i>": probs}, np.array(names)[labels], classes=names, rows=rows, n_resamples=20)
    page = result.to_html(tmp_path / "page.html", title="<u>t</u>", card={"<s>": "<s>"})
    assert (tmp_path / "page.html").read_text(encoding="utf-8") == page
    for tag in ("<script>alert", "<img", "<i>m", "<u>t", "<s>", "</script><b>"):
        assert tag not in page, tag
    assert not re.search(r'(?:src|href)="(?!#|data:)', page), "nothing is fetched"
    assert page.count("<script") == 2
    assert 'http-equiv="Content-Security-Policy"' in page
    assert page.index(result.verdict.sentence[:20]) < page.index("Does confidence match accuracy?")
    assert "onerror" in page
    assert "onerror" not in result.to_html(rows=False)


def embedded(page):
    return json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', page).group(1))


def test_two_classes_have_the_curve_of_a_probability():
    probs, labels = predictions(800, 2)
    weight = np.arange(800) % 3 + 1
    (model,) = embedded(calibrant.evaluate(probs, labels, classes=["no", "yes"], sample_weight=weight).to_html())
    assert model["positive"] == "yes"
    for row in model["curves"]["positive"]["binned"]:
        inside = np.ceil(15 * probs[:, 1]) == round(15 * row["upper"])
        assert row["accuracy"] == pytest.approx(np.average(labels[inside] == 1, weights=weight[inside]), abs=1e-5)
        assert row["confidence"] == pytest.approx(np.average(probs[inside, 1], weights=weight[inside]), abs=1e-5)
    several = embedded(calibrant.evaluate(*predictions(300), n_resamples=20).to_html())
    assert list(several[0]["curves"]) == ["confidence"]


@pytest.mark.slow
def test_a_hundred_thousand_predictions_stay_below_two_megabytes():
    probs, labels = predictions(100_000, 10)
    page = calibrant.evaluate(probs, labels, n_resamples=20).to_html()
    assert len(page.encode()) < 2_000_000
    assert len(embedded(page)[0]["reject"]["limits"]) <= MOST_LIMITS + 2


@pytest.mark.parametrize("n_classes", [2, 3])
def test_limits_have_exact_counts_and_the_bound_of_the_library(n_classes):
    probs, labels = predictions(3000, n_classes)
    sample = read_matrix(probs, labels)
    data = reject(sample, 0.95)
    score = probs[:, 1] if n_classes == 2 else probs.max(axis=1)
    right = probs.argmax(axis=1) == labels
    limits = np.array(data["limits"])
    for j in (0, len(limits) // 3, len(limits) - 1):
        assert data["rightAbove"][j] == (right & (score >= limits[j])).sum()
        assert data["wrongBelow"][j] == (~right & (score <= limits[j])).sum()
    bound = uniform_risk_bound(score, right, level=0.95)
    for low, high in ((3, 40), (100, 500), (None, 200)):
        errors, correct = data["errorsAbove"][high], data["correctAbove"][high]
        if low is not None:
            errors, correct = errors + data["errorsBelow"][low], correct + data["correctBelow"][low]
        given = bound.risk(-np.inf if low is None else limits[low], limits[high])
        assert errors / (errors + correct) == pytest.approx(given, abs=1e-5)
    assert sum(data["histogram"]) == 3000
    assert sum(data["histogramWrong"]) == data["wrong"] == (~right).sum()
    if n_classes == 2:
        below, above = limits[limits <= 0.5].max(), limits[limits > 0.5].min()
        assert not ((score > below) & (score < above)).any(), "nothing lies between the two limits around one half"


def test_the_bad_places_for_a_page_are_sentences(tmp_path):
    result = calibrant.evaluate(*predictions(50), n_resamples=20)
    with pytest.raises(ValueError, match="is a folder"):
        result.to_html(tmp_path)
    with pytest.raises(ValueError, match="does not exist"):
        result.to_html(tmp_path / "no" / "page.html")
    assert list(tmp_path.iterdir()) == []


def test_groups_classes_and_models_are_on_the_page():
    probs, labels = predictions(400)
    groups = np.where(np.arange(400) % 2, "north", "south")
    page = calibrant.evaluate({"a": probs, "b": probs}, labels, groups=groups, n_resamples=20).to_html()
    for text in ("north", "south", 'id="classes"', 'id="groups"', "b minus a", 'id="model"'):
        assert text in page
    pairs = calibrant.evaluate(confidence=probs.max(axis=1), correct=probs.argmax(axis=1) == labels, n_resamples=20)
    assert 'id="classes"' not in pairs.to_html()


@pytest.mark.parametrize(
    ("window", "kept"),
    [
        (Window.below(0.9), 1),  # only the last row
        (Window.below(0.0), None),
        (Window(), 0),
        (Window(-np.inf, -np.inf), None),
    ],
)
@pytest.mark.parametrize("n_classes", [2, 3])
def test_the_limits_start_where_the_rule_says(n_classes, window, kept):
    probs = np.array([[0.6, 0.4, 0.0], [0.2, 0.8, 0.0], [0.95, 0.05, 0.0]])[:, :n_classes]
    result = calibrant.evaluate(probs, [0, 1, 0], n_resamples=5)
    rule = RejectionRule(window, "none", None, "by hand", 3, 0.3, 0.0)
    page = result.to_html(rule=rule)
    reject = json.loads(re.search(r'id="data">(.*?)</script>', page)[1])[0]["reject"]
    if kept is None:
        assert reject["start"] is None
        return
    low, high = reject["start"]
    count = reject["rightAbove"][high] + (reject["rightBelow"][low] if low >= 0 else 0)
    assert count == kept
    assert "own-rule" in page


def test_a_rule_that_found_nothing_says_so():
    rule = threshold_for_risk([0.6, 0.7], [True, False], 0.01)
    page = calibrant.evaluate(np.array([[0.6, 0.4], [0.2, 0.8]]), [0, 1], n_resamples=5).to_html(rule=rule)
    assert "withholds every prediction" in page
    assert "No window was found" in page
    result = calibrant.evaluate(np.array([[0.6, 0.4], [0.2, 0.8]]), [0, 1], n_resamples=5)
    own = RejectionRule(Window(0.2, 0.7), "none", None, "by hand", 3, 0.3, 0.0)
    with pytest.raises(ValueError, match="below a confidence"):
        result.to_html(rule=own)
