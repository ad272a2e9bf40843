"""Tests of the sentences about records that were measured with an earlier version of the code."""

import pytest

from studies.tables.compared import earlier, earlier_costs
from studies.tables.page import make_report, to_terminal
from studies.tables.peers import FORMER, OWN, RIVAL
from tests.studies.cases import results_of, scored


def made(version, **fields):
    return {"table": "t", "method": "hgb", "seed": 0, "code": version} | fields


@pytest.mark.parametrize(
    ("version", "last", "number"),
    [
        ("version 1", "version 1", 0),
        ("version 0", "version 1", 1),
        ("", "version 1", 1),
        ("scikit-learn 1.9.1, version 1", "scikit-learn 1.9.2, version 1", 1),
    ],
)
def test_another_version_means_an_earlier_record(version, last, number):
    assert earlier([made(version)], {"hgb": last}) == ({"hgb": number} if number else {})


def test_nothing_is_called_earlier_in_a_file_without_versions():
    assert earlier([made("")], {}) == {}
    assert earlier_costs([made("", threads=2, failure=None)], "hgb", {}) == []


def test_costs_of_another_version_are_earlier():
    costs = [made(f"version {place}", table=table, threads=2, failure=None) for place, table in enumerate("ab")]
    assert earlier_costs(costs, "hgb", {"hgb": "version 1"}) == ["a"]
    assert earlier(costs, {"hgb": "version 2"}) == {}  # costs are not scores


def test_the_report_names_earlier_runs_and_costs():
    records = [r | {"code": "version new"} for r in scored([[0.5, 0.4]] * 2, [OWN, "hgb"])]
    records += [
        {"table": table, "method": method, "seed": 0, "threads": 2, "failure": None, "seconds": 1.0, "peak_memory": 1}
        | {"code": f"version {version}"}
        for method in (OWN, FORMER, RIVAL)
        for table, version in (("t0", "new"), ("t1", "old"))
    ]
    results = results_of(records, made_by={OWN: "version new", "hgb": "version new"})
    sentence = "measured with an earlier version of the code"
    assert f"These runs were {sentence}" not in to_terminal(results)
    records[1]["code"] = "version old"
    for text in (to_terminal(results), make_report(results).to_markdown()):
        assert f"These runs were {sentence}: hgb (1 of its runs)." in text
        assert f"The costs of {OWN} were {sentence} on t1." in text
