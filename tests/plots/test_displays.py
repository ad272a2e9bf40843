"""Tests of the figures: they show the prepared numbers, in the given axes."""

import subprocess
import sys
from pathlib import Path

import matplotlib
import numpy as np
import pytest
import torch
from matplotlib import pyplot as plt
from sklearn.linear_model import LogisticRegression

from calibrant import plots
from calibrant.selective import threshold_for_risk

FROM_PREDICTIONS = [
    plots.ReliabilityDisplay,
    plots.ConfidenceHistogramDisplay,
    plots.SmoothReliabilityDisplay,
    plots.RiskCoverageDisplay,
    plots.BinSweepDisplay,
]
QUICK = {plots.ReliabilityDisplay: {"n_resamples": 40}, plots.BinSweepDisplay: {"n_resamples": 40, "bins": (10, 50)}}


@pytest.fixture
def fitted():
    generator = np.random.default_rng(0)
    X = generator.normal(size=(300, 2))
    y = np.where(X[:, 0] + generator.normal(size=300) > 0, "yes", "no")
    return LogisticRegression().fit(X, y), X, y


@pytest.mark.parametrize("display", FROM_PREDICTIONS)
def test_arrays_tensors_pairs_and_logits_are_the_same_picture(display, predictions):
    probs, labels = predictions
    options = QUICK.get(display, {})
    ways = [
        display.from_predictions(probs, labels, **options),
        display.from_predictions(torch.as_tensor(probs), torch.as_tensor(labels), **options),
        display.from_predictions(np.log(probs), labels, from_logits=True, **options),
        display.from_predictions(confidence=probs.max(1), correct=probs.argmax(1) == labels, **options),
    ]
    for other in ways[1:]:
        for key, value in vars(ways[0].data).items():
            if isinstance(value, np.ndarray):
                np.testing.assert_allclose(getattr(other.data, key), value, atol=1e-6, rtol=1e-4)


@pytest.mark.parametrize("display", FROM_PREDICTIONS)
def test_from_estimator_reads_the_classes(display, fitted):
    estimator, X, y = fitted
    options = QUICK.get(display, {})
    shown = display.from_estimator(estimator, X, y, **options)
    same = display.from_predictions(estimator.predict_proba(X), (y == "yes").astype(int), **options)
    assert shown.name == "LogisticRegression"
    for key, value in vars(shown.data).items():
        if isinstance(value, np.ndarray | float):
            np.testing.assert_allclose(value, getattr(same.data, key))


def test_from_estimator_refuses_what_it_cannot_read(fitted):
    estimator, X, y = fitted
    with pytest.raises(ValueError, match="'maybe', which the model does not know"):
        plots.ReliabilityDisplay.from_estimator(estimator, X, np.where(y == "yes", "maybe", y))
    with pytest.raises(TypeError, match="must have predict_proba"):
        plots.ReliabilityDisplay.from_estimator(object(), X, y)
    with pytest.raises(TypeError, match="must have predict_proba"):
        plots.ConfidenceMapDisplay.from_estimator(object(), X)


@pytest.mark.parametrize("display", [d for d in FROM_PREDICTIONS if d is not plots.BinSweepDisplay])
def test_given_axes_are_used_and_settings_left_alone(display, pairs):
    before = dict(matplotlib.rcParams)
    _, ax = plt.subplots()
    shown = display.from_predictions(**pairs, ax=ax, **QUICK.get(display, {}))
    assert shown.ax_ is ax
    assert shown.figure_ is ax.figure
    assert len(plt.get_fignums()) == 1
    assert dict(matplotlib.rcParams) == before


def test_reliability_draws_its_numbers(pairs):
    shown = plots.ReliabilityDisplay.from_predictions(**pairs, n_resamples=0, bins=10)
    data = shown.data
    full = data.share > 0
    bars, *gaps = shown.ax_.containers[:3]
    np.testing.assert_allclose([bar.get_height() for bar in bars], data.accuracy[full])
    total = sum(bar.get_height() for container in gaps for bar in container)
    assert total == pytest.approx(np.abs(data.accuracy - data.confidence)[full].sum())
    over, under = gaps
    assert {bar.get_hatch() for bar in under} == {"////"}
    for bar in over:
        assert matplotlib.colors.to_hex(bar.get_facecolor()).upper() == plots.style.OVERCONFIDENT


@pytest.mark.parametrize("display", [plots.SmoothReliabilityDisplay, plots.RiskCoverageDisplay, plots.BinSweepDisplay])
def test_models_in_the_same_axes_look_different(display, pairs):
    options = QUICK.get(display, {})
    first = display.from_predictions(**pairs, name="a", **options)
    axes = getattr(first, "axes_", getattr(first, "ax_", None))
    second = display.from_predictions(**pairs, name="b", ax=axes, **options)
    ax = np.ravel(axes)[0]
    models = [line for line in ax.lines if line.get_gid() == "model"]
    assert len(models) == 2
    assert models[0].get_color() != models[1].get_color()
    assert models[0].get_linestyle() != models[1].get_linestyle()
    assert second.figure_ is first.figure_
    assert {text.get_text()[0] for text in ax.get_legend().get_texts()} >= {"a", "b"}


def test_several_models_side_by_side(predictions, pairs):
    shown = plots.ModelsDisplay.from_predictions({"first": predictions, "second": pairs})
    assert shown.axes_.shape == (2, 2)
    assert [ax.get_title() for ax in shown.axes_[0]] == ["first", "second"]
    assert shown.axes_[0, 0].get_ylim() == shown.axes_[0, 1].get_ylim()
    assert shown.reliability["second"].data.n == 1500
    with pytest.raises(ValueError, match="got an empty one"):
        plots.ModelsDisplay.from_predictions({})
    with pytest.raises(ValueError, match=r"predictions of 'a' must be a tuple"):
        plots.ModelsDisplay.from_predictions({"a": np.ones(3)})


def test_bin_sweep_needs_two_axes(pairs):
    with pytest.raises(ValueError, match="a pair of axes"):
        plots.BinSweepDisplay.from_predictions(**pairs, ax=plt.subplots()[1], bins=(10,), n_resamples=0)


def test_confidence_map_from_a_fitted_classifier(fitted):
    estimator, X, y = fitted
    shown = plots.ConfidenceMapDisplay.from_estimator(estimator, X, (y == "yes").astype(int), resolution=20)
    assert shown.data.confidence.shape == (20, 20)
    assert "of the map above 0.9" in shown.ax_.get_title()
    assert shown.data.share_above == pytest.approx((shown.data.confidence > 0.9).mean())
    assert len(plots.ConfidenceMapDisplay.from_estimator(estimator, X, y, resolution=20).ax_.collections) >= 2


@pytest.mark.parametrize("display", FROM_PREDICTIONS)
@pytest.mark.parametrize(
    ("confidence", "correct"),
    [([0.7], [1]), ([1.0, 1.0, 1.0], [1, 1, 1]), ([0.0, 1.0], [0, 1]), ([0.5, 0.5, 0.5], [0, 0, 0])],
)
def test_tiny_and_saturated_samples_can_be_drawn(display, confidence, correct):
    shown = display.from_predictions(confidence=np.array(confidence), correct=correct, **QUICK.get(display, {}))
    shown.figure_.canvas.draw()


def test_saving_gives_both_formats_and_the_same_bytes_each_time(tmp_path, pairs):
    def save(name):
        return plots.save_figure(plots.RiskCoverageDisplay.from_predictions(**pairs), tmp_path / name)

    svg, png = save("deep/figure.png")
    assert (svg.name, png.name) == ("figure.svg", "figure.png")
    assert png.read_bytes().startswith(b"\x89PNG")
    assert save("again/figure")[0].read_bytes() == svg.read_bytes()
    assert plots.save_figure(plt.figure(), tmp_path / "v1.2")[0].name == "v1.2.svg"


@pytest.mark.slow
def test_the_gallery_draws_everything(tmp_path):
    script = Path(__file__).parents[2] / "examples" / "plots_gallery.py"
    result = subprocess.run([sys.executable, str(script), str(tmp_path)], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    assert len(list(tmp_path.glob("*.svg"))) == len(list(tmp_path.glob("*.png"))) == 17


def test_a_rule_can_be_shown(pairs):
    rule = threshold_for_risk(**pairs, risk=0.2)
    curve = plots.RiskCoverageDisplay(plots.prepare_risk_coverage(**pairs)).plot(rule=rule)
    np.testing.assert_allclose(curve.ax_.lines[-1].get_data(), [[rule.coverage], [rule.risk]])
    assert "withheld below" in curve.ax_.get_legend().get_texts()[-1].get_text()
    histogram = plots.ConfidenceHistogramDisplay(plots.prepare_confidence_histogram(**pairs))
    spans = histogram.plot(window=rule.window).ax_.patches
    assert spans[-1].get_width() == pytest.approx(rule.window.high)


def test_long_curves_are_thinned_but_keep_their_ends():
    confidence = np.random.default_rng(0).random(20_000)
    shown = plots.RiskCoverageDisplay.from_predictions(confidence=confidence, correct=confidence > 0.2)
    drawn = shown.ax_.lines[0].get_xdata()
    assert len(drawn) <= 2000
    assert drawn[-1] == 1
    assert drawn[0] == shown.data.curve.coverage[0]
