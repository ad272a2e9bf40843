"""Simulated calibration errors: the histogram, the spread of calibrated networks and that of published values."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from calibrant import metrics
from studies.meta_reg import sampling_noise
from studies.meta_reg.sampling_noise import Histogram
from studies.report import read_results

RESULTS = Path(__file__).parents[3] / "results"


@pytest.fixture
def histogram() -> Histogram:
    return Histogram(np.array([30, 50, 120, 800]), np.array([0.31, 0.55, 0.83, 0.985]))


def test_ece_of_counts_is_that_of_single_predictions(histogram):
    counts = np.array([[10, 20, 90, 799], [30, 0, 120, 640]])
    confidence = np.repeat(histogram.confidence, histogram.images)
    for row, value in zip(counts, histogram.ece(counts), strict=True):
        correct = np.concatenate([np.arange(n) < k for k, n in zip(row, histogram.images, strict=True)])
        assert value == pytest.approx(metrics.ece(confidence=confidence, correct=correct, bins=15))


def test_calibrated_networks_score_the_noise_floor(histogram):
    found = sampling_noise.calibrated(histogram, 8000)
    floor = metrics.noise_floor(confidence=np.repeat(histogram.confidence, histogram.images), n_resamples=1000)
    assert found["ece"]["mean"] == pytest.approx(floor.mean, rel=0.05)
    # The mean over five independent runs has the same expected value and a smaller spread.
    assert found["ece_of_five"]["mean"] == pytest.approx(found["ece"]["mean"])
    assert found["ece_of_five"]["std"] == pytest.approx(found["ece"]["std"] / np.sqrt(5), rel=0.1)


def test_histograms_are_moved_to_an_accuracy(histogram):
    assert histogram.with_mean(0.9).mean == pytest.approx(0.9, abs=1e-6)


def test_a_printed_value_is_the_mean_of_its_networks(histogram):
    power = sampling_noise.power_of(histogram, 0.05, 4000)
    correct = np.random.default_rng(7).binomial(histogram.images, histogram.probability(power), (4000, 4))
    assert histogram.ece(correct).mean() == pytest.approx(0.05, rel=0.03)
    assert sampling_noise.power_of(histogram, 1e-4, 500) == 1.0


def test_networks_that_agree_differ_by_less(histogram):
    eces = dict.fromkeys(("CE + TS", "dual focal + TS", "BSCE-GRA"), 4.0) | {"BSCE-GRA": 3.0}
    rows, differences = sampling_noise.published(histogram, eces, 4000)
    assert [row["printed"] for row in rows] == [0.04, 0.04, 0.03]
    assert all(row["std_same_images"] < row["std_other_images"] for row in differences)
    assert differences[0]["std_same_images"] == 0


def test_stored_values_are_those_of_the_command():
    stored = read_results(RESULTS / "sampling-noise.json")
    for record, own in zip(stored.records, sampling_noise.simulate(RESULTS, 2000), strict=True):
        assert own["calibrated"]["ece"]["mean"] == pytest.approx(record["calibrated"]["ece"]["mean"], rel=0.05)
        for row, ours in zip(record["published"], own["published"], strict=True):
            assert ours["method"] == row["method"]
            assert ours["std"] == pytest.approx(row["std"], rel=0.15)
