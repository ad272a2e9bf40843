"""Reports of studies: result files, tables, and pages that are escaped, self-contained and accessible."""

import doctest
import json
import math
import re
from html.parser import HTMLParser

import numpy as np
import pytest
import torch

pytest.importorskip("jinja2")
pytest.importorskip("matplotlib")

import calibrant.report
from calibrant.metrics import Estimate, mean_interval
from calibrant.plots import ReliabilityDisplay
from calibrant.report import format_number, versions
from studies.report import (
    Column,
    Report,
    Table,
    Verdict,
    builder,
    by_seed,
    command,
    provenance,
    read_results,
    to_markdown,
    write_results,
)
from studies.report.table import make_table

EVIL = "<script>alert('x')</script>\"&"
VOID = {"meta", "img", "br", "link", "input", "hr"}


class Page(HTMLParser):
    """Elements as (tag, attributes), text by element, and a check that every element is closed."""

    def __init__(self, text):
        super().__init__()
        self.elements, self.open, self.texts = [], [], []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if data.strip():
            self.texts.append((self.open[-1] if self.open else "", " ".join(data.split())))

    def all(self, tag):
        return [attributes for name, attributes in self.elements if name == tag]


@pytest.fixture(scope="module")
def report():
    from matplotlib import pyplot as plt

    rng = np.random.default_rng(0)
    confidence = rng.uniform(0.5, 1.0, 300)
    drawing = ReliabilityDisplay.from_predictions(confidence=confidence, correct=rng.uniform(size=300) < confidence)
    report = Report(f"Title {EVIL}", f"Summary {EVIL} and `code`\n\nSecond paragraph.")
    report.section(f"Section {EVIL}", f"Text {EVIL}")
    rows = [[EVIL, mean_interval([0.020, 0.022, 0.024]), 1.5], ["plain", mean_interval([0.03, 0.03]), None]]
    columns = ["set", Column("ECE-15", better="low", note=f"Note {EVIL}"), "seconds"]
    report.table(columns, rows, f"Caption {EVIL}")
    first = Verdict(f"First {EVIL}", mean_interval([1.0, 1.2]), True, note=f"Why {EVIL}")
    report.verdicts([first, Verdict("Second", 0.5, False), Verdict("Third")])
    report.figure(drawing, f"Drawing {EVIL}", "one")
    report.section("Second")
    report.section("Third")
    with report.details(f"Folded {EVIL}", "Inside."):
        report.figure(drawing, "The same again", "two", alt=f"In words {EVIL}")
    report.provenance(provenance({"seeds": 2, "name": EVIL, "towns": ["Köln"]}))
    yield report
    plt.close(drawing.figure_)


@pytest.fixture(scope="module")
def page(report):
    return Page(report.to_html())


def test_nothing_a_user_writes_becomes_markup(report, page):
    assert len(page.all("script")) == 1  # the page's own
    assert "alert('x')" not in re.sub(r"&lt;script&gt;alert\(&#39;x&#39;\)", "", report.to_html())
    shown = [data for _, data in page.texts]
    for words in ("Title", "Summary", "Text", "Caption", "Drawing", "Folded", "First", "Why"):
        assert any(data.startswith(f"{words} {EVIL}") for data in shown), words
    assert ("code", "code") in page.texts


def test_the_page_needs_nothing_else_and_its_anchors_lead_somewhere(page):
    names = [attributes["id"] for _, attributes in page.elements if "id" in attributes]
    assert len(names) == len(set(names))
    for tag, attributes in page.elements:
        assert tag not in {"link", "iframe", "object", "embed", "base", "audio", "video"}
        for value in (attributes.get(name) for name in ("src", "href", "srcset", "action", "poster", "data")):
            assert value is None or value.startswith("data:") or value[1:] in names, (tag, value)
    css = "".join(data for tag, data in page.texts if tag == "style")
    assert "@import" not in css
    assert not re.search(r"url\((?!#)", css)


def test_figures_numbers_and_verdicts_are_said_in_words(page):
    assert [a["alt"] for a in page.all("img")] == [f"Drawing {EVIL}", f"In words {EVIL}"]
    assert ("strong", "0.022 ± 0.005") in page.texts
    assert ("span", "(best)") in page.texts
    assert [float(a["data-key"]) for a in page.all("td") if "data-key" in a] == pytest.approx([0.022, 1.5, 0.03])
    words = [data for tag, data in page.texts if tag == "span" and data in ("holds", "missed", "not measured")]
    assert words == ["holds", "missed", "not measured"]
    assert ("p", "Measured: 0.500") in page.texts


def test_the_page_is_written_with_its_figures(report, tmp_path):
    path = report.write(tmp_path / "out")
    assert path.read_text(encoding="utf-8") == report.to_html()
    files = sorted(file.name for file in (tmp_path / "out" / "figures").iterdir())
    assert files == ["one.png", "one.svg", "two.png", "two.svg"]


@pytest.mark.parametrize("module", [builder, calibrant.report])
def test_examples_run(module):
    assert doctest.testmod(module).failed == 0


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0164, "0.016"),
        (-0.5, "−0.500"),
        (-0.0001, "0.000"),
        (np.int64(7), "7"),
        (np.float32(0.25), "0.250"),
        (True, "yes"),
        (None, "–"),
        (math.nan, "–"),
        ("isotonic", "isotonic"),
        (Estimate(0.016, 0.014, 0.018, 0.95, ""), "0.016 ± 0.002"),
        (Estimate(0.016, 0.012, 0.024, 0.95, ""), "0.016 [0.012, 0.024]"),
        (Estimate(0.5, 0.4999, 0.5001, 0.95, ""), "0.500 ± <0.001"),
        (Estimate(0.5, 0.5, 0.5, 0.95, ""), "0.500 ± 0.000"),
        (mean_interval([0.25]), "0.250"),
        (mean_interval([0.1, None, 0.3]), "–"),
    ],
)
def test_how_numbers_are_written(value, text):
    assert format_number(value) == text


COLUMNS = ["method", Column("ECE", better="low"), Column("accuracy", better="high", digits=2)]


@pytest.mark.parametrize(
    ("rows", "best"),
    [
        ([["a", 0.030, 0.90], ["b", 0.020, 0.80], ["c", None, 0.95]], {(1, 1), (2, 2)}),
        ([["a", 0.02001, 0.904], ["b", 0.02049, 0.896], ["c", 0.021, 0.5]], {(0, 1), (1, 1), (0, 2), (1, 2)}),
        ([["a", 0.1, 0.9], ["b", None, float("nan")]], set()),
        ([["a", Estimate(0.02, 0.0, 0.04, 0.95, ""), 1.0], ["b", np.float64(0.03), 0.5]], {(0, 1), (0, 2)}),
    ],
    ids=["both directions", "what is shown as equal", "alone", "intervals"],
)
def test_the_best_of_each_column_is_marked(rows, best):
    assert make_table(COLUMNS, rows).best() == best


def test_exempt_rows_are_never_best_and_groups_are_apart():
    columns = ["data", *COLUMNS]
    rows = [
        ["x", "floor", 0.001, 0.99],
        ["x", "a", 0.020, 0.90],
        ["x", "b", 0.030, 0.91],
        ["y", "a", 0.005, 0.70],
        ["y", "b", 0.004, 0.60],
    ]
    assert make_table(columns, rows, group="data", exempt={"floor"}).best() == {(1, 2), (2, 3), (4, 2), (3, 3)}
    with pytest.raises(ValueError, match="row 1 must have 3 cells"):
        make_table(COLUMNS, [["a", 0.1, 0.2], ["b", 0.1]])
    with pytest.raises(ValueError, match="heading of a column; got 'set'"):
        Table([Column("data")], [], group="set")


def test_markdown_aligns_numbers_right_and_keeps_bars_in_text():
    text = to_markdown(COLUMNS, [["a|b", 0.03, 0.9], ["c", 0.02, 0.8]])
    assert text.splitlines() == [
        "| method |       ECE | accuracy |",
        "| ------ | --------: | -------: |",
        "| a\\|b   |     0.030 | **0.90** |",
        "| c      | **0.020** |     0.80 |",
    ]
    rows = [["5", "7.19 ± 0.18", "2.3 [1.4, 3.8]", "0.64 ± 0.15 (0.57)", "2 of 3"], ["12", None, "−1", "**3**", "4"]]
    rule = to_markdown(["seeds", "error", "rank", "ECE (floor)", "text"], rows).splitlines()[1]
    assert [cell.strip().endswith(":") for cell in rule.strip("|").split("|")] == [True, True, True, True, False]


def test_what_is_written_to_a_result_file_is_read(tmp_path):
    records = [
        {"seed": np.int64(1), "nll": torch.tensor(0.5), "aurc": np.float32(0.25), "map": np.eye(2), "at": tmp_path},
        {"nll": float("inf"), "ece": np.nan},
    ]
    path = write_results(tmp_path / "deep" / "results.json", {"seeds": 1, "grid": (1, 2)}, records)
    assert [line for line in path.read_text().splitlines() if "inf" not in line][-3] == '  {"nll": null, "ece": null}'
    config, made_with, stored = read_results(path)
    assert stored[0] == {"seed": 1, "nll": 0.5, "aurc": 0.25, "map": [[1.0, 0.0], [0.0, 1.0]], "at": str(tmp_path)}
    assert (config["seeds"], config["grid"]) == (1, [1, 2])
    assert {"processor", "cores", "gpu"} <= config["machine"].keys()
    assert made_with == versions()
    with pytest.raises(TypeError):
        write_results(path, {}, [{"seed": object()}])
    assert read_results(path).records == stored  # a file that cannot be written leaves the old one
    write_results(path, {"machine": {"gpu": "another"}}, [], {"torch": "1.0"})
    assert read_results(path) == ({"machine": {"gpu": "another"}}, {"torch": "1.0"}, [])


@pytest.mark.parametrize(
    ("text", "says"), [("{", "not a JSON file"), ("[]", "lacks config"), ('{"config": {}}', "versions")]
)
def test_other_files_are_refused_by_a_sentence(tmp_path, text, says):
    with pytest.raises(FileNotFoundError, match="no result file"):
        read_results(tmp_path / "r.json")
    (tmp_path / "r.json").write_text(text)
    with pytest.raises(ValueError, match=says):
        read_results(tmp_path / "r.json")


@pytest.mark.parametrize("part", [{"config": []}, {"versions": None}, {"records": {}}, {"records": [1]}])
def test_parts_of_another_shape_are_refused(tmp_path, part):
    (tmp_path / "r.json").write_text(json.dumps({"config": {}, "versions": {}, "records": []} | part))
    with pytest.raises(ValueError, match=f"not a result file of calibrant: .*{next(iter(part))}"):
        read_results(tmp_path / "r.json")


@pytest.mark.parametrize(
    ("argument", "kept"),
    [("/home/me/tables", "tables"), ("--out=/home/me/x", "--out=x"), ("--out=a/b", "--out=a/b"), ("/", "/")],
)
def test_a_command_is_kept_without_the_folders_of_this_machine(monkeypatch, argument, kept):
    monkeypatch.setattr("sys.argv", ["/usr/bin/calibrant", "bench", argument])
    assert command() == f"calibrant bench {kept}"


def test_records_are_selected_by_their_fields():
    records = [{"method": m, "seed": s, "nll": s + 10 * (m == "b")} for m in "ab" for s in range(3)]
    assert by_seed(records, "nll", method="b") == {0: 10, 1: 11, 2: 12}
    with pytest.raises(ValueError, match="several of seed 0"):
        by_seed(records, "nll")
