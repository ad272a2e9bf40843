"""The result file of tables: what is kept, what is measured again, and the digest of the code behind it."""

import re
from pathlib import Path

import pytest
from calibrant.experiments.table_store import MEASURED, TRAINED, Store, code_digest, made_by

import calibrant
from calibrant.experiments.tables.data import FLOOR
from calibrant.experiments.tables.page import make_report
from calibrant.report import read_results, write_results
from tests.experiments.cases import results_of, scored


def stored(tmp_path, **changes):
    """A result file of two methods, and the store of a run with these changes; which of them it keeps."""
    methods = ["standard", "sklearn-mlp"]
    about = {"split": [1], "nll_floor": FLOOR, "methods": dict.fromkeys(methods, ""), "made_by": made_by(methods)}
    config = about | {"costs": {}, "tables": {"t": {}, "u": {}}, "left_out": {}}
    records = [{"table": t, "method": m, "seed": 0} for t in "tu" for m in methods]
    write_results(tmp_path / "results.json", config | changes.pop("before", {}), records)
    store = Store(tmp_path / "results.json", config | changes.pop("now", {}), **changes)
    return {(r["table"], r["method"]) for r in store.records}


def test_results_of_other_code_are_not_kept(tmp_path):
    assert len(stored(tmp_path)) == 4
    old = {"before": {"made_by": {"standard": "code 123", "sklearn-mlp": "scikit-learn 0.1"}}}
    assert stored(tmp_path, **old) == set()
    assert stored(tmp_path, before={"made_by": {}}) == set()
    assert stored(tmp_path, now={"left_out": {"sklearn-mlp": "why"}}) == {("t", "standard"), ("u", "standard")}


def test_a_file_of_an_older_version_is_measured_again_and_still_gives_its_report(tmp_path, capsys):
    """It says scikit-learn's version alone of the peers, and a digest of fewer folders of ours."""
    older = {"standard": "code 05a1a301066a", "sklearn-mlp": made_by(["sklearn-mlp"])["sklearn-mlp"].split(",")[0]}
    assert stored(tmp_path, before={"made_by": older}) == set()
    assert "Measured again, for it has changed: sklearn-mlp, standard." in capsys.readouterr().err
    records = scored([[0.1, 0.2]], ["standard", "sklearn-mlp"])
    text = make_report(results_of(records, made_by=older)).to_markdown()
    assert "code 05a1a301066a" in text


def test_a_file_that_is_gone_on_with_says_what_made_the_rest_of_it(tmp_path):
    stored(tmp_path, before={"command": "first", "device": "cuda", "other_runs": [{"command": "zeroth"}]})
    store = Store(tmp_path / "results.json", {**read_results(tmp_path / "results.json").config, "command": "second"})
    assert [run["command"] for run in store.config["other_runs"]] == ["zeroth", "first"]
    assert store.config["other_runs"][1]["device"] == "cuda"
    assert "torch" in store.config["other_runs"][1]["versions"]


def test_fresh_forgets_the_tables_and_methods_of_this_run(tmp_path):
    asked = {"tables": {"t": {}}, "methods": {"standard": ""}}
    assert len(stored(tmp_path, now=asked)) == 4
    assert ("t", "standard") not in (kept := stored(tmp_path, now=asked, fresh=True))
    assert len(kept) == 3


@pytest.mark.parametrize(
    ("part", "changed"),
    [
        *((part, {"standard"}) for part in ("methods", "bilevel", "posthoc", "losses", "models")),
        *((part, {"standard", "sklearn-mlp"}) for part in ("data", "metrics", "selective")),
        ("plots", set()),
    ],
)
def test_the_digest_is_of_all_that_a_record_depends_on(part, changed, tmp_path, monkeypatch):
    for folder in (*TRAINED, *MEASURED, "plots"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "a.py").write_text("1")
    monkeypatch.setattr("calibrant.experiments.table_store.calibrant.__file__", str(tmp_path / "__init__.py"))
    monkeypatch.setattr("calibrant.experiments.table_store.code_digest", code_digest.__wrapped__)
    before = made_by(["standard", "sklearn-mlp"])
    (tmp_path / part / "a.py").write_text("2")
    after = made_by(["standard", "sklearn-mlp"])
    assert {name for name in before if before[name] != after[name]} == changed
    assert after["sklearn-mlp"].startswith("scikit-learn ")


def test_the_digest_covers_every_room_that_a_record_is_made_by():
    """What the methods import, and what the experiments measure with: a room that is added here must be added there."""
    package = Path(calibrant.__file__).parent
    wanted, found = ["methods"], {"methods", "data", "metrics", "selective"}
    while wanted:
        for file in (package / wanted.pop()).rglob("*.py"):
            rooms = set(re.findall(r"^\s*from calibrant\.([a-z]+)", file.read_text(), re.M)) - found
            found |= rooms
            wanted += rooms
    assert found == {*TRAINED, *MEASURED}
