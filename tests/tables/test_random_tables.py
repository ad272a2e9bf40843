"""Tests of `calibrant train` and `predict` on random tables: a valid result or a sentence, never a traceback."""

import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

pytest.importorskip("typer")
import pandas as pd

from tests.tables.conftest import make_quick
from tests.tables.test_train import FILES, invoke

NUMBERS = st.one_of(st.integers(-5, 5), st.floats(-9, 9, width=32), st.none(), st.just("?"))
WILD = st.one_of(st.floats(), st.just(1e300), st.integers())
WORDS = st.one_of(
    st.sampled_from(["a", "b", "é", "", " x", "007", "1,5", 'q"', "NA", "true", "-"]), st.text(max_size=6)
)
DATES = st.sampled_from(["2020-01-01", "2021-02-03", "2020-13-45", "", "1999-12-31 10:00"])
OTHER = st.sampled_from(["31.12.24", "3-Nov-2024", "1/2/23", "7.5 kg", "1,200 kg", "12 %", "12B", "7", ""])
MIXED = st.one_of(NUMBERS, WORDS)
CELLS = st.sampled_from([NUMBERS, NUMBERS, WILD, WORDS, DATES, OTHER, st.booleans(), st.just("same"), MIXED])
NAMES = st.one_of(st.sampled_from(["x", "y", "label", "prob_a", "row", "", " x", "Größe", 'a"b']), st.text(max_size=5))
CLASSES = [["a", "b"], [0, 1], ["no", "yes", ""], [True, False], ["x", "y", "z"], ["01", "2"], ["one"], [1.5, 2], None]


@st.composite
def tables(draw):
    """Rows of a few columns of mixed kinds, with a target of a few classes, or of something else."""
    rows = draw(st.one_of(st.integers(15, 40), st.integers(0, 40)))
    kinds = draw(st.lists(CELLS, min_size=draw(st.sampled_from([0, 2, 2, 2])), max_size=5))
    columns = [draw(st.lists(kind, min_size=rows, max_size=rows)) for kind in kinds]
    names = draw(st.lists(NAMES, min_size=len(kinds), max_size=len(kinds)))
    classes = draw(st.sampled_from(CLASSES))
    cells = CELLS.flatmap(lambda kind: kind) if classes is None else st.sampled_from(classes)
    columns.append(draw(st.lists(cells, min_size=rows, max_size=rows)))
    return pd.DataFrame(dict(enumerate(columns))).set_axis([*names, "the target"], axis=1)


@pytest.mark.slow
@settings(max_examples=50, suppress_health_check=list(HealthCheck))
@given(table=tables(), ending=st.sampled_from([".csv", ".tsv", ".csv.gz"]))
def test_a_valid_result_or_a_sentence(table, ending, tmp_path_factory):
    folder = tmp_path_factory.mktemp("random")
    path, out = folder / f"t{ending}", folder / "out"
    table.to_csv(path, index=False, sep="\t" if ending == ".tsv" else ",")
    with pytest.MonkeyPatch.context() as patch:
        make_quick(patch)
        done = invoke("train", path, "--target", "the target", "--out", out, "--json")
        if done.exit_code != 0:
            check_sentence(done)
            assert not out.exists() or not FILES & {p.name for p in out.iterdir()}
            return
        metrics = json.loads(done.stdout)
        assert {p.name for p in out.iterdir()} == FILES
        assert 0 <= metrics["test"]["measures"]["accuracy"]["value"] <= 1
        again = invoke("predict", out / "model.calibrant", path, "--no-score", "--out", folder / "p.csv", "--chunk", 7)
        if again.exit_code != 0:
            check_sentence(again)
            return
        found = pd.read_csv(folder / "p.csv")
        assert len(found) == len(pd.read_csv(path, sep="\t" if ending == ".tsv" else ",", skip_blank_lines=True))
        probs = found.filter(regex="^prob_").to_numpy()
        assert abs(probs.sum(axis=1) - 1).max() < 1e-6


def check_sentence(done):
    assert done.exit_code == 2, (done.output, done.exception)
    lines = [line for line in done.stderr.splitlines() if line.startswith("calibrant: ")]
    assert len(lines) == 1
    assert lines[0].endswith((".", "?"))
