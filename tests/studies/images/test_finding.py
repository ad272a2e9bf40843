"""Tests of finding files: archives as downloaded, nested folders, other names, stray files and missing files."""

import gzip
import io
import os
import shutil
import tarfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from studies.images import load_parts, readers
from tests.studies.images import cases

pytestmark = pytest.mark.filterwarnings("ignore:.*images, but")
GREY = {"size": 28, "channels": 1}


def expect(name, folder, part_shape):
    """Read both parts and compare every pixel and label with what was written."""
    for part, found in zip(("train", "test"), load_parts(name, folder), strict=True):
        pixels, labels = cases.draw(part, **part_shape)
        np.testing.assert_array_equal(found.inputs.numpy(), pixels.transpose(0, 3, 1, 2))
        np.testing.assert_array_equal(found.labels.numpy(), labels)


def packed(folder, write, inside, kind, name):
    """An archive in ``folder`` and nothing else."""
    site = folder / "site"
    site.mkdir()
    write(site)
    data = folder / "data"
    data.mkdir()
    made = shutil.make_archive(str(data / "archive"), kind, site, inside)
    Path(made).rename(data / name)
    shutil.rmtree(site)
    return data


@pytest.mark.parametrize(
    ("name", "write", "inside", "kind", "file"),
    [
        ("cifar10", lambda f: cases.write_pickles(f, 10), "cifar-10-batches-py", "gztar", "cifar-10-python.tar.gz"),
        ("cifar10", lambda f: cases.write_binary(f, 10), "cifar-10-batches-bin", "gztar", "cifar-10-binary.tgz"),
        ("cifar100", lambda f: cases.write_pickles(f, 100), "cifar-100-python", "tar", "cifar-100-python.tar"),
        ("cifar100", lambda f: cases.write_binary(f, 100), "cifar-100-binary", "gztar", "cifar-100-binary.tar.gz"),
    ],
)
def test_an_archive_is_read_without_unpacking_it(name, write, inside, kind, file, tmp_path):
    data = packed(tmp_path, write, inside, kind, file)
    expect(name, data, {"classes": 10 if name == "cifar10" else 100})
    assert [path.name for path in data.iterdir()] == [file]


def test_the_archive_of_tiny_imagenet_has_names_too(tmp_path):
    data = packed(tmp_path, cases.write_tiny_imagenet, "tiny-imagenet-200", "zip", "tiny-imagenet-200.zip")
    train, test = load_parts("tiny-imagenet", data)
    assert train.names == ("frog", "goldfish", "n03")
    assert (len(train), len(test)) == (36, 5)


def test_a_damaged_archive_is_named(tmp_path):
    data = packed(
        tmp_path, lambda f: cases.write_pickles(f, 10), "cifar-10-batches-py", "gztar", "cifar-10-python.tar.gz"
    )
    archive = data / "cifar-10-python.tar.gz"
    whole = archive.read_bytes()
    for content in (whole[: len(whole) // 2], b"", gzip.compress(b"no archive"), gzip.compress(bytes(10240))):
        archive.write_bytes(content)
        with pytest.raises(ValueError, match=r"cifar-10-python\.tar\.gz: damaged, or not CIFAR-10 .*Download it again"):
            load_parts("cifar10", data)


def test_an_archive_cannot_write_outside_of_its_folder(tmp_path):
    data = tmp_path / "data"
    data.mkdir()
    with tarfile.open(data / "cifar-10-python.tar.gz", "w:gz") as tar:
        entry = tarfile.TarInfo(str(tmp_path / "outside"))
        entry.size = 1
        tar.addfile(entry, io.BytesIO(b"x"))
        entry.name = "../../../../../../.." + str(tmp_path / "outside")
        tar.addfile(entry, io.BytesIO(b"x"))
    with pytest.raises(ValueError, match="damaged"):
        load_parts("cifar10", data)
    assert not (tmp_path / "outside").exists()


@pytest.mark.parametrize("outside", ["cifar-10-python", "a/b"])
def test_nested_folders_are_searched(outside, tmp_path):
    inside = tmp_path / outside
    inside.mkdir(parents=True)
    cases.write_pickles(inside, 10)
    (tmp_path / "notes").mkdir()
    (tmp_path / ".hidden").mkdir()
    expect("cifar10", tmp_path, {"classes": 10})


def test_data_in_several_folders_is_ambiguous(tmp_path):
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        cases.write_binary(tmp_path / name, 10)
    with pytest.raises(ValueError, match=r"found in several folders: .*first.*second.* Give one of them"):
        load_parts("cifar10", tmp_path)


def test_the_folder_of_another_data_set_is_not_taken(tmp_path):
    cases.write_idx(tmp_path, "MNIST/raw", False)
    with pytest.raises(FileNotFoundError, match="training part of Fashion-MNIST"):
        load_parts("fashion-mnist", tmp_path)
    cases.write_idx(tmp_path, "FashionMNIST/raw", True)
    expect("fashion-mnist", tmp_path / "FashionMNIST", {"classes": 10, **GREY})
    expect("mnist", tmp_path, {"classes": 10, **GREY})


def test_a_folder_is_not_taken_for_a_file(tmp_path):
    """Some copies of MNIST have folders with the names of the files, and files with a dot in the name."""
    cases.write_idx(tmp_path, "", False)
    for path in list(tmp_path.iterdir()):
        path.rename(tmp_path / path.name.replace("-idx", ".idx"))
        path.mkdir()
    expect("mnist", tmp_path, {"classes": 10, **GREY})
    cases.write_tiny_imagenet(tmp_path)
    with pytest.raises(FileNotFoundError, match="training part of CIFAR-100"):  # its files are named train and test
        load_parts("cifar100", tmp_path / "tiny-imagenet-200")


@pytest.mark.parametrize(
    ("name", "write", "gone", "sentence"),
    [
        (
            "cifar10",
            lambda f: cases.write_pickles(f, 10),
            "cifar-10-batches-py/data_batch_3",
            "The training part of CIFAR-10 .*cifar-10-batches-py lacks data_batch_3",
        ),
        (
            "cifar100",
            lambda f: cases.write_binary(f, 100),
            "cifar-100-binary/test.bin",
            "The test part of CIFAR-100 .*cifar-100-binary lacks test.bin",
        ),
        (
            "mnist",
            lambda f: cases.write_idx(f, "", True),
            "t10k-labels-idx1-ubyte.gz",
            "The test part of MNIST .*lacks t10k-labels-idx1-ubyte.*t10k-labels-idx1-ubyte.gz.*--download",
        ),
        (
            "tiny-imagenet",
            cases.write_tiny_imagenet,
            "tiny-imagenet-200/wnids.txt",
            "The training part of Tiny-ImageNet .*tiny-imagenet-200 lacks wnids.txt",
        ),
    ],
)
def test_the_missing_file_is_named(name, write, gone, sentence, tmp_path):
    write(tmp_path)
    (tmp_path / gone).unlink()
    with pytest.raises(FileNotFoundError, match=sentence):
        load_parts(name, tmp_path)


def test_the_folder_is_checked_and_a_tilde_is_expanded(tmp_path, monkeypatch):
    home = tmp_path / "with space"
    (home / "data").mkdir(parents=True)
    cases.write_npz(home / "data", "cifar10", 10)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("USERPROFILE", str(home))
    expect("cifar10", "~/data", {"classes": 10})
    with pytest.raises(ValueError, match=r"got the file .*cifar10\.npz\. Give its folder"):
        load_parts("cifar10", home / "data" / "cifar10.npz")
    with pytest.raises(FileNotFoundError, match="which does not exist"):
        load_parts("cifar10", home / "other")


def test_arrays_with_other_names_are_listed(tmp_path):
    np.savez(tmp_path / "cifar10.npz", images=np.zeros(1), labels=np.zeros(1))
    with pytest.raises(ValueError, match="must hold the arrays x_train and y_train; got images, labels"):
        load_parts("cifar10", tmp_path)


def test_files_without_permission_are_not_called_damaged(tmp_path, monkeypatch):
    cases.write_binary(tmp_path, 10)

    def refused(*_, **__):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(readers.np, "fromfile", refused)
    with pytest.raises(OSError, match=r"could not be read .*Permission denied") as told:
        load_parts("cifar10", tmp_path)
    assert "Download" not in str(told.value)


def tiny(folder):
    labels = cases.write_tiny_imagenet(folder)
    return folder / "tiny-imagenet-200", labels


def test_stray_files_among_the_images_are_left_out(tmp_path):
    root, labels = tiny(tmp_path)
    for name in (".DS_Store", "Thumbs.db", "._n01_0.JPEG", "notes.txt"):
        (root / "train" / "n01" / "images" / name).write_bytes(b"x")
    train, _ = load_parts("tiny-imagenet", tmp_path)
    np.testing.assert_array_equal(train.labels.numpy(), labels["train"])


def test_validation_images_sorted_into_classes_are_read(tmp_path):
    root, labels = tiny(tmp_path)
    before = load_parts("tiny-imagenet", tmp_path)[1]
    for line in (root / "val" / "val_annotations.txt").read_text().splitlines():
        file, name = line.split("\t")[:2]
        (root / "val" / name / "images").mkdir(parents=True, exist_ok=True)
        (root / "val" / "images" / file).rename(root / "val" / name / "images" / file)
    os.rmdir(root / "val" / "images")
    after = load_parts("tiny-imagenet", tmp_path)[1]
    order = np.argsort(labels["test"], kind="stable")
    np.testing.assert_array_equal(after.labels.numpy(), labels["test"][order])
    np.testing.assert_array_equal(after.inputs.numpy(), before.inputs.numpy()[order])


def test_each_defect_of_an_image_folder_names_the_image(tmp_path):
    root, _ = tiny(tmp_path)
    image = root / "train" / "n01" / "images" / "n01_3.JPEG"
    Image.new("RGB", (32, 64)).save(image)
    with pytest.raises(ValueError, match=r"n01_3\.JPEG must have shape \(64, 64, 3\) .*got \(64, 32, 3\)"):
        load_parts("tiny-imagenet", tmp_path)
    Image.effect_noise((64, 64), 50).save(image)
    image.write_bytes(image.read_bytes()[:-200])
    with pytest.raises(ValueError, match=r"n01_3\.JPEG is not a whole image"):
        load_parts("tiny-imagenet", tmp_path)
    image.unlink()
    shutil.rmtree(root / "train" / "n03")
    with pytest.raises(ValueError, match=r"train/n03 has no images"):
        load_parts("tiny-imagenet", tmp_path)
