"""An interrupted command continues, and ends with the same records as an uninterrupted one."""

import pytest

from studies.bo4sc import grid
from studies.bo4sc.study import reproduce
from studies.common.store import Store
from studies.report import read_results
from tests.studies.cases import tiny_reproduce

COSTS = ("seconds", "peak_memory", "members")


def records(folder):
    """The measured values, without costs."""
    found = read_results(folder / "results.json").records
    return [{name: value for name, value in record.items() if name not in COSTS} for record in found]


def test_records_are_on_disk_when_their_population_ends(tmp_path, monkeypatch):
    """The third population is interrupted. Those before it are kept, and only the rest is trained again."""
    trained = []

    def run_all(plan, **options):
        trained.append([name for name, *_ in plan])
        if len(trained) == 3:
            raise KeyboardInterrupt
        return real(plan, **options)

    from studies.common import runs

    real = runs.run_all
    monkeypatch.setattr(runs, "run_all", run_all)
    small = {"sets": ("bac",), "seeds": 1}
    with pytest.raises(KeyboardInterrupt):
        tiny_reproduce(tmp_path, **small)
    assert trained[:2] == [["standard", "temperature", "standard-matched"], ["standard-stopped"]]
    assert len(Store(tmp_path).current) == 4
    tiny_reproduce(tmp_path, **small)
    assert trained[3:] == [["bo4sc"], ["self-calibrated"]]
    assert len(records(tmp_path)) == 6


def test_smaller_commands_keep_records_and_larger_ones_add_them(tmp_path, capsys):
    small = {"sets": ("bac",), "seeds": 2, "methods": ["standard", "standard-stopped"]}
    tiny_reproduce(tmp_path, **small)
    before = records(tmp_path)
    tiny_reproduce(tmp_path, **small | {"methods": ["standard"], "seeds": 1})
    assert records(tmp_path) == before
    assert "Found 1 of 1 run in" in capsys.readouterr().err
    page = tiny_reproduce(tmp_path, **small | {"methods": ["standard", "bo4sc"], "seeds": 1, "sets": ("blobs-1.7",)})
    after = records(tmp_path)
    assert [r for r in after if r["dataset"] == "bac"] == before
    assert [(r["method"], r["seed"]) for r in after if r["dataset"] == "blobs-1.7"] == [
        (name, 0) for name in ("standard", "standard-matched", "bo4sc")
    ]
    assert "blobs-1.7" in page.read_text()
    config = read_results(tmp_path / "results.json").config
    assert (list(config["settings"]), config["seeds"]) == (["bac", "blobs-1.7"], 2)
    assert list(config["methods"]) == ["standard", "standard-stopped", "standard-matched", "bo4sc"]


def test_a_grid_that_grows_trains_what_is_new(tmp_path, monkeypatch):
    searched = []

    class Search(grid.Search):
        def __call__(self):
            searched.extend((key["outer_learning_rate"], key["epochs"]) for key in self.keys)
            return super().__call__()

    monkeypatch.setattr(grid, "Search", Search)
    tiny = {
        "steps": [2],
        "outer_learning_rate": [100.0],
        "alpha": [30.0],
        "width": [8],
        "epochs": [4],
        "learning_rate": [0.02],
    }
    usual = {"seeds": 1, "out": tmp_path, "device": "cpu", "sets": ("bac",)}
    grid.STUDY.run(**tiny, **usual)
    grid.STUDY.run(**tiny | {"outer_learning_rate": [100, 3000.0]}, **usual)
    assert searched == [(100.0, 4), (3000.0, 4)]
    grid.STUDY.run(**tiny, **usual)
    results = read_results(tmp_path / "results.json")
    assert len(searched) == 2
    assert (
        [r["outer_learning_rate"] for r in results.records]
        == results.config["grid"]["outer_learning_rate"]
        == [100.0, 3000.0]
    )
    grid.STUDY.run(**tiny, **usual | {"seeds": 2})
    assert searched[2:] == [(100.0, 4)]
    assert len(read_results(tmp_path / "results.json").records) == 1  # the mean of one seed is not comparable


def test_read_only_folder_is_an_error_before_training(tmp_path, monkeypatch):
    def never(*arguments, **options):
        raise AssertionError("trained")

    monkeypatch.setattr("studies.common.runs.fit_all", never)
    monkeypatch.setattr("studies.bo4sc.search.fit_all", never)
    (tmp_path / "file").write_text("")
    out = tmp_path / "file" / "out"
    (tmp_path / "results.json").write_text("{}")
    for command in (
        lambda out, **o: reproduce(out=out, **o),
        lambda out, **o: grid.STUDY.run(out=out, **o),
    ):
        for options in ({}, {"source": tmp_path / "results.json"}):
            with pytest.raises(ValueError, match="--out must be a folder that can be written to"):
                command(out, **options)
