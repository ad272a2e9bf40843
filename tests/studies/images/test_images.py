"""Tests of published images: every layout, damaged and missing files, downloads, wrong labels, splits and shifts."""

import hashlib
import io
import pickle
import shutil
import tarfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from calibrant.data.vision import Images, split
from studies.images import SHIFTS, SOURCES, download_missing, load_noisy_labels, load_parts
from studies.images.published import Archive, read_cifar
from studies.images.shifts import brightness, contrast, gaussian_blur, gaussian_noise
from tests.studies.images import cases

pytestmark = pytest.mark.filterwarnings("ignore:.*images, but")
GREY = {"size": 28, "channels": 1}


def write_cifar10(folder):
    cases.write_pickles(folder, 10)


LAYOUTS = {
    "cifar10-pickles": ("cifar10", write_cifar10, {"classes": 10}),
    "cifar10-npz": ("cifar10", lambda f: cases.write_npz(f, "cifar10", 10), {"classes": 10}),
    "cifar100-pickles": ("cifar100", lambda f: cases.write_pickles(f, 100), {"classes": 100}),
    "fashion-gz": ("fashion-mnist", lambda f: cases.write_idx(f, "fashion-mnist", True), {"classes": 10, **GREY}),
    "fashion-plain": ("fashion-mnist", lambda f: cases.write_idx(f, "", False), {"classes": 10, **GREY}),
}


def expect(name, folder, shape):
    """Read both parts and compare every pixel and label with what was written."""
    with pytest.warns(UserWarning, match=r"images, but .* has"):
        parts = load_parts(name, folder)
    for part, found in zip(("train", "test"), parts, strict=True):
        pixels, labels = cases.draw(part, **shape)
        assert found.inputs.dtype == torch.uint8
        assert found.inputs.is_contiguous()
        np.testing.assert_array_equal(found.inputs.numpy(), pixels.transpose(0, 3, 1, 2))
        np.testing.assert_array_equal(found.labels.numpy(), labels)
        assert found.n_classes == shape["classes"]
        train, _ = cases.draw("train", **shape)
        np.testing.assert_allclose(found.mean, train.mean((0, 1, 2)) / 255, rtol=1e-12)
        np.testing.assert_allclose(found.std, train.std((0, 1, 2)) / 255, rtol=1e-12)


@pytest.mark.parametrize(("name", "write", "shape"), LAYOUTS.values(), ids=LAYOUTS)
def test_every_layout_gives_the_same_images(name, write, shape, tmp_path, monkeypatch):
    (tmp_path / "data").mkdir()
    write(tmp_path / "data")
    expect(name, tmp_path / "data", shape)
    monkeypatch.setenv("HOME", str(tmp_path))
    expect(name, "~/data", shape)
    inside = tmp_path / "data" / SOURCES[name].folder  # the folder itself may be given
    if inside.is_dir():
        expect(name, inside, shape)


def test_tiny_imagenet_from_folders_of_files(tmp_path):
    labels = cases.write_tiny_imagenet(tmp_path)
    (tmp_path / "tiny-imagenet-200" / "train" / "n01" / "images" / "._n01_0.JPEG").write_bytes(b"x")
    train, test = load_parts("tiny-imagenet", tmp_path)
    assert train.n_classes == 3
    for part, found in (("train", train), ("test", test)):
        np.testing.assert_array_equal(found.labels.numpy(), labels[part])
        assert found.inputs.shape == (len(labels[part]), 3, 64, 64)
    colour = torch.cat([train.inputs[1:12], test.inputs]).float().mean((2, 3)).argmax(1)
    np.testing.assert_array_equal(colour.numpy(), np.concatenate([labels["train"][1:12], labels["test"]]))
    grey = train.inputs[0].float().mean((1, 2))
    assert grey.max() == grey.min()


@pytest.mark.parametrize(
    ("name", "write", "inside", "file"),
    [
        ("cifar10", write_cifar10, "cifar-10-batches-py", "cifar-10-python.tar.gz"),
        ("tiny-imagenet", cases.write_tiny_imagenet, "tiny-imagenet-200", "tiny-imagenet-200.zip"),
    ],
)
def test_a_downloaded_archive_is_unpacked(name, write, inside, file, tmp_path):
    site, data = tmp_path / "site", tmp_path / "data"
    site.mkdir()
    data.mkdir()
    write(site)
    kind = "zip" if file.endswith("zip") else "gztar"
    Path(shutil.make_archive(str(data / "archive"), kind, site, inside)).rename(data / file)
    assert [len(part) for part in load_parts(name, data)] == ([36, 5] if kind == "zip" else [200, 60])
    shutil.rmtree(data / inside)
    (data / file).write_bytes((data / file).read_bytes()[:200])
    with pytest.raises(ValueError, match=f"{file}: damaged, or not .*Download it again"):
        load_parts(name, data)


def test_an_archive_cannot_write_outside_of_its_folder(tmp_path):
    data = tmp_path / "data"
    data.mkdir()
    with tarfile.open(data / "cifar-10-python.tar.gz", "w:gz") as tar:
        for name in (str(tmp_path / "outside"), "../../../../../../.." + str(tmp_path / "outside")):
            entry = tarfile.TarInfo(name)
            entry.size = 1
            tar.addfile(entry, io.BytesIO(b"x"))
    with pytest.raises(ValueError, match="damaged"):
        load_parts("cifar10", data)
    assert not (tmp_path / "outside").exists()


def test_missing_files_are_named(tmp_path):
    with pytest.raises(FileNotFoundError, match="data_batch_5") as told:
        load_parts("cifar10", tmp_path)
    for word in ("The training part of CIFAR-10", "cifar-10-batches-py/", "https://", "--download"):
        assert word in str(told.value)
    write_cifar10(tmp_path)
    (tmp_path / "cifar-10-batches-py" / "test_batch").unlink()
    with pytest.raises(FileNotFoundError, match=r"The test part of CIFAR-10 .*test_batch"):
        load_parts("cifar10", tmp_path)
    with pytest.raises(ValueError, match=r"name must be 'cifar10', .* got 'cifar'"):
        load_parts("cifar", tmp_path)
    with pytest.raises(ValueError, match=r"got the file .*test\.py\. Give its folder"):
        load_parts("cifar10", shutil.copy(__file__, tmp_path / "test.py"))
    with pytest.raises(FileNotFoundError, match="which does not exist"):
        load_parts("cifar10", tmp_path / "other")


@pytest.mark.parametrize(
    ("name", "write", "file"),
    [
        ("cifar10", write_cifar10, "cifar-10-batches-py/data_batch_2"),
        ("fashion-mnist", lambda f: cases.write_idx(f, "", True), "train-images-idx3-ubyte.gz"),
        ("fashion-mnist", lambda f: cases.write_idx(f, "", False), "train-images-idx3-ubyte"),
        ("cifar10", lambda f: cases.write_npz(f, "cifar10", 10), "cifar10.npz"),
        ("tiny-imagenet", cases.write_tiny_imagenet, "tiny-imagenet-200/train/n01/images/n01_3.JPEG"),
    ],
)
def test_a_file_cut_short_is_reported(name, write, file, tmp_path):
    write(tmp_path)
    path = tmp_path / file
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2 + 1])
    with pytest.raises(ValueError, match=r"damaged, or not .*Download it again"):
        load_parts(name, tmp_path)


WRONG = {
    "a share of brightness": ({"x_train": lambda x: x / 255}, "pixels must be whole numbers .*; got float64"),
    "channels first": ({"x_train": lambda x: x.transpose(0, 3, 1, 2)}, r"\(n, height, width, 1 or 3 channels\)"),
    "a class too many": ({"y_train": lambda y: y + 1}, "labels must be whole numbers .* got int64 from 1 to 10"),
    "another size": ({"x_test": lambda x: x[:, :20]}, "must have one shape"),
    "other names": ({"x_train": None}, "must hold the arrays x_train and y_train; got y_train, x_test, y_test"),
}


@pytest.mark.parametrize(("changes", "sentence"), WRONG.values(), ids=WRONG)
def test_arrays_that_are_no_images_are_refused(changes, sentence, tmp_path):
    cases.write_npz(tmp_path, "cifar10", 10)
    with np.load(tmp_path / "cifar10.npz") as file:
        arrays = dict(file)
    arrays["y_train"] = np.arange(len(arrays["y_train"])) % 10
    for name, change in changes.items():
        before = arrays.pop(name)
        arrays |= {} if change is None else {name: change(before)}
    np.savez(tmp_path / "cifar10.npz", **arrays)
    with pytest.raises(ValueError, match=sentence):
        load_parts("cifar10", tmp_path)


def test_one_wrong_pixel_in_a_published_set_is_reported(tmp_path, monkeypatch):
    cases.write_npz(tmp_path, "cifar10", 10)
    digests = {}
    for part in cases.COUNTS:
        pixels, labels = cases.draw(part, 10)
        digests[part] = hashlib.md5(pixels.tobytes() + labels.astype(np.uint8).tobytes()).hexdigest()
    monkeypatch.setitem(SOURCES, "cifar10", replace(SOURCES["cifar10"], counts=cases.COUNTS, digests=digests))
    assert len(load_parts("cifar10", tmp_path)[0]) == cases.COUNTS["train"]
    with np.load(tmp_path / "cifar10.npz") as file:
        arrays = dict(file)
    arrays["x_test"][7, 3, 2, 1] ^= 1
    np.savez(tmp_path / "cifar10.npz", **arrays)
    with pytest.raises(ValueError, match="pixels or labels are not those of CIFAR-10"):
        load_parts("cifar10", tmp_path)


def test_published_checksums_are_valid():
    for source in SOURCES.values():
        sums = [*source.digests.values(), *(archive.md5 for archive in source.archives)]
        assert all(len(bytes.fromhex(value)) == 16 for value in sums)


class Harmful:
    def __reduce__(self):
        return (eval, ("__import__('pathlib').Path('ran').touch()",))


@pytest.mark.parametrize("content", [Harmful(), {b"data": np.array([Harmful()], dtype=object)}])
def test_pickles_that_would_run_code_are_refused(content, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "batch"
    path.write_bytes(pickle.dumps(content))
    with pytest.raises(pickle.UnpicklingError, match="only NumPy arrays are allowed"):
        read_cifar([path])
    assert not (tmp_path / "ran").exists()


def published(tmp_path, monkeypatch):
    """CIFAR-10 as an archive at a file:// address."""
    site = tmp_path / "site"
    site.mkdir()
    write_cifar10(site)
    path = site / "cifar-10-python.tar.gz"
    with tarfile.open(path, "w:gz") as tar:
        tar.add(site / "cifar-10-batches-py", "cifar-10-batches-py")
    archive = Archive(path.as_uri(), hashlib.md5(path.read_bytes()).hexdigest())
    monkeypatch.setitem(SOURCES, "cifar10", replace(SOURCES["cifar10"], archives=(archive,)))
    return path


def test_downloads_are_verified_unpacked_and_made_once(tmp_path, monkeypatch):
    path = published(tmp_path, monkeypatch)
    right = SOURCES["cifar10"]
    wrong = replace(right, archives=(Archive(path.as_uri(), "0" * 32),))
    monkeypatch.setitem(SOURCES, "cifar10", wrong)
    with pytest.raises(OSError, match="its MD5 sum must be"):
        download_missing("cifar10", tmp_path / "data")
    assert not list((tmp_path / "data").iterdir())
    monkeypatch.setitem(SOURCES, "cifar10", right)
    download_missing("cifar10", tmp_path / "data")
    path.unlink()
    download_missing("cifar10", tmp_path / "data")
    expect("cifar10", tmp_path / "data", {"classes": 10})


def test_single_files_are_downloaded_into_their_folder(tmp_path, monkeypatch):
    site = tmp_path / "site"
    cases.write_idx(site, "", True)
    archives = tuple(Archive(path.as_uri(), hashlib.md5(path.read_bytes()).hexdigest()) for path in site.iterdir())
    monkeypatch.setitem(SOURCES, "fashion-mnist", replace(SOURCES["fashion-mnist"], archives=archives))
    download_missing("fashion-mnist", tmp_path / "data")
    assert len(list((tmp_path / "data" / "fashion-mnist").iterdir())) == 4
    expect("fashion-mnist", tmp_path / "data", {"classes": 10, **GREY})


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


def labelled():
    labels = torch.arange(60) % 3
    return Images(torch.arange(60, dtype=torch.uint8).view(-1, 1, 1, 1), labels, tuple("abc"), (0.5,), (0.5,))


def test_noisy_labels_are_read_by_name_and_stay_with_their_images(tmp_path):
    clean = labelled()
    noisy = clean.labels.numpy().copy()
    noisy[::5] = (noisy[::5] + 1) % 3
    np.savez(tmp_path / "labels.npz", worse_label=noisy.astype(np.uint8), aggre_label=clean.labels.numpy())
    labels = load_noisy_labels(tmp_path / "labels.npz", "worse", clean)
    assert labels.dtype == torch.int64
    assert labels.tolist() == noisy.tolist()
    assert load_noisy_labels(tmp_path / "labels.npz", "aggregate", clean).tolist() == clean.labels.tolist()
    for part in split(replace(clean, noisy=labels), 0):
        rows = part.inputs.flatten().long()
        assert torch.equal(part.noisy, labels[rows])
        assert torch.equal(part.labels, clean.labels[rows])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda labels: {"y": labels}, "must hold the array worse_label; got y"),
        (lambda labels: {"worse_label": labels[:-1]}, "must hold 60 whole numbers"),
        (lambda labels: {"worse_label": labels + 1}, "classes from 0 to 2"),
        (lambda labels: {"worse_label": (labels + 1) % 3}, "in another order"),
        (lambda labels: {"worse_label": np.array([None] * 60, dtype=object)}, "Object arrays cannot be loaded"),
    ],
)
def test_wrong_files_of_noisy_labels_are_refused(change, message, tmp_path):
    with pytest.raises(ValueError, match=r"must be an \.npz file"):
        load_noisy_labels(tmp_path / "labels.npz", "worse", labelled())
    np.savez(tmp_path / "labels.npz", **change(labelled().labels.numpy()))
    with pytest.raises(ValueError, match=message):
        load_noisy_labels(tmp_path / "labels.npz", "worse", labelled())
    with pytest.raises(ValueError, match="must be one of worse, aggregate"):
        load_noisy_labels(tmp_path / "labels.npz", "worst", labelled())


def pixels():
    return torch.randint(0, 256, (20, 3, 16, 16), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("name", SHIFTS)
def test_every_shift_keeps_type_shape_and_range_and_repeats(name):
    x, shift = pixels(), SHIFTS[name]
    shifted = shift(x)
    assert shifted.dtype == torch.uint8
    assert shifted.shape == x.shape
    assert torch.equal(pickle.loads(pickle.dumps(shift))(x), shifted)
    unit = shift(x.double() / 255)
    assert 0 <= unit.min() < unit.max() <= 1
    if not name.startswith("noise"):  # which is drawn in the images' own precision
        assert ((255 * unit).round() - shifted).abs().max() <= 1
    weaker = SHIFTS[f"{name[:-1]}1"](x)
    assert name.endswith("1") or (shifted.float() - x).abs().mean() > (weaker.float() - x).abs().mean() > 0


def test_noise_has_its_standard_deviation_and_its_seed():
    x = torch.full((50, 3, 16, 16), 0.5, dtype=torch.float64)
    noise = gaussian_noise(x, 0.05, seed=1) - x
    assert noise.std().item() == pytest.approx(0.05, rel=0.03)
    assert not torch.equal(gaussian_noise(x, 0.05, seed=2) - x, noise)


def test_blur_spreads_a_point_and_keeps_flat_images():
    x = torch.zeros(1, 2, 33, 33, dtype=torch.float64)
    x[0, 1, 16, 16] = 1
    blurred = gaussian_blur(x, 1.5)
    assert blurred[0, 0].abs().max() == 0
    places = torch.arange(33, dtype=torch.float64) - 16
    for axis in (0, 1):
        assert (blurred[0, 1].sum(axis) @ places.square()).item() == pytest.approx(1.5**2, rel=0.05)
    assert blurred.sum().item() == pytest.approx(1)
    torch.testing.assert_close(gaussian_blur(x + 0.5, 5.0)[0, 0], x[0, 0] + 0.5)


def test_contrast_keeps_each_channels_mean_and_brightness_scales():
    x = pixels().double() / 255
    flat = contrast(x, 0.4)
    torch.testing.assert_close(flat.mean((2, 3)), x.mean((2, 3)))
    torch.testing.assert_close(flat.std((2, 3)), 0.4 * x.std((2, 3)))
    torch.testing.assert_close(brightness(x, 0.25), 0.25 * x)
    assert brightness(x, 3.0).max() == 1
