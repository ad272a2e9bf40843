"""Tests of the forms in which people save predictions: single arrays, files of labels, rounded numbers, percentages."""

import numpy as np
import pytest

pytest.importorskip("pandas")
import pandas as pd

from calibrant.report.evaluation.files import read_predictions
from calibrant.report.evaluation.judging import judge_files

PROBS = np.array([[0.125, 0.875], [0.75, 0.25], [0.5, 0.5], [0.4, 0.6]])
LABELS = np.array([1, 0, 1, 1])


def frame(values=PROBS, **more):
    return pd.DataFrame({"prob_a": values[:, 0], "prob_b": values[:, 1]} | more)


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("form", ["npy", "column.npy", "npz", "csv", "parquet"])
def test_labels_can_be_in_a_file_of_their_own(form):
    np.save("my logits.npy", np.log(PROBS).astype(np.float16))
    if form.endswith("npy"):
        np.save(f"y.{form}", LABELS[:, None] if "column" in form else LABELS)
    elif form == "npz":
        np.savez("y.npz", y_true=LABELS, other=np.zeros(4))
    elif form == "csv":
        pd.DataFrame({"whatever": LABELS}).to_csv("y.csv", index=False)
    else:
        pd.DataFrame({"id": range(4), "label": LABELS}).to_parquet("y.parquet")
    file = read_predictions("my logits.npy", labels=f"y.{form}")
    assert (file.kind, file.first_row) == ("logits", 0)
    np.testing.assert_array_equal(file.labels, LABELS)
    np.testing.assert_allclose(file.values, np.log(PROBS), rtol=1e-3)


def test_one_array_of_probabilities_or_scores():
    np.save("p.npy", PROBS)
    np.save("s.npy", PROBS[:, 1:])
    np.save("y.npy", LABELS)
    assert read_predictions("p.npy", labels="y.npy").kind == "probs"
    assert read_predictions("s.npy", labels="y.npy").kind == "score"
    assert read_predictions("p.npy", need_labels=False).labels is None
    np.save("y.npy", LABELS[:3])
    with pytest.raises(ValueError, match=r"y\.npy must have 4 labels, one per row of p\.npy; got 3"):
        read_predictions("p.npy", labels="y.npy")
    np.save("y.npy", np.eye(2)[LABELS])
    with pytest.raises(ValueError, match=r"save labels\.argmax\(axis=1\)"):
        read_predictions("p.npy", labels="y.npy")
    np.save("o.npy", np.array([None, "a"]), allow_pickle=True)
    with pytest.raises(ValueError, match=r"o\.npy is not an npy file of a plain array"):
        read_predictions("o.npy", labels="y.npy")


def test_rounded_probabilities_are_rescaled():
    thirds = np.full((12, 3), 0.33)
    table = pd.DataFrame(thirds, columns=["prob_a", "prob_b", "prob_c"]).assign(label="a")
    table.to_csv("a.csv", index=False)
    with pytest.warns(UserWarning, match=r"rounded to 2 decimals, so their sums differ from 1 by up to 0\.01"):
        file = read_predictions("a.csv")
    np.testing.assert_allclose(file.values, 1 / 3)
    table.assign(prob_a=0.3).to_csv("a.csv", index=False)
    with pytest.raises(ValueError, match=r"must sum to 1; got 0\.96 in row 1\. Use --logits"):
        read_predictions("a.csv")


@pytest.mark.parametrize(
    ("values", "options", "words"),
    [
        (100 * PROBS, {}, "These are percentages: divide them by 100"),
        (np.log(PROBS), {}, "Use --logits if these are logits"),
        (np.tile(PROBS, (3, 1)), {"logits": True}, "The logits of a.csv are probabilities.* Leave out --logits"),
    ],
)
def test_numbers_of_another_kind_are_named(values, options, words):
    frame(values, label="a").to_csv("a.csv", index=False)
    with pytest.raises(ValueError, match=words):
        read_predictions("a.csv", **options)


def test_rows_in_errors_are_those_of_the_file():
    frame(label=["a", None, "b", None]).to_csv("a.csv", index=False)
    with pytest.raises(ValueError, match=r"Labels are missing in 2 of 4 rows of a\.csv, first in row 2"):
        read_predictions("a.csv")
    frame(np.array([[0.5, 0.5], [0.5, 0.5], [np.nan, 0.5]]), label="a").to_csv("a.csv", index=False)
    with pytest.raises(ValueError, match="has no value in row 3"):
        read_predictions("a.csv")


@pytest.mark.parametrize(
    ("names", "kind", "classes"),
    [
        (("p0", "p1", "y"), "probs", ("0", "1")),
        (("logit a", "logit b", "label"), "logits", ("a", "b")),
        (("a", "b", "label"), "probs", ("a", "b")),
        (("score", "label"), "score", None),
        (("prob_b", "label"), "score", None),
        (("confidence", "correct"), "pairs", None),
    ],
)
def test_columns_are_found_by_their_names(names, kind, classes):
    values = [*PROBS.T[3 - len(names) :], np.array(classes or ("0", "1"))[LABELS]]
    pd.DataFrame(dict(zip(names, values, strict=True))).to_csv("a.csv", index=False)
    file = read_predictions("a.csv")
    assert (file.kind, file.classes) == (kind, classes)


def test_predicted_class_confidence_and_label():
    columns = {"prediction": ["b", "a", "a", "b"], "confidence": PROBS.max(axis=1), "label": ["b", "a", "b", "b"]}
    pd.DataFrame(columns).to_csv("a.csv", index=False)
    file = read_predictions("a.csv")
    assert (file.kind, file.labels.tolist()) == ("pairs", [True, True, False, True])


def test_columns_named_by_numbers_and_files_without_a_header():
    pd.DataFrame(PROBS).assign(label=list("baba")).to_csv("a.csv")
    file = read_predictions("a.csv")
    assert file.kind == "probs"
    np.testing.assert_allclose(file.values, PROBS)
    pd.DataFrame(PROBS).to_csv("a.csv", index=False, header=False)
    with pytest.raises(ValueError, match="numbers in its first line; put a header"):
        read_predictions("a.csv")


@pytest.mark.parametrize(("labels", "classes"), [([0, 1, 0, 1], ("a", "b")), ([1, 2, 1, 2], None)])
def test_columns_with_names_and_labels_with_numbers(labels, classes):
    frame(label=labels).to_csv("a.csv", index=False)
    file = read_predictions("a.csv")
    assert file.classes == classes
    result, _ = judge_files([file])
    assert result.models["a"].measures["accuracy"].value == 0.5
    assert [part["name"] for part in result.models["a"].classes] == (["a", "b"] if classes else ["1", "2"])


def test_decimal_commas_and_the_encoding_are_declared(tmp_path):
    text = "label;prob_ja;prob_nö\nnö;0,25;0,75\nja;0,75;0,25\n"
    (tmp_path / "p.csv").write_bytes(text.encode("cp1252"))
    with pytest.raises(ValueError, match="not text in UTF-8"):
        read_predictions(tmp_path / "p.csv")
    with pytest.raises(ValueError, match=r"must hold numbers; got '0,25'\. .* pass --decimal , if"):
        read_predictions(tmp_path / "p.csv", encoding="cp1252")
    file = read_predictions(tmp_path / "p.csv", encoding="cp1252", decimal=",")
    np.testing.assert_array_equal(file.values, [[0.25, 0.75], [0.75, 0.25]])
    assert file.classes == ("ja", "nö")
