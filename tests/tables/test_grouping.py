"""Tests of the hint about `--groups`."""

import numpy as np
import pytest

pytest.importorskip("pandas")

from calibrant.tables.describing import describe
from calibrant.tables.grouping import names_case, repeated_cases
from calibrant.tables.reading import Labelled


def patients(n=300, many=100, seed=0, **columns):
    """Rows of patients who keep their sex; the labels are independent of them."""
    rng = np.random.default_rng(seed)
    patient = rng.integers(0, many, n)
    own = {"patient_id": patient, "sex": np.array(["f", "m"])[patient % 2], "dose": rng.normal(size=n)}
    return Labelled("t.csv", "y", own | columns, rng.integers(0, 2, n), np.arange(n) + 1)


@pytest.mark.parametrize(
    "name", ["patient", "Patient ID", "patientId", "PATIENT_NO", "subject_id", "customer number", "Kundennr", "id"]
)
def test_names_of_persons_and_cases(name):
    assert names_case(name)


@pytest.mark.parametrize(
    "name", ["person_income", "customer_age", "body mass index", "number", "no", "area code", "valid", "x1", "", "%"]
)
def test_other_names(name):
    assert not names_case(name)


def test_rows_of_one_patient_are_found():
    table = patients()
    assert repeated_cases(table) == {"patient_id": len(np.unique(table.columns["patient_id"]))}
    patient = {"patient_id": table.columns["patient_id"]}
    labels = table.columns["patient_id"] % 2
    by_labels = Labelled("t.csv", "y", patient, labels, table.numbers)
    assert list(repeated_cases(by_labels)) == ["patient_id"]
    (note,) = (note for note in describe(table, []).warnings if "--groups" in note)
    assert "in 300 rows, and rows of one value are alike" in note
    assert "keep them together with --groups patient_id;" in note


@pytest.mark.parametrize("seed", range(5))
def test_no_hint_without_likeness(seed):
    rng = np.random.default_rng(100 + seed)
    table = patients(seed=seed, sex=rng.choice(["f", "m"], 300), visit=rng.integers(0, 250, 300))
    assert not repeated_cases(table)


def test_one_equal_pair_is_no_likeness():
    rng, patient = np.random.default_rng(7), patients().columns["patient_id"]
    dose = rng.normal(size=300)
    first, second = np.flatnonzero(patient == patient[0])[:2]
    dose[second] = dose[first]  # by chance there would be none
    assert not repeated_cases(patients(sex=rng.choice(["f", "m"], 300), dose=dose))


def test_no_hint_for_other_columns_or_if_groups_are_given():
    assert not repeated_cases(patients(many=4))
    table = patients(patient_id=np.arange(300))
    assert not repeated_cases(table)
    table = patients()
    age = {"customer_age": table.columns["patient_id"], "sex": table.columns["sex"]}
    assert not repeated_cases(Labelled("t.csv", "y", age, table.labels, table.numbers))
    grouped = Labelled("t.csv", "y", table.columns, table.labels, table.numbers, table.columns["sex"])
    assert not [note for note in describe(grouped, []).warnings if "--groups" in note]
