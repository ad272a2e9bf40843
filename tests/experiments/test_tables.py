"""Every method on a folder of tables: splits, scores, ranks, tests, and the run as a user starts it."""

import dataclasses
import json
import re
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import wilcoxon

import calibrant
from calibrant import metrics
from calibrant.data import blobs
from calibrant.experiments import table_peers, tables
from calibrant.experiments.records import Predicted
from calibrant.experiments.table_data import DEVELOPMENT, FLOOR, SCORES, examine, find_tables, prepare, score
from calibrant.experiments.table_peers import RememberedMLP, run_peers
from calibrant.experiments.table_ranks import against, critical_difference, friedman, ranking
from calibrant.experiments.table_report import (
    JUDGED,
    LEVEL,
    make_report,
    rankings,
    to_terminal,
    untried,
    verdicts,
    write_report,
)
from calibrant.experiments.table_store import MEASURED, TRAINED, Store, code_digest, made_by
from calibrant.methods import BO4SC, METHODS, SelfCalibrated, Standard
from calibrant.report import Results, read_results, write_results

ROOT = Path(__file__).parents[2]


def write_table(path, rows=120, classes=2, seed=0):
    data = blobs(rows, std=2.0, seed=seed)
    lines = ["a,b,colour,target"]
    for (a, b), label in zip(data.inputs, data.labels, strict=True):
        lines.append(f"{a:.4f},{b:.4f},{'red' if a > 0 else 'blue'},class {label % classes}")
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.fixture
def folder(tmp_path):
    data = tmp_path / "data"
    data.mkdir()
    write_table(data / "one.csv")
    write_table(data / "two.csv", rows=150, classes=3, seed=1)
    return data


@pytest.fixture
def short(monkeypatch):
    """The real methods, for a few steps."""
    own = {
        "standard": Standard(hidden=(4,), epochs=5),
        "temperature": dataclasses.replace(METHODS["temperature"].method, base=Standard(hidden=(4,), epochs=5)),
        "ensemble": dataclasses.replace(METHODS["ensemble"].method, base=Standard(hidden=(4,), epochs=5), members=2),
        "self-calibrated": SelfCalibrated(hidden=(4,), epochs=5, folds=2),
    }
    monkeypatch.setattr(tables, "table_methods", lambda: own)
    monkeypatch.setitem(table_peers.SETTINGS, "hidden_layer_sizes", (4,))
    monkeypatch.setitem(table_peers.SETTINGS, "max_iter", 5)
    return own


def rows_of(values, methods="ab"):
    """Records of one seed a table from an array (tables, methods)."""
    return [
        {"table": f"t{t}", "method": m, "seed": 0, "nll": v, "smooth_ece": v}
        for t, row in enumerate(values)
        for m, v in zip(methods, row, strict=True)
    ]


def scored(values, methods, tables=None, seeds=1):
    """Whole records from an array (tables, methods): each seed adds 0.01 to all."""
    found = []
    for t, row in enumerate(values):
        for method, value in zip(methods, row, strict=True):
            for seed in range(seeds):
                record = dict.fromkeys(SCORES, value + 0.01 * seed) | {"clipped": 0.0, "failure": None, "seconds": 1.0}
                found.append(record | {"table": tables[t] if tables else f"t{t}", "method": method, "seed": seed})
    return found


def results_of(records, **config):
    about = {"rows": 1, "columns": 1, "classes": 2}
    known = {"methods": {r["method"]: "…" for r in records}, "tables": {r["table"]: about for r in records}}
    return Results(known | {"split": [0.6, 0.2, 0.2], "nll_floor": FLOOR} | config, {}, records)


def test_baselines_train_at_the_setting_for_tables_and_the_rest_is_the_registry():
    own = tables.table_methods()
    assert own["standard"] == Standard(epochs=None, learning_rate=tables.LEARNING_RATE)
    assert own["label-smoothing"].smoothing == METHODS["label-smoothing"].method.smoothing
    assert own["temperature"].base == own["standard"]
    assert own["ensemble"].base == own["temperature-stopped"].base == own["standard-stopped"]
    assert own["self-calibrated"] == METHODS["self-calibrated"].method
    assert own["bo4sc"] == BO4SC()
    assert list(METHODS) == list(own)


def test_tables_are_found_by_name_and_errors_name_what_there_is(folder, tmp_path):
    (folder / "notes.txt").write_text("no table")
    assert list(find_tables(folder)) == ["one", "two"]
    assert list(find_tables(folder, ["two"])) == ["two"]
    with pytest.raises(ValueError, match="no table called three; it has one, two"):
        find_tables(folder, ["three"])
    with pytest.raises(ValueError, match="holds no tables"):
        find_tables(tmp_path / "data" / "..", None)
    with pytest.raises(FileNotFoundError, match="no folder"):
        find_tables(tmp_path / "nowhere")
    (folder / "one.tsv").write_text("a\ttarget\n1\t0\n")
    with pytest.raises(ValueError, match=r"one\.csv and one\.tsv"):
        find_tables(folder)


def test_a_name_loses_no_more_than_the_endings_that_say_what_a_file_is(tmp_path):
    for name in ("my.table.v2.csv", "my.table.v3.TSV.gz", "my.csv.parquet"):
        (tmp_path / name).touch()
    assert list(find_tables(tmp_path)) == ["my.csv", "my.table.v2", "my.table.v3"]


def test_a_split_is_stratified_encoded_by_its_training_part_and_differs_by_seed(folder):
    split = prepare("two", folder / "two.csv", 0)
    assert (len(split.task.train), len(split.task.val), len(split.labels)) == (90, 30, 30)
    numbers = split.task.train.inputs[:, :2]
    assert numbers.mean(0).numpy() == pytest.approx(0, abs=1e-5)
    assert numbers.std(0, correction=0).numpy() == pytest.approx(1, abs=1e-4)
    share = np.bincount(split.task.train.labels.numpy()) / 90
    assert np.bincount(split.labels) / 30 == pytest.approx(share, abs=0.05)
    x, y = split.pooled()
    assert x.shape == (120, split.inputs.shape[1])
    assert len(y) == 120
    assert not np.array_equal(split.labels, prepare("two", folder / "two.csv", 1).labels)


UNSUITABLE = {
    "few": ("a,target\n1,0\n2,1\n3,0\n", r"few\.csv: 3 samples are too few"),
    "gaps": ("a,target\n" + "1,x\n2,\n" * 10, r"gaps\.csv: 10 of the 20 labels in 'target' are missing"),
    "one-class": ("a,target\n" + "1,x\n2,x\n" * 10, r"one-class\.csv has one class only, x"),
    "same": ("a,target\n" + "1,x\n1,y\n" * 10, r"same\.csv: No column of the table tells its rows apart"),
    "unlabelled": ("a,b\n1,2\n", r"unlabelled\.csv has no column called target"),
    "broken": ("", r"broken\.csv could not be read"),
}


@pytest.mark.parametrize("name", UNSUITABLE)
def test_a_table_that_cannot_be_learned_from_is_told_by_its_file(name, tmp_path):
    text, reason = UNSUITABLE[name]
    bad, good = tmp_path / f"{name}.csv", write_table(tmp_path / "good.csv")
    bad.write_text(text)
    found = examine({name: bad, "good": good}, range(2))
    assert (list(found.tables), list(found.unsuitable)) == (["good"], [name])
    assert re.match(reason, found.unsuitable[name])
    with pytest.raises(ValueError, match=f"^there is no table to learn from. {reason}"):
        examine({name: bad}, range(2))


def test_unsuitable_tables_are_left_out_of_a_run_and_dropped_columns_told(folder, tmp_path, short, capsys):
    lines = (folder / "one.csv").read_text().splitlines()
    (folder / "noted.csv").write_text(
        "\n".join(["name,same," + lines[0], *(f"patient {k},1,{line}" for k, line in enumerate(lines[1:]))])
    )
    (folder / "few.csv").write_text(UNSUITABLE["few"][0])
    page = tables.run(data=folder, seeds=1, methods=["standard"], out=tmp_path, device="cpu", only=["few", "noted"])
    assert "The table few is left out: few.csv: 3 samples are too few" in capsys.readouterr().err
    tables.run(data=folder, seeds=1, methods=["standard"], out=tmp_path, device="cpu", only=["one"])
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
    assert "with the ensemble" not in text
    assert "stands in the last columns" not in text
    assert page.exists()
    (folder / "few.csv").write_text((folder / "one.csv").read_text())
    tables.run(data=folder, seeds=1, methods=["standard"], out=tmp_path, device="cpu", only=["few"])
    assert read_results(tmp_path / "results.json").config["unsuitable"] == {}


def test_cross_fitting_says_that_a_class_of_one_row_is_too_small(tmp_path, short):
    path = write_table(tmp_path / "t.csv")
    with path.open("a") as file:
        file.write("1,1,red,lonely\n")
    (record,) = run_peers("t", path, 0, ["sklearn-isotonic"])
    assert record["failure"] == "A class has one row only in training and validation part, and cross-fitting needs two."


def test_a_wrong_zero_costs_the_floor_and_is_counted():
    probs = np.array([[1.0, 0.0], [0.2, 0.8]])
    found = Predicted(probs, probs.argmax(1), probs.max(1))
    scores = score(found, np.array([1, 1]))
    assert scores["clipped"] == 0.5
    assert scores["nll"] == pytest.approx(-(np.log(FLOOR / (1 + FLOOR)) + np.log(0.8)) / 2, rel=1e-5)
    assert scores["accuracy"] == 0.5
    assert scores["brier"] == pytest.approx(metrics.brier(probs, np.array([1, 1])), rel=1e-5)


def test_peers_are_what_scikit_learn_gives_and_the_networks_are_trained_once(folder, monkeypatch):
    from sklearn.calibration import CalibratedClassifierCV
    from sklearn.neural_network import MLPClassifier

    monkeypatch.setitem(table_peers.SETTINGS, "hidden_layer_sizes", (4,))
    records = run_peers("one", folder / "one.csv", 3, list(table_peers.PEERS))
    assert len(RememberedMLP.trained) == 1 + table_peers.FOLDS
    assert [r["method"] for r in records] == list(table_peers.PEERS)
    split = prepare("one", folder / "one.csv", 3)
    base = MLPClassifier(**table_peers.SETTINGS, random_state=3)
    for record, model in ((records[0], base), (records[2], CalibratedClassifierCV(base, method="sigmoid", cv=5))):
        probs = model.fit(*split.pooled()).predict_proba(split.inputs.numpy()).astype(float)
        assert record["nll"] == pytest.approx(metrics.nll(probs, split.labels), rel=1e-5)
        assert record["seconds"] > 0


def test_a_class_too_small_for_folds_is_a_failure_with_its_reason(tmp_path):
    lines = (write_table(tmp_path / "t.csv")).read_text() + "0,0,red,lonely\n"
    (tmp_path / "t.csv").write_text(lines)
    record = run_peers("t", tmp_path / "t.csv", 0, ["sklearn-sigmoid"])[0]
    assert record["nll"] is None
    assert record["failure"]


def test_ranks_share_ties_average_over_tables_and_put_failures_last():
    records = rows_of([[0.1, 0.2, 0.2], [0.3, None, 0.1], [0.1, 0.2, 0.3]], "abc")
    records.append({"table": "half", "method": "a", "seed": 0, "nll": 1.0})
    ranked = ranking(records, "nll", ["a", "b", "c"])
    assert ranked.tables == ["t0", "t1", "t2"]
    assert ranked.ranks.tolist() == [[1, 2.5, 2.5], [2, 3, 1], [1, 2, 3]]
    assert list(ranked.mean_ranks) == ["a", "c", "b"]
    assert ranked.wins("a") == 2


def test_means_are_over_the_seeds_that_all_methods_have():
    """With its second seed, a would be ahead for having met an easier split."""
    records = [
        {"table": "t", "method": method, "seed": seed, "nll": value}
        for method, seed, value in (("a", 0, 0.5), ("a", 1, 0.1), ("b", 0, 0.4), ("b", 2, 0.9))
    ]
    ranked = ranking(records, "nll", ["a", "b"])
    assert ranked.means.tolist() == [[0.5, 0.4]]
    nothing_shared = ranking(records[1:], "nll", ["a", "b"])
    assert nothing_shared.tables == []
    assert nothing_shared.means.shape == (0, 2)


def test_a_table_that_became_unsuitable_takes_its_records_along(folder, tmp_path, short):
    given = {"data": folder, "seeds": 1, "methods": ["standard"], "out": tmp_path, "device": "cpu"}
    tables.run(**given)
    (folder / "two.csv").write_text(UNSUITABLE["few"][0])
    tables.run(**given)
    results = read_results(tmp_path / "results.json")
    assert {r["table"] for r in results.records} == set(results.config["tables"]) == {"one"}
    assert list(results.config["unsuitable"]) == ["two"]


def test_a_peer_that_this_scikit_learn_lacks_is_left_out_and_said(folder, tmp_path, short, monkeypatch, capsys):
    assert table_peers.missing_peers("1.8.0") == table_peers.missing_peers("1.10.dev0") == {}
    lacking = table_peers.missing_peers("1.7.2")
    assert list(lacking) == ["sklearn-temperature"]
    monkeypatch.setattr(tables, "missing_peers", lambda: lacking)
    wanted = ["standard", "sklearn-temperature"]
    page = tables.run(data=folder, seeds=1, only=["one"], methods=wanted, out=tmp_path / "out", device="cpu")
    assert "sklearn-temperature is left out: it needs scikit-learn 1.8 or later" in capsys.readouterr().err
    assert {r["method"] for r in read_results(tmp_path / "out" / "results.json").records} == {"standard"}
    assert "Left out: sklearn-temperature" in page.read_text()


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


def test_tests_against_one_method_are_holms_and_friedmans():
    rng = np.random.default_rng(0)
    values = rng.random((12, 3)) + [0.0, 0.3, 5.0]
    ranked = ranking(rows_of(values, "abc"), "nll", ["a", "b", "c"])
    raw = {m: wilcoxon(values[:, k] - values[:, 0]).pvalue for k, m in ((1, "b"), (2, "c"))}
    low, high = sorted(raw.values())
    assert sorted(against(ranked, "a").values()) == pytest.approx([2 * low, max(2 * low, high)])
    n, k, sums = 12, 3, ranked.ranks.sum(0)
    statistic = 12 * (sums**2).sum() / (n * k * (k + 1)) - 3 * n * (k + 1)
    assert friedman(ranked) == pytest.approx(np.exp(-statistic / 2))  # χ² with two degrees of freedom
    few = ranking(rows_of(values[:5], "abc"), "nll", ["a", "b", "c"])
    assert against(few, "a") == {"b": None, "c": None}


def test_the_critical_difference_is_the_published_one():
    """Demšar 2006, Section 3.2.2: four classifiers, 14 data sets, q = 2.569, CD = 1.25."""
    assert critical_difference(14, 4) == pytest.approx(1.25, abs=0.005)


def test_the_verdict_compares_mean_ranks_and_says_who_is_next():
    methods = ["self-calibrated", "temperature"]
    records = rows_of([[0.1, 0.2], [0.3, 0.2], [0.1, 0.2]], methods)
    ranked = {m: ranking(records, m, methods) for m in ("nll", "smooth_ece")}
    first = verdicts(ranked)[0]
    assert first.holds
    assert first.measured == pytest.approx(4 / 3)
    assert "temperature, 1.67" in first.note
    turned = {m: ranking(rows_of([[0.2, 0.1]], methods), m, methods) for m in ("nll", "smooth_ece")}
    assert verdicts(turned)[0].holds is False
    alone = {m: ranking(records, m, ["temperature"]) for m in ("nll", "smooth_ece")}
    assert verdicts(alone)[0].holds is None


def test_tables_that_settings_were_tried_on_are_told_apart():
    """Ahead on the eight of development, behind on seven others: the verdict is for all, and says both."""
    methods = ["self-calibrated", "temperature", "ensemble"]
    tried, others = sorted(DEVELOPMENT), [f"own-{k}" for k in range(7)]
    values = [[0.1, 0.2 + k / 100, 0.0] for k in range(8)] + [[0.2 + k / 100, 0.1, 0.0] for k in range(7)]
    results = results_of(scored(values, methods, tried + others))
    for text in (to_terminal(results), make_report(results).to_markdown()):
        assert "| NLL: rank, all 15 | NLL: rank, 7 untried |" in text
        row = next(line for line in text.splitlines() if line.startswith("| temperature") and line.count("|") == 10)
        everywhere = wilcoxon([b - a for a, b, _ in values]).pvalue
        on_others = 2 / 2**7  # seven differences of one sign
        assert [cell.strip() for cell in row.split("|")[2:6]] == [
            "1.53",
            "**1.00**",
            f"{everywhere:.2g}",
            f"{on_others:.2g}",
        ]
        assert "2.00 on 7 tables that no setting was tried on, best of the others there: temperature, 1.00" in text
        assert "told apart there (p < 0.05) from 1 of 1 methods" in text
        assert "and not on 7: own-0, own-1" in text
    records = untried(results.records)
    assert {r["table"] for r in records} == set(others)
    first = verdicts(rankings(results.records, methods[:2]), rankings(records, methods[:2]))[0]
    assert (first.holds, first.measured) == (True, pytest.approx(22 / 15))


def test_a_folder_of_ones_own_has_nothing_to_tell_apart_and_one_of_development_alone_says_so():
    methods = ["self-calibrated", "temperature"]
    own = results_of(scored([[0.1, 0.2]] * 3, methods))
    for text in (to_terminal(own), make_report(own).to_markdown()):
        assert "untried" not in text
        assert "tried on all" not in text
    seen = to_terminal(results_of(scored([[0.1, 0.2]] * 2, methods, ["pima", "adult"])))
    assert "untried" not in seen
    assert "settings were tried on all of these tables" in seen
    assert "How the defaults were found" not in make_report(own).to_markdown()
    few = to_terminal(results_of(scored([[0.1, 0.2]] * 2, methods, ["pima", "mine"])))
    assert (
        "How the defaults were found"
        in make_report(results_of(scored([[0.1, 0.2]] * 2, methods, ["pima", "mine"]))).to_markdown()
    )
    assert "; 1 table, 2 methods" in to_terminal(results_of(scored([[0.1, 0.2]], methods)))
    assert "1.00 on 1 table that no setting was tried on, best of the others there: temperature, 2.00" in few
    assert "too few tables for a test" in few


def test_intervals_over_splits_of_one_table_are_widened_for_their_overlap():
    """Seeds 0.01 apart: s = 0.01, three splits, and a fifth of the rows tested on, a fourth of the rest."""
    results = results_of(scored([[0.1]], ["self-calibrated"], seeds=3))
    half = 4.302653 * 0.01 * np.sqrt(1 / 3 + 1 / 4)
    text = make_report(results).to_markdown()
    assert f"| self-calibrated | 0.110 ± {half:.3f} |" in text
    assert "Nadeau & Bengio 2003" in text


def test_readme_says_what_the_tables_without_development_show():
    results = read_results(ROOT / "results" / "bo4sc-tables.json")
    methods = [m for m in results.config["methods"] if m != "ensemble"]
    said = " ".join((ROOT / "README.md").read_text().split("## Twenty tables\n")[1].split("\n## ")[0].split())
    assert len(DEVELOPMENT & set(results.config["tables"])) == 8
    assert len(set(results.config["tables"]) - DEVELOPMENT) == 12
    for metric, ranked in rankings(untried(results.records), methods).items():
        (own, rank), (rival, other) = list(ranked.mean_ranks.items())[:2]
        assert own == "self-calibrated"
        assert f"{rank:.2f} in {JUDGED[metric]} (next {rival}, {other:.2f})" in said
        tests = against(ranked, own).values()
        assert f"from {sum(p < LEVEL for p in tests)} of {len(tests)}" in said
        assert (
            f"{sum(p < LEVEL for p in tests)} of {len(tests)}{' methods' * (metric == 'nll')} in {JUDGED[metric]}"
            in said
        )
    everywhere = [p for ranked in rankings(results.records, methods).values() for p in against(ranked, own).values()]
    assert max(everywhere) < LEVEL
    assert "told apart from all 14 in both" in said
    assert len(everywhere) == 2 * 14


def test_a_run_is_split_resumed_and_reported(folder, tmp_path, short, monkeypatch, capsys):
    out = tmp_path / "out"
    arguments = {"data": folder, "seeds": 2, "out": out, "device": "cpu"}
    with monkeypatch.context() as patch:
        patch.setattr(tables, "write_report", lambda out, results: out)
        tables.run(**arguments, only=["one"], methods=["standard", "sklearn-mlp"])
    assert len(read_results(out / "results.json").records) == 4
    page = tables.run(**arguments)
    results = read_results(out / "results.json")
    keys = {(r["table"], r["method"], r["seed"]) for r in results.records}
    assert len(keys) == len(results.records) == 2 * 2 * (len(short) + len(table_peers.PEERS))
    assert all(r["failure"] is None and np.isfinite(r["nll"]) for r in results.records)
    assert set(results.config["tables"]) == {"one", "two"}
    text = page.read_text()
    assert "has the best mean rank in NLL" in text
    printed = capsys.readouterr().out
    assert "| self-calibrated" in printed
    assert "self-calibrated has the best mean rank in NLL (the ensemble apart)" in printed
    assert "self-calibrated less the ensemble, paired by seed" in text
    assert "How the defaults were found" not in text  # which is about tables that are not here
    assert "with the ensemble, NLL" in text
    assert "2 tables, 2 seeds" in text
    assert {m: results.config["costs"][m]["networks"] for m in ("standard", "ensemble", "self-calibrated")} == {
        "standard": 1,
        "ensemble": 2,
        "self-calibrated": 4,
    }
    assert (out / "figures" / "ranks-smooth_ece.svg").exists()

    def never(*arguments):
        raise AssertionError("measured already")

    monkeypatch.setattr(tables, "write_report", lambda out, results: out)
    with monkeypatch.context() as patch:
        patch.setattr(tables, "_run_own", never)
        patch.setattr(tables, "run_peers", never)
        tables.run(**arguments)
        patch.setattr(tables, "write_report", write_report)
        again = tables.run(source=out / "results.json", out=tmp_path / "again")
    assert again.read_text() == text
    short["standard"] = Standard(hidden=(4,), epochs=6)
    tables.run(**arguments, methods=["standard"], only=["one"])
    again = read_results(out / "results.json")
    assert "epochs=6" in again.config["methods"]["standard"]
    old = {(r["table"], r["method"], r["seed"]): r["nll"] for r in results.records if r["method"] != "standard"}
    new = {(r["table"], r["method"], r["seed"]): r["nll"] for r in again.records if r["method"] != "standard"}
    assert new == old
    assert [(r["table"], r["seed"]) for r in again.records if r["method"] == "standard"] == [("one", 0), ("one", 1)]


@pytest.mark.slow
def test_processes_side_by_side_measure_what_one_does(folder, tmp_path, monkeypatch):
    monkeypatch.setattr(tables, "write_report", lambda out, results: out)
    found = []
    for jobs in (1, 2):
        out = tmp_path / str(jobs)
        tables.run(data=folder, seeds=1, methods=["sklearn-mlp", "sklearn-sigmoid"], out=out, device="cpu", jobs=jobs)
        found.append([r | {"seconds": None} for r in read_results(out / "results.json").records])
    assert len(found[0]) == 4
    assert found[0] == found[1]


def test_results_of_another_split_and_unknown_methods_are_refused(folder, tmp_path, short):
    with pytest.raises(ValueError, match="no method called magic; the methods are standard"):
        tables.run(data=folder, out=tmp_path, methods=["magic"])
    content = {"config": {"split": [0.5, 0.3, 0.2], "nll_floor": FLOOR}, "versions": {}, "records": []}
    (tmp_path / "results.json").write_text(json.dumps(content))
    with pytest.raises(ValueError, match="choose another folder"):
        tables.run(data=folder, out=tmp_path, methods=["standard"])


def test_a_report_of_one_table_and_one_method_needs_no_ranks():
    record = {"table": "t", "method": "standard", "seed": 0, "failure": "NaN", "clipped": None}
    record |= dict.fromkeys(("accuracy", "nll", "smooth_ece", "ece15", "floor_self15", "brier", "aurc", "seconds"))
    about = {"t": {"rows": 1, "columns": 1, "classes": 2}}
    config = {"methods": {"standard": "…"}, "tables": about, "split": [0.8, 0.2], "nll_floor": FLOOR}
    text = make_report(Results(config, {}, [record])).to_markdown()
    assert "not measured" in text
    assert "Failed runs" in text
