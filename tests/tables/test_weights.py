"""Tests of `calibrant train --weight`."""

import json

import numpy as np
import pandas as pd
import pytest

pytest.importorskip("typer")

from calibrant import evaluate
from calibrant.tables import Order, load_model, predict, train
from tests.tables.conftest import churn, parts_of
from tests.tables.test_train import invoke, refused

FIRST = np.arange(240) < 200


@pytest.fixture
def weighted(tmp_path):
    """Rows of weights from 1 to 5; the last forty have weight 0 and no meaning."""
    source = churn(240)
    source.loc[~FIRST, ["spent (€)", "visits"]] = 0
    people = np.where(FIRST, 1 + 4 * (source["left?"] == "yes"), 0)
    source.assign(people=people).to_csv(tmp_path / "t.csv", index=False)
    return tmp_path / "t.csv"


def test_weights_count_in_training_calibration_and_scores(quick, weighted, tmp_path):
    result = train(Order(weighted, "left?", tmp_path / "out", weight="people", drop=("since",)))
    source = pd.read_csv(weighted)[FIRST].reset_index(drop=True)
    parts = parts_of(weighted, weight="people", drop=["since"])
    inputs = source.drop(columns=["left?", "people", "since", "always"])
    rows, test = parts.train.numbers - 1, parts.test.numbers - 1
    own = result.model.classifier
    assert list(own.feature_names_in_) == list(inputs)
    assert own.oof_proba_[:, 1].mean() > 0.6  # half of the rows, five sixths of the weight
    expected = evaluate(
        result.probs, source["left?"][test].to_numpy(), classes=["no", "yes"], sample_weight=source["people"][test]
    )
    measures = json.loads((tmp_path / "out" / "metrics.json").read_text())["test"]["measures"]
    for name in ("accuracy", "nll", "ece"):
        assert measures[name]["value"] == pytest.approx(expected.models["model"].measures[name].value)
    assert len(rows) + len(test) == 200
    assert "40 rows of weight 0 in &#39;people&#39;: left out." in (tmp_path / "out" / "report.html").read_text()
    model = load_model(tmp_path / "out" / "model.calibrant")
    source.drop(columns=["people", "since"]).to_csv(tmp_path / "new.csv", index=False)
    assert predict(model, tmp_path / "new.csv", tmp_path / "p.csv").rows == 200


def test_equal_weights_change_nothing(quick, tmp_path):
    churn(120).assign(people=3).to_csv(tmp_path / "t.csv", index=False)
    plain = train(Order(tmp_path / "t.csv", "left?", tmp_path / "plain", drop=("people",)))
    equal = train(Order(tmp_path / "t.csv", "left?", tmp_path / "equal", weight="people"))
    np.testing.assert_array_equal(plain.probs, equal.probs)


def test_validation_and_test_files_have_weights(quick, weighted, tmp_path):
    churn(90, seed=1).assign(people=2).to_csv(tmp_path / "other.csv", index=False)
    churn(90, seed=1).to_csv(tmp_path / "bare.csv", index=False)
    command = ["train", weighted, "--target", "left?", "--weight", "people", "--out", tmp_path / "out"]
    assert "bare.csv has no column 'people'" in refused(*command, "--test", tmp_path / "bare.csv")
    done = invoke(*command, "--val", tmp_path / "other.csv")
    assert done.exit_code == 0, done.output


@pytest.mark.parametrize(
    ("weights", "sentence"),
    [
        (np.where(FIRST, 1.0, np.nan), "got 40 rows without one or with a negative one"),
        (np.where(FIRST, 1.0, -1.0), "got 40 rows without one or with a negative one"),
        (np.zeros(240), "got zeros only"),
        (np.where(FIRST, 1.0, np.inf), "holds an infinite number"),
        (
            np.where(FIRST, "much", "little"),
            "must hold numbers to be the --weight of the rows; got values such as 'much'",
        ),
    ],
)
def test_wrong_weights_get_a_sentence(weights, sentence, tmp_path):
    churn().assign(people=weights).to_csv(tmp_path / "t.csv", index=False)
    command = ["train", tmp_path / "t.csv", "--target", "left?", "--weight", "people", "--out", tmp_path / "out"]
    assert sentence in refused(*command)


def test_the_target_is_no_weight(tmp_path):
    churn().to_csv(tmp_path / "t.csv", index=False)
    command = ["train", tmp_path / "t.csv", "--target", "left?", "--weight", "left?", "--out", tmp_path / "out"]
    assert "name another column for the weight" in refused(*command)
