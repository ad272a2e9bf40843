"""A few hundred synthetic images in the published layouts."""

import gzip
import pickle
from pathlib import Path

import numpy as np
from PIL import Image

COUNTS = {"train": 200, "test": 60}


def draw(part, classes, size=32, channels=3):
    """Pixels (n, size, size, channels) and labels; every class occurs."""
    generator = np.random.default_rng(["train", "test"].index(part))
    count = COUNTS[part]
    pixels = generator.integers(0, 256, (count, size, size, channels), dtype=np.uint8)
    return pixels, generator.permutation(np.arange(count) % classes)


def planes(pixels):
    """Rows of red, green and blue planes, as CIFAR's files have them."""
    return np.ascontiguousarray(pixels.transpose(0, 3, 1, 2)).reshape(len(pixels), -1)


def write_pickles(folder: Path, classes: int) -> None:
    """Protocol 2 with byte strings as keys, like the published files."""
    inside = folder / ("cifar-10-batches-py" if classes == 10 else "cifar-100-python")
    inside.mkdir()
    key = b"labels" if classes == 10 else b"fine_labels"
    for part in COUNTS:
        pixels, labels = draw(part, classes)
        if classes == 10 and part == "train":
            names = [f"data_batch_{k}" for k in range(1, 6)]
        else:
            names = [part if classes == 100 else "test_batch"]
        rows = np.array_split(np.arange(len(labels)), len(names))
        for name, own in zip(names, rows, strict=True):
            content = {b"data": planes(pixels[own]), key: labels[own].tolist(), b"batch_label": name.encode()}
            (inside / name).write_bytes(pickle.dumps(content, protocol=2))


def write_npz(folder: Path, name: str, classes: int, **shape) -> None:
    arrays = {}
    for part in COUNTS:
        arrays[f"x_{part}"], arrays[f"y_{part}"] = draw(part, classes, **shape)
    np.savez(folder / f"{name}.npz", **arrays)


def write_idx(folder: Path, inside: str, compressed: bool) -> None:
    folder = folder / inside
    folder.mkdir(parents=True, exist_ok=True)
    for part, start in (("train", "train"), ("test", "t10k")):
        pixels, labels = draw(part, 10, size=28, channels=1)
        for name, array in (("images-idx3-ubyte", pixels[..., 0]), ("labels-idx1-ubyte", labels)):
            header = bytes([0, 0, 8, array.ndim]) + np.array(array.shape, dtype=">u4").tobytes()
            content = header + array.astype(np.uint8).tobytes()
            path = folder / f"{start}-{name}{'.gz' if compressed else ''}"
            path.write_bytes(gzip.compress(content) if compressed else content)


def write_tiny_imagenet(folder: Path) -> dict[str, np.ndarray]:
    """Three classes of 64×64 pixels in one colour each (which JPEG keeps); returns the labels of each part."""
    root = folder / "tiny-imagenet-200"
    wnids = ["n02", "n01", "n03"]
    root.mkdir()
    (root / "wnids.txt").write_text("\n".join(wnids) + "\n")
    (root / "words.txt").write_text("n01\tgoldfish, Carassius auratus\nn02\tfrog\nn09\tunused\n")
    for label, name in enumerate(wnids):
        images = root / "train" / name / "images"
        images.mkdir(parents=True)
        for k in range(12):
            _image(label, grey=k == 0).save(images / f"{name}_{k}.JPEG")
    images = root / "val" / "images"
    images.mkdir(parents=True)
    labels = np.array([2, 0, 1, 1, 0])
    lines = []
    for k, label in enumerate(labels):
        _image(label, grey=False).save(images / f"val_{k}.JPEG")
        lines.append(f"val_{k}.JPEG\t{wnids[label]}\t0\t0\t63\t63")
    (root / "val" / "val_annotations.txt").write_text("\n".join(lines) + "\n")
    return {"train": np.repeat(np.arange(3), 12), "test": labels}


def _image(label, grey):
    pixels = np.zeros((64, 64, 3), dtype=np.uint8)
    pixels[..., label] = 200
    image = Image.fromarray(pixels)
    return image.convert("L") if grey else image
