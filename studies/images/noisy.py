"""Human labels of the training images of CIFAR-10 (CIFAR-10N, Wei et al. 2022), many of them wrong."""

from __future__ import annotations

import os
import zipfile
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from calibrant.data.vision import Images

NOISY_LABELS = {
    "worse": "worse_label",
    "aggregate": "aggre_label",
    "random1": "random_label1",
    "random2": "random_label2",
    "random3": "random_label3",
}
"""The label sets of CIFAR-10N by a short name, and their arrays; 40, 9, 17, 18 and 18 % are wrong."""
MOST = 0.75
"""Labels with a larger share of differences are in another order; chance alone would give 0.9."""


def load_noisy_labels(path: str | os.PathLike[str], name: str, images: Images) -> Tensor:
    """Read one label for each training image, in the order of the published training set.

    The official file is a pickle, which could run code when it is read. Write its arrays with ``numpy.savez`` first.

    Parameters
    ----------
    path : path
        An ``.npz`` file with the arrays of CIFAR-10N: ``worse_label``, ``aggre_label``, ``random_label1``, …
    name : str
        One of :data:`NOISY_LABELS`.
    images : Images
        The training images with their published labels, to check the order.
    """
    if name not in NOISY_LABELS:
        raise ValueError(f"name must be one of {', '.join(NOISY_LABELS)}; got {name!r}.")
    path, key = Path(path), NOISY_LABELS[name]
    try:
        with np.load(path, allow_pickle=False) as file:
            if key not in file:
                raise ValueError(f"{path} must hold the array {key}; got {', '.join(file) or 'none'}.")
            array = file[key]
    except (OSError, zipfile.BadZipFile, AttributeError, EOFError) as error:
        raise ValueError(
            f"{path} must be an .npz file with the array {key}; got a file that cannot be read ({error})."
        ) from error
    if array.shape != (len(images),) or array.dtype.kind not in "iu":
        raise ValueError(
            f"{key} must hold {len(images):,} whole numbers, one for each training image; got {array.dtype} of shape "
            f"{array.shape} in {path}."
        )
    if array.min() < 0 or array.max() >= images.n_classes:
        raise ValueError(
            f"{key} must hold classes from 0 to {images.n_classes - 1}; got {array.min()} to {array.max()} in {path}."
        )
    labels = torch.from_numpy(array.astype(np.int64))
    if (share := float((labels != images.labels.cpu()).double().mean())) > MOST:
        raise ValueError(
            f"{path}: {share:.0%} of {key} differ from the published labels, so they are in another order. Give them "
            "in the order of the published training files."
        )
    return labels
