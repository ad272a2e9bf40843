"""Tests of the sentences about records that were measured with an earlier version of the code."""

import pytest

from calibrant.experiments.tables.ids import FORMER, OWN, RIVAL
from calibrant.experiments.tables.page import make_report, to_terminal
from calibrant.experiments.tables.versions import EQUAL, earlier, earlier_costs
from tests.experiments.cases import results_of, scored

FIRST, SECOND = sorted(EQUAL["trees"])[:2]


def made(version, **fields):
    return {"table": "t", "method": "hgb", "seed": 0, "code": version} | fields


@pytest.mark.parametrize(
    ("version", "last", "number"),
    [
        ("code aa", "code aa", 0),
        ("code aa", "code bb", 1),
        ("", "code aa", 1),
        (f"code {FIRST}", f"code {SECOND}", 0),
        (f"code {FIRST}", f"code {min(EQUAL['network, baseline'])}", 1),
        (f"scikit-learn 1.9.1, code {FIRST}", f"scikit-learn 1.9.2, code {SECOND}", 1),
        (f"scikit-learn 1.9.1, code {FIRST}", f"scikit-learn 1.9.1, code {SECOND}", 0),
    ],
)
def test_another_digest_means_an_earlier_record(version, last, number):
    assert earlier([made(version)], {"hgb": last}) == ({"hgb": number} if number else {})


def test_nothing_is_called_earlier_in_a_file_without_versions():
    assert earlier([made("")], {}) == {}
    assert earlier_costs([made("", threads=2, failure=None)], "hgb", {}) == []


def test_costs_of_other_code_are_earlier():
    costs = [
        made(f"code {digest}", table=table, threads=2, failure=None) for table, digest in (("a", FIRST), ("b", SECOND))
    ]
    assert earlier_costs(costs, "hgb", {"hgb": f"code {SECOND}"}) == ["a"]
    assert earlier(costs, {"hgb": "code other"}) == {}  # costs are not scores


def test_kinds_of_methods_have_their_own_digests():
    own, other = sorted(EQUAL["network, baseline"] - EQUAL["ours"])[:2]
    records = [made(f"code {own}", method=method) for method in ("focal", OWN)]
    assert earlier(records, {"focal": f"code {other}", OWN: f"code {other}"}) == {OWN: 1}


def test_the_report_names_earlier_runs_and_costs():
    records = [r | {"code": "code new"} for r in scored([[0.5, 0.4]] * 2, [OWN, "hgb"])]
    records += [
        {"table": table, "method": method, "seed": 0, "threads": 2, "failure": None, "seconds": 1.0, "peak_memory": 1}
        | {"code": f"code {version}"}
        for method in (OWN, FORMER, RIVAL)
        for table, version in (("t0", "new"), ("t1", "old"))
    ]
    results = results_of(records, made_by={OWN: "code new", "hgb": "code new"})
    sentence = "measured with an earlier version of the code"
    assert f"These runs were {sentence}" not in to_terminal(results)
    records[1]["code"] = "code old"
    for text in (to_terminal(results), make_report(results).to_markdown()):
        assert f"These runs were {sentence}: hgb (1 of its runs)." in text
        assert f"The costs of {OWN} were {sentence} on t1." in text
