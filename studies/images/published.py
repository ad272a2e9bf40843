"""The published sets of images of the second paper: their files, how they are read, and where they come from."""

from __future__ import annotations

import errno
import gzip
import hashlib
import math
import os
import pickle
import shutil
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from calibrant.base.settings import check_choice
from calibrant.base.warning import warn
from calibrant.data.vision import Images
from calibrant.data.vision.images import channel_statistics, pillow

Part = Literal["train", "test"]
PARTS: tuple[Part, Part] = ("train", "test")
Arrays = tuple[np.ndarray, np.ndarray]
"""Pixels (n, height, width, channels) and labels."""
PACKED = (".tar.gz", ".zip")


@dataclass(frozen=True)
class Archive:
    """A published file and its MD5 sum."""

    url: str
    md5: str

    @property
    def name(self) -> str:
        """The name of the file."""
        return self.url.rpartition("/")[2]


@dataclass(frozen=True)
class Source:
    """A published data set.

    Parameters
    ----------
    classes : their number, or None for all that occur in the files
    folder : the folder with the files, inside the given one; the given folder itself is tried too
    files : the files of each part; a slash at the end of a name marks a folder
    read : reads them
    digests : MD5 of the pixels (n, height, width, channels) followed by the labels, all as bytes
    """

    title: str
    classes: int | None
    folder: str
    files: Mapping[Part, tuple[str, ...]]
    read: Callable[[Sequence[Path]], Arrays]
    counts: Mapping[Part, int]
    digests: Mapping[Part, str]
    archives: tuple[Archive, ...]


def load_parts(name: str, folder: str | os.PathLike[str]) -> tuple[Images, Images]:
    """Read the training part and the test part of a published data set.

    Pixels and labels are compared with the published ones. Files with another number of images are read with a warning.

    Parameters
    ----------
    name : {"cifar10", "cifar100", "tiny-imagenet", "fashion-mnist"}
    folder : path
        The folder with the published files, unpacked or as downloaded archives, which are then unpacked there; or with
        ``NAME.npz``, which holds the arrays ``x_train``, ``y_train``, ``x_test`` and ``y_test``. Tiny-ImageNet's
        labelled validation folder is its test part.
    """
    check_choice("name", name, SOURCES)
    source, place = SOURCES[name], checked_folder(folder)
    packed = place / f"{name}.npz"
    if packed.is_file():
        with _reported(source, packed):
            arrays = [_npz(packed, part) for part in PARTS]
    else:
        arrays = []
        for paths in [_files_of(source, place, part) for part in PARTS]:
            with _reported(source, paths[0].parent):
                arrays.append(source.read(paths))
    arrays = [_checked(source, part, content, place) for part, content in zip(PARTS, arrays, strict=True)]
    shapes = [pixels.shape[1:] for pixels, _ in arrays]
    if shapes[0] != shapes[1]:
        raise ValueError(
            f"The training and test images of {source.title} in {folder} must have one shape; got {shapes[0]} and "
            f"{shapes[1]}."
        )
    mean, std = channel_statistics(arrays[0][0])
    names = tuple(map(str, range(source.classes or 1 + max(labels.max() for _, labels in arrays))))
    train, test = (
        Images(torch.from_numpy(np.array(x.transpose(0, 3, 1, 2), order="C")), torch.from_numpy(y), names, mean, std)
        for x, y in arrays
    )
    return train, test


def download_missing(name: str, folder: str | os.PathLike[str]) -> None:
    """Fetch the published files into a folder that does not hold them, and unpack archives; the folder is created.

    Each file is verified by its MD5 sum. A complete file that is already there is not fetched again.
    """
    check_choice("name", name, SOURCES)
    source, place = SOURCES[name], Path(folder).expanduser()
    place.mkdir(parents=True, exist_ok=True)
    if (place / f"{name}.npz").is_file() or all(_present(source, place, part) for part in PARTS):
        return
    for archive in source.archives:
        inside = place if archive.name.endswith(PACKED) else place / source.folder
        inside.mkdir(parents=True, exist_ok=True)
        path = inside / archive.name
        if not (path.is_file() and _md5(path) == archive.md5):
            _fetch(archive, path)
        if archive.name.endswith(PACKED):
            unpack(path, place)


def checked_folder(folder: str | os.PathLike[str]) -> Path:
    """The folder as a path, with ``~`` expanded; a missing folder or a file in its place is an error."""
    path = Path(folder).expanduser()
    if path.is_file():
        raise ValueError(
            f"folder must be the folder that holds the files; got the file {path}. Give its folder, {path.parent}."
        )
    if not path.is_dir():
        raise FileNotFoundError(f"folder must be an existing folder; got {path}, which does not exist.")
    return path


def unpack(archive: Path, folder: Path) -> None:
    """Unpack a ``.zip`` or ``.tar.gz`` file; no file can be written outside of the folder."""
    if archive.suffix == ".zip":
        shutil.unpack_archive(archive, folder)
    else:
        shutil.unpack_archive(archive, folder, "gztar", filter="data")


def _files_of(source: Source, folder: Path, part: Part) -> list[Path]:
    """The files of a part, from a downloaded archive if they are not unpacked yet; missing files are an error."""
    if paths := _present(source, folder, part):
        return paths
    for archive in source.archives:
        if archive.name.endswith(PACKED) and (path := folder / archive.name).is_file():
            with _reported(source, path):
                unpack(path, folder)
            if paths := _present(source, folder, part):
                return paths
    which, urls = "training" if part == "train" else "test", [archive.url for archive in source.archives]
    raise FileNotFoundError(
        f"The {which} part of {source.title} was not found in {folder}. Expected files in it or in {source.folder}/: "
        f"{', '.join(source.files[part])}. Download {', '.join(urls)}, or let --download fetch them."
    )


def _present(source: Source, folder: Path, part: Part) -> list[Path]:
    """The files of a part, compressed or not, in the first place that has them all; empty without such a place."""
    for place in (folder / source.folder, folder):
        paths = [_existing(place / name, name.endswith("/")) for name in source.files[part]]
        if all(paths):
            return [path for path in paths if path is not None]
    return []


def _existing(path: Path, is_folder: bool) -> Path | None:
    if is_folder:
        return path if path.is_dir() else None
    return next((p for p in (path, path.with_name(path.name + ".gz")) if p.is_file()), None)


@contextmanager
def _reported(source: Source, path: Path) -> Iterator[None]:
    """Turn the many errors of readers into one sentence with the path and with what to do."""
    try:
        yield
    except (ImportError, MemoryError):
        raise  # what to install, or what the machine lacks
    except Exception as error:
        if isinstance(error, OSError) and error.errno in (errno.EACCES, errno.ENOSPC):
            raise
        raise ValueError(f"{path}: damaged, or not {source.title} ({error}). Download it again.") from error


def _checked(source: Source, part: Part, arrays: Arrays, folder: Path) -> Arrays:
    """Images as bytes and labels as int64, if they are that and those of the published set."""
    pixels, labels = arrays
    n_classes = source.classes or math.inf
    with _reported(source, folder):
        if pixels.ndim != 4 or pixels.shape[-1] not in (1, 3) or not len(pixels) or labels.shape != pixels.shape[:1]:
            raise ValueError(
                "pixels must have shape (n, height, width, 1 or 3 channels) and labels shape (n,); got shapes "
                f"{pixels.shape} and {labels.shape}"
            )
        for what, values, limit in (("pixels", pixels, 256), ("labels", labels, n_classes)):
            if values.dtype.kind not in "iu" or values.min() < 0 or values.max() >= limit:
                raise ValueError(
                    f"{what} must be whole numbers from 0 on and below {limit}; got {values.dtype} from {values.min()} "
                    f"to {values.max()}"
                )
    pixels, labels = np.ascontiguousarray(pixels, dtype=np.uint8), labels.astype(np.int64)
    count, digest = source.counts[part], source.digests.get(part)
    if len(labels) != count:
        warn(
            f"{folder}: {len(labels):,} images, but the {'training' if part == 'train' else 'test'} part of "
            f"{source.title} has {count:,}. They are used anyway."
        )
    elif digest not in (None, hashlib.md5(pixels.tobytes() + labels.astype(np.uint8).tobytes()).hexdigest()):
        raise ValueError(f"{folder}: pixels or labels are not those of {source.title}. Download it again.")
    return pixels, labels


def _fetch(archive: Archive, path: Path) -> None:
    partial = path.with_name(path.name + ".part")
    try:
        with urllib.request.urlopen(archive.url, timeout=60) as answer, partial.open("wb") as file:
            shutil.copyfileobj(answer, file)
        if (md5 := _md5(partial)) != archive.md5:
            raise OSError(f"its MD5 sum must be {archive.md5}; got {md5}")
        partial.replace(path)
    except OSError as error:
        raise OSError(
            f"{path.name} could not be downloaded ({archive.url}: {error}). Try again, or put the file into "
            f"{path.parent} by hand."
        ) from error
    finally:
        partial.unlink(missing_ok=True)


def _md5(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()


def _npz(path: Path, part: Part) -> Arrays:
    """The arrays of one part; grey images may lack the last axis."""
    with np.load(path, allow_pickle=False) as file:
        names = (f"x_{part}", f"y_{part}")
        if not set(names) <= set(file.files):
            raise ValueError(f"it must hold the arrays {' and '.join(names)}; got {', '.join(file.files) or 'none'}")
        x, y = (file[name] for name in names)
    return (x[..., None] if x.ndim == 3 else x), y.reshape(-1)


_MODULES = ("numpy", "numpy.core.multiarray", "numpy._core.multiarray")
_ALLOWED = {(module, name) for module in _MODULES for name in ("ndarray", "dtype", "_reconstruct", "scalar")} | {
    ("numpy.core.numeric", "_frombuffer"),
    ("numpy._core.numeric", "_frombuffer"),
    ("_codecs", "encode"),  # how protocol 2 writes bytes
}


class _ArraysOnly(pickle.Unpickler):
    """Builds NumPy arrays and plain containers. Anything else is an error, and no code runs."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _ALLOWED:
            raise pickle.UnpicklingError(f"only NumPy arrays are allowed; got {module}.{name}")
        return super().find_class(module, name)


def read_cifar(paths: Sequence[Path]) -> Arrays:
    """The "python version" of CIFAR-10 and CIFAR-100 (fine labels): pickles of rows of red, green and blue planes."""
    batches = []
    for path in paths:
        with path.open("rb") as file:
            content = _ArraysOnly(file, encoding="bytes").load()
        planes = content[b"data"].reshape(-1, 3, 32, 32)
        batches.append((planes.transpose(0, 2, 3, 1), content.get(b"labels", content.get(b"fine_labels"))))
    return np.concatenate([x for x, _ in batches]), np.concatenate([y for _, y in batches])


def read_idx(paths: Sequence[Path]) -> Arrays:
    """MNIST's format: one file of images and one of labels, compressed or not."""
    images, labels = (_idx(path) for path in paths)
    return images[..., None], labels


def _idx(path: Path) -> np.ndarray:
    """The bytes of a file behind its head: two zeros, the type 8, the number of axes, and their sizes."""
    with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
        content = file.read()
    if content[:3] != b"\x00\x00\x08":
        raise ValueError(f"the first bytes of {path.name} must be those of an idx file of bytes")
    begin = 4 + 4 * content[3]
    return np.frombuffer(content, np.uint8, offset=begin).reshape(np.frombuffer(content[4:begin], ">u4"))


def read_tiny_imagenet(paths: Sequence[Path]) -> Arrays:
    """Tiny-ImageNet's JPEG files: ``train/<class>/images``, or ``val/images`` with its annotations. Needs Pillow."""
    classes = {name: label for label, name in enumerate(paths[0].read_text(encoding="utf-8").split())}
    folder, listed = paths[1], list[tuple[Path, int]]()
    if folder.name == "train":
        for name, label in classes.items():
            files = [p for p in (folder / name / "images").glob("*.JPEG") if not p.name.startswith(".")]
            listed += [(path, label) for path in sorted(files, key=lambda p: (len(p.name), p.name))]
    else:
        lines = (folder / "val_annotations.txt").read_text(encoding="utf-8").splitlines()
        fields = [line.split("\t") for line in lines if line.strip()]
        listed = [(folder / "images" / file, classes[name]) for file, name, *_ in fields]
    Image = pillow()
    images = []
    for path, _ in listed:
        try:
            with Image.open(path) as file:
                images.append(np.asarray(file.convert("RGB")))
        except (OSError, SyntaxError, Image.DecompressionBombError) as error:
            raise ValueError(f"{path} is missing, or not a whole image: {error}") from None
        if images[-1].shape != images[0].shape:
            shapes = f"{images[0].shape} like the images before it; got {images[-1].shape}"
            raise ValueError(f"{path} must have shape {shapes}")
    return np.stack(images), np.array([label for _, label in listed])


_TORONTO = "https://www.cs.toronto.edu/~kriz/"
_FASHION = "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/"

SOURCES: dict[str, Source] = {
    "cifar10": Source(
        "CIFAR-10",
        10,
        "cifar-10-batches-py",
        {"train": tuple(f"data_batch_{k}" for k in range(1, 6)), "test": ("test_batch",)},
        read_cifar,
        {"train": 50_000, "test": 10_000},
        {"train": "378e89c2e5f724dfd1d9f9b32a07fc0d", "test": "a2d03300dfff0d937e0bb7840d48d8b7"},
        (Archive(f"{_TORONTO}cifar-10-python.tar.gz", "c58f30108f718f92721af3b95e74349a"),),
    ),
    "cifar100": Source(
        "CIFAR-100",
        100,
        "cifar-100-python",
        {"train": ("train",), "test": ("test",)},
        read_cifar,
        {"train": 50_000, "test": 10_000},
        {"train": "e745bf4d84e038a65f6bc18194310c7e", "test": "17bafb4bc22b4ecc716941d25a6501ce"},
        (Archive(f"{_TORONTO}cifar-100-python.tar.gz", "eb9058c3a382ffc7106e4002c42a8d85"),),
    ),
    "tiny-imagenet": Source(
        "Tiny-ImageNet",
        None,
        "tiny-imagenet-200",
        {"train": ("wnids.txt", "train/"), "test": ("wnids.txt", "val/")},
        read_tiny_imagenet,
        {"train": 100_000, "test": 10_000},
        {},  # decoders of JPEG files differ in their rounding, so that only the archive has a checksum
        (Archive("http://cs231n.stanford.edu/tiny-imagenet-200.zip", "90528d7ca1a48142e341f4ef8d21d0de"),),
    ),
    "fashion-mnist": Source(
        "Fashion-MNIST",
        10,
        "fashion-mnist",
        {
            "train": ("train-images-idx3-ubyte", "train-labels-idx1-ubyte"),
            "test": ("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"),
        },
        read_idx,
        {"train": 60_000, "test": 10_000},
        {"train": "819d6ae9214abbc30bd601cb4ad304c0", "test": "2bdc83e1b78e813df8547ccd14b70d8f"},
        (
            Archive(f"{_FASHION}train-images-idx3-ubyte.gz", "8d4fb7e6c68d591d4c3dfef9ec88bf0d"),
            Archive(f"{_FASHION}train-labels-idx1-ubyte.gz", "25c81989df183df01b3e8a0aad5dffbe"),
            Archive(f"{_FASHION}t10k-images-idx3-ubyte.gz", "bef4ecab320f06d8554ea6380940ec79"),
            Archive(f"{_FASHION}t10k-labels-idx1-ubyte.gz", "bb300cfdad3c16e7a12a480ee83cd310"),
        ),
    ),
}
