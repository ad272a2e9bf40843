"""Tests of the estimated and the remaining training time."""

import io

import pytest

from calibrant._words import count, duration, listed
from calibrant.tables.estimate import TimeEstimate, estimate
from calibrant.tables.progress import FitProgress, TrainingClock, about


class Watch:
    now = 0.0

    def __call__(self):
        return self.now


def test_the_time_left_is_measured_time_once_training_has_begun():
    watch = Watch()
    clock = TrainingClock(TimeEstimate(networks=20.0, others=10.0, runs=2), watch)
    assert clock.left == 30.0
    clock.start_run()
    watch.now = 20.0  # slower than expected: half of the first run should have taken 5 s, and took 20
    clock.step(0.5)
    assert clock.left == pytest.approx(4 * (15 + 10))
    watch.now = 40.0
    clock.end_run()
    assert clock.stage == "networks"
    clock.start_run()
    watch.now = 80.0
    clock.end_run()
    assert clock.stage == "trees, lines and calibration"
    assert clock.left == pytest.approx(40.0)
    watch.now = 100.0
    assert clock.left == pytest.approx(20.0)
    assert clock.share == pytest.approx(100 / 120)
    watch.now = 500.0
    assert clock.left == 0.0


def test_the_first_step_ends_the_start_of_a_run():
    watch = Watch()
    clock = TrainingClock(TimeEstimate(networks=12.0, others=0.0, start=2.0), watch)
    clock.start_run()
    watch.now = 2.1
    clock.step(0.01)
    assert clock.left == pytest.approx(9.9)


def test_what_a_checkpoint_held_does_not_count_as_speed():
    watch = Watch()
    clock = TrainingClock(TimeEstimate(networks=20.0, others=0.0, runs=2), watch)
    clock.start_run(loaded=1.0)  # finished before
    clock.end_run()
    assert clock.left == pytest.approx(10.0)
    clock.start_run(loaded=0.5)
    watch.now = 5.0
    clock.step(0.75)  # a quarter of a run took 5 s, and should have taken 2.5
    assert clock.left == pytest.approx(5.0)


def test_networks_that_were_not_expected_go_back_to_their_stage():
    watch = Watch()
    clock = TrainingClock(TimeEstimate(networks=10.0, others=0.0), watch)
    for run in range(3):
        clock.start_run()
        assert clock.stage == "networks"
        watch.now = 10.0 * (run + 1)
        clock.end_run()
        assert clock.left == pytest.approx(0.0, abs=1e-9)


def test_piped_it_is_lines_with_the_time_left():
    out = io.StringIO()
    progress = FitProgress(TimeEstimate(100.0, 20.0), out)
    progress.show()
    assert out.getvalue() == "networks: 0% done, about 2 min left\n"


@pytest.mark.parametrize(
    ("seconds", "text"), [(3, "a few seconds"), (42, "about 40 s"), (300, "about 5 min"), (9000, "about 2.5 h")]
)
def test_times_are_rounded(seconds, text):
    assert about(seconds) == f"{text} left"


def test_more_of_everything_takes_longer():
    small = estimate("self-calibrated", 1000, 10, 2).seconds
    assert estimate("self-calibrated", 50_000, 10, 2).seconds > 2 * small
    assert estimate("self-calibrated", 1000, 200, 2).seconds > 2 * small
    assert estimate("self-calibrated", 1000, 10, 20).seconds > small
    assert estimate("self-calibrated", 1000, 10, 2, slower=3.0).seconds == pytest.approx(3 * small)
    assert estimate("self-calibrated-network", 1000, 10, 2).seconds < small
    assert estimate("bo4sc", 100_000, 10, 2).seconds > estimate("bo4sc", 1000, 10, 2).seconds
    low, high = estimate("self-calibrated", 1000, 10, 2).range
    assert low < small < high


def test_words():
    assert (count(1, "row"), count(2000, "row")) == ("1 row", "2,000 rows")
    assert listed(range(5), 3) == "0, 1, 2 and 2 more"
    assert duration(90) == "1 min 30 s"
