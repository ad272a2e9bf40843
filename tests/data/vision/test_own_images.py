"""Tests of folders of images, one subfolder for each class."""

import numpy as np
import pytest
import torch

pytest.importorskip("PIL")
from PIL import Image

from calibrant.data.vision import load_folder


def write_image(path, size, value, mode="RGB"):
    path.parent.mkdir(parents=True, exist_ok=True)
    image = Image.fromarray(np.full((*size, 3), value, dtype=np.uint8)).convert(mode)
    image.save(path)


def test_classes_images_and_their_order(tmp_path):
    write_image(tmp_path / "dog" / "a.jpg", (4, 6), 200)
    write_image(tmp_path / "cat & co" / "b.png", (4, 6), 10)
    write_image(tmp_path / "cat & co" / "deep" / "a.PNG", (4, 6), 20, mode="L")
    write_image(tmp_path / "cat & co" / ".hidden.png", (9, 9), 0)
    write_image(tmp_path / ".thumbs" / "a.png", (9, 9), 0)
    (tmp_path / "cat & co" / "notes.txt").write_text("no image")
    images = load_folder(tmp_path)
    assert images.names == ("cat & co", "dog")
    assert images.labels.tolist() == [0, 0, 1]
    assert images.inputs.shape == (3, 3, 4, 6)
    assert images.inputs.dtype == torch.uint8
    assert images.inputs[:2, 0, 0, 0].tolist() == [10, 20]
    np.testing.assert_allclose(images.mean, images.inputs.double().mean((0, 2, 3)) / 255)


def test_images_of_different_sizes_are_scaled_and_cropped(tmp_path):
    write_image(tmp_path / "a" / "1.png", (40, 10), 50)
    write_image(tmp_path / "b" / "1.png", (7, 9), 60)
    assert load_folder(tmp_path, size=8).inputs.shape == (2, 3, 8, 8)
    assert load_folder(tmp_path, size=(8, 5)).inputs.shape == (2, 3, 8, 5)
    with pytest.raises(ValueError, match=r"has 7 × 9 pixels, and the images before it have 40 × 10.* size="):
        load_folder(tmp_path)


def test_other_folders_keep_the_classes(tmp_path):
    write_image(tmp_path / "new" / "b" / "1.png", (4, 4), 50)
    images = load_folder(tmp_path / "new", names=("a", "b"))
    assert (images.names, images.labels.tolist()) == (("a", "b"), [1])
    with pytest.raises(ValueError, match="must be among the classes a, c; got b"):
        load_folder(tmp_path / "new", names=("a", "c"))


def test_mistakes_are_sentences(tmp_path):
    with pytest.raises(ValueError, match="There is no folder"):
        load_folder(tmp_path / "nowhere")
    with pytest.raises(ValueError, match="must have a subfolder for each class"):
        load_folder(tmp_path)
    (tmp_path / "train").mkdir()
    with pytest.raises(ValueError, match=r"got parts of a data set \(train\). Load each of them"):
        load_folder(tmp_path)
    with pytest.raises(ValueError, match=r"must hold files ending in .* got no such file"):
        load_folder(tmp_path, names=["train"])
    write_image(tmp_path / "train" / "a" / "1.png", (4, 4), 0)
    with pytest.raises(ValueError, match="size must be a positive number of pixels"):
        load_folder(tmp_path / "train", size=0)
    (tmp_path / "train" / "a" / "2.png").write_bytes((tmp_path / "train" / "a" / "1.png").read_bytes()[:40])
    with pytest.raises(ValueError, match=r"2\.png is not a whole image.* Repair or remove it"):
        load_folder(tmp_path / "train")
