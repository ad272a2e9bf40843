"""Tests of the report page: valid, escaped, self-contained, and accessible."""

import re
import sys
from html.parser import HTMLParser
from urllib.parse import unquote

import numpy as np
import pytest

pytest.importorskip("jinja2")
pytest.importorskip("matplotlib")

from calibrant.metrics import mean_interval
from calibrant.plots import ReliabilityDisplay
from studies.report import Column, Report, Verdict, provenance
from studies.report import figures as figures_module

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

    def handle_startendtag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if data.strip():
            self.texts.append((self.open[-1] if self.open else "", " ".join(data.split())))

    def all(self, tag):
        return [attributes for name, attributes in self.elements if name == tag]


@pytest.fixture(scope="module")
def drawn():
    from matplotlib import pyplot as plt

    rng = np.random.default_rng(0)
    confidence = rng.uniform(0.5, 1.0, 300)
    correct = rng.uniform(size=300) < confidence
    display = ReliabilityDisplay.from_predictions(confidence=confidence, correct=correct)
    yield display
    plt.close(display.figure_)


@pytest.fixture(scope="module")
def report(drawn):
    report = Report(f"Title {EVIL}", f"Summary {EVIL}\n\nSecond paragraph.")
    report.section(f"Section {EVIL}", f"Text {EVIL}")
    rows = [[EVIL, mean_interval([0.020, 0.022, 0.024]), 1.5], ["plain", mean_interval([0.03, 0.03]), None]]
    columns = ["set", Column("ECE-15", better="low", note=f"Note {EVIL}"), "seconds"]
    report.table(columns, rows, f"Caption {EVIL}")
    report.verdicts(
        [
            Verdict(f"First {EVIL}", mean_interval([1.0, 1.2]), True, note=f"Why {EVIL}"),
            Verdict("Second", 0.5, False),
            Verdict("Third"),
        ]
    )
    report.figure(drawn, f"Drawing {EVIL}", "one")
    report.section("Second")
    report.section("Third")
    with report.details(f"Folded {EVIL}", "Inside."):
        report.figure(drawn, "The same again", "two", alt=f"In words {EVIL}")
    report.provenance(provenance({"seeds": 2, "name": EVIL, "towns": ["Köln"]}))
    return report


@pytest.fixture(scope="module")
def page(report):
    return Page(report.to_html())


def test_nothing_a_user_writes_becomes_markup(report, page):
    text = report.to_html()
    assert len(page.all("script")) == 1  # the page's own
    assert "alert('x')" not in re.sub(r"&lt;script&gt;alert\(&#39;x&#39;\)", "", text)
    shown = [data for _, data in page.texts]
    for words in ("Title", "Summary", "Text", "Caption", "Drawing", "Folded", "First", "Why"):
        assert any(data.startswith(f"{words} {EVIL}") for data in shown), words
    assert any("Köln" in data for data in shown)


def test_it_needs_nothing_else(page):
    for tag, attributes in page.elements:
        assert tag not in {"link", "iframe", "object", "embed", "base", "audio", "video"}
        for name in ("src", "href", "xlink:href", "srcset", "action", "poster", "data"):
            value = attributes.get(name)
            assert value is None or value.startswith(("#", "data:")), (tag, name, value)
    css = "".join(data for tag, data in page.texts if tag == "style")
    assert "@import" not in css
    assert not re.search(r"url\((?!#)", css)


def test_anchors_lead_somewhere_and_names_are_unique(page):
    names = [a["id"] for _, a in page.elements if "id" in a]
    assert len(names) == len(set(names))
    for tag, attributes in page.elements:
        for key in ("href", "xlink:href"):
            if attributes.get(key, "").startswith("#"):
                assert attributes[key][1:] in names, (tag, attributes[key])
        for target in re.findall(r"url\(#([^)]*)\)", " ".join(str(v) for v in attributes.values())):
            assert target in names


def test_figures_say_what_they_show(page):
    labels = [a["aria-label"] for a in page.all("svg")]
    assert labels == [f"Drawing {EVIL}", f"In words {EVIL}"]
    assert all(a["role"] == "img" for a in page.all("svg"))


def test_numbers_have_their_intervals_and_the_best_is_named(report, page):
    assert ("strong", "0.022 ± 0.005") in page.texts
    assert ("span", "(best)") in page.texts
    assert ("td", "0.030 ± 0.000") in page.texts
    cells = page.all("td")
    assert [a.get("class") for a in cells] == ["number"] * 4
    assert [float(a["data-key"]) for a in cells if "data-key" in a] == pytest.approx([0.022, 1.5, 0.03])
    assert all(a["scope"] in ("row", "col") for a in page.all("th"))


def test_the_table_can_be_taken_as_csv(page):
    (link,) = (a for a in page.all("a") if "download" in a)
    lines = unquote(link["href"]).removeprefix("data:text/csv;charset=utf-8,\ufeff").splitlines()
    assert lines[0] == "set,ECE-15,ECE-15 low,ECE-15 high,seconds"
    assert float(lines[1].rsplit(",", 4)[1]) == pytest.approx(0.022)


def test_verdicts_are_words_not_colours(page):
    words = [data for tag, data in page.texts if tag == "span" and data in ("holds", "missed", "not measured")]
    assert words == ["holds", "missed", "not measured"]
    assert ("p", "Measured: 0.500") in page.texts


def test_it_is_written_with_its_figures(report, tmp_path):
    path = report.write(tmp_path / "out")
    assert path.read_text(encoding="utf-8") == report.to_html()
    assert sorted(p.name for p in (tmp_path / "out" / "figures").iterdir()) == [
        "one.png",
        "one.svg",
        "two.png",
        "two.svg",
    ]


def test_very_large_drawings_are_shown_as_png(drawn, monkeypatch):
    monkeypatch.setattr(figures_module, "INLINE_LIMIT", 10)
    report = Report("Large")
    report.figure(drawn, "A caption", "large")
    (image,) = Page(report.to_html()).all("img")
    assert image["alt"] == "A caption"
    assert image["src"].startswith("data:image/png;base64,")


def test_names_of_figures_differ(drawn):
    report = Report("Names")
    report.figure(drawn, "Caption", "a")
    with pytest.raises(ValueError, match="again"):
        report.figure(drawn, "Caption", "a")


def test_sections_do_not_stand_in_details_and_details_close():
    report = Report("Folds")
    with pytest.raises(ValueError, match="Close them first"), report.details("Fold"):
        report.section("Inside")
    report.section("After")
    assert report.to_markdown().endswith("### Fold\n\n## After")


def test_without_jinja2_a_sentence_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "jinja2", None)
    with pytest.raises(ImportError, match=r"calibrant\[report\]"):
        Report("Title").to_html()


def test_backquotes_enclose_code_and_nothing_is_read_as_html():
    report = Report("Words")
    report.text("Run `calibrant <x> & y`, <b>now</b>. A single ` stays.")
    page = report.to_html()
    assert "<p>Run <code>calibrant &lt;x&gt; &amp; y</code>, &lt;b&gt;now&lt;/b&gt;. A single ` stays.</p>" in page
    assert "`calibrant <x> & y`" in report.to_markdown()


def test_the_summary_has_code_and_long_names_are_wrapped():
    report = Report("R", "The method `ce` is compared.")
    report.table(["claim", "holds"], [["A sentence that is too long for one line", "yes"], ["short", "no"]])
    text = report.to_html()
    assert "<code>ce</code>" in text
    rows = [attributes for attributes in Page(text).all("th") if attributes.get("scope") == "row"]
    assert [attributes.get("class") for attributes in rows] == ["long", None]
