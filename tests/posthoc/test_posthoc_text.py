"""Tests of the labels that calibrators accept: text, and one score per row for two classes."""

import numpy as np
import pytest
import torch

from calibrant import posthoc
from calibrant.posthoc import CALIBRATORS, make_calibrator


@pytest.mark.parametrize("name", CALIBRATORS)
def test_text_labels_give_the_same_map_and_answers_in_text(name):
    rng = np.random.default_rng(0)
    score = rng.random(120)
    labels = (rng.random(120) < score).astype(int)
    names = np.array(["no", "yes"])
    plain, named = (make_calibrator(name, from_probs=True).fit(score, y) for y in (labels, names[labels]))
    assert np.array_equal(plain.predict_proba(score), named.predict_proba(score))
    assert np.array_equal(names[plain.predict(score)], named.predict(score))
    assert list(named.classes_) == ["no", "yes"]
    assert named.score(score, names[labels]) == plain.score(score, labels)


def test_text_labels_survive_a_file(tmp_path):
    rng = np.random.default_rng(1)
    logits, names = rng.normal(size=(90, 3)), np.array(["ant", "bee", "cat"])
    labels = names[rng.integers(0, 3, 90)]
    calibrator = posthoc.Temperature().fit(logits, labels.tolist())
    posthoc.save_calibrator(calibrator, tmp_path / "c")
    assert np.array_equal(
        posthoc.load_calibrator(tmp_path / "c").predict(torch.tensor(logits)), calibrator.predict(logits)
    )
    with pytest.raises(ValueError, match="2 classes for 3 columns"):
        posthoc.Temperature().fit(logits, np.where(labels == "ant", "ant", "bee"))
