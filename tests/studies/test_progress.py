"""Progress of a study: the time left, and a line now and then."""

from types import SimpleNamespace

import pytest

from studies.common import progress
from studies.common.jobs import run_jobs
from studies.common.keys import make_key
from studies.common.progress import StudyProgress
from studies.common.store import Store
from tests.studies.cases import tiny_reproduce
from tests.studies.test_jobs import JOBS


@pytest.fixture
def clock(monkeypatch):
    """A clock that stands still until a test moves it."""
    clock = SimpleNamespace(now=0.0)
    monkeypatch.setattr(progress.time, "perf_counter", lambda: clock.now)
    return clock


def keys(*methods):
    return [make_key(settings="", code="", dataset="bac", method=name, seed=0) for name in methods]


def test_the_time_left_counts_runs_by_their_cost(clock, monkeypatch):
    runs = keys("standard", "isotonic", "self-calibrated")
    with StudyProgress(runs) as study:
        assert str(study) == "0 of 3 runs finished"
        study.start(runs[:2])
        study.on_step(SimpleNamespace(step=1, outer_steps=10))
        assert "left" not in str(study), "too early to tell"
        clock.now = 2.0
        study.finish(runs[:1])
        study.finish(runs[:1])  # counts once
        assert str(study) == "1 of 3 runs finished; now isotonic", "the first runs also load libraries"
        monkeypatch.setattr(progress, "SETTLED", 1.0)
        assert str(study) == "1 of 3 runs finished, about 1 min 22 s left; now isotonic"  # 1 + 40 times 2 s
        study.on_step(SimpleNamespace(step=5, outer_steps=10))
        assert study.done == pytest.approx(1.5 / 42)
        study.finish(runs)
        assert str(study) == "3 of 3 runs finished, about 0 s left"
    assert StudyProgress.active is None


def test_it_is_a_line_now_and_then(clock, capsys):
    runs = keys("standard", "isotonic")
    with StudyProgress(runs) as study:
        study.start(runs)
        for step in range(1, 101):
            clock.now = float(step) / 4
            study.on_step(SimpleNamespace(step=step, outer_steps=100))
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 3  # at once, after 10 s, after 20 s
    assert lines[-1] == "0 of 2 runs finished, about 5 s left; now standard and others"


def test_the_first_study_reports_its_progress(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(progress, "BETWEEN_LINES", 0.0)
    tiny_reproduce(tmp_path / "out", sets=("bac",))
    err = capsys.readouterr().err
    assert err.startswith("0 of 12 runs finished\n")
    for part in (" of 12 runs finished, about ", "; now standard and others", " left; now self-calibrated\n"):
        assert part in err


@pytest.mark.parametrize("workers", [1, 2])
def test_jobs_count_wherever_they_run(workers, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(progress, "BETWEEN_LINES", 0.0)
    runs = [make_key(settings="", code="", dataset="bac", method="standard", seed=seed) for seed in range(6)]
    run_jobs(Store(tmp_path), runs, here=JOBS[:2], beside=[[one] for one in JOBS[2:]], workers=workers)
    err = capsys.readouterr().err
    for finished in range(6):
        assert f"{finished} of 6 runs finished" in err
