"""The targets of the recommended classifier on tables, from records that were made up."""

import numpy as np
import pytest

from calibrant.experiments.tables.page import FORMER, JUDGED, OWN, make_report, rankings, to_terminal
from calibrant.experiments.tables.targets import RIVAL, interval, ratios, target_verdicts
from calibrant.report import Results

LOSSES = {  # two methods of ours, two rivals, three tables
    "a": {OWN: 0.50, FORMER: 0.40, RIVAL: 0.52, "focal": 0.60},
    "b": {OWN: 0.99, FORMER: 1.20, RIVAL: 1.20, "focal": 1.00},
    "c": {OWN: 0.36, FORMER: 0.50, RIVAL: 0.30, "focal": 0.50},
}


def records(seconds: float = 1.0, device: str = "cpu") -> list[dict]:
    scores = {"accuracy": 0.9, "ece15": 0.1, "floor_self15": 0.1, "brier": 0.1, "aurc": 0.1, "clipped": 0.0}
    return [
        {"table": table, "method": method, "seed": seed, "nll": loss + 0.001 * seed, "smooth_ece": loss, **scores}
        | {"failure": None, "seconds": seconds if method == OWN else 1.0, "device": device}
        for table, losses in LOSSES.items()
        for method, loss in losses.items()
        for seed in (0, 1)
    ]


def found(**how) -> list:
    given = records(**how)
    methods = list(LOSSES["a"])
    return target_verdicts(rankings(given, methods), given, OWN, FORMER, JUDGED)


def test_the_best_rival_is_none_of_our_own():
    values = ratios(rankings(records(), list(LOSSES["a"]))["nll"], OWN)
    assert {table: rival for table, (_, rival) in values.items()} == {"a": RIVAL, "b": "focal", "c": RIVAL}
    assert [ratio for ratio, _ in values.values()] == pytest.approx([0.5 / 0.52, 0.99, 1.2], rel=1e-3)


def test_verdicts():
    rank_nll, rank_ece, median, near, most, time = found()
    assert (rank_nll.measured, rank_nll.holds) == (pytest.approx(5 / 3), True)
    assert rank_nll.note.startswith("[1.00, 2.00]; best of the others: hgb-temperature, 2.50")
    assert rank_ece.holds
    assert (median.measured, median.holds) == (pytest.approx(0.99, rel=1e-3), True)
    assert (near.measured, near.holds, near.note) == (pytest.approx(2 / 3), False, "2 of 3 tables")
    assert (most.holds, most.note) == (False, f"c, against {RIVAL}")
    assert (time.measured, time.holds) == (0.5, True)


@pytest.mark.parametrize(("how", "holds"), [({"seconds": 3.0}, False), ({"device": "cuda"}, None)], ids=str)
def test_time_is_compared_on_the_processor(how, holds):
    assert found(**how)[-1].holds is holds


def test_without_our_method_nothing_is_measured():
    given = [r for r in records() if r["method"] != OWN]
    verdicts = target_verdicts(rankings(given, [RIVAL, "focal"]), given, OWN, FORMER, JUDGED)
    assert [v.holds for v in verdicts] == [None] * 6


def test_an_interval_covers_what_it_is_of():
    low, high = interval(np.arange(100.0), np.mean)
    assert 40 < low < 49.5 < high < 60


def test_the_report_and_the_terminal_show_them():
    config = {
        "methods": dict.fromkeys(LOSSES["a"], ""),
        "tables": {name: {"rows": 10, "columns": 2, "classes": 2} for name in LOSSES},
        "split": [0.6, 0.2, 0.2],
        "nll_floor": 1e-6,
        "experiment": "tables",
    }
    results = Results(config, {}, records())
    for text in (make_report(results).to_markdown(), to_terminal(results)):
        assert "NLL nowhere above 1.10 times the best rival's" in text
        assert "among all methods" in text
