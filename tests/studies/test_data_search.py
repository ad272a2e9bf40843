"""The search for the first paper's data: exact posteriors, distances by hand, and a search on a small scale."""

import math

import numpy as np
import pytest

from studies.bo4sc import data_search
from studies.bo4sc.data_search import SAMPLES, Blobs, Spirals, spiral_forms


@pytest.mark.parametrize("noise", ["axes", "radius"])
@pytest.mark.parametrize("angle", ["root", "uniform"])
def test_densities_of_spirals_are_those_of_their_samples(noise, angle):
    form = Spirals(2.0, math.pi, 1.5, angle, noise)
    width = 3.5  # noise on the radius then often crosses the centre
    inputs, labels = (
        np.concatenate(parts) for parts in zip(*(form.draw(width, seed) for seed in range(10)), strict=True)
    )
    if noise == "axes":
        second = 1 / (1 + np.exp(form._on_axes(inputs, width, 1) - form._on_axes(inputs, width, -1)))
    else:
        first, other = (form._on_radius(inputs, width, sign) for sign in (1, -1))
        second = other / (first + other)
    for low in np.arange(0, 1, 0.1):
        rows = (second >= low) & (second < low + 0.1)
        error = math.sqrt(0.25 / rows.sum())
        assert labels[rows].mean() == pytest.approx(second[rows].mean(), abs=4 * error)


def test_blobs_of_one_seed_share_centres_and_labels():
    narrow, wide = (Blobs(42).draw(width) for width in (1.3, 1.7))
    assert np.array_equal(narrow[1], wide[1])
    centres = wide[0] - (wide[0] - narrow[0]) * 1.7 / 0.4  # width 0
    assert len(np.unique(centres.round(6), axis=0)) == 5
    assert Blobs(42).bayes_accuracy(1.3) > Blobs(42).bayes_accuracy(1.7) > 0.8


def test_names_of_searched_generators_differ():
    names = [form.name for form in spiral_forms()]
    assert len(set(names)) == len(names)


def test_a_split_deals_every_sample_once():
    _, labels = Blobs(0).draw(1.3)
    task, test = data_search.deal((np.arange(2.0 * SAMPLES).reshape(-1, 2), labels), 5, seed=3)
    parts = [task.train, task.val, test]
    assert [len(part) for part in parts] == [700, 300, 1000]
    assert len({float(x) for part in parts for x in part.inputs[:, 0]}) == SAMPLES


def test_distances_by_hand():
    cells = np.array([[[0.0, 1.0, 2.0, 3.0], [2.0, 1.0, 0.0, 5.0]], [[1.0, 0.0, 0.0, 0.0], [1.0, 0.0, 0.0, 0.0]]])
    assert np.diag(data_search.spread(cells)).tolist() == [1.0, 0.0, 1.0, 1.0]  # two generators, two degrees of freedom
    at_the_paper = data_search.printed("blobs")
    assert at_the_paper.tolist() == [0.94, 0.026, 0.876, 0.074]
    covariance = np.diag([0.01**2] * 4)
    assert data_search.distance(at_the_paper - [0.01, 0.02, 0, 0], covariance, "blobs") == pytest.approx(5)
    verdict = data_search.judged(
        "blobs", {300: at_the_paper + 0.1, 600: at_the_paper - [0.01, 0.02, 0, 0]}, {300: covariance, 600: covariance}
    )
    assert (verdict["epochs"], verdict["z"], verdict["fits"]) == (600, [1.0, 2.0, 0.0, 0.0], True)
    assert not data_search.judged("blobs", {300: at_the_paper + 0.1}, {300: covariance})["fits"]


def test_cells_by_epochs_have_one_row_for_each_split(monkeypatch):
    monkeypatch.setattr(data_search, "EPOCHS", (5, 10))
    found = data_search.standard_cells("blobs", [Blobs(42), Blobs(4)], range(2))
    assert {epochs: cells.shape for epochs, cells in found.items()} == {5: (2, 2, 4), 10: (2, 2, 4)}
    accuracies = found[10][..., [0, 2]]
    assert ((accuracies > 0.2) & (accuracies < 1)).all()
