"""Tests of reading the labels of CIFAR-10N."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from calibrant.data.vision import Images, split
from studies.images import NOISY_LABELS, load_noisy_labels

COUNT, CLASSES = 60, 3


def images() -> Images:
    labels = torch.arange(COUNT) % CLASSES
    return Images(torch.zeros(COUNT, 1, 2, 2, dtype=torch.uint8), labels, ("a", "b", "c"), (0.5,), (0.5,))


def write(path: Path, **arrays: np.ndarray) -> Path:
    np.savez(path, **arrays)
    return path


def test_labels_are_read_by_name_and_stay_with_their_images(tmp_path: Path) -> None:
    own = images()
    noisy = own.labels.numpy().copy()
    noisy[::5] = (noisy[::5] + 1) % CLASSES
    path = write(tmp_path / "labels.npz", worse_label=noisy.astype(np.uint8), aggre_label=own.labels.numpy())
    found = load_noisy_labels(path, "worse", own)
    assert found.dtype == torch.int64
    assert found.tolist() == noisy.tolist()
    assert load_noisy_labels(path, "aggregate", own).tolist() == own.labels.tolist()
    marked = Images(torch.arange(COUNT, dtype=torch.uint8).view(-1, 1, 1, 1), *_rest(own), noisy=found)
    for part in split(marked, 0):
        rows = part.inputs.flatten().long()
        assert part.noisy is not None
        assert torch.equal(part.noisy, found[rows])
        assert torch.equal(part.labels, own.labels[rows])


def _rest(own: Images) -> tuple:
    return own.labels, own.names, own.mean, own.std


def test_wrong_files_are_refused(tmp_path: Path) -> None:
    own = images()
    labels = own.labels.numpy()
    with pytest.raises(ValueError, match="must be one of worse, aggregate"):
        load_noisy_labels(tmp_path / "x.npz", "worst", own)
    with pytest.raises(ValueError, match=r"must be an \.npz file"):
        load_noisy_labels(tmp_path / "missing.npz", "worse", own)
    for name, array, message in (
        ("other", {"y": labels}, "must hold the array worse_label; got y"),
        ("short", {"worse_label": labels[:-1]}, "must hold 60 whole numbers"),
        ("class", {"worse_label": labels + 1}, "classes from 0 to 2"),
        ("order", {"worse_label": (labels + 1) % CLASSES}, "in another order"),
        ("objects", {"worse_label": np.array([None] * COUNT, dtype=object)}, "Object arrays cannot be loaded"),
    ):
        with pytest.raises(ValueError, match=message):
            load_noisy_labels(write(tmp_path / f"{name}.npz", **array), "worse", own)
    assert set(NOISY_LABELS) >= {"worse", "aggregate", "random1"}
