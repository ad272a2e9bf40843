"""The report of the second paper's study: tables, figures, the last screen, and the search over settings."""

from __future__ import annotations

import json
import pkgutil
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from calibrant.methods.catalogue import IMAGE_METHODS
from studies.meta_reg import figures, tables
from studies.meta_reg.claims import Claim
from studies.meta_reg.groups import RunGroup, groups
from studies.meta_reg.measures import BINS, diagrams
from studies.meta_reg.page import claims_table, tell, to_terminal
from studies.meta_reg.plan import FIRST, descriptions, known_methods, settings_text
from studies.meta_reg.search import STUDY as SEARCH
from studies.meta_reg.search import settings
from studies.meta_reg.searched import searched_table, searches, without_searches
from studies.meta_reg.variants import variants
from studies.report import Results
from tests.studies.cases import invoke
from tests.studies.meta_reg.test_claims import group_of, made, record


def test_every_method_has_a_description_that_stands_alone() -> None:
    assert descriptions().keys() == known_methods().keys()
    assert not any(text.startswith("the same") for text in descriptions().values())
    assert descriptions()["ce-average-ts"] == "like ce-average, then temperature scaling"
    assert len({descriptions()[name] for name in variants()}) == len(variants())


def test_names_in_the_page_exist() -> None:
    page = (Path(__file__).parents[3] / "docs" / "meta-regularisation.md").read_text()
    for name in re.findall(r"`(calibrant\.[A-Za-z_.]+)[`\[]", page):
        pkgutil.resolve_name(name)
    (command,) = re.findall(r"--methods ([a-z0-9. -]+?) --", page)[:1]
    assert set(command.split()) <= known_methods().keys()


def test_variants_have_a_table_of_their_own() -> None:
    group = group_of(*(record(name) for name in ("ce", "flg-sece", "flg-sece-whole-early")))
    main, _, further = tables.table1(group)
    for table in (main, further):
        assert [row[0] for row in table.rows if row[1] == "ours"] == ["ce", "flg-sece"]
    _, table, *_ = tables.variants_table(group)
    assert [row[0] for row in table.rows] == ["flg-sece-whole-early"]


def test_notes_below_table_1_say_what_differs() -> None:
    def caption(*records: dict[str, Any]) -> str:
        return tables.table1(group_of(*records))[-1].caption

    failed = caption(record("ce"), record("ce-dece", 2, failure="overflow"))
    assert "Failed runs are left out: ce-dece, seed 2." in failed
    assert "batches of 256" in failed
    assert "How ours differ" not in failed
    assert "bounded γ-Net" in caption(record("flg-sece"))
    assert caption(record("ce", recipe="paper", epochs=350)).endswith("on the test images.")


def test_tables_2_and_3_need_runs_of_ours() -> None:
    assert not tables.table2(group_of(record("ce")))
    assert not tables.table3(group_of(record("ce")))
    assert not tables.table3(group_of(record("flg-sece", limit=5000)))
    some = group_of(*(record(name) for name in ("flg-sece", "flg", "mbls")))
    _, gains, *_ = tables.table2(some)
    assert [row[:2] for row in gains.rows] == [["flg-sece − flg", "1"], ["paper's Table 2: flg-sece − flg", "5"]]
    assert all("%" not in column.name for column in gains.columns)  # differences are in points
    rows = {row[0]: row for row in tables.table3(some)[-1].rows}
    assert rows["Meta-Regularization (the paper itself)"][3:5] == ["flg-sece", "1"]
    assert rows["Liu et al. (2022)"][3] == "mbls"
    assert rows["Liu et al. (2022) (without margin)"][-1] == "quoted only: not run with this setup"


def test_gains_of_sece_are_paired_by_seed() -> None:
    (group,) = made(flg_sece={"ece": 0.02}, flg_dece={"ece": 0.03})
    (name, seeds, _, _, ece), *_ = tables.table2(group)[1].rows
    assert (name, seeds) == ("flg-sece − flg-dece", "3")
    assert ece.value == pytest.approx(-1.0)  # percentage points
    assert ece.high - ece.low == pytest.approx(0.0, abs=1e-9)


def test_table_1_has_the_papers_values_from_table_2() -> None:
    ((_, paper, seeds, error, *_),) = [
        row for row in tables.table1(group_of(record("flg")))[0].rows if row[1] == "paper"
    ]
    assert (paper, seeds, error) == ("paper", "5", "5.63 ± 0.12")


def test_a_gamma_net_without_bounds_has_none() -> None:
    table = tables.further(group_of(*(record(m, gamma_on_bound=0.5) for m in ("flg-sece", "flg-sece-published"))))
    position = [column.name for column in table.columns].index("γ on bound %")
    assert [row[position] for row in table.rows] == ["50.0", None]


def test_claims_share_their_remarks_below_the_table() -> None:
    notes = ("early", "late", "early", "")
    table, remarks = claims_table([Claim(f"claim {n}", "yes", "no", False, note) for n, note in enumerate(notes)])
    assert [row[0] for row in table.rows] == [1, 2, 3, 4]
    assert remarks == ("No. 1, 3: early.", "No. 2: late.")


def study(methods: Iterable[str], **settings: Any) -> Results:
    return Results({"experiment": "meta-reg"}, {}, [record(name, s, **settings) for name in methods for s in range(2)])


@pytest.mark.parametrize("settings", [{}, {"dataset": "digits"}, {"limit": 2000}])
def test_the_last_screen_shows_the_papers_table(settings: dict[str, Any]) -> None:
    for names in (FIRST, IMAGE_METHODS):
        lines = to_terminal(study(names, **settings)).splitlines()
        assert len(lines) <= 22  # two lines come after it: the page and the time
        assert max(map(len, lines)) <= 100
        (row,) = [line.split("|") for line in lines if line.startswith("| flg-sece ")]
        assert [cell.strip() for cell in row[2:6:2]] == ["2.14", "5.43"]
        text = " ".join(lines)
        assert ("none is judged" in text) == bool(settings)
        assert ("the numbers differ" in text) == ("dataset" in settings)


@pytest.mark.parametrize("settings", [{}, {"dataset": "digits"}, {"limit": 2000}])
def test_a_quick_study_judges_neither_targets_nor_claims(settings: dict[str, Any], monkeypatch) -> None:
    monkeypatch.setattr(figures, "drawn", lambda group: [])
    text = tell(study(FIRST, **settings)).to_markdown()
    assert ("| verdict" in text) == (not settings)
    assert ("measured, not judged" in text) == ("none is judged" in text) == bool(settings)
    assert "flg-sece: error within 0.7 points" in text


def drawn_group(names: Iterable[str] = figures.SHOWN) -> RunGroup:
    rng = np.random.default_rng(0)
    probs, labels = rng.dirichlet(np.ones(4), 300), rng.integers(0, 4, 300)
    bins = {"bins": list(BINS)} | dict.fromkeys(("ece", "mce", "ece_floor", "mce_floor"), [0.1] * len(BINS))
    curve = {"epoch": [1, 2, 3], "error": [0.3, 0.2, 0.1], "ece": [0.1, 0.1, 0.1]}
    gamma = {"gamma_mean": [1.0, 2.0, 2.0], "gamma_std": [0.1, 0.2, 0.2]}
    values = {"diagrams": diagrams(probs, labels), "test_size": 300, "bins": bins}
    return group_of(
        *(
            record(name, seed, **values, curve=curve | (gamma if name == "flg-sece" else {}))
            for name in names
            for seed in range(2 if name == "flsd" else 3)
        )
    )


def test_figures_show_the_same_methods_with_the_same_colours() -> None:
    pytest.importorskip("matplotlib")
    assert figures.common_seed(drawn_group()) == 1  # flsd has the seeds 0 and 1, the others 0 to 2
    assert figures.common_seed(group_of(record("ce"), record("flsd", 1))) is None
    axes, looks = {}, {}
    for number, figure, _ in figures.drawn(drawn_group()):
        axes[number] = len(figure.axes)
        lines = [line for line in figure.axes[0].lines if line.get_gid() == "model"]
        looks[number] = {line.get_label(): (line.get_color(), line.get_linestyle()) for line in lines}
    assert axes == {2: 8, 3: 4, 4: 24, 5: 2}
    assert set(looks[3]) == set(figures.SHOWN) - {"ce-ts", "recommended"}  # these calibrate at the end
    assert looks[3].items() <= looks[5].items()
    assert len({colour for colour, _ in looks[5].values()}) == len(figures.SHOWN)
    (figure,) = [own for number, own, _ in figures.drawn(drawn_group(["ce"])) if number == 3]
    assert len(figure.axes) == 2  # no empty panels of γ


def test_setups_of_a_search_are_not_part_of_the_study() -> None:
    scores = dict.fromkeys(("nll_val", "ece_val", "error_val"), 0.1)
    names = ("flg-sece", "flg-sece-h-0.5", "flg-sece-rate-10")
    tried = [record(name, dataset="digits", **scores) for name in names]
    full = [record("ce"), record("flg-sece"), record("flg-sece-h-0.5")]
    kept = without_searches(tried + full)
    assert [(r["dataset"], r["method"]) for r in kept] == [("cifar10", "ce"), ("cifar10", "flg-sece")]
    assert [(g.dataset, base) for g, base in searches(tried + full)] == [
        ("digits", "flg-sece"),
        ("cifar10", "flg-sece"),
    ]
    page = tell(Results({"experiment": "meta-reg"}, {}, tried)).to_markdown()
    assert "## Settings of flg-sece on the validation part, scikit-learn's digits" in page
    assert "Table 1" not in page


def test_every_setting_differs_from_its_default_in_one_value() -> None:
    found = settings([0.01], [0.1], [10.0], [40.0])
    base, published = found["flg-sece"], found["flg-sece-published"]
    assert found.keys() - {"flg-sece", "flg-sece-published"} == {
        "flg-sece-h-0.01",
        "flg-sece-strength-40",
        "flg-sece-published-tau-0.1",
        "flg-sece-rate-10",
    }
    assert dict(found["flg-sece-h-0.01"].outer_settings) == dict(base.outer_settings) | {"bandwidth": 0.01}
    assert dict(found["flg-sece-strength-40"].outer_settings) == dict(base.outer_settings) | {"strength": 40.0}
    assert found["flg-sece-rate-10"].outer_learning_rate == 10 * base.outer_learning_rate
    assert (found["flg-sece-published-tau-0.1"].temperature, published.temperature) == (0.1, 0.01)
    assert len({settings_text(method) for method in found.values()}) == len(found)
    for name in set(found) & set(known_methods()):  # where the ablation has the same variant, it is the same method
        assert known_methods()[name] == found[name]
    assert list(settings([0.02], [0.01], [1.0], [10.0])) == ["flg-sece", "flg-sece-published"]
    with pytest.raises(ValueError, match="--tau must be positive; got -1"):
        settings(temperatures=[-1.0])


def test_best_setting_has_the_lowest_validation_loss() -> None:
    values = {"flg-sece-rate-10": (0.4, 0.0), "flg-sece-h-0.05": (0.2, 0.9), "flg-sece": (0.3, 0.1)}
    (group,) = groups(record(name, nll_val=val, nll=test) for name, (val, test) in values.items())
    table = searched_table(group, "flg-sece")
    assert table.caption.endswith("Lowest NLL: h 0.05.")
    assert [row[0] for row in table.rows] == ["default", "h 0.05", "outer learning rate × 10"]


def test_a_search_on_digits_writes_results_and_a_report(tmp_path: Path) -> None:
    out, kept = tmp_path / "out", tmp_path / "kept.json"
    options = ["--quick", "--epochs", "1", "--limit", "300", "--device", "cpu"]
    values = ["--bandwidth", "0.02", "--tau", "0.1", "--outer-learning-rate", "1", "--strength", "10"]
    result = invoke("sweep", "meta-reg", *options, *values, "--out", str(out), "--export", str(kept))
    assert result.exit_code == 0, result.output
    found = json.loads(kept.read_text())["records"]
    assert {r["method"] for r in found} == {"flg-sece", "flg-sece-published", "flg-sece-published-tau-0.1"}
    again = SEARCH.run(source=[kept], out=tmp_path / "again")
    assert "τ 0.1" in again.read_text()
    assert "τ 0.1" in (out / "report.html").read_text()
