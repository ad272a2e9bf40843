"""Readers: what is in the file is what comes out, and what is wrong with it is said in a sentence."""

import gzip
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest

from calibrant.data import TableEncoder, read_columns, read_table

FRAME = pd.DataFrame(
    {
        "age": [31.5, None, 58.0, 24.0],
        "town": ["Köln", "Bern", None, "Bern"],
        "visits": [1, 2, 2, 7],
        "member": [True, False, True, True],
        "outcome": ["yes", "no", "no", "yes"],
    }
)
WRITERS = {
    "t.csv": lambda f, p: f.to_csv(p, index=False),
    "t.CSV.gz": lambda f, p: f.to_csv(p, index=False, compression="gzip"),
    "indexed.csv": lambda f, p: f.to_csv(p),
    "semicolons.csv": lambda f, p: f.to_csv(p, index=False, sep=";"),
    "excel.csv": lambda f, p: f.to_csv(p, index=False, encoding="utf-8-sig"),
    "t.tsv": lambda f, p: f.to_csv(p, index=False, sep="\t"),
    "my.own.table.tsv.gz": lambda f, p: f.to_csv(p, index=False, sep="\t"),
    "t.parquet": lambda f, p: f.to_parquet(p),
    "t.parquet.gz": lambda f, p: p.write_bytes(gzip.compress(f.to_parquet())),
}


@pytest.mark.parametrize("name", WRITERS)
def test_every_format_gives_the_same_table(name, tmp_path):
    WRITERS[name](FRAME, tmp_path / name)
    table = read_table(tmp_path / name, target="outcome")
    assert list(table.columns) == ["age", "town", "visits", "member"]
    np.testing.assert_array_equal(table.columns["age"], [31.5, np.nan, 58.0, 24.0])
    assert table.columns["town"][[0, 1, 3]].tolist() == ["Köln", "Bern", "Bern"]
    assert pd.isna(table.columns["town"][2])
    assert table.columns["visits"].tolist() == [1, 2, 2, 7]
    assert table.columns["member"].tolist() == [True, False, True, True]
    assert table.labels.tolist() == ["yes", "no", "no", "yes"]
    part = table.rows(np.array([3, 0]))
    assert (len(table), len(part), part.columns["visits"].tolist()) == (4, 2, [7, 1])
    encoded = TableEncoder().fit_transform(table, table.labels)
    assert np.array_equal(encoded, TableEncoder().fit_transform(FRAME.drop(columns="outcome")))


def test_the_target_is_found_by_its_usual_names(tmp_path):
    file = tmp_path / "t.csv"
    for name, header in [("target", "class,target,x"), ("Class", "Class,x,y"), ("y", "a,y,x")]:
        file.write_text(f"{header}\n0,1,2\n1,0,2\n")
        assert read_table(file).target == name
    file.write_text("a,b\n1,2\n")
    with pytest.raises(ValueError, match=r"no column called target, class, label or y.*columns are a, b"):
        read_table(file)
    with pytest.raises(ValueError, match=r"no column called 'c'.*columns are a, b"):
        read_table(file, target="c")


@pytest.mark.parametrize(
    ("labels", "kind", "expected"),
    [
        (["1.0", "-1.0", "1.0"], "i", [1, -1, 1]),
        (["True", "False", "True"], "b", [True, False, True]),
        (["1", "2", "many"], "U", ["1", "2", "many"]),
        (["3", "0", "3"], "i", [3, 0, 3]),
    ],
)
def test_labels_are_what_they_look_like(labels, kind, expected, tmp_path):
    (tmp_path / "t.csv").write_text("x,y\n" + "".join(f"{k},{v}\n" for k, v in enumerate(labels)))
    found = read_table(tmp_path / "t.csv").labels
    assert found.dtype.kind == kind
    assert found.tolist() == expected


def test_question_marks_are_missing_values(tmp_path):
    (tmp_path / "t.csv").write_text("x,y\n1,a\n?,b\n3,a\n")
    np.testing.assert_array_equal(read_table(tmp_path / "t.csv").columns["x"], [1, np.nan, 3])


def test_columns_are_read_without_labels(tmp_path):
    (tmp_path / "t.csv").write_text("a,b\n1,x\n2,y\n")
    columns = read_columns(tmp_path / "t.csv")
    assert {name: column.tolist() for name, column in columns.items()} == {"a": [1, 2], "b": ["x", "y"]}


@pytest.mark.parametrize(
    ("name", "text", "sentence"),
    [
        ("t.csv", "x,y\n1,a\n2,\n3,?\n", "2 of the 3 labels in 'y' are missing"),
        ("t.csv", "x,y\n1,0.5\n2,1\n", "0.5 among them, and labels are classes"),
        ("t.csv", "y\n1\n2\n", "nothing to learn from"),
        ("t.csv", "x,y\n", "holds no rows"),
        ("t.csv", "", "could not be read as a table"),
        ("t.xlsx", "x,y\n1,1\n", "should end in .csv, .tsv or .parquet"),
        ("t.csv.gz", "x,y\n1,1\n", "no whole gzip file"),
    ],
)
def test_what_is_wrong_is_said(name, text, sentence, tmp_path):
    (tmp_path / name).write_text(text)
    with pytest.raises(ValueError, match=sentence):
        read_table(tmp_path / name)


def test_files_that_are_absent_or_not_utf8(tmp_path):
    with pytest.raises(FileNotFoundError, match="There is no file"):
        read_table(tmp_path / "none.csv")
    (tmp_path / "latin.csv").write_bytes("town,y\nKöln,1\n".encode("latin-1"))
    with pytest.raises(ValueError, match="UTF-8"):
        read_table(tmp_path / "latin.csv")


def test_pandas_is_asked_for_only_by_the_readers(tmp_path):
    """Importing and encoding arrays work without it; reading says what to install."""
    code = (
        "import sys\nsys.modules.update(pandas=None, pyarrow=None)\n"
        "import numpy as np\nfrom calibrant.data import TableEncoder, read_table\n"
        "assert TableEncoder().fit_transform(np.eye(3)).shape == (3, 3)\n"
        "try:\n    read_table('t.csv')\nexcept ImportError as error:\n    print(error)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=tmp_path)
    assert "pip install 'calibrant[tables]'" in done.stdout
