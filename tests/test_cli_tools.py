"""Tests of `calibrant evaluate`, `calibrate` and `apply` on good and bad files."""

import json
import os
import re
import stat
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from scipy.special import log_softmax, softmax

pytest.importorskip("typer")
pytest.importorskip("pandas")
import pandas as pd
from typer.testing import CliRunner

import calibrant
from calibrant.cli import commands, shell
from calibrant.posthoc import Temperature, load_calibrator
from calibrant.report.evaluation import numbers
from calibrant.report.evaluation.files import read_predictions
from calibrant.report.evaluation.judging import halves, judge_files

NAMES = np.array(["cat", "dog", "emu"])


def logits_and_labels(n=600, n_classes=3, seed=0):
    rng = np.random.default_rng(seed)
    truth = rng.normal(size=(n, n_classes)) * 2
    return log_softmax(2.0 * truth, axis=1), (truth + rng.gumbel(size=truth.shape)).argmax(axis=1)


@pytest.fixture(autouse=True)
def few_draws(monkeypatch):
    """Noise floors from twenty draws, which is enough for these tests."""
    monkeypatch.setattr(numbers, "BUDGET", 1.0)


@pytest.fixture
def table(tmp_path):
    """A file of predictions; `kind` says in which form."""
    logits, labels = logits_and_labels()
    probs = np.exp(logits)
    two_logits, two = logits_and_labels(n_classes=2)
    score = softmax(two_logits, axis=1)[:, 1]
    country = np.where(np.arange(600) % 2, "FR", "DE")
    forms = {
        "probs": {f"prob_{name}": probs[:, k] for k, name in enumerate(NAMES)} | {"label": NAMES[labels]},
        "numbers": {f"p{k}": probs[:, k] for k in range(3)} | {"y": labels},
        "named": {name: probs[:, k] for k, name in enumerate(NAMES)} | {"churn": NAMES[labels]},
        "logits": {f"logit_{name}": logits[:, k] for k, name in enumerate(NAMES)} | {"label": NAMES[labels]},
        "score": {"score": score, "label": np.array(["no", "yes"])[two]},
        "logit": {"logit": np.log(score / (1 - score)), "label": two},
        "pairs": {"confidence": probs.max(axis=1), "correct": probs.argmax(axis=1) == labels},
    }

    def write(kind="probs", name="a.csv", **more):
        path = tmp_path / name
        columns = {"id": np.arange(600), "country": country} | forms[kind] | more
        if path.suffix == ".parquet":
            pd.DataFrame(columns).to_parquet(path)
        elif path.suffix == ".npz":
            np.savez(path, probs=probs, labels=labels)
        else:
            pd.DataFrame(columns).to_csv(path, index=False, sep="\t" if path.suffix == ".tsv" else ",")
        return path

    return write


def invoke(*arguments):
    return CliRunner().invoke(commands.app, [str(a) for a in arguments])


def as_json(*arguments):
    done = invoke(*arguments, "--json")
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


def reference(n_classes=3):
    logits, labels = logits_and_labels(n_classes=n_classes)
    return calibrant.metrics.ece(np.exp(logits), labels), calibrant.metrics.nll(np.exp(logits), labels)


@pytest.mark.parametrize("name", ["a.csv", "a.tsv", "a.parquet", "a.npz"])
def test_every_format_gives_the_numbers_of_the_metrics(table, name):
    measures = as_json("evaluate", table(name=name))["models"][0]["measures"]
    ece, nll = reference()
    assert measures["ece"]["value"] == pytest.approx(ece)
    assert measures["nll"]["value"] == pytest.approx(nll)


@pytest.mark.parametrize(
    ("kind", "n_classes", "options"),
    [
        ("numbers", 3, ()),
        ("named", 3, ("--labels", "churn")),
        ("logits", 3, ()),
        ("score", 2, ()),
        ("score", 2, ("--positive", "yes")),
        ("logit", 2, ()),
        ("pairs", 3, ()),
        ("probs", 3, ("--columns", "prob_cat", "prob_dog", "prob_emu")),
    ],
)
def test_every_form_is_recognised(table, kind, n_classes, options):
    # Lists stand before the file on purpose: they must not swallow it.
    measures = as_json("evaluate", *options, table(kind))["models"][0]["measures"]
    assert measures["ece"]["value"] == pytest.approx(reference(n_classes)[0])


def test_the_other_label_turns_a_score_round(table):
    path = table("score")
    right, turned = (as_json("evaluate", path, "--positive", p)["models"][0]["measures"] for p in ("yes", "no"))
    assert right["accuracy"]["value"] == pytest.approx(1 - turned["accuracy"]["value"], abs=0.01)


def test_files_side_by_side_with_groups_and_a_page(table, tmp_path):
    logits, labels = logits_and_labels()
    better = softmax(logits / 2, axis=1)
    first = table()
    second = table(name="b.csv", **{f"prob_{name}": better[:, k] for k, name in enumerate(NAMES)})
    out = tmp_path / "report.html"
    done = invoke("evaluate", first, second, "--group", "country", "--out", out)
    assert done.exit_code == 0, done.output
    assert "b minus a" in done.output
    assert "groups confidence is off" in done.output
    assert f"Written: {out}" in done.output
    page = out.read_text()
    assert "FR" in page
    content = as_json("evaluate", first, second, "--group", "country")
    rows = np.arange(len(labels))
    gain = (-np.log(better[rows, labels]) + logits[rows, labels]).mean()
    assert content["differences"][0]["nll"]["value"] == pytest.approx(gain)
    assert {row["name"] for row in content["models"][0]["groups"]} == {"FR", "DE"}


def test_rows_are_shown_unless_they_are_private(table):
    path = table(secret=[f"secret-{i}" for i in range(600)])
    assert "secret-" in json.dumps(as_json("evaluate", path))
    assert "secret-" not in json.dumps(as_json("evaluate", path, "--no-rows"))


@pytest.mark.parametrize("kind", ["probs", "logits", "score", "pairs"])
def test_recalibration_fits_one_half_and_judges_the_other(table, kind):
    content = as_json("evaluate", table(kind), "--recalibrate", "temperature")
    before, after = content["models"]
    assert after["name"] == "a + temperature"
    assert before["n"] == after["n"] == 300
    assert after["measures"]["nll"]["value"] < before["measures"]["nll"]["value"]
    assert content["differences"][0]["minus"] == "a"


def test_the_halves_share_no_row_and_every_class(table):
    labels = logits_and_labels()[1]
    held, rest = halves(labels, 0)
    assert sorted([*held, *rest]) == list(range(600))
    for k in range(3):
        assert abs((labels[held] == k).sum() - (labels[rest] == k).sum()) <= 1
    file = read_predictions(table())
    result, fitted = judge_files([file], recalibrate="temperature")
    alone = Temperature(from_probs=True).fit(file.values[rest], labels[rest])
    assert fitted["a"].temperature_ == pytest.approx(alone.temperature_, rel=1e-9)
    after = alone.predict_proba(file.values[held])
    wanted = calibrant.metrics.nll(after, labels[held])
    assert result.models["a + temperature"].measures["nll"].value == pytest.approx(wanted)


def test_calibrate_and_apply(table, tmp_path):
    calibrator, out = tmp_path / "c.calibrator", tmp_path / "new.csv"
    done = invoke("calibrate", table(), "--method", "vector", "--out", calibrator)
    assert done.exit_code == 0, done.output
    mask = os.umask(0o022)
    os.umask(mask)
    assert stat.S_IMODE(calibrator.stat().st_mode) == 0o666 & ~mask
    done = invoke("apply", calibrator, table(), "--out", out)
    assert done.exit_code == 0, done.output
    frame = pd.read_csv(out)
    logits, _ = logits_and_labels()
    wanted = load_calibrator(calibrator).predict_proba(np.exp(logits))
    np.testing.assert_allclose(frame[[f"prob_{name}" for name in NAMES]], wanted, atol=1e-9)
    assert list(frame["id"]) == list(range(600))
    np.testing.assert_array_equal(frame["predicted"], NAMES[wanted.argmax(axis=1)])
    # Columns in another order are put right by their names.
    turned = pd.read_csv(table())[["prob_emu", "id", "prob_cat", "prob_dog"]]
    turned.to_csv(tmp_path / "turned.csv", index=False)
    assert invoke("apply", calibrator, tmp_path / "turned.csv", "--out", out).exit_code == 0
    np.testing.assert_allclose(pd.read_csv(out)["prob_emu"], wanted[:, 2], atol=1e-9)


@pytest.mark.parametrize("suffix", [".tsv", ".parquet", ".npz"])
def test_apply_writes_every_format(table, tmp_path, suffix):
    calibrator, out = tmp_path / "c", tmp_path / f"out{suffix}"
    assert invoke("calibrate", table("pairs"), "--method", "temperature", "--out", calibrator).exit_code == 0
    assert invoke("apply", calibrator, table("pairs"), "--out", out).exit_code == 0
    content = as_json("evaluate", out)["models"][0]
    before = as_json("evaluate", table("pairs"))["models"][0]
    assert content["measures"]["nll"]["value"] < before["measures"]["nll"]["value"]


@pytest.mark.slow
def test_auto_shows_what_it_compared(table, tmp_path):
    done = invoke("calibrate", table(), "--out", tmp_path / "c")
    assert done.exit_code == 0, done.output
    assert "structured-matrix" in done.output
    assert "Chosen: " in done.output
    content = as_json("evaluate", table(), "--recalibrate", "auto")
    names = [entry["name"] for entry in load_calibrator(tmp_path / "c").comparison_]
    assert content["chosen"]["a"] in names


def bad_files(tmp_path):
    probs = {"prob_a": [0.5, 0.6, 0.7], "prob_b": [0.5, 0.4, 0.3]}
    tables = {
        "no labels": (probs, "--labels"),
        "no predictions": ({"x": [1, 2, 3], "label": ["a", "b", "a"]}, "--columns"),
        "one row": ({"prob_a": [0.5], "prob_b": [0.5], "label": ["a"]}, "at least 2 rows"),
        "NaN": ({"prob_a": [0.5, None, 0.7], "prob_b": [0.5, 0.4, 0.3], "label": ["a", "b", "a"]}, "row 1"),
        "unknown label": (probs | {"label": ["a", "b", "c"]}, "among the classes"),
        "no sums": (probs | {"prob_a": [0.5, 0.9, 0.7], "label": ["a", "b", "a"]}, "sum to 1"),
        "text": (probs | {"prob_a": ["x", "y", "z"], "label": ["a", "b", "a"]}, "must hold numbers"),
        "missing label": (probs | {"label": ["a", None, "b"]}, "missing"),
        "not correct": ({"confidence": [0.5, 0.6], "correct": ["maybe", "no"]}, "true/false"),
    }
    for name, (columns, words) in tables.items():
        path = tmp_path / f"{name}.csv"
        pd.DataFrame(columns).to_csv(path, index=False)
        yield path, words
    for name, content, words in (
        ("empty.csv", b"", "is empty"),
        ("head.csv", b"prob_a,prob_b,label\n", "no rows"),
        ("encoding.csv", "prob_a,prob_b,label\n0.5,0.5,é\n".encode("utf-16"), "UTF-8"),
        ("latin.csv", "prob_a,prob_b,label\n0.5,0.5,é\n".encode("latin-1"), "UTF-8"),
        ("broken.npz", b"PK nothing", "npz file of plain arrays"),
        ("broken.parquet", b"nothing", "Parquet"),
        ("what.xyz", b"a,b\n1,2\n", "must end in"),
    ):
        path = tmp_path / name
        path.write_bytes(content)
        yield path, words
    yield tmp_path, "is a folder"
    yield tmp_path / "nowhere.csv", "There is no file"


def test_bad_files_are_one_sentence_and_status_two(tmp_path):
    for path, words in bad_files(tmp_path):
        for command in (("evaluate", path), ("calibrate", path, "--method", "temperature", "--out", tmp_path / "c")):
            done = invoke(*command)
            assert done.exit_code == 2, (path, done.output, done.exception)
            assert done.stderr.startswith("calibrant: "), (path, done.stderr)
            assert len(done.stderr.splitlines()) == 1, done.stderr
            if command[0] == "evaluate":
                assert words in done.stderr, (path, done.stderr)
            assert "Traceback" not in done.output
        assert not (tmp_path / "c").exists()


def test_other_mistakes_are_sentences_too(table, tmp_path):
    good = table()
    short = tmp_path / "short.csv"
    pd.read_csv(good).head(10).to_csv(short, index=False)
    other = tmp_path / "other.csv"
    frame = pd.read_csv(good)
    frame["label"] = frame["label"].to_numpy()[::-1]
    frame.to_csv(other, index=False)
    calibrator = tmp_path / "c"
    assert invoke("calibrate", good, "--method", "temperature", "--out", calibrator).exit_code == 0
    for arguments, words in (
        (("evaluate", good, "--labels", "churn"), "no column 'churn'"),
        (("evaluate", good, "--group", "town"), "no column 'town'"),
        (("evaluate", good, "--recalibrate", "magic"), "got 'magic'"),
        (("evaluate", good, "--out", tmp_path), "is a folder"),
        (("evaluate", good, "--out", tmp_path / "no" / "r.html"), "does not exist"),
        (("evaluate", good, short), "must predict the same rows"),
        (("evaluate", good, other), "same labels"),
        (("evaluate", good, table("pairs", "pairs.csv")), "same kind of predictions"),
        (("calibrate", good, "--out", tmp_path), "is a folder"),
        (("apply", good, good, "--out", tmp_path / "o.csv"), "not a calibrator"),
        (("apply", calibrator, good, "--out", tmp_path / "o.txt"), "must end in"),
        (("apply", calibrator, table("pairs", "pairs.csv"), "--out", tmp_path / "o.csv"), "must hold"),
    ):
        done = invoke(*arguments)
        assert done.exit_code == 2, (arguments, done.output, done.exception)
        assert words in done.stderr, (arguments, done.stderr)
        assert len(done.stderr.splitlines()) == 1


def test_no_permission_is_a_sentence(table, tmp_path, monkeypatch):
    path = table()
    with monkeypatch.context() as patched:  # root may read everything, so the refusal is played
        patched.setattr(os, "access", lambda *_: False)
        done = invoke("evaluate", path)
    assert (done.exit_code, "no permission" in done.stderr) == (2, True)

    def refuse(*_args, **_kwargs):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "write_text", refuse)
    done = invoke("evaluate", path, "--out", tmp_path / "r.html")
    assert (done.exit_code, "no permission" in done.stderr) == (2, True)
    assert not (tmp_path / "r.html").exists()


def test_a_full_disk_leaves_the_old_file(table, tmp_path, monkeypatch):
    out = tmp_path / "r.html"
    out.write_text("old")

    def full(self, *_args, **_kwargs):
        with self.open("w") as stream:
            stream.write("half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_text", full)
    done = invoke("evaluate", table(), "--out", out)
    assert (done.exit_code, "No space left on device" in done.stderr) == (2, True)
    assert out.read_text() == "old"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.csv", "r.html"]


def test_a_list_ends_at_a_file(tmp_path):
    file = tmp_path / "a.csv"
    file.write_text("x")
    args = ["--columns", "a", "b", str(file), "c"]
    spread = shell.spread(args, {"--columns"}, is_argument=os.path.exists)
    assert spread == ["--columns", "a", "--columns", "b", str(file), "c"]


def test_no_drawing_package_is_needed(table):
    code = (
        "import sys\n"
        "class No:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name.split('.')[0] in ('matplotlib', 'jinja2'): raise ImportError(name)\n"
        "sys.meta_path.insert(0, No())\n"
        "from calibrant.cli import main\n"
        "main()\n"
    )
    done = subprocess.run([sys.executable, "-c", code, "evaluate", str(table())], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "Over-confident by" in done.stdout


def test_a_page_without_jinja_says_how_to_install_it(table, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "jinja2", None)
    done = invoke("evaluate", table(), "--out", tmp_path / "x.html")
    assert done.exit_code == 2
    assert "pip install 'calibrant[report]'" in done.stderr


def test_calibrators_that_keep_the_class_report_that_class(tmp_path):
    """If the model is right in two of ten cases, another class becomes more likely, but its answer stays."""
    random = np.random.default_rng(0)
    labels = random.integers(0, 3, 2000)
    top = np.where(random.random(2000) < 0.2, labels, (labels + random.integers(1, 3, 2000)) % 3)
    share = random.uniform(0.5, 0.9, 2000)
    probs = (1 - share)[:, None] * np.array([0.5, 0.5, 0.5]) + np.zeros((2000, 3))
    probs[np.arange(2000), top] = share
    frame = pd.DataFrame(probs, columns=["prob_0", "prob_1", "prob_2"]).assign(label=labels)
    frame.to_csv(tmp_path / "a.csv", index=False)
    result, fitted = judge_files([read_predictions(tmp_path / "a.csv")], recalibrate="isotonic-confidence")
    before, after = result.models["a"], result.models["a + isotonic-confidence"]
    sample = result.samples["a + isotonic-confidence"]
    assert (sample.probs.argmax(1) != sample.predicted).any()
    np.testing.assert_array_equal(sample.predicted, result.samples["a"].predicted)
    assert after.measures["accuracy"] == before.measures["accuracy"]
    assert after.measures["ece"].value < before.measures["ece"].value
    held, _ = halves(labels, 0)
    confidence = fitted["a"].confidence(probs[held])
    assert after.mean_confidence == pytest.approx(np.mean(confidence))
    assert result.differences[0]["accuracy"]["value"] == 0


def test_predicted_must_be_columns_of_a_model_with_probs():
    probs, labels = np.full((4, 2), 0.5), [0, 1, 0, 1]
    assert calibrant.evaluate(probs, labels, predicted=[0, 1, 0, 1]).models["model"].measures["accuracy"].value == 1
    for wrong in ([0, 1, 0, 2], [0, 1, 0], [0.0, 1.0, 0.0, 1.0], [-1, 0, 0, 0]):
        with pytest.raises(ValueError, match="predicted must hold 4 columns of probs, 0 to 1"):
            calibrant.evaluate(probs, labels, predicted=wrong)
    with pytest.raises(ValueError, match="predicted must name models with probs; got other"):
        calibrant.evaluate({"one": probs}, labels, predicted={"other": [0, 1, 0, 1]})


def test_weights_of_rows_are_a_column(table, tmp_path):
    frame = pd.read_csv(table())
    frame["people"] = np.random.default_rng(0).integers(1, 5, len(frame))
    frame.to_csv(tmp_path / "w.csv", index=False)
    done = invoke("evaluate", tmp_path / "w.csv", "--weight", "people", "--json")
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)["models"][0]
    rows = frame.loc[frame.index.repeat(frame["people"])].drop(columns="people")
    rows.to_csv(tmp_path / "copies.csv", index=False)
    copied = json.loads(invoke("evaluate", tmp_path / "copies.csv", "--json").stdout)["models"][0]
    for key in ("accuracy", "nll", "ece"):
        assert found["measures"][key]["value"] == pytest.approx(copied["measures"][key]["value"])
    assert found["weighted"]
    done = invoke("evaluate", tmp_path / "w.csv", "--weight", "people", "--recalibrate", "temperature", "--json")
    assert done.exit_code == 0, done.output
    for arguments, words in (
        (("--weight", "none"), "has no column 'none'"),
        (("--weight", "label"), "must hold numbers"),
    ):
        done = invoke("evaluate", tmp_path / "w.csv", *arguments)
        assert done.exit_code == 2
        assert words in done.output


def test_mistakes_have_the_row_numbers_of_the_file(table):
    """Row 1 is the first below the header, also if half of the rows were used to fit a calibrator."""
    path = table()
    known = pd.read_csv(path)
    for options in ((), ("--recalibrate", "temperature")):
        for mistake in as_json("evaluate", path, *options)["models"][0]["mistakes"]:
            row = known.iloc[mistake["row"] - 1]
            assert str(row["id"]) == mistake["values"]["id"]
            assert row["label"] == mistake["label"]
    first = as_json("evaluate", table(name="a.npz"))["models"][0]["mistakes"][0]
    with np.load(path.with_suffix(".npz")) as arrays:
        assert arrays["probs"][first["row"]].max() == pytest.approx(first["confidence"])


def test_json_of_every_command(table, tmp_path):
    calibrator, out = tmp_path / "c", tmp_path / "out.csv"
    content = as_json("calibrate", table("pairs"), "--method", "temperature", "--out", calibrator)
    assert content == {"method": "temperature", "rows": 600, "file": str(calibrator)}
    assert as_json("apply", calibrator, table("pairs"), "--out", out) == {"rows": 600, "file": str(out)}
    assert "bo4sc" in as_json("methods")
    found = as_json("info")
    assert found["versions"]["calibrant"] == calibrant.__version__
    assert found["optional"]["pandas"] == pd.__version__
    assert "pandas" in invoke("info").output


def test_a_wrong_calibrator_names_its_option(table):
    for command in (("calibrate", table(), "--out", "c", "--method"), ("evaluate", table(), "--recalibrate")):
        done = invoke(*command, "magic")
        assert done.exit_code == 2
        assert f"calibrant: {command[-1]} must be one of auto, temperature" in done.output


def test_help_is_wrapped_to_the_terminal():
    assert shell.wrapped("One\n  line.\n\nTwo:\n\na b") == "One line.\n\nTwo:\n\na b"


def test_the_documented_keys_are_printed(table):
    page = (Path(__file__).parents[1] / "docs" / "command-line.md").read_text()
    lines = [line for line in page.splitlines() if line.startswith("| `models")]
    options = ("--group", "country", "--json")
    content = json.loads(invoke("evaluate", table(), table("probs", "b.csv"), *options).stdout)
    model = content["models"][0]
    assert set(re.findall(r"`(\w+)`", lines[0].split("|")[2])) <= set(model)
    for line in lines[1:]:
        names, told = line.split("|")[1:3]
        for name in re.findall(r"\[\]\.(\w+)", names):
            found = model[name][0] if isinstance(model[name], list) else model[name]
            inner = next(iter(found.values())) if name == "measures" else {}
            values = {"calibrated", "over-confident", "under-confident", "miscalibrated", "undecided"}
            wanted = set(re.findall(r"`([\w-]+)`", told)) - values
            assert wanted <= {*found, *inner}, name
    difference = next(line for line in page.splitlines() if line.startswith("| `differences`"))
    wanted = set(re.findall(r"`(\w+)`", difference.split("|")[2]))
    assert wanted <= {*content["differences"][0], *content["differences"][0]["nll"]}
