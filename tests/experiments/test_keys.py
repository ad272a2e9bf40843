"""Keys of runs: when two are equal, and the digest of the code behind a record."""

import re
from pathlib import Path

import pytest

import calibrant
from calibrant.experiments.common import keys
from calibrant.experiments.common.keys import BASE, MEASURED, SCORING, TRAINED, code_digest, make_key, name_of
from calibrant.experiments.tables.peers import made_by


def test_key_is_its_fields_and_config_digests_the_rest():
    one = make_key(settings="a", code="1", dataset="bac", method="bo4sc", seed=3)
    assert one.name == "dataset=bac method=bo4sc seed=3"
    assert one["seed"] == 3
    assert {one: 1}[make_key(settings="a", code="1", dataset="bac", method="bo4sc", seed=3)] == 1
    others = [
        make_key(settings="b", code="1", dataset="bac", method="bo4sc", seed=3),
        make_key(settings="a", code="1", data="x", dataset="bac", method="bo4sc", seed=3),
    ]
    assert len({key.config for key in (one, *others)}) == 3
    assert {key.name for key in others} == {one.name}


def test_a_whole_number_is_the_same_as_a_float():
    assert name_of([("lr", 300.0), ("steps", 5)]) == name_of([("lr", 300), ("steps", 5.0)]) == "lr=300 steps=5"
    assert name_of([("lr", 0.1234567)]) == "lr=0.1234567"


def test_file_names_are_safe_and_differ():
    found = {
        make_key(settings="", code="", method=name, seed=0).file_name
        for name in ("η_w × 10", "η_w × 1", "../x", "a/b", "a_b", "y" * 200)
    }
    assert len(found) == 6
    assert all(re.fullmatch(r"[\w.=-]{1,100}", name, re.ASCII) and not name.startswith(".") for name in found)


@pytest.mark.parametrize(
    ("part", "changed"),
    [
        *((part, {"standard"}) for part in TRAINED),
        *((part, {"standard", "sklearn-mlp"}) for part in (*MEASURED, "experiments/common", "experiments/tables")),
        ("plots", set()),
    ],
)
def test_the_digest_is_of_all_that_a_record_depends_on(part, changed, tmp_path, monkeypatch):
    folders = (*TRAINED, *MEASURED, "plots", "experiments/common", "experiments/tables")
    for folder in folders:
        (tmp_path / folder).mkdir(parents=True)
        for name in ("a", "records", "data", "peers", "bases"):
            (tmp_path / folder / f"{name}.py").write_text("1")
    for file in BASE:
        (tmp_path / file).write_text("1")
    monkeypatch.setattr(calibrant, "__file__", str(tmp_path / "__init__.py"))
    monkeypatch.setattr(keys, "code_digest", code_digest.__wrapped__)
    monkeypatch.setattr("calibrant.experiments.tables.peers.code_digest", code_digest.__wrapped__)
    before = made_by(["standard", "sklearn-mlp"])
    for name in ("a", "records", "data"):
        (tmp_path / part / f"{name}.py").write_text("2")
    after = made_by(["standard", "sklearn-mlp"])
    assert {name for name in before if before[name] != after[name]} == changed
    assert after["sklearn-mlp"].startswith("scikit-learn ")


def test_digest_covers_every_package_behind_a_record():
    """Everything that methods import and experiments measure with: a new package must be added to the digest."""
    package = Path(calibrant.__file__).parent
    wanted, found = ["methods"], {"methods", "data", "metrics", "selective"}
    while wanted:
        for file in (package / wanted.pop()).rglob("*.py"):
            rooms = set(re.findall(r"^\s*from calibrant\.([a-z]+)", file.read_text(), re.M)) - found
            found |= rooms
            wanted += rooms
    assert found == {*TRAINED, *MEASURED}
    assert all((package / file).exists() for file in (*BASE, *SCORING))


def test_wording_does_not_change_the_digest(tmp_path, monkeypatch):
    monkeypatch.setattr(calibrant, "__file__", str(tmp_path / "__init__.py"))

    def digest(text):
        (tmp_path / "a.py").write_text(text)
        return code_digest.__wrapped__("a.py")

    first = digest('"""One."""\n\n\ndef f(x):\n    """Old words."""\n    return "#" + x\n')
    assert first == digest('"""Two\nlines."""\n\ndef f(x):\n    """New."""\n    # why\n    return "#" + x\n')
    assert first != digest('"""One."""\n\n\ndef f(x):\n    """Old words."""\n    return "%" + x\n')
