"""Tests of files of predictions: each gives a result or a one-sentence error."""

import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

pytest.importorskip("pandas")
pytest.importorskip("typer")
from typer.testing import CliRunner

from calibrant.cli import commands
from calibrant.report.evaluation import numbers

CELLS = st.one_of(
    st.floats(0, 1).map(lambda v: f"{v:.4f}"),
    st.sampled_from(
        ["0", "1", "0.5", "", "nan", "inf", "-1", "2", "a", "b", "é", "true", "<b>", "1e308", '"x"', "0,5"]
    ),
)
HEADS = st.sampled_from(
    ["prob_a", "prob_b", "prob_c", "p0", "p1", "logit_a", "logit_b", "score", "confidence", "correct", "label", "y"]
    + ["id", "a", "b", "", "prob_", "Label", "probability of a", "class"]
)


@st.composite
def any_table(draw):
    """Text of a table: mostly two probabilities that sum to 1 and a label, sometimes anything at all."""
    n = draw(st.integers(0, 12))
    if draw(st.booleans()):
        p = [draw(st.floats(0, 1)) for _ in range(n)]
        labels = [draw(st.sampled_from(draw(st.sampled_from([["a", "b"], ["0", "1"], ["a"]])))) for _ in range(n)]
        rows = [[repr(v), repr(1 - v), label] for v, label in zip(p, labels, strict=True)]
        head = draw(st.sampled_from([["prob_a", "prob_b", "label"], ["p0", "p1", "y"], ["a", "b", "label"]]))
    else:
        head = draw(st.lists(HEADS, min_size=1, max_size=5))
        rows = [[draw(CELLS) for _ in head] for _ in range(n)]
    return "\n".join(",".join(row) for row in [head, *rows]) + draw(st.sampled_from(["\n", "", "\n\n"]))


@pytest.mark.slow
@settings(max_examples=2000, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=any_table(), encoding=st.sampled_from(["utf-8", "utf-8-sig", "latin-1"]))
def test_any_file_is_evaluated_or_refused_in_a_sentence(text, encoding, tmp_path, monkeypatch):
    monkeypatch.setattr(numbers, "BUDGET", 1.0)
    path = tmp_path / "a.csv"
    path.write_bytes(text.encode(encoding))
    done = CliRunner().invoke(commands.app, ["evaluate", str(path), "--json"])
    assert done.exit_code in (0, 2), (text, done.exception)
    if done.exit_code == 0:
        json.loads(done.stdout, parse_constant=lambda name: pytest.fail(name))
    else:
        assert done.stderr.startswith("calibrant: "), text
        assert len(done.stderr.splitlines()) == 1, text
