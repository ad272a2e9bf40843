"""The report of the second paper's study: each table and figure is complete and can be read by itself."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pytest

from calibrant.methods.catalogue import IMAGE_METHODS
from calibrant.plots.style import save_figure
from studies.images import SHIFTS
from studies.meta_reg import figures, measured_claims, tables, targets
from studies.meta_reg.groups import groups
from studies.meta_reg.measures import BINS, DIAGRAMS, diagrams
from studies.meta_reg.page import tell, to_terminal
from studies.meta_reg.plan import QUICK, known_methods
from studies.meta_reg.searched import searches, without_searches
from studies.meta_reg.tables import describe
from studies.report import Results
from tests.studies.meta_reg.test_claims import made, record


def test_every_method_has_a_description_that_stands_alone() -> None:
    for name in known_methods():
        assert describe(name), name
        assert not describe(name).startswith("the same"), name
    assert describe("ce-average-ts") == "like ce-average, then temperature scaling"
    assert describe("flg-sece-whole-rescaled-rate-1") != describe("flg-sece-whole-rate-10")
    assert describe("flg-dece-whole") == describe("flg-sece-whole").replace("sece", "dece")
    for rate in ("0.1", "10"):
        assert describe(f"flg-sece-rate-{rate}").endswith(f"times {rate}")
    assert "sigmoid" in describe("published-sigmoid")
    assert "learning rate" not in describe("focal-control-whole")  # it has none
    assert describe("unheard-of") == ""


def test_variants_have_a_table_of_their_own() -> None:
    (group,) = groups([record(name, 0) for name in ("ce", "flg-sece", "flg-sece-whole-early")])
    assert [row[0] for row in tables.table1(group).rows if row[1] == "ours"] == ["ce", "flg-sece"]
    ((name, about, *_),) = tables.variants_table(group).rows
    assert (name, about) == ("flg-sece-whole-early", describe("flg-sece-whole-early"))
    assert [row[0] for row in tables.methods_table([group]).rows] == group.methods


def test_failed_runs_and_recipe_are_named_below_table_1() -> None:
    (group,) = groups([record("ce", 0), record("ce-dece", 2, failure="overflow")])
    caption = tables.table1(group).caption
    assert "Failed runs are left out: ce-dece, seed 2." in caption
    assert "350 epochs" in caption
    (paper,) = groups([record("ce", 0, recipe="paper", epochs=350)])
    assert "350 epochs" not in tables.table1(paper).caption
    assert "Failed" not in tables.table1(paper).caption


def test_table_1_says_how_our_methods_differ() -> None:
    (plain,), (named,) = groups([record("ce", 0)]), groups([record(name, 0) for name in ("ce", "flg-sece")])
    assert "How ours differ" not in tables.table1(plain).caption
    assert "bounded γ-Net" in tables.table1(named).caption
    assert "batches of 256" in tables.table1(named).caption


def test_tables_2_and_3_need_runs_of_ours() -> None:
    (none,) = groups([record("ce", 0)])
    assert not tables.table2(none).rows
    assert not tables.table3(none).rows
    (few,) = groups([record("flg-sece", 0, limit=5000)])
    assert not tables.table3(few).rows
    (some,) = groups([record(name, 0) for name in ("flg-sece", "flg", "mbls")])
    assert [row[:2] for row in tables.table2(some).rows] == [
        ["flg-sece − flg", "1"],
        ["paper's Table 2: flg-sece − flg", "5"],
    ]
    assert all("%" not in column.name for column in tables.table2(some).columns)  # differences are in points
    rows = {row[0]: row for row in tables.table3(some).rows}
    assert rows["Meta-Regularization (the paper itself)"][3:5] == ["flg-sece", "1"]
    assert rows["Liu et al. (2022)"][3] == "mbls"
    assert rows["Liu et al. (2022) (without margin)"][-1] == "quoted only: not run with this setup"


def test_rows_that_are_only_quoted_are_shown_with_the_reason() -> None:
    (group,) = groups([record(name, 0, dataset="cifar100") for name in ("ce", "flg-sece")])
    rows = tables.table3(group).rows
    assert len(rows) == 6
    for row in rows:
        assert (row[3] == "flg-sece") != str(row[-1]).startswith("quoted only: ")


def test_table_1_has_the_papers_values_from_table_2() -> None:
    (group,) = groups([record("flg", 0)])
    ((_, paper, seeds, error, *_),) = [row for row in tables.table1(group).rows if row[1] == "paper"]
    assert (paper, seeds, error) == ("paper", "5", "5.63 ± 0.12")


def test_a_gamma_net_without_bounds_has_none() -> None:
    (group,) = groups([record(name, 0, gamma_on_bound=0.5) for name in ("flg-sece", "flg-sece-published")])
    table = tables.further(group)
    position = [column.name for column in table.columns].index("γ on bound %")
    assert [row[position] for row in table.rows] == ["50.0", None]


def test_the_main_study_comes_first() -> None:
    found = groups([record("ce", 0, recipe="paper"), record("ce", 0, dataset="cifar100"), record("ce", 0)])
    assert [(g.dataset, g.records[0]["recipe"]) for g in found] == [
        ("cifar10", "short"),
        ("cifar10", "paper"),
        ("cifar100", "short"),
    ]


def test_setups_of_a_search_are_not_part_of_the_study() -> None:
    search = [
        record(name, 0, dataset="digits", nll_val=0.1, ece_val=0.1, error_val=0.1)
        for name in ("flg-sece", "flg-sece-h-0.5", "flg-sece-rate-10")
    ]
    study = [record("ce", 0), record("flg-sece", 0), record("flg-sece-h-0.5", 0)]
    kept = without_searches(search + study)
    assert [(r["dataset"], r["method"]) for r in kept] == [("cifar10", "ce"), ("cifar10", "flg-sece")]
    assert [(g.dataset, base) for g, base in searches(search + study)] == [
        ("digits", "flg-sece"),
        ("cifar10", "flg-sece"),
    ]
    page = tell(Results({"experiment": "meta-reg"}, {}, search)).to_markdown()
    assert "## Settings of flg-sece, scikit-learn's digits" in page
    assert "Table 1" not in page


def test_shifts_are_summarised_by_their_mean() -> None:
    levels = {name: {"error": k / 100, "ece": 0.1, "nll": 0.3} for k, name in enumerate(SHIFTS)}
    (group,) = groups([record("ce", 0, shifts=levels)])
    ((method, error, ece, scaled, *_),) = tables.mean_shifts(group).rows
    assert (method, error, ece, scaled) == ("ce", "3.50", "10.00", None)
    for strength in ("0.02 and 0.04", "0.5 and 0.8 pixels"):
        assert strength in tables.shifts(group).caption


def test_measured_targets_have_the_unit_of_their_statement() -> None:
    found = targets.first(made(ce={"error": 0.05, "ece": 0.03}, flg_sece={"error": 0.053, "ece": 0.02}))
    (error,) = [v for v in found if "error within 0.7 points" in v.statement]
    assert "(rate × 1) 0.30 ± 0.00" in error.shown
    (ece,) = [v for v in found if "ECE below ce's" in v.statement]
    assert "−1.00 ± 0.00" in ece.shown
    assert "points" in error.statement
    assert "points" in ece.statement
    (third,) = targets.third(groups([record("recommended", 0)]))
    assert "cifar10 (1000 bins) 1.20" in third.shown


def test_times_of_a_single_seed_are_marked() -> None:
    names = ("ce", "recommended", "ce-average-ts")
    for seeds in (1, 2):
        found = targets.second(groups([record(name, seed) for name in names for seed in range(seeds)]))
        (time,) = [v for v in found if "training time" in v.statement]
        assert ("one seed on cifar10" in time.note) == (seeds == 1)


def study(methods: Iterable[str], **settings) -> Results:
    return Results({"experiment": "meta-reg"}, {}, [record(name, s, **settings) for name in methods for s in range(2)])


@pytest.mark.parametrize("settings", [{}, {"dataset": "digits"}, {"limit": 2000}])
def test_the_last_screen_shows_the_papers_table(settings) -> None:
    for names in (QUICK, IMAGE_METHODS):
        lines = to_terminal(study(names, **settings)).splitlines()
        assert len(lines) <= 22  # two lines come after it: the page and the time
        assert max(map(len, lines)) <= 100
        (row,) = [line.split("|") for line in lines if line.startswith("| flg-sece ")]
        assert [cell.strip() for cell in row[2:6:2]] == ["2.14", "5.43"]
        text = " ".join(lines)
        assert ("none is judged" in text) == bool(settings)
        assert ("compare the order" in text) == ("dataset" in settings)


@pytest.mark.parametrize("settings", [{}, {"dataset": "digits"}, {"limit": 2000}])
def test_a_quick_study_judges_neither_targets_nor_claims(settings, monkeypatch) -> None:
    monkeypatch.setattr(figures, "shown", lambda group: False)
    text = tell(study(QUICK, **settings)).to_markdown()
    assert ("| verdict" in text) == (not settings)
    assert text.count("measured, not judged") == (2 if settings else 0)
    assert ("none is judged" in text) == bool(settings)
    assert "not yet measured" not in text or not settings
    assert "flg-sece: error within 0.7 points" in text


def curve(*spreads: float) -> dict[str, list[float]]:
    return {"epoch": list(range(1, len(spreads) + 1)), "gamma_std": list(spreads)}


@pytest.mark.parametrize(
    ("spreads", "holds", "text"),
    [
        ((0.0, 0.0, 0.3, 0.4), True, "0 until epoch 2, where γ is held at its start; 0.300 after epoch 3"),
        ((0.0, 0.0, 0.3, 0.2), False, "0.200 after the last"),
        ((0.1, 0.2), True, "0.100 after epoch 1, 0.200 after the last"),
        ((0.0, 0.0), False, "0.000 after the last"),
    ],
)
def test_the_spread_of_gamma_counts_once_it_moves(spreads, holds, text) -> None:
    (group,) = groups([record("flg-sece", 0, curve=curve(*spreads))])
    claim = measured_claims.spread_grows(group)
    assert claim.holds is holds
    assert text in claim.measured


def test_errors_are_compared_on_the_common_seeds() -> None:
    """``ce`` has a lucky third seed, which no other method has."""
    errors = {"ce": (0.06, 0.06, 0.01), "mixup": (0.05, 0.05)}
    (group,) = groups([record(m, s, error=e) for m, own in errors.items() for s, e in enumerate(own)])
    claim = measured_claims.smoothing(group)
    assert claim.measured.startswith("lowest error: mixup")
    assert "over their 2 common seeds" in claim.note


def test_undecided_differences_are_named() -> None:
    ece = {"ce": (0.03, 0.05), "mmce": (0.06, 0.04)}
    (group,) = groups([record(m, s, ece=e) for m, own in ece.items() for s, e in enumerate(own)])
    claim = measured_claims.mmce(group)
    assert claim.holds is True
    assert "0 lies within the interval on mmce" in claim.note
    (single,) = groups([record(m, 0) for m in ece])
    assert "mmce: one seed, so no interval" in measured_claims.mmce(single).note


def test_the_claim_without_runs_says_what_it_needs() -> None:
    (group,) = groups([record("published-relu", 0)])
    assert "flg-sece-published" in measured_claims.positivity(group).note


def drawn_group(names=figures.SHOWN):
    rng = np.random.default_rng(0)
    probs, labels = rng.dirichlet(np.ones(4), 300), rng.integers(0, 4, 300)
    bins = {"bins": list(BINS)} | dict.fromkeys(("ece", "mce", "ece_floor", "mce_floor"), [0.1] * len(BINS))
    curve = {"epoch": [1, 2, 3], "error": [0.3, 0.2, 0.1], "ece": [0.1, 0.1, 0.1]}
    values = {"diagrams": diagrams(probs, labels), "test_size": 300, "bins": bins, "curve": curve}
    (group,) = groups(record(name, seed, **values) for name in names for seed in range(2 if name == "flsd" else 3))
    return group


@pytest.mark.parametrize(
    ("bins", "names"), [((15,), figures.SHOWN), ((15,), ("ce",)), (DIAGRAMS[1:], ("ce", "flg-sece"))]
)
def test_no_text_of_the_diagrams_is_cut_off(bins, names, tmp_path) -> None:
    pytest.importorskip("matplotlib")
    from matplotlib import pyplot as plt

    figure = figures.reliability(drawn_group(names), bins)
    _, path = save_figure(figure, tmp_path / "figure")
    plt.close(figure)
    assert len(figure.axes) == len(bins) * len(names)
    pixels = plt.imread(path)[..., :3]
    for border in (pixels[0], pixels[-1], pixels[:, 0], pixels[:, -1]):
        assert (border == 1).all()


def test_diagrams_show_a_seed_that_all_methods_have() -> None:
    assert figures.common_seed(drawn_group()) == 1  # flsd has the seeds 0 and 1, the others 0 to 2
    (apart,) = groups([record("ce", 0), record("flsd", 1)])
    assert figures.common_seed(apart) is None


def test_curves_leave_out_methods_that_calibrate_at_the_end() -> None:
    pytest.importorskip("matplotlib")
    from matplotlib import pyplot as plt

    figure = figures.curves(drawn_group())
    shown = {text.get_text() for text in figure.legends[0].get_texts()}
    assert shown == set(figures.SHOWN) - {"ce-ts", "recommended"}
    assert not any(ax.get_legend() for ax in figure.axes)
    plt.close(figure)


def test_figure_3_shows_a_variant_in_place_of_its_method() -> None:
    pytest.importorskip("matplotlib")
    from matplotlib import pyplot as plt

    plain = {"epoch": [1, 2], "error": [0.2, 0.1], "ece": [0.2, 0.1]}
    learned = plain | {"gamma_mean": [1.0, 2.0], "gamma_std": [0.1, 0.2]}
    by_method = {"ce": plain, "flg-sece-whole": learned}
    for names, panels in ((["ce"], 2), (["ce", "flg-sece-whole"], 4)):
        (group,) = groups([record(name, 0, curve=by_method[name]) for name in names])
        figure = figures.curves(group)
        assert len(figure.axes) == panels  # no empty panels
        assert [text.get_text() for text in figure.legends[0].get_texts()] == names
        plt.close(figure)


def test_a_method_has_one_colour_in_figures_3_and_5() -> None:
    pytest.importorskip("matplotlib")
    from matplotlib import pyplot as plt

    looks = []
    for figure in (figures.curves(drawn_group()), figures.bin_sweep(drawn_group())):
        lines = [line for line in figure.axes[0].lines if line.get_gid() == "model"]
        looks.append({line.get_label(): (line.get_color(), line.get_linestyle()) for line in lines})
        plt.close(figure)
    assert looks[0].items() <= looks[1].items()


def test_every_method_has_its_own_colour_in_figure_5() -> None:
    pytest.importorskip("matplotlib")
    from matplotlib import pyplot as plt

    figure = figures.bin_sweep(drawn_group())
    for ax in figure.axes:
        colours = [line.get_color() for line in ax.lines if line.get_gid() == "model"]
        assert len(set(colours)) == len(colours) == len(figures.SHOWN)
    figure.canvas.draw()
    for ax in figure.axes:
        assert not figure.legends[0].get_window_extent().overlaps(ax.get_window_extent())
    plt.close(figure)
