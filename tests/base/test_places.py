"""Tests of where files are saved: links, devices, modes, places without permission, and full disks."""

from __future__ import annotations

import json
import os
import resource
import stat
import tempfile
import threading
from pathlib import Path

import numpy as np
import pytest
import torch

from calibrant import posthoc
from calibrant.base.files import Format, read_arrays, write_container
from calibrant.data import TableEncoder

FITTED = posthoc.Temperature().fit(np.eye(3)[np.arange(30) % 3] * 2, np.arange(30) ** 2 % 3)
NETWORK = Format("network", {"Net": dict}, "save", tensors=True)


def save(path):
    posthoc.save_calibrator(FITTED, path)


@pytest.mark.parametrize(("mask", "mode"), [(0o022, 0o644), (0o077, 0o600), (0o002, 0o664)])
def test_the_mode_follows_the_umask(mask, mode, tmp_path):
    before = os.umask(mask)
    try:
        save(tmp_path / "a")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "a").stat().st_mode) == mode


def test_a_link_stays_and_its_target_is_replaced(tmp_path):
    (tmp_path / "there").mkdir()
    target, link = tmp_path / "there" / "target", tmp_path / "link"
    link.symlink_to("there/target")
    for _ in range(2):  # the target is missing at first
        save(link)
        assert link.is_symlink()
        assert target.is_file()
        assert not target.is_symlink()
        posthoc.load_calibrator(link)
        target.write_text("old")
    assert [p.name for p in (tmp_path / "there").iterdir()] == ["target"]


def test_a_link_to_itself_is_a_sentence(tmp_path):
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    with pytest.raises(ValueError, match="link that leads to itself"):
        save(tmp_path / "a")


def test_devices_and_pipes_are_written_to_and_stay(tmp_path):
    save("/dev/null")
    assert stat.S_ISCHR(os.stat("/dev/null").st_mode)
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    received = []
    reader = threading.Thread(target=lambda: received.append(pipe.read_bytes()))
    reader.start()
    save(pipe)
    reader.join(10)
    save(tmp_path / "file")
    assert received == [(tmp_path / "file").read_bytes()]
    assert stat.S_ISFIFO(pipe.stat().st_mode)


def test_a_missing_folder_or_a_folder_is_a_sentence(tmp_path):
    with pytest.raises(ValueError, match=r"The folder .*/no/folder does not exist; make it first"):
        save(tmp_path / "no" / "folder" / "file")
    with pytest.raises(ValueError, match="is a folder; give the name of a file in it"):
        save(tmp_path)
    with pytest.raises(ValueError, match="is a folder; give the name of a file in it"):
        posthoc.load_calibrator(tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(ValueError, match=r"does not exist|cannot be written"):
        save(tmp_path / "file" / "below")
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


@pytest.fixture
def nobody():
    """Root may write anywhere, so if the tests run as root, this test runs as another user."""
    own = os.geteuid()
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        if own == 0:
            os.seteuid(65534)
        yield Path(folder)
        os.seteuid(own)


def test_a_place_without_permission_is_a_sentence(nobody):
    closed = nobody if os.getuid() == 0 else Path("/")
    with pytest.raises(ValueError, match=r"file cannot be written: no permission\. Give another place\.$"):
        save(closed / "file")
    if os.getuid() == 0:
        os.seteuid(0)
        (nobody / "secret").touch(mode=0o600)
        os.seteuid(65534)
        with pytest.raises(ValueError, match=r"secret cannot be read: (no permission|Permission denied)\."):
            posthoc.load_calibrator(nobody / "secret")


def test_a_full_disk_is_reported_and_leaves_the_file(tmp_path):
    with pytest.raises(ValueError, match=r"/dev/full cannot be written: No space left on device\. Free some space"):
        save("/dev/full")
    path = tmp_path / "net"
    NETWORK.write(path, "Net", {"weight": torch.ones(10)})
    before = path.read_bytes()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))
    try:
        with pytest.raises(ValueError, match="net cannot be written: File too large"):
            NETWORK.write(path, "Net", {"weight": torch.ones(10_000)})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    "dtype",
    [torch.bfloat16, torch.float16, torch.float32, torch.float64, torch.int64, torch.int8, torch.uint8, torch.bool],
)
def test_tensors_of_every_type_come_back(dtype, tmp_path):
    tensors = {
        "empty": torch.empty(0, 3, dtype=dtype),
        "number": torch.ones((), dtype=dtype),
        "turned": torch.arange(6).reshape(2, 3).T.to(dtype),
    }
    NETWORK.write(tmp_path / "net", "Net", tensors | {"other": torch.ones(3, dtype=torch.bool)})
    found = NETWORK.read(tmp_path / "net", lambda _, __, arrays: arrays)
    for name, tensor in tensors.items():
        assert found[name].dtype == dtype
        assert torch.equal(found[name], tensor)
    found["number"][()] = 0  # it is a copy, not a view of the file


def test_what_has_no_type_in_the_file_is_a_sentence(tmp_path):
    with pytest.raises(ValueError, match="Arrays of complex64 cannot be saved"):
        NETWORK.write(tmp_path / "net", "Net", {"a": torch.ones(2, dtype=torch.complex64)})
    assert not list(tmp_path.iterdir())


def test_odd_names_of_columns_survive(tmp_path):
    encoder = TableEncoder().fit({"größe \ud800": [1.0, 2.0, 3.0], "\x00": [3.0, 1.0, 2.0]})
    encoder.save(tmp_path / "e")
    assert TableEncoder.load(tmp_path / "e").to_json() == encoder.to_json()


@pytest.mark.parametrize("length", range(8))
def test_arrays_begin_at_a_multiple_of_eight_bytes(length, tmp_path):
    write_container(tmp_path / "file", json.dumps("x" * length), {"a": np.arange(3.0)})
    assert int.from_bytes((tmp_path / "file").read_bytes()[:8], "little") % 8 == 0
    assert read_arrays((tmp_path / "file").read_bytes())["a"].tolist() == [0.0, 1.0, 2.0]
