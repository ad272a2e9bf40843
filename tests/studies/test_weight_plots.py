"""Tests of the plots of the first paper's weights."""

import matplotlib
import numpy as np
import pytest
from matplotlib import pyplot as plt

from studies.bo4sc.figures import MISCLASSIFIED, draw_weight_history, draw_weight_map


@pytest.fixture
def ax():
    figure, ax = plt.subplots()
    yield ax
    plt.close(figure)


HISTORY = np.random.default_rng(0).random((5, 12))
WRONG = np.arange(12) < 3


def test_paths_of_misclassified_samples_are_red(ax):
    draw_weight_history(ax, np.arange(5) * 10, HISTORY, WRONG)
    right, red = ax.collections
    assert (len(right.get_paths()), len(red.get_paths())) == (9, 3)
    assert matplotlib.colors.to_hex(red.get_colors()[0]).upper() == MISCLASSIFIED
    for line, group in zip(ax.lines, (~WRONG, WRONG), strict=True):
        np.testing.assert_array_equal(line.get_xdata(), [0, 10, 20, 30, 40])
        np.testing.assert_allclose(line.get_ydata(), HISTORY[:, group].mean(axis=1))


def test_without_misclassified_samples_there_is_one_group(ax):
    draw_weight_history(ax, np.arange(5), HISTORY, np.zeros(12, dtype=bool))
    assert len(ax.collections) == len(ax.lines) == 1


def test_final_weights_of_misclassified_samples_have_red_contours(ax):
    draw_weight_map(ax, np.random.default_rng(1).random((12, 2)), HISTORY[-1], WRONG)
    _, contours = ax.collections[:2]
    assert len(contours.get_offsets()) == 3
    assert matplotlib.colors.to_hex(contours.get_edgecolor()[0]).upper() == MISCLASSIFIED
    np.testing.assert_allclose(contours.get_array(), HISTORY[-1, WRONG])
