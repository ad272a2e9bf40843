"""Tests of the labels that calibrators accept: text, numbers of columns, and one score per row for two classes."""

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


@pytest.mark.parametrize("name", ["temperature", "vector", "isotonic", "auto"])
def test_columns_of_a_data_frame_are_classes_by_their_names(name, tmp_path):
    pd = pytest.importorskip("pandas")
    rng = np.random.default_rng(2)
    logits, names = 2 * rng.normal(size=(150, 3)), np.array(["ant", "bee", "cat"])
    labels = (logits + [0, 1, -1] + rng.gumbel(size=logits.shape)).argmax(axis=1)
    turned, order = pd.DataFrame(logits, columns=names)[["cat", "ant", "bee"]], [2, 0, 1]
    plain = make_calibrator(name).fit(logits[:, order], np.argsort(order)[labels])
    framed = make_calibrator(name).fit(turned, names[labels])
    assert list(framed.classes_) == ["cat", "ant", "bee"]
    expected = plain.predict_proba(logits[:, order])
    np.testing.assert_array_equal(framed.predict_proba(turned), expected)
    np.testing.assert_array_equal(framed.predict_proba(turned[["ant", "bee", "cat"]]), expected)
    posthoc.save_calibrator(framed, tmp_path / "c")
    again = posthoc.load_calibrator(tmp_path / "c")
    np.testing.assert_array_equal(again.predict(turned[["bee", "cat", "ant"]]), framed.predict(turned))
    with pytest.raises(ValueError, match="must have the columns cat, ant, bee, as in fit; got cat, ant, dog"):
        framed.predict_proba(turned.rename(columns={"bee": "dog"}))
    assert not hasattr(framed.fit(logits, labels), "feature_names_in_")


def test_columns_of_a_data_frame_are_classes_by_their_numbers(tmp_path):
    pd = pytest.importorskip("pandas")
    rng = np.random.default_rng(2)
    logits = 2 * rng.normal(size=(150, 3))
    labels = (logits + [0, 1, -1] + rng.gumbel(size=logits.shape)).argmax(axis=1)
    frame = pd.DataFrame(logits)
    turned, plain = frame[[2, 0, 1]], posthoc.Vector().fit(logits, labels)
    framed = posthoc.Vector().fit(turned, labels)
    assert list(framed.classes_) == [2, 0, 1]
    np.testing.assert_allclose(framed.predict_proba(turned), plain.predict_proba(logits)[:, [2, 0, 1]], atol=1e-6)
    np.testing.assert_array_equal(framed.predict_proba(frame), framed.predict_proba(turned))
    np.testing.assert_array_equal(framed.predict(turned), plain.predict(logits))
    assert framed.predict(torch.tensor(turned.to_numpy())).tolist() == plain.predict(logits).tolist()
    posthoc.save_calibrator(framed, tmp_path / "c")
    np.testing.assert_array_equal(posthoc.load_calibrator(tmp_path / "c").predict(frame), plain.predict(logits))
    default = posthoc.Vector().fit(frame, labels)
    assert list(default.classes_) == [0, 1, 2]
    np.testing.assert_array_equal(default.predict_proba(turned), default.predict_proba(logits))
    named = frame.set_axis(["ant", "bee", "cat"], axis=1)
    np.testing.assert_array_equal(default.predict_proba(named), default.predict_proba(logits))
    with pytest.raises(ValueError, match="must have the columns 2, 0, 1, as in fit; got 0, 1, 5"):
        framed.predict_proba(frame.rename(columns={2: 5}))
    counted = posthoc.Vector().fit(turned.rename(columns=lambda k: k + 1), labels + 1)
    np.testing.assert_array_equal(counted.predict(turned.to_numpy()), plain.predict(logits) + 1)
