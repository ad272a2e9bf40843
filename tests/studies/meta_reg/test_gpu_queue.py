"""The queue makes the runs that the stored results lack, until its time is up, and hands back results and logits."""

from __future__ import annotations

import io
import time
import zipfile
from pathlib import Path

import numpy as np
import pytest

from studies.images import load_parts
from studies.meta_reg import gpu_queue
from studies.meta_reg.gpu_queue import LISTS, Rows, Where
from studies.meta_reg.plan import known_methods
from studies.report import read_results

pytestmark = pytest.mark.filterwarnings("ignore:.*images, but .* has")
ROWS = Rows("meta-reg-cifar10", "cifar10", ("ce", "ce-ts"), 1)


def where(images: Path, tmp_path: Path, name: str = "work") -> Where:
    return Where(images, tmp_path / name, tmp_path / "results", "small-cnn", 1)


def make(rows: Rows, own: Where, *, seconds: float = 600.0, left: float = 600.0) -> None:
    gpu_queue.work_through([rows], own, until=time.time() + seconds, left=left, device="cpu")


@pytest.fixture
def first(images: Path, tmp_path: Path) -> Path:
    """The folder with the results of a queue of two methods that share a network."""
    own = where(images, tmp_path)
    make(ROWS, own)
    gpu_queue.merge([ROWS], own, tmp_path / "results", megabytes=15)
    return tmp_path / "results"


def test_finished_runs_come_back_with_their_logits(first: Path) -> None:
    records = read_results(first / "meta-reg-cifar10.json").records
    assert [(r["method"], r["seed"]) for r in records] == [("ce", 0), ("ce-ts", 0)]
    with zipfile.ZipFile(first / "logits-1.zip") as content:
        (name,) = content.namelist()
        stored = np.load(io.BytesIO(content.read(name)))
    assert name == "cifar10-short-ce-0.npz"
    assert stored["test_logits"].dtype == np.float16
    assert {"val_logits", "meta_logits", "test_labels"} <= set(stored.files)


def test_only_runs_that_the_results_lack_are_made(first: Path, images: Path, tmp_path: Path) -> None:
    own = where(images, tmp_path, "second machine")
    assert own.missing(ROWS) == 0
    more = Rows("meta-reg-cifar10", "cifar10", ("ce", "focal"), 1)
    assert own.missing(more) == 1
    make(more, own)
    gpu_queue.merge([more], own, tmp_path / "out", megabytes=15)
    records = read_results(tmp_path / "out" / "meta-reg-cifar10.json").records
    assert [r["method"] for r in records] == ["ce", "ce-ts", "focal"]
    assert len(list((tmp_path / "second machine").rglob("*.npz"))) == 1


@pytest.mark.parametrize("times", [{"seconds": -1.0}, {"left": 30.0}])
def test_no_run_is_started_without_the_time_for_it(images: Path, tmp_path: Path, times: dict[str, float]) -> None:
    own = where(images, tmp_path)
    make(ROWS, own, **times)
    assert own.missing(ROWS) == 2
    gpu_queue.merge([ROWS], own, tmp_path / "out", megabytes=15)
    assert not list((tmp_path / "out").iterdir())


def test_logits_are_packed_in_parts(tmp_path: Path) -> None:
    paths = [tmp_path / name for name in "abcd"]
    for path, size in zip(paths, (4000, 4000, 20_000, 1000), strict=True):
        path.write_bytes(bytes(size))
    found = [[path.name for path in part] for part in gpu_queue._parts(paths, 10_000)]
    assert found == [["a", "b"], ["c"], ["d"]]


def test_lists_name_methods_of_the_study() -> None:
    for listed in LISTS.values():
        for rows in listed:
            assert set(rows.methods) <= set(known_methods())


@pytest.mark.filterwarnings("ignore:.*Tiny-ImageNet")
def test_zip_parts_become_one_file_of_pixels(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    rng = np.random.default_rng(0)
    names, root = ["n01", "n02"], "tiny-imagenet-200"

    def jpeg() -> bytes:
        content = io.BytesIO()
        image.fromarray(rng.integers(0, 255, (64, 64, 3), dtype=np.uint8)).save(content, "JPEG")
        return content.getvalue()

    with (
        zipfile.ZipFile(tmp_path / "tiny-imagenet-1.zip", "w") as one,
        zipfile.ZipFile(tmp_path / "tiny-imagenet-2.zip", "w") as two,
    ):
        one.writestr(f"{root}/wnids.txt", "\n".join(names))
        two.writestr(
            f"{root}/val/val_annotations.txt", "".join(f"val_{i}.JPEG\t{names[i]}\t0\t0\t1\t1\n" for i in (0, 1))
        )
        for i in (0, 1):
            one.writestr(f"{root}/val/images/val_{i}.JPEG", jpeg())
            for name in names:
                two.writestr(f"{root}/train/{name}/images/{name}_{i}.JPEG", jpeg())
    gpu_queue.unpack(tmp_path)
    for packed, unpacked in zip(
        load_parts("tiny-imagenet", tmp_path), load_parts("tiny-imagenet", tmp_path / "unpacked"), strict=True
    ):
        assert packed.inputs.equal(unpacked.inputs)
        assert packed.labels.equal(unpacked.labels)
