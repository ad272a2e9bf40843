"""Loading published sets of labelled images by name."""

from __future__ import annotations

import errno
import hashlib
import os
import pickle
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch

from calibrant.base.settings import check_choice
from calibrant.base.warning import warn
from calibrant.data.vision import Images
from calibrant.data.vision.images import channel_statistics
from studies.images.download import download_archives
from studies.images.finding import Found, checked_folder, find_archive, find_files, missing_files, unpack
from studies.images.folders import class_names
from studies.images.readers import Arrays, Part
from studies.images.sources import SOURCES, Source

PARTS: tuple[Part, Part] = ("train", "test")
_DAMAGED = (
    *(EOFError, ValueError, LookupError, TypeError, AttributeError, OSError, ArithmeticError, NotImplementedError),
    *(pickle.UnpicklingError, struct.error, tarfile.TarError, zlib.error, zipfile.BadZipFile),
)
_OF_CONTENT = (None, errno.EINVAL, errno.ENOENT, errno.ENOTDIR, errno.EISDIR)
"""Numbers of system errors that damaged or missing files cause; a full disk or missing rights have others."""


def load_images(name: str, folder: str | os.PathLike[str], *, part: Part = "train", download: bool = False) -> Images:
    """Read one part of a published data set, from files in any of its usual layouts.

    Pixels and labels are checked against the published ones in every layout. Files with another number of images are
    read with a warning.

    Parameters
    ----------
    name : {"cifar10", "cifar100", "tiny-imagenet", "fashion-mnist", "mnist"}
    folder : path
        The folder with the files, or one above it; a published archive in it need not be unpacked.
    part : {"train", "test"}
        Tiny-ImageNet's labelled validation folder is its test part. The training part is read in both cases, because
        the constants of normalisation come from it; :func:`load_parts` reads both parts once.
    download : bool
        Fetch the published files into ``folder`` if they are not there.
    """
    check_choice("part", part, ("train", "test"))
    return load_parts(name, folder, download=download)[part == "test"]


def load_parts(name: str, folder: str | os.PathLike[str], *, download: bool = False) -> tuple[Images, Images]:
    """Read the training part and the test part of a data set; arguments are as in :func:`load_images`."""
    source = _source(name)
    arrays, names = _arrays(source, folder, download)
    shapes = [pixels.shape[1:] for pixels, _ in arrays]
    if shapes[0] != shapes[1]:
        raise ValueError(
            f"The training and test images of {source.title} in {folder} must have one shape; got {shapes[0]} and "
            f"{shapes[1]}."
        )
    mean, std = channel_statistics(arrays[0][0])
    train, test = (
        Images(torch.from_numpy(np.array(x.transpose(0, 3, 1, 2), order="C")), torch.from_numpy(y), names, mean, std)
        for x, y in arrays
    )
    return train, test


def download_missing(name: str, folder: str | os.PathLike[str]) -> None:
    """Fetch the published files of a data set into a folder, which is created, if it does not hold them already."""
    _download_missing(_source(name), Path(folder).expanduser())


def _source(name: str) -> Source:
    check_choice("name", name, SOURCES)
    return SOURCES[name]


def _download_missing(source: Source, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    if not all(find_files(source, folder, part) for part in PARTS):
        download_archives(source.archives, folder)


def _arrays(source: Source, folder: str | os.PathLike[str], download: bool) -> tuple[list[Arrays], tuple[str, ...]]:
    """The pixels and labels of the training and test parts, and the names of the classes."""
    if download:
        _download_missing(source, Path(folder).expanduser())
    folder, shown = checked_folder(folder), ""
    found = [find_files(source, folder, part) for part in PARTS]
    with ExitStack() as stack:
        if not any(found) and (archive := find_archive(source, folder)) is not None:
            inside = Path(stack.enter_context(TemporaryDirectory(prefix="calibrant-")))
            with _reported(source, shown := str(archive)):
                unpack(archive, inside)
                found = [find_files(source, inside, part) for part in PARTS]
                if not all(found):
                    raise ValueError("it does not hold the files of both parts")
        arrays = []
        for part, where in zip(PARTS, found, strict=True):
            if where is None:
                raise FileNotFoundError(missing_files(source, folder, part))
        for part, where in zip(PARTS, found, strict=True):
            assert where is not None
            arrays.append(_read(source, part, where, shown))
        return arrays, source.names or _names(found[0], arrays)


@contextmanager
def _reported(source: Source, listed: str) -> Iterator[None]:
    """Turn the many errors of readers into one sentence with the names of the files and with what to do."""
    try:
        yield
    except _DAMAGED as error:
        if isinstance(error, OSError) and error.errno not in _OF_CONTENT:
            raise OSError(f"{listed}: could not be read ({error}).") from error
        raise ValueError(f"{listed}: damaged, or not {source.title} ({error}). Download it again.") from error


def _read(source: Source, part: Part, where: Found, shown: str) -> Arrays:
    """The arrays of a part; ``shown`` names the files in messages, if not their paths."""
    layout, paths = where
    names = ",".join(path.name for path in paths)
    listed = shown or (f"{paths[0].parent}/{{{names}}}" if len(paths) > 1 else str(paths[0]))
    with _reported(source, listed):
        pixels, labels = _checked(*layout.read(paths, part), None if source.names is None else len(source.names))
    count, digest = source.counts[part], source.digests.get(part)
    if len(labels) != count:
        warn(
            f"{listed}: {len(labels):,} images, but the {'training' if part == 'train' else 'test'} part of "
            f"{source.title} has {count:,}. They are used anyway."
        )
    elif digest is not None and _digest(pixels, labels) != digest:
        raise ValueError(f"{listed}: pixels or labels are not those of {source.title}. Download it again.")
    return pixels, labels


def _checked(pixels: np.ndarray, labels: np.ndarray, n_classes: int | None) -> Arrays:
    """Images as bytes and labels as int64, if they are that; the errors are parts of sentences."""
    if pixels.ndim != 4 or not len(pixels) or labels.shape != pixels.shape[:1]:
        raise ValueError(f"pixels and labels must be of the same images; got shapes {pixels.shape} and {labels.shape}")
    if pixels.shape[-1] not in (1, 3):
        raise ValueError(f"pixels must have shape (n, height, width, 1 or 3 channels); got {pixels.shape}")
    for what, values, most in (
        ("pixels", pixels, 255),
        ("labels", labels, None if n_classes is None else n_classes - 1),
    ):
        low, high = values.min(), values.max()
        if values.dtype.kind not in "iu" or low < 0 or (most is not None and high > most):
            limit = "0 on" if most is None else f"0 to {most}"
            raise ValueError(f"{what} must be whole numbers from {limit}; got {values.dtype} from {low} to {high}")
    return np.ascontiguousarray(pixels, dtype=np.uint8), labels.astype(np.int64)


def _digest(pixels: np.ndarray, labels: np.ndarray) -> str:
    found = hashlib.md5(pixels.data, usedforsecurity=False)
    found.update(labels.astype(np.uint8).data)
    return found.hexdigest()


def _names(where: Found | None, arrays: list[Arrays]) -> tuple[str, ...]:
    """The names of the classes from the files of Tiny-ImageNet, or numbers if there are none."""
    if where is not None and where[1][0].name == "wnids.txt":
        return class_names(where[1][0], where[1][0].with_name("words.txt"))
    return tuple(map(str, range(1 + max(int(y.max()) for _, y in arrays))))
