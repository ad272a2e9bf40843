"""Tests of reading published image files: every layout, damaged and missing files, downloads and splits."""

import gzip
import hashlib
import pickle
import sys
import tarfile
from dataclasses import replace

import numpy as np
import pytest
import torch

from calibrant.data.vision import Images, split
from studies.images import SOURCES, load_images, load_parts
from studies.images.sources import Archive
from studies.images.unpickling import unpickle
from tests.studies.images import cases

LAYOUTS = {
    "cifar10-pickles": ("cifar10", lambda f: cases.write_pickles(f, 10), {"classes": 10}),
    "cifar10-binary": ("cifar10", lambda f: cases.write_binary(f, 10), {"classes": 10}),
    "cifar10-npz": ("cifar10", lambda f: cases.write_npz(f, "cifar10", 10), {"classes": 10}),
    "cifar100-pickles": ("cifar100", lambda f: cases.write_pickles(f, 100), {"classes": 100}),
    "cifar100-binary": ("cifar100", lambda f: cases.write_binary(f, 100), {"classes": 100}),
    "fashion-gz": ("fashion-mnist", lambda f: cases.write_idx(f, "fashion-mnist", True), {"classes": 10}),
    "fashion-plain": ("fashion-mnist", lambda f: cases.write_idx(f, "", False), {"classes": 10}),
    "mnist": ("mnist", lambda f: cases.write_idx(f, "MNIST/raw", False), {"classes": 10}),
    "mnist-npz": ("mnist", lambda f: cases.write_npz(f, "mnist", 10, size=28, channels=1), {"classes": 10}),
}
GREY = {"size": 28, "channels": 1}


def load_quietly(*args, **kwargs):
    with pytest.warns(UserWarning, match=r"images, but .* has"):
        return load_images(*args, **kwargs)


@pytest.mark.parametrize(("name", "write", "shape"), LAYOUTS.values(), ids=LAYOUTS)
@pytest.mark.parametrize("part", ["train", "test"])
def test_every_layout_gives_the_same_images(name, write, shape, part, tmp_path):
    write(tmp_path)
    found = load_quietly(name, tmp_path, part=part)
    pixels, labels = cases.draw(part, **shape, **(GREY if "mnist" in name else {}))
    assert found.inputs.dtype == torch.uint8
    assert found.inputs.is_contiguous()
    np.testing.assert_array_equal(found.inputs.numpy(), pixels.transpose(0, 3, 1, 2))
    np.testing.assert_array_equal(found.labels.numpy(), labels)
    assert len(found.names) == found.n_classes == shape["classes"]
    train, _ = cases.draw("train", **shape, **(GREY if "mnist" in name else {}))
    np.testing.assert_allclose(found.mean, train.mean((0, 1, 2)) / 255, rtol=1e-12)
    np.testing.assert_allclose(found.std, train.std((0, 1, 2)) / 255, rtol=1e-12)


def test_the_folder_itself_may_be_given(tmp_path):
    cases.write_pickles(tmp_path, 10)
    found = load_quietly("cifar10", tmp_path / "cifar-10-batches-py")
    assert len(found) == cases.COUNTS["train"]


def test_tiny_imagenet_from_folders_of_files(tmp_path):
    labels = cases.write_tiny_imagenet(tmp_path)
    with pytest.warns(UserWarning, match=r"Tiny-ImageNet has 10{1,2},000"):
        train, test = load_parts("tiny-imagenet", tmp_path)
    assert train.names == ("frog", "goldfish", "n03")
    for part, found in (("train", train), ("test", test)):
        np.testing.assert_array_equal(found.labels.numpy(), labels[part])
        assert found.inputs.shape == (len(labels[part]), 3, 64, 64)
    colour = torch.cat([train.inputs[1:12], test.inputs]).float().mean((2, 3)).argmax(1)
    expected = np.concatenate([labels["train"][1:12], labels["test"]])
    np.testing.assert_array_equal(colour.numpy(), expected)
    grey = train.inputs[0].float().mean((1, 2))
    assert grey.max() == grey.min()


def test_image_files_without_pillow_say_what_to_install(tmp_path, monkeypatch):
    cases.write_tiny_imagenet(tmp_path)
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(ImportError, match=r"calibrant\[vision\]"):
        load_images("tiny-imagenet", tmp_path)


def test_missing_files_are_named_with_their_layouts(tmp_path):
    with pytest.raises(FileNotFoundError, match="data_batch_5") as told:
        load_images("cifar10", tmp_path)
    for word in (
        "cifar-10-batches-py/",
        "cifar-10-batches-bin/",
        "cifar10.npz",
        "x_train",
        "https://",
        "download=True",
    ):
        assert word in str(told.value)
    cases.write_pickles(tmp_path, 10)
    (tmp_path / "cifar-10-batches-py" / "test_batch").unlink()
    with pytest.raises(FileNotFoundError, match=r"The test part .*cifar-10-batches-py lacks test_batch"):
        load_images("cifar10", tmp_path)


def test_unknown_names_and_parts(tmp_path):
    with pytest.raises(ValueError, match="name must be one of 'cifar10'"):
        load_images("cifar", tmp_path)
    with pytest.raises(ValueError, match="part must be"):
        load_images("cifar10", tmp_path, part="val")


def shorten(path):
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2 + 1])


@pytest.mark.parametrize(
    ("name", "write", "file"),
    [
        ("cifar10", lambda f: cases.write_pickles(f, 10), "cifar-10-batches-py/data_batch_2"),
        ("cifar100", lambda f: cases.write_binary(f, 100), "cifar-100-binary/train.bin"),
        ("fashion-mnist", lambda f: cases.write_idx(f, "", True), "train-images-idx3-ubyte.gz"),
        ("mnist", lambda f: cases.write_idx(f, "", False), "train-images-idx3-ubyte"),
        ("cifar10", lambda f: cases.write_npz(f, "cifar10", 10), "cifar10.npz"),
        ("tiny-imagenet", cases.write_tiny_imagenet, "tiny-imagenet-200/train/n01/images/n01_3.JPEG"),
    ],
)
def test_a_file_cut_short_is_reported(name, write, file, tmp_path):
    write(tmp_path)
    shorten(tmp_path / file)
    with pytest.raises(ValueError, match=r"damaged, or not .*Download it again"):
        load_images(name, tmp_path)


WRONG = {
    "a share of brightness": (
        {"x_train": lambda x: x / 255},
        "pixels must be whole numbers from 0 to 255; got float64",
    ),
    "more than a byte": ({"x_train": lambda x: 3 * x.astype(int)}, "pixels must be whole numbers from 0 to 255"),
    "channels first": ({"x_train": lambda x: x.transpose(0, 3, 1, 2)}, r"\(n, height, width, 1 or 3 channels\)"),
    "a class too many": (
        {"y_train": lambda y: y + 1},
        "labels must be whole numbers from 0 to 9; got int64 from 1 to 10",
    ),
    "no class": ({"y_train": lambda y: y - 1}, "labels must be whole numbers from 0 to 9"),
    "no images": ({"x_train": lambda x: x[:0], "y_train": lambda y: y[:0]}, "of the same images; got shapes"),
    "another size": ({"x_test": lambda x: x[:, :20]}, "must have one shape"),
}


@pytest.mark.filterwarnings("ignore:.*images, but")
@pytest.mark.parametrize(("changes", "sentence"), WRONG.values(), ids=WRONG)
def test_arrays_that_are_no_images_are_refused(changes, sentence, tmp_path):
    cases.write_npz(tmp_path, "cifar10", 10)
    with np.load(tmp_path / "cifar10.npz") as file:
        arrays = dict(file)
    arrays["y_train"] = np.arange(len(arrays["y_train"])) % 10
    np.savez(tmp_path / "cifar10.npz", **arrays | {name: change(arrays[name]) for name, change in changes.items()})
    with pytest.raises(ValueError, match=sentence):
        load_parts("cifar10", tmp_path)


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ([1, 2], "data_batch_3 must hold a dict; got a list"),
        ({b"x": 1}, r"data_batch_3 must hold data of shape \(n, 3072\)"),
        ({b"data": np.zeros((4, 3072), np.uint8), b"labels": [0]}, "data_batch_3 must hold data"),
    ],
)
def test_the_damaged_file_of_several_is_named(content, sentence, tmp_path):
    cases.write_pickles(tmp_path, 10)
    (tmp_path / "cifar-10-batches-py/data_batch_3").write_bytes(pickle.dumps(content))
    with pytest.raises(ValueError, match=sentence):
        load_images("cifar10", tmp_path)


@pytest.mark.filterwarnings("ignore:.*images, but")
@pytest.mark.parametrize("line", ["val_1.JPEG", "val_1.JPEG\tn99\t0"])
def test_annotations_without_a_known_class_are_refused(line, tmp_path):
    cases.write_tiny_imagenet(tmp_path)
    (tmp_path / "tiny-imagenet-200/val/val_annotations.txt").write_text(line)
    with pytest.raises(ValueError, match="must name a file and a known class"):
        load_images("tiny-imagenet", tmp_path)


def test_one_wrong_pixel_in_a_published_set_is_reported(tmp_path, monkeypatch):
    cases.write_npz(tmp_path, "cifar10", 10)
    digests = {}
    for part in cases.COUNTS:
        pixels, labels = cases.draw(part, 10)
        digests[part] = hashlib.md5(pixels.tobytes() + labels.astype(np.uint8).tobytes()).hexdigest()
    monkeypatch.setitem(SOURCES, "cifar10", replace(SOURCES["cifar10"], counts=cases.COUNTS, digests=digests))
    assert len(load_images("cifar10", tmp_path)) == cases.COUNTS["train"]
    with np.load(tmp_path / "cifar10.npz") as file:
        arrays = dict(file)
    arrays["x_test"][7, 3, 2, 1] ^= 1
    np.savez(tmp_path / "cifar10.npz", **arrays)
    with pytest.raises(ValueError, match="pixels or labels are not those of CIFAR-10"):
        load_images("cifar10", tmp_path)


class Harmful:
    def __reduce__(self):
        return (eval, ("__import__('pathlib').Path('ran').touch()",))


@pytest.mark.parametrize("content", [Harmful(), {b"data": np.array([Harmful()], dtype=object)}])
def test_pickles_that_would_run_code_are_refused(content, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "batch"
    path.write_bytes(pickle.dumps(content))
    with pytest.raises(pickle.UnpicklingError, match="only NumPy arrays are allowed"):
        unpickle(path)
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("protocol", range(2, 6))
def test_pickled_arrays_are_read_in_any_protocol(protocol, tmp_path):
    array = np.arange(6, dtype=np.uint8).reshape(2, 3)
    (tmp_path / "batch").write_bytes(pickle.dumps({b"data": array, b"labels": [1, 2]}, protocol=protocol))
    found = unpickle(tmp_path / "batch")
    np.testing.assert_array_equal(found[b"data"], array)


def published(folder, tmp_path, monkeypatch, md5=None):
    """CIFAR-10 as an archive at a file:// address."""
    site = tmp_path / "site"
    site.mkdir()
    cases.write_pickles(site, 10)
    path = site / "cifar-10-python.tar.gz"
    with tarfile.open(path, "w:gz") as tar:
        tar.add(site / "cifar-10-batches-py", "cifar-10-batches-py")
    md5 = md5 or hashlib.md5(path.read_bytes()).hexdigest()
    archive = Archive(((site / "gone" / path.name).as_uri(), path.as_uri()), md5)
    monkeypatch.setitem(SOURCES, "cifar10", replace(SOURCES["cifar10"], archives=(archive,)))
    return path


def test_downloads_are_verified_unpacked_and_made_once(tmp_path, monkeypatch):
    path = published(tmp_path, tmp_path, monkeypatch)
    found = load_quietly("cifar10", tmp_path / "data", download=True)
    assert len(found) == cases.COUNTS["train"]
    path.unlink()
    assert len(load_quietly("cifar10", tmp_path / "data", download=True)) == cases.COUNTS["train"]


def test_a_download_with_another_checksum_is_refused(tmp_path, monkeypatch):
    published(tmp_path, tmp_path, monkeypatch, md5="0" * 32)
    with pytest.raises(OSError, match="its MD5 sum must be"):
        load_images("cifar10", tmp_path / "data", download=True)
    assert not list((tmp_path / "data").iterdir())


def test_single_files_are_downloaded_into_their_folder(tmp_path, monkeypatch):
    site = tmp_path / "site"
    cases.write_idx(site, "", True)
    archives = tuple(
        Archive((path.as_uri(),), hashlib.md5(path.read_bytes()).hexdigest(), "mnist") for path in site.iterdir()
    )
    monkeypatch.setitem(SOURCES, "mnist", replace(SOURCES["mnist"], archives=archives))
    found = load_quietly("mnist", tmp_path / "data", part="test", download=True)
    assert len(found) == cases.COUNTS["test"]
    assert gzip.decompress((tmp_path / "data" / "mnist" / "t10k-labels-idx1-ubyte.gz").read_bytes())


def test_published_checksums_are_valid_with_one_name_per_class():
    for source in SOURCES.values():
        sums = [*source.digests.values(), *(archive.md5 for archive in source.archives)]
        assert all(len(value) == 32 and int(value, 16) >= 0 for value in sums)
    assert [len(SOURCES[name].names) for name in ("cifar10", "cifar100", "fashion-mnist", "mnist")] == [10, 100, 10, 10]
    assert len(set(SOURCES["cifar100"].names)) == 100
    assert list(SOURCES["cifar100"].names) == sorted(SOURCES["cifar100"].names)


def some(count=200, classes=4):
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randint(0, 256, (count, 3, 8, 8), dtype=torch.uint8, generator=generator)
    names = tuple("abcd"[:classes])
    return Images(inputs, torch.arange(count) % classes, names, (0.5,) * 3, (0.2,) * 3)


def test_the_split_is_stratified_disjoint_seeded_and_8_1_1():
    whole = some()
    whole = Images(torch.arange(200).view(-1, 1, 1, 1), whole.labels, whole.names, whole.mean, whole.std)
    parts = split(whole, 3)
    assert [len(part) for part in parts] == [160, 20, 20]
    rows = torch.cat([part.inputs.flatten() for part in parts])
    assert rows.sort().values.tolist() == list(range(200))
    for part in parts:
        assert part.labels.bincount().unique().numel() == 1
        assert torch.equal(part.labels, part.inputs.flatten() % 4)
        assert (part.mean, part.names) == (whole.mean, whole.names)
    assert torch.equal(split(whole, 3).val.inputs, parts.val.inputs)
    assert not torch.equal(split(whole, 4).val.inputs, parts.val.inputs)


def test_a_sample_keeps_the_classes_in_proportion():
    whole = some()
    assert whole.sample(40, seed=1).labels.bincount().tolist() == [10] * 4
    assert whole.sample(500, seed=1) is whole
