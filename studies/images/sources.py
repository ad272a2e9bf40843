"""The data sets by name: layouts of their files, checksums, and sources."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from studies.images import readers
from studies.images.readers import Arrays, Part

Read = Callable[[Sequence[Path], Part], Arrays]


@dataclass(frozen=True)
class Layout:
    """One layout of a data set on disk: the files of each part, and their reader."""

    folders: tuple[str, ...]
    """Subfolders that may hold the files; the given folder itself is always tried too."""
    train: tuple[str, ...]
    """The files of the training part; a slash at the end of a name marks a folder."""
    test: tuple[str, ...]
    read: Read

    def files(self, part: Part) -> tuple[str, ...]:
        return self.train if part == "train" else self.test


@dataclass(frozen=True)
class Archive:
    """A published file, its MD5 sum, and the folder (inside the given one) that it goes into."""

    urls: tuple[str, ...]
    md5: str
    folder: str = ""


@dataclass(frozen=True)
class Source:
    """A published data set."""

    title: str
    names: tuple[str, ...] | None
    """The classes, or None if the files name them."""
    layouts: tuple[Layout, ...]
    counts: Mapping[Part, int]
    digests: Mapping[Part, str]
    """MD5 of the pixels (n, height, width, channels) followed by the labels, all as bytes: the same in any layout."""
    archives: tuple[Archive, ...]
    packed: tuple[str, ...] = ()
    """The names of published archives without their endings; one that is not unpacked yet is read too."""


def _npz(name: str) -> Layout:
    return Layout((), (f"{name}.npz",), (f"{name}.npz",), readers.read_npz)


def _idx(*folders: str, mark: str = "-") -> Layout:
    """The four files of MNIST's format; some copies have ``train-images.idx3-ubyte`` with a dot as ``mark``."""
    train, test = (
        (f"{start}-images{mark}idx3-ubyte", f"{start}-labels{mark}idx1-ubyte") for start in ("train", "t10k")
    )
    return Layout(folders, train, test, readers.read_idx)


def _idx_archives(folder: str, bases: tuple[str, ...], sums: Mapping[str, str]) -> tuple[Archive, ...]:
    return tuple(Archive(tuple(f"{base}{name}.gz" for base in bases), md5, folder) for name, md5 in sums.items())


_TORONTO = "https://www.cs.toronto.edu/~kriz/"
_CIFAR10_NAMES = "airplane automobile bird cat deer dog frog horse ship truck"
_CIFAR100_NAMES = """
apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle bowl boy bridge bus butterfly camel can
castle caterpillar cattle chair chimpanzee clock cloud cockroach couch crab crocodile cup dinosaur dolphin
elephant flatfish forest fox girl hamster house kangaroo keyboard lamp lawn_mower leopard lion lizard
lobster man maple_tree motorcycle mountain mouse mushroom oak_tree orange orchid otter palm_tree pear
pickup_truck pine_tree plain plate poppy porcupine possum rabbit raccoon ray road rocket rose sea seal
shark shrew skunk skyscraper snail snake spider squirrel streetcar sunflower sweet_pepper table tank
telephone television tiger tractor train trout tulip turtle wardrobe whale willow_tree wolf woman worm
"""
_BATCHES = tuple(f"data_batch_{k}" for k in range(1, 6))

SOURCES: dict[str, Source] = {
    "cifar10": Source(
        "CIFAR-10",
        tuple(_CIFAR10_NAMES.split()),
        (
            Layout(("cifar-10-batches-py",), _BATCHES, ("test_batch",), readers.read_cifar_pickles),
            Layout(
                ("cifar-10-batches-bin",),
                tuple(f"{name}.bin" for name in _BATCHES),
                ("test_batch.bin",),
                readers.read_cifar10_binary,
            ),
            _npz("cifar10"),
        ),
        {"train": 50_000, "test": 10_000},
        {"train": "378e89c2e5f724dfd1d9f9b32a07fc0d", "test": "a2d03300dfff0d937e0bb7840d48d8b7"},
        (Archive((f"{_TORONTO}cifar-10-python.tar.gz",), "c58f30108f718f92721af3b95e74349a"),),
        ("cifar-10-python", "cifar-10-binary"),
    ),
    "cifar100": Source(
        "CIFAR-100",
        tuple(_CIFAR100_NAMES.split()),
        (
            Layout(("cifar-100-python",), ("train",), ("test",), readers.read_cifar_pickles),
            Layout(("cifar-100-binary",), ("train.bin",), ("test.bin",), readers.read_cifar100_binary),
            _npz("cifar100"),
        ),
        {"train": 50_000, "test": 10_000},
        {"train": "e745bf4d84e038a65f6bc18194310c7e", "test": "17bafb4bc22b4ecc716941d25a6501ce"},
        (Archive((f"{_TORONTO}cifar-100-python.tar.gz",), "eb9058c3a382ffc7106e4002c42a8d85"),),
        ("cifar-100-python", "cifar-100-binary"),
    ),
    "tiny-imagenet": Source(
        "Tiny-ImageNet",
        None,
        (
            Layout(("tiny-imagenet-200",), ("wnids.txt", "train/"), ("wnids.txt", "val/"), readers.read_tiny_imagenet),
            _npz("tiny-imagenet"),
        ),
        {"train": 100_000, "test": 10_000},
        {},  # decoders of JPEG files differ in their rounding, so that only the archive has a checksum
        (Archive(("http://cs231n.stanford.edu/tiny-imagenet-200.zip",), "90528d7ca1a48142e341f4ef8d21d0de"),),
        ("tiny-imagenet-200",),
    ),
    "fashion-mnist": Source(
        "Fashion-MNIST",
        ("T-shirt", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "ankle boot"),
        (
            _idx("fashion-mnist", "FashionMNIST/raw"),
            _idx("fashion-mnist", "FashionMNIST/raw", mark="."),
            _npz("fashion-mnist"),
        ),
        {"train": 60_000, "test": 10_000},
        {"train": "819d6ae9214abbc30bd601cb4ad304c0", "test": "2bdc83e1b78e813df8547ccd14b70d8f"},
        _idx_archives(
            "fashion-mnist",
            ("http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",),
            {
                "train-images-idx3-ubyte": "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
                "train-labels-idx1-ubyte": "25c81989df183df01b3e8a0aad5dffbe",
                "t10k-images-idx3-ubyte": "bef4ecab320f06d8554ea6380940ec79",
                "t10k-labels-idx1-ubyte": "bb300cfdad3c16e7a12a480ee83cd310",
            },
        ),
    ),
    "mnist": Source(
        "MNIST",
        tuple("0123456789"),
        (_idx("mnist", "MNIST/raw"), _idx("mnist", "MNIST/raw", mark="."), _npz("mnist")),
        {"train": 60_000, "test": 10_000},
        {"train": "365dab9bac26085dc69f1022fe166e2f", "test": "a9c5e64a683c5dd2f6a9bf7c61b53e6f"},
        _idx_archives(
            "mnist",
            ("https://ossci-datasets.s3.amazonaws.com/mnist/", "http://yann.lecun.com/exdb/mnist/"),
            {
                "train-images-idx3-ubyte": "f68b3c2dcbeaaa9fbdd348bbdeb94873",
                "train-labels-idx1-ubyte": "d53e105ee54ea40749a09fcbcd1e9432",
                "t10k-images-idx3-ubyte": "9fb629c4189551a2d022fa330f9573f3",
                "t10k-labels-idx1-ubyte": "ec29112dd5afa0611ce80d1b7f02629c",
            },
        ),
    ),
}
