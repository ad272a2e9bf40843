"""Tests of the experiment on tables: splits, scores, ranks, tests, and the command."""

import numpy as np
import pytest

from calibrant import CrossCalibrated, metrics
from calibrant.methods import BO4SC, METHODS, SelfCalibrated, Standard
from studies.report import read_results
from studies.tables import peers as table_peers
from studies.tables import study as tables
from studies.tables.data import prepare
from studies.tables.page import make_report
from studies.tables.peers import run_peers
from tests.studies.cases import UNSUITABLE, write_table

SKLEARN = [name for name in table_peers.PEERS if table_peers.base_of(name)[0].package == "sklearn"]


def test_baselines_use_the_table_setting_and_the_rest_the_registry():
    own = tables.table_methods()
    assert own["standard"] == Standard(epochs=None, learning_rate=tables.LEARNING_RATE)
    assert own["label-smoothing"].smoothing == METHODS["label-smoothing"].method.smoothing
    assert own["temperature"].base == own["standard"]
    assert own["ensemble"].base == own["temperature-stopped"].base == own["standard-stopped"]
    assert own["self-calibrated"] == SelfCalibrated(members=("network", "trees", "linear"))
    assert own["self-calibrated-network"] == SelfCalibrated()
    assert own["bo4sc"] == BO4SC()
    assert own["self-calibrated-former"] == METHODS["self-calibrated"].method == SelfCalibrated(embedding=None)
    assert [*METHODS, "self-calibrated-network", "self-calibrated-former"] == list(own)


def test_unsuitable_tables_are_left_out_and_dropped_columns_named(folder, tmp_path, short, capsys):
    lines = (folder / "one.csv").read_text().splitlines()
    (folder / "noted.csv").write_text(
        "\n".join(["name,same," + lines[0], *(f"patient {k},1,{line}" for k, line in enumerate(lines[1:]))])
    )
    (folder / "few.csv").write_text(UNSUITABLE["few"][0])
    tables.STUDY.run(data=folder, seeds=1, methods=["standard"], out=tmp_path, device="cpu", only=["few", "noted"])
    assert "The table few is left out: few.csv: 3 samples are too few" in capsys.readouterr().err
    tables.STUDY.run(data=folder, seeds=1, methods=["standard"], out=tmp_path, device="cpu", only=["one"])
    results = read_results(tmp_path / "results.json")
    assert {r["table"] for r in results.records} == set(results.config["tables"]) == {"noted", "one"}
    assert list(results.config["unsuitable"]) == ["few"]
    assert list(results.config["notes"]) == ["noted"]
    first, second = results.config["notes"]["noted"]
    assert first.startswith("Column 'name' is left out: 72 different texts in 72 rows")
    assert second == "Left out as constant: 'same'."
    text = make_report(results).to_markdown()
    for said in (first, second, "Left out: few (few.csv: 3 samples are too few", "1 method, 2 tables, 1 seed:"):
        assert said in text
    (folder / "few.csv").write_text((folder / "one.csv").read_text())
    tables.STUDY.run(data=folder, seeds=1, methods=["standard"], out=tmp_path, device="cpu", only=["few"])
    assert read_results(tmp_path / "results.json").config["unsuitable"] == {}


def test_cross_fitting_says_if_a_class_is_too_small(tmp_path, short):
    path = write_table(tmp_path / "t.csv")
    with path.open("a") as file:
        file.write("1,1,red,lonely\n")
    (record,) = run_peers("t", path, 0, ["sklearn-isotonic"])
    assert (
        record["failure"]
        == "Each class must have two rows or more outside the test part, for cross-fitting; got one with a single row."
    )


@pytest.mark.parametrize("prefix", ["sklearn", "hgb"])
def test_peers_equal_scikit_learn(folder, monkeypatch, prefix):
    from sklearn.calibration import CalibratedClassifierCV
    from sklearn.ensemble import HistGradientBoostingClassifier
    from sklearn.model_selection import StratifiedKFold
    from sklearn.neural_network import MLPClassifier

    monkeypatch.setitem(table_peers.SETTINGS, "hidden_layer_sizes", (4,))
    monkeypatch.setitem(table_peers.BOOSTING, "max_iter", 20)
    names = [name for name in table_peers.PEERS if name.split("-")[0] == prefix]
    records = run_peers("one", folder / "one.csv", 3, names)
    assert [r["method"] for r in records] == names
    split = prepare("one", folder / "one.csv", 3)
    bases = {
        "sklearn": MLPClassifier(**table_peers.SETTINGS, random_state=3),
        "hgb": HistGradientBoostingClassifier(**table_peers.BOOSTING, random_state=3),
    }
    base = bases[prefix]
    wanted = [(records[0], base), (records[2], CalibratedClassifierCV(base, method="sigmoid", cv=5))]
    if prefix == "hgb":
        wanted.append((records[4], CrossCalibrated(base, cv=StratifiedKFold(5))))
    for record, model in wanted:
        probs = model.fit(*split.pooled()).predict_proba(split.inputs.numpy()).astype(float)
        assert record["nll"] == pytest.approx(metrics.nll(probs, split.labels), rel=1e-5)
        assert record["seconds"] > 0


def test_a_table_that_became_unsuitable_takes_its_records_along(folder, tmp_path, short):
    given = {"data": folder, "seeds": 1, "methods": ["standard"], "out": tmp_path, "device": "cpu"}
    tables.STUDY.run(**given)
    (folder / "two.csv").write_text(UNSUITABLE["few"][0])
    tables.STUDY.run(**given)
    results = read_results(tmp_path / "results.json")
    assert {r["table"] for r in results.records} == set(results.config["tables"]) == {"one"}
    assert list(results.config["unsuitable"]) == ["two"]


def test_a_peer_that_is_not_installed_is_left_out_aloud(folder, tmp_path, short, monkeypatch, capsys):
    monkeypatch.setattr(table_peers.importlib.util, "find_spec", lambda package: package == "sklearn" or None)
    lacking = table_peers.missing_peers()
    assert list(lacking) == [name for name in table_peers.PEERS if name.startswith(("lightgbm", "catboost", "realmlp"))]
    monkeypatch.setattr(tables, "missing_peers", lambda: lacking)
    page = tables.STUDY.run(
        data=folder, seeds=1, only=["one"], methods=["standard", "lightgbm"], out=tmp_path / "out", device="cpu"
    )
    reason = "it needs the package lightgbm, which is not installed"
    assert f"lightgbm is left out: {reason}" in capsys.readouterr().err
    assert {r["method"] for r in read_results(tmp_path / "out" / "results.json").records} == {"standard"}
    assert f"Left out: lightgbm: {reason}" in page.read_text()


def test_a_run_is_split_resumed_and_reported(folder, tmp_path, short, monkeypatch, capsys):
    out = tmp_path / "out"
    arguments = {"data": folder, "seeds": 2, "out": out, "device": "cpu"}
    tables.STUDY.run(**arguments, only=["one"], methods=["standard", "sklearn-mlp"])
    assert len(read_results(out / "results.json").records) == 4
    page = tables.STUDY.run(**arguments)
    results = read_results(out / "results.json")
    keys = {(r["table"], r["method"], r["seed"]) for r in results.records}
    assert len(keys) == len(results.records) == 2 * 2 * (len(short) + len(SKLEARN))
    assert all(r["failure"] is None and np.isfinite(r["nll"]) for r in results.records)
    assert set(results.config["tables"]) == {"one", "two"}
    text = page.read_text()
    assert "has the best mean rank in NLL" in text
    printed = capsys.readouterr().out
    assert "| self-calibrated" in printed
    assert "self-calibrated has the best mean rank in NLL among all methods" in printed
    assert "How the defaults were found" not in text  # which is about tables that are not here
    assert "2 tables, 2 seeds" in text

    def never(*arguments):
        raise AssertionError("measured already")

    with monkeypatch.context() as patch:
        patch.setattr("studies.common.runs.run_all", never)
        patch.setattr(tables, "run_peers", never)
        tables.STUDY.run(**arguments)
        for name in ("results.json", "results.jsonl"):
            again = tables.STUDY.run(source=out / name, out=tmp_path / "again")
            assert again.read_text() == text
    short["standard"] = Standard(hidden=(4,), epochs=6)
    tables.STUDY.run(**arguments, methods=["standard"], only=["one"])
    again = read_results(out / "results.json")
    assert "epochs=6" in again.config["methods"]["standard"]
    old = {(r["table"], r["method"], r["seed"]): r["nll"] for r in results.records if r["method"] != "standard"}
    new = {(r["table"], r["method"], r["seed"]): r["nll"] for r in again.records if r["method"] != "standard"}
    assert new == old
    assert [(r["table"], r["seed"]) for r in again.records if r["method"] == "standard"] == [("one", 0), ("one", 1)]


def test_costs_of_single_fits_are_stored_with_the_scores(folder, tmp_path, short, monkeypatch):
    """Their keys differ: neither replaces the other, and neither is measured again."""
    given = {"data": folder, "out": tmp_path, "device": "cpu", "only": ["one"]}
    names = ["standard", "hgb-temperature"]
    tables.STUDY.run(**given, seeds=2, methods=names)
    tables.STUDY.run(**given, costs=True, methods=names)
    records = read_results(tmp_path / "results.json").records
    assert [(r["method"], r["seed"]) for r in records if "threads" in r] == [(name, 0) for name in names]
    for record in records:
        if "threads" in record:
            assert record["threads"] == 2
            assert record["seconds"] > 0
            assert record["predict_seconds"] > 0
            assert record["peak_memory"] is None or record["peak_memory"] >= 0
            assert "nll" not in record
    assert len(records) == 6
    monkeypatch.setattr("studies.tables.costs.prepare", None)
    tables.STUDY.run(**given, costs=True, methods=names)
    assert read_results(tmp_path / "results.json").records == records
    (tmp_path / "results.jsonl").unlink()  # gone on with from the result file alone
    tables.STUDY.run(**given, costs=True, methods=names)
    assert read_results(tmp_path / "results.json").records == records


def test_records_of_rivals_that_are_not_installed_here_stay(folder, tmp_path, short, monkeypatch):
    given = {"data": folder, "out": tmp_path, "device": "cpu", "only": ["one"], "seeds": 1}
    tables.STUDY.run(**given, methods=["hgb"])
    monkeypatch.setattr(tables, "missing_peers", lambda: {"hgb": "it needs what is not here"})
    tables.STUDY.run(**given, methods=["standard"])
    results = read_results(tmp_path / "results.json")
    assert {r["method"] for r in results.records} == {"hgb", "standard"}
    assert "hgb" not in results.config["left_out"]


@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("lightgbm", "n_jobs"),
        ("catboost", "thread_count"),
        pytest.param("realmlp-temperature", "n_threads", marks=pytest.mark.slow),
    ],
)
def test_rivals_use_no_more_threads_than_ours(name, given, monkeypatch):
    base = table_peers.base_of(name)[0]
    pytest.importorskip(base.package)
    monkeypatch.setattr("torch.get_num_threads", lambda: 3)
    assert base.build(0).get_params()[given] == 3


def test_unknown_methods_are_refused(folder, tmp_path, short):
    with pytest.raises(ValueError, match=r"methods must be among standard.* got magic"):
        tables.STUDY.run(data=folder, out=tmp_path, methods=["magic"])
