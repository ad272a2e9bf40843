"""Tests of the search that Standard, isotonic regression and BO4SC share."""

from __future__ import annotations

import math

import pytest
import torch

from studies.bo4sc import same_search
from studies.bo4sc.same_search import LADDERS, Networks, at_an_end, choices, neighbours, scores, search
from studies.report import write_results


def test_neighbours_are_one_step_away():
    ladders = {"width": (8, 16, 32), "learning_rate": (0.1, 0.2)}
    assert neighbours(ladders, (("width", 16), ("learning_rate", 0.1))) == [
        (("width", 16), ("learning_rate", 0.1)),
        (("width", 8), ("learning_rate", 0.1)),
        (("width", 32), ("learning_rate", 0.1)),
        (("width", 16), ("learning_rate", 0.2)),
    ]


def test_scores_by_hand():
    """Two of four points fit the isotonic regression; the others are judged."""
    logits = torch.tensor([[3.0, 0.0], [0.0, 3.0], [1.0, 0.0], [0.0, 2.0]])
    labels = torch.tensor([0, 1, 0, 0])
    right, wrong = (1 / (1 + math.exp(-z)) for z in (1.0, 2.0))
    found = scores("standard", logits, labels, 2)
    assert found["bce"] == pytest.approx(-(math.log(right) + math.log(1 - wrong)) / 2)
    assert found["correct"].tolist() == [True, False]
    calibrated = scores("isotonic", logits, labels, 2)["confidence"]
    assert calibrated == pytest.approx([2.5 / 3] * 2)  # always right on two points, and one uniform sample


BEST = {"width": 32, "learning_rate": 0.02}


class Valley(Networks):
    """Networks whose confidence is right at one setting, and worse with every step away from it."""

    def train(self, settings, longest):
        for setting in settings:
            steps = sum(
                abs(LADDERS["standard"][name].index(value) - LADDERS["standard"][name].index(BEST[name]))
                for name, value in setting
            )
            labels = self.labels()
            for epochs in (1200, longest):
                size = 5.0 - steps - (epochs < longest)
                logits = size * torch.nn.functional.one_hot(labels, 5).double()
                self.logits.setdefault((setting, longest), {})[epochs] = logits


def test_a_search_ends_where_no_neighbour_is_better(capsys):
    records = search("standard", Valley("fitted-blobs-1.3", range(2)))
    (chosen,) = choices(records)
    assert {name: chosen[name] for name in BEST} == BEST
    assert chosen["epochs"] == max(same_search.EPOCHS)  # longer is better, up to the limit
    assert at_an_end(chosen) == ["epochs"]


def test_a_setting_is_trained_and_tested(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(same_search, "EPOCHS", (2, 4))
    monkeypatch.setattr(same_search, "TEST_SEEDS", 2)
    networks = Networks("fitted-spirals-2.5", range(2))
    records = []
    for method, extra in (("standard", {}), ("isotonic", {}), ("bo4sc", {"steps": 1, "outer_learning_rate": 300})):
        setting = tuple(({"width": 8, "learning_rate": 0.01} | extra).items())
        networks.train([setting], 4)
        found = list(same_search.searched(method, networks, setting, 4))
        assert [r["epochs"] for r in found] == [2, 4]
        assert found[0]["bce"] == pytest.approx(sum(found[0]["bce_by_seed"]) / 2)
        records += [*found, *same_search.tested(found)]
    assert len([r for r in records if r["stage"] == "test"]) == 6
    assert "| `bo4sc`" in same_search.table(records)
    assert set(same_search.differences(records)) == {"standard", "isotonic"}
    path = write_results(tmp_path / "results.json", {}, records)
    same_search.main(["--sets", "fitted-spirals-2.5", "--dry-run", "--out", str(path)])
    assert "missing" not in capsys.readouterr().out
