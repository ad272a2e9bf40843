"""Tests of the hint about `--groups`."""

import numpy as np
import pytest
from sklearn import datasets

pytest.importorskip("pandas")

from calibrant.tables import Order
from calibrant.tables.cases import agreement, names_case, repeated_cases
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


PERSONS = (
    "patient",
    "Patient ID",
    "patientId",
    "PATIENT_NO",
    "subject_id",
    "customer number",
    "pat_nr",
    "id",
    "familyID",
)
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


def devices(name="device", n=300, many=60, noise=0.05, seed=0, form=str):
    """Rows of devices, most of which keep their label, beside ordinary columns that say something about it."""
    rng = np.random.default_rng(seed)
    device = rng.integers(0, many, n)
    labels = rng.integers(0, 2, many)[device] ^ (rng.random(n) < noise)
    age = np.clip(rng.normal(40 + 15 * labels, 10), 18, 90).astype(int)
    town = np.array([f"town {'abcdefghijklmnopqrst'[k]}" for k in rng.integers(0, 20, n)], dtype=object)
    own = np.array([form(k) for k in device])
    columns = {name: own.astype(object) if own.dtype.kind == "U" else own, "age": age, "town": town}
    return Labelled("t.csv", "y", columns, labels, np.arange(n) + 1)


FORMS = {
    "numbers": lambda k: 7919 * k % 1000,
    "texts": lambda k: f"S{k:02d}",
    "words": lambda k: f"sensor {k}",
    "hash": lambda k: f"{(k + 1) * 2654435761 % 2**32:08x}0",
    "zeros": lambda k: f"{k:04d}",
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", ["geraet", "sensor", "device", "probe 1"])
def test_columns_with_other_names_are_found_by_their_structure(name, form):
    table = devices(name, form=FORMS[form])
    assert not names_case(name)
    assert repeated_cases(table) == {name: len(set(table.columns[name].tolist()))}
    (note,) = (note for note in described(table).notes if "--groups" in note)
    assert f"Column {name!r} has " in note


def test_one_column_is_named_and_not_as_a_leak_too():
    table = devices(noise=0, form=FORMS["texts"])
    table.columns["place"] = np.array([f"p{v}" for v in table.columns["device"]], dtype=object)
    warnings = described(table).notes
    assert len([note for note in warnings if "--groups" in note]) == 1
    assert not [note for note in warnings if "'device' alone determines" in note]


@pytest.mark.parametrize("seed", range(3))
def test_no_hint_for_quantities_and_ordinary_categories(seed):
    """Each column says something about the label, which is drawn from one of them at a time."""
    rng, n = np.random.default_rng(seed), 600
    age, region = rng.integers(18, 80, n), rng.integers(0, 40, n)
    columns = {
        "age": age,
        "income": 100 * rng.integers(1, 300, n),
        "year": 1990 + age // 2,
        "region": region,
        "icd": np.array([f"J{k:02d}" for k in region], dtype=object),
        "dose": np.array([f"{k} mg" if k % 2 else f"{k} g" for k in region], dtype=object),
        "since": np.array([f"{k % 28 + 1:02d}.{k % 12 + 1:02d}.2023" for k in region], dtype=object),
        "share": region / 8,
    }
    effects = rng.normal(0, 1.5, 40)
    for score in (np.where(age > 50, 4.0, -4.0), (age - 50) / 5, np.sin(age / 6) * 3, effects[region]):
        labels = (rng.random(n) < 1 / (1 + np.exp(-score))).astype(int)
        assert not repeated_cases(Labelled("t.csv", "y", columns, labels, np.arange(n) + 1))


def test_a_time_that_ends_for_most_rows_names_no_cases():
    rng, n = np.random.default_rng(0), 300
    labels = (rng.random(n) < 0.3).astype(int)
    week = np.where(labels == 1, rng.integers(1, 52, n), 52)  # the event, or else the end of the study
    columns = {"week": week, "x": rng.normal(size=n)}
    assert not repeated_cases(Labelled("t.csv", "y", columns, labels, np.arange(n) + 1))


def test_copies_of_rows_are_no_cases():
    rng = np.random.default_rng(0)
    rows = np.repeat(np.arange(80), 5)
    income, labels = rng.choice(10_000, 80, replace=False), rng.integers(0, 2, 80)
    table = Labelled("t.csv", "y", {"income": income[rows], "x": rng.normal(size=80)[rows]}, labels[rows], rows + 1)
    assert not repeated_cases(table)
    other = {**table.columns, "x": rng.normal(size=400)}  # now the rows of one income differ
    assert list(repeated_cases(Labelled("t.csv", "y", other, table.labels, rows + 1))) == ["income"]


@pytest.mark.parametrize("load", ["load_iris", "load_wine", "load_breast_cancer", "load_digits"])
def test_no_hint_for_tables_of_scikit_learn(load):
    data = getattr(datasets, load)()
    columns = {str(name): column for name, column in zip(data.feature_names, data.data.T, strict=True)}
    assert not repeated_cases(Labelled("t.csv", "y", columns, data.target, np.arange(len(data.target)) + 1))


def test_the_agreement_of_labels():
    groups = np.repeat(np.arange(40), 5)
    own = np.random.default_rng(0).integers(0, 2, 40)[groups]
    assert agreement(groups, own) == agreement(groups, groups * 0 + own) == 1
    assert agreement(groups, np.arange(200) % 2) == 0
    assert agreement(groups, (groups > 20).astype(int)) == 1
    assert agreement(groups, (groups > 20).astype(int), ordered=True) == 0  # neighbours agree as well
    assert agreement(groups, own * 0, ordered=True) == 0
    assert agreement(np.arange(200), own) == 0
