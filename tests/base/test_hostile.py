"""Tests of files that were changed on purpose, with a valid checksum: an error in one sentence, and little memory."""

from __future__ import annotations

import json
import resource
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import calibrant
from calibrant import estimators, posthoc, selective
from calibrant.base.files import VERSION, pack, read_arrays, read_content, unpack, write_container
from calibrant.data import TableEncoder

HERE = Path(__file__).parent


def parts(kind):
    raw = (HERE / f"version-{VERSION}-{kind}.calibrant").read_bytes()
    return read_content(raw), read_arrays(raw)


def refused(load, header, arrays, path):
    """The sentence of the error that loading raises."""
    write_container(path, json.dumps(header), arrays)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(ValueError, match=path.name) as error:
        load(path)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 500_000  # KiB
    assert "\n" not in str(error.value)
    return str(error.value)


def network(path):
    return calibrant.Trained.load(path, nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, 2)))


@pytest.mark.parametrize(
    "read", [selective.RejectionRule.from_json, selective.SetRule.from_json, TableEncoder.from_json]
)
def test_deeply_nested_text(read):
    with pytest.raises(ValueError, match="to_json"):
        read("[" * 100_000)


def test_a_few_bytes_do_not_become_gigabytes_of_text():
    found = unpack({"texts": ["no", "yes"], "dtype": "<U500000000"}, {})
    assert found.tolist() == ["no", "yes"]
    assert found.nbytes < 1000
    for dtype in ("S500000000", "V500000000", "i8"):
        with pytest.raises(ValueError, match="not text"):
            unpack({"texts": ["no"], "dtype": dtype}, {})
    with pytest.raises(ValueError, match="not text"):
        unpack({"texts": [["no"]], "dtype": "|O"}, {})


@pytest.mark.parametrize("dtype", ["U3", "U60", "O"])
def test_text_comes_back_with_its_type(dtype):
    given = np.array(["a", "bcd"], dtype=dtype)
    found = unpack(pack(given, "key", {}), {})
    assert found.dtype == given.dtype
    assert found.tolist() == given.tolist()


@pytest.mark.parametrize("value", [{}, {"nothing": 1}, {"array": "nowhere"}])
def test_values_without_a_kind(value, tmp_path):
    header, arrays = parts("temperature")
    header["state"]["dict"]["temperature_"] = value
    assert "damaged" in refused(posthoc.load_calibrator, header, arrays, tmp_path / "file")


@pytest.mark.parametrize("name", [[], {}, None, 3])
def test_the_name_of_a_class_is_text(name, tmp_path):
    header, arrays = parts("temperature")
    header["class"] = name
    assert "unknown to calibrant" in refused(posthoc.load_calibrator, header, arrays, tmp_path / "file")


@pytest.mark.parametrize("name", ["feature", "left", "right", "column"])
def test_trees_whose_nodes_are_not_integers(name, tmp_path):
    """NaN is neither too small nor too large, and compiled code would read memory at any address."""
    header, arrays = parts("self")
    (key,) = (key for key in arrays if key.endswith(f"trees.{name}"))
    arrays[key] = np.full(len(arrays[key]), np.nan)
    assert "damaged" in refused(estimators.load_classifier, header, arrays, tmp_path / "file")


def test_out_of_fold_labels_are_classes(tmp_path):
    header, arrays = parts("self")
    for wrong in (99, -1, 0.5):
        changed = {**arrays, "oof_labels_": np.full(len(arrays["oof_labels_"]), wrong)}
        assert "labels" in refused(estimators.load_classifier, header, changed, tmp_path / "file")


def test_columns_that_no_network_has_take_no_memory(tmp_path):
    header, arrays = parts("bo4sc")
    scaling = header["state"]["scaling_"]["tuple"]
    columns = len(arrays[scaling[0]["array"]])
    scaling[3] = pack(np.full(columns, 10**9), "many", arrays)
    assert "too few parameters" in refused(estimators.load_classifier, header, arrays, tmp_path / "file")


@pytest.mark.parametrize("count", [None, "2", 0, 1.5, {}])
def test_the_number_of_networks(count, tmp_path):
    header, arrays = parts("network")
    header["networks"] = count
    assert "how many networks" in refused(network, header, arrays, tmp_path / "file")


def test_the_size_of_a_map_is_that_of_its_arrays(tmp_path):
    header, arrays = parts("map-network")
    header["map"]["hidden"] = 10**8
    assert "units" in refused(network, header, arrays, tmp_path / "file")


@pytest.mark.parametrize("place", [2, 3])
def test_one_part_of_the_scaling_has_another_length(place, tmp_path):
    header, arrays = parts("frame")
    key = header["state"]["scaling_"]["tuple"][place]["array"]
    arrays[key] = np.append(arrays[key], arrays[key][:1])
    assert "columns" in refused(estimators.load_classifier, header, arrays, tmp_path / "file")


def test_arrays_of_an_unknown_type_are_refused(tmp_path):
    header, arrays = parts("temperature")
    arrays["odd"] = torch.ones(2, dtype=torch.bfloat16)
    assert "BF16" in refused(posthoc.load_calibrator, header, arrays, tmp_path / "file")
