"""Jobs in this process and in joblib's workers store their records; jobs for a GPU are grouped."""

import functools
import os

import joblib
import pytest
import torch

from calibrant.methods import METHODS, Standard
from studies.common.jobs import ambient_workers, run_jobs
from studies.common.keys import make_key
from studies.common.records import shape_of
from studies.common.runs import Training, populations
from studies.common.store import Store
from studies.common.synthetic import parts_of, prepare_run
from studies.report import read_results
from studies.sets import SETS
from tests.studies.cases import tiny_reproduce


def job(seed, fails=False):
    if fails:
        raise RuntimeError("a job that failed")
    return {make_key(settings="", code="", dataset="bac", method="standard", seed=seed): {"process": os.getpid()}}


JOBS = [functools.partial(job, seed) for seed in range(6)]


def processes(store):
    return {line["key"]["seed"]: line["record"]["process"] for line in store.current.values()}


def test_workers_run_lists_of_jobs_beside_this_process(tmp_path):
    store = Store(tmp_path)
    run_jobs(store, here=JOBS[:2], beside=[JOBS[2:4], JOBS[4:]], workers=2)
    by_seed = processes(store)
    assert by_seed[0] == by_seed[1] == os.getpid()
    assert by_seed[2] == by_seed[3] != os.getpid()
    assert by_seed[4] == by_seed[5] != os.getpid()
    assert len(store.path.read_text().splitlines()) == 6  # each is added once


@pytest.mark.parametrize("backend", ["loky", "multiprocessing"])
def test_joblib_configuration_chooses_the_workers(tmp_path, backend):
    """The multiprocessing backend, like Ray's, returns nothing before all jobs end. The default is this process."""
    store, other = Store(tmp_path), Store(tmp_path / "other")
    run_jobs(other, here=JOBS[:2], beside=[[one] for one in JOBS[2:]])
    assert (processes(other), ambient_workers()) == (dict.fromkeys(range(6), os.getpid()), 1)
    with joblib.parallel_config(backend=backend, n_jobs=2):
        assert ambient_workers() == 2
        run_jobs(store, beside=[[one] for one in JOBS])
    assert os.getpid() not in processes(store).values()
    assert sorted(processes(store)) == list(range(6))
    assert len(store.path.read_text().splitlines()) == 6


def test_threads_are_refused_because_they_would_share_random_numbers(tmp_path):
    store = Store(tmp_path)
    with (
        joblib.parallel_config(backend="threading", n_jobs=2),
        pytest.raises(ValueError, match="cannot run as threads"),
    ):
        run_jobs(store, beside=[[one] for one in JOBS])
    assert not store.current


@pytest.mark.parametrize("workers", [1, 2])
def test_failing_job_raises_and_keeps_earlier_records(tmp_path, workers):
    store = Store(tmp_path)
    with pytest.raises(RuntimeError, match="a job that failed"):
        run_jobs(store, beside=[[JOBS[0], functools.partial(job, 1, fails=True)]], workers=workers)
    assert list(processes(store)) == [0]


def test_parallel_processes_give_the_same_records_as_one(tmp_path):
    """Rounding may differ, because threads and traced steps differ."""
    methods = ["standard", "temperature", "bo4sc"]
    small = {"sets": ("bac",), "seeds": 2, "methods": methods}
    tiny_reproduce(tmp_path / "serial", **small)
    tiny_reproduce(tmp_path / "spread", **small, jobs=2)
    one, other = (read_results(tmp_path / name / "results.json").records for name in ("serial", "spread"))
    assert [(r["method"], r["seed"]) for r in one] == [(r["method"], r["seed"]) for r in other]
    assert len(one) == 2 * (len(methods) + 1)  # and the control of bo4sc
    assert [r["nll"] for r in other] == pytest.approx([r["nll"] for r in one], rel=1e-2)


def trainings(sets, methods):
    planned = [
        (make_key(settings="", dataset=d, method=m, seed=seed), METHODS[m].method)
        for d in sets
        for m in methods
        for seed in range(2)
    ]
    groups = populations(planned, lambda key: shape_of(key["dataset"]))
    return [Training(own, prepare_run, None, torch.device("cuda")) for own in groups.values()]


def test_population_groups_runs_of_one_structure_with_their_calibrators():
    found = trainings(SETS, ["standard", "temperature", "bo4sc"])
    assert [{(k["dataset"], k["method"]) for k, _ in training.planned} for training in found] == [
        {(d, m) for d in shape for m in family}
        for shape in (("blobs-1.3", "blobs-1.7"), ("spirals-2.5", "spirals-3.5"), ("bac",))
        for family in (("standard", "temperature"), ("bo4sc",))
    ]
    methods = {"a": Standard(epochs=1), "b": Standard(epochs=2, hidden=(3,))}
    differing = [(make_key(settings="", method=name), method) for name, method in methods.items()]
    assert len(populations(differing, lambda key: None)) == 2


def test_gpu_parts_are_shapes():
    parts = parts_of(trainings(["bac", "blobs-1.3", "blobs-1.7"], ["standard", "bo4sc"]))
    found = [{(k["dataset"], k["method"]) for training in part for k, _ in training.planned} for part in parts]
    assert found == [
        {(d, m) for d in sets for m in ("standard", "bo4sc")} for sets in (("blobs-1.3", "blobs-1.7"), ("bac",))
    ]
