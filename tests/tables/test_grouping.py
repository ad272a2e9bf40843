"""Tests of the hint about `--groups`."""

import numpy as np
import pytest

pytest.importorskip("pandas")

from calibrant.tables import Order
from calibrant.tables.cases import alike, names_case, repeated_cases
from calibrant.tables.describe import describe
from calibrant.tables.read import Labelled
from calibrant.tables.split import TableParts


def described(table):
    return describe(TableParts(table, None, table), Order("t.csv", table.target, "out"))


def patients(n=300, many=100, seed=0, **columns):
    """Rows of patients who keep their sex; the labels are independent of them."""
    rng = np.random.default_rng(seed)
    patient = rng.integers(0, many, n)
    own = {"patient_id": patient, "sex": np.array(["f", "m"])[patient % 2], "dose": rng.normal(size=n)}
    return Labelled("t.csv", "y", own | columns, rng.integers(0, 2, n), np.arange(n) + 1)


PERSONS = ("patient", "Patient ID", "patientId", "PATIENT_NO", "customer number", "pat_nr", "id", "familyID")
OTHERS = ("person_income", "customer_age", "body mass index", "number", "no", "area code", "valid", "x1", "", "%")


@pytest.mark.parametrize("name", [*PERSONS, "Kundennr", "Kundennummer", "individual", *OTHERS])
def test_names_of_persons_and_cases(name):
    assert names_case(name) == (name not in OTHERS)


def test_rows_of_one_patient_are_found():
    table = patients()
    assert repeated_cases(table) == {"patient_id": len(np.unique(table.columns["patient_id"]))}
    patient = {"patient_id": table.columns["patient_id"]}
    labels = table.columns["patient_id"] % 2
    by_labels = Labelled("t.csv", "y", patient, labels, table.numbers)
    assert list(repeated_cases(by_labels)) == ["patient_id"]
    (note,) = (note for note in described(table).notes if "--groups" in note)
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
    assert not [note for note in described(grouped).notes if "--groups" in note]


def test_rows_of_a_group_are_alike():
    groups = np.repeat(np.arange(40), 5)
    own = np.random.default_rng(0).integers(0, 2, 40)[groups]
    assert alike(groups, own)
    assert not alike(groups, own * 0)
    assert not alike(groups, np.arange(200) % 2)
    assert not alike(np.arange(200), own)
