"""Free text in tables: which columns count as text, their encoding, and its storage."""

import warnings

import numpy as np
import pandas as pd
import pytest
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss
from sklearn.pipeline import make_pipeline

from calibrant import SelfCalibratedClassifier
from calibrant.data import TableEncoder, free_text
from calibrant.data.free_text import FreeText
from calibrant.estimators import load_classifier
from calibrant.export import to_onnx

pytestmark = pytest.mark.filterwarnings("ignore:Column .* is read as free text")

GOOD, BAD = ("lovely", "charming", "moving", "clever"), ("dull", "clumsy", "boring", "shallow")


def reviews(rows=400, seed=0):
    """Sentences whose class depends on one word."""
    random = np.random.default_rng(seed)
    good = random.random(rows) < 0.5
    words = np.where(good, random.choice(GOOD, rows), random.choice(BAD, rows))
    films, parts = (
        random.choice(["western", "musical", "thriller", "comedy", "drama"], rows),
        random.choice(["plot", "cast", "music"], rows),
    )
    texts = [
        f"{word.title()} {part} in this {film}, take {k}"
        for k, (word, part, film) in enumerate(zip(words, parts, films, strict=True))
    ]
    return pd.DataFrame({"review": texts}), good


def encoded(values, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return TableEncoder(**options).fit({"t": values, "x": np.arange(len(values))}).columns_[0]


def different(texts, rows=200):
    return [f"{texts[k % len(texts)]} {texts[k // len(texts) % len(texts)]}" for k in range(rows)]


WORDS = ["alpha", "bravo", "charlie", "delta", "echo", "foxtrot", "golf", "hotel", "india", "juliett", "kilo", "lima"]


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        (different(WORDS), "text"),
        (different(WORDS, 40), "text"),
        ([*different(WORDS, 150), *[None] * 50], "text"),
        (["".join(pair.split()) * 2 for pair in different(WORDS)], "text"),  # long words without spaces
        (different(WORDS[:3]), "categorical"),
        ([f"{w}{k}" for k, w in enumerate(different(["a", "b", "c"]))], "dropped"),
        ([f"patient {k} of hospital {k % 7}" for k in range(200)], "dropped"),
        ([f"{k * 7919:08x}-{k * 104729:012x}" for k in range(200)], "dropped"),
        (pd.Series(different(WORDS), dtype="category"), "dropped"),
        ([f"{k % 90} alpha bravo 2{k}" for k in range(200)], "dropped"),
    ],
    ids=["texts", "few rows", "missing", "one long word", "few values", "short", "numbered", "hash", "named", "digits"],
)
def test_columns_of_several_words_are_free_text(values, kind):
    assert encoded(values).kind == kind


def test_a_column_named_as_text_is_text():
    assert encoded(different(WORDS[:3]), text="t").kind == "text"
    assert encoded([1, 2, 3, 4] * 30, text=["t"]).kind == "text"
    for same in (["the same words"] * 30, ["."] * 15 + ["?"] * 15, [None] * 30):
        assert encoded(same, text=["t"]).kind == "dropped"
    assert encoded([*"abcdefghij", "xyzab", "xyzcd"], text="t").words == ()  # only groups of letters are shared
    with pytest.raises(ValueError, match="text must name columns of the table; got u"):
        encoded(WORDS, text="u")
    with pytest.raises(ValueError, match="either categorical or text; got t in both"):
        encoded(WORDS, text="t", categorical="t")


def test_terms_have_the_tfidf_of_scikit_learn():
    frame, _ = reviews()
    texts = frame["review"].str.replace(",", "")  # scikit-learn's groups contain punctuation
    column = TableEncoder(output="sparse").fit({"t": texts}).columns_[0]
    words = TfidfVectorizer(min_df=2, sublinear_tf=True, token_pattern=r"\w+").fit(texts)
    groups = TfidfVectorizer(analyzer="char_wb", ngram_range=(3, 5), min_df=2, sublinear_tf=True).fit(texts)
    assert column.words == tuple(words.get_feature_names_out())
    assert column.letters == tuple(groups.get_feature_names_out())
    new = [*texts[:50], "An UNKNOWN lovely lovely word", None, ""]
    expected = [vectorizer.transform([text or "" for text in new]).toarray() for vectorizer in (words, groups)]
    assert column.terms(np.array(new, dtype=object)).toarray() == pytest.approx(np.hstack(expected), abs=1e-6)
    assert column.terms(np.array([None, None])).nnz == 0


def test_a_table_without_rows_has_an_encoding_without_rows():
    encoding = encoded(reviews(60)[0]["review"].to_numpy())
    assert encoding.encode(np.array([], dtype=object)).shape == (0, len(encoding.outputs))


def test_outputs_are_scaled_and_similar_texts_are_close():
    frame, _ = reviews()
    encoder = TableEncoder().fit(frame)
    found = encoder.transform(frame)
    assert found.shape == (400, len(encoder.get_feature_names_out())) == (400, 40)  # ten rows for each output
    assert encoder.get_feature_names_out()[0] == "review (text 1)"
    assert found.mean(axis=0) == pytest.approx(0, abs=1e-2)
    assert found.std(axis=0) == pytest.approx(1, abs=1e-2)
    one, same, other = encoder.transform({"review": ["lovely cast musical", "LOVELY cast musical", "dull plot"]})
    assert one == pytest.approx(same)
    assert np.linalg.norm(one - other) > 1
    assert np.isfinite(encoder.transform({"review": [None, "", "zzz"]})).all()
    ordinal = TableEncoder(output="ordinal").fit(frame)
    assert ordinal.get_feature_names_out().tolist() == encoder.get_feature_names_out().tolist()
    assert ordinal.scaling_.transform(ordinal.transform(frame)) == pytest.approx(found)


def test_the_vocabulary_has_a_largest_size(monkeypatch):
    monkeypatch.setattr(free_text, "MOST_TERMS", 5)
    column = TableEncoder().fit(reviews()[0]).columns_[0]
    assert isinstance(column, FreeText)
    assert len(column.words) == len(column.letters) == 5
    assert {"in", "this", "take"} <= set(column.words)


def test_an_encoder_with_text_is_saved_without_pickle(tmp_path):
    frame, _ = reviews()
    frame["stars"] = np.arange(len(frame)) % 5
    encoder = TableEncoder().fit(frame)
    encoder.save(tmp_path / "encoder")
    again = TableEncoder.load(tmp_path / "encoder")
    assert np.array_equal(again.transform(frame), encoder.transform(frame))
    with pytest.raises(ValueError, match="'review' is free text, whose matrices to_json cannot write; use save"):
        encoder.to_json()
    arrays = {}
    text = encoder.to_json(arrays)
    arrays["column.0.idf"] = arrays["column.0.idf"][1:]
    with pytest.raises(ValueError, match="matrices of column 'review' do not fit"):
        TableEncoder.from_json(text, arrays)


def test_terms_follow_the_other_columns_in_a_sparse_matrix(tmp_path):
    frame, _ = reviews()
    frame["stars"], frame["town"] = np.arange(400) % 5, np.resize(["Bern", "Rom", None], 400)
    encoder = TableEncoder(output="sparse").fit(frame)
    found, names = encoder.transform(frame), encoder.get_feature_names_out().tolist()
    text = encoder.columns_[0]
    assert names[:2] == ["stars", "town"]
    assert "review: lovely" in names
    assert "review: …lovel…" in names
    assert found.shape == (400, len(names)) == (400, 2 + len(text.idf))
    assert encoder.categorical_features_.tolist() == [False, True] + [False] * len(text.idf)
    dense = TableEncoder(output="ordinal").fit(frame[["stars", "town"]]).transform(frame)
    assert np.array_equal(found[:, :2].toarray(), dense, equal_nan=True)
    assert (found[:, 2:] != text.terms(frame["review"].to_numpy())).nnz == 0
    encoder.save(tmp_path / "encoder")
    assert (TableEncoder.load(tmp_path / "encoder").transform(frame)[:, 1:] != found[:, 1:]).nnz == np.isnan(
        dense
    ).sum()
    assert isinstance(TableEncoder(output="sparse").fit_transform(frame[["stars"]]), np.ndarray)


PARTS = [
    np.array(["Senior", "Junior", "Lead", "Chief", "Deputy", "Assistant", "Principal", "Trainee", "Associate", "Head"]),
    np.array(["Web", "Data", "Sales", "Marketing", "Finance", "Legal", "Nursing", "Logistics", "Civil", "Product"]),
    np.array(["Engineer", "Manager", "Analyst", "Officer", "Consultant", "Specialist", "Technician", "Coordinator"]),
]


def job_titles(rows, seed):
    """Titles of three words, each of which moves the logit of the class."""
    random = np.random.default_rng(seed)
    places = [random.integers(len(words), size=rows) for words in PARTS]
    logits = sum(4 * np.sin((place + 1.0) ** 2) for place in places)
    titles = zip(*(words[place] for words, place in zip(PARTS, places, strict=True)), strict=True)
    return pd.DataFrame({"title": map(" ".join, titles)}), random.random(rows) < 1 / (1 + np.exp(-logits))


def test_job_titles_are_learned_by_their_words():
    (train, y), (test, y_test) = job_titles(800, 0), job_titles(2000, 1)
    members = ("network", "linear")
    clf = SelfCalibratedClassifier(16, epochs=10, folds=3, repeats=1, members=members, random_state=0).fit(train, y)
    words = make_pipeline(TfidfVectorizer(), LogisticRegression()).fit(train["title"], y)
    assert log_loss(y_test, clf.predict_proba(test)) < log_loss(y_test, words.predict_proba(test["title"]))


def test_a_table_of_free_text_is_learned_and_saved(tmp_path):
    frame, good = reviews()
    settings = {"epochs": 20, "folds": 2, "repeats": 1, "members": ("network", "linear"), "embedding": None}
    clf = SelfCalibratedClassifier(**settings, random_state=0).fit(frame[:300], good[:300])
    probs = clf.predict_proba(frame[300:])
    assert np.mean((probs[:, 1] > 0.5) == good[300:]) > 0.8
    assert clf.projection_.columns == len(clf.encoder_.columns_[0].idf)
    clf.save(tmp_path / "model")
    assert np.array_equal(load_classifier(tmp_path / "model").predict_proba(frame[300:]), probs)
    with pytest.raises(ValueError, match="sparse columns or terms of free text"):
        to_onnx(clf, tmp_path / "model.onnx")
    assert not (tmp_path / "model.onnx").exists()


def test_a_classifier_takes_the_names_of_text_columns():
    frame = pd.DataFrame({"x": np.arange(100.0), "kind": np.resize(["red wine", "white wine", "dark beer"], 100)})
    clf = SelfCalibratedClassifier(epochs=1, folds=2, repeats=1, members=("network",), text_columns="kind")
    clf.fit(frame, np.arange(100) % 3 == 0)
    assert [column.kind for column in clf.encoder_.columns_] == ["numeric", "text"]


def test_rows_that_share_a_text_are_no_copies(recwarn):
    frame, y = job_titles(2000, 0)
    frame["age"] = np.random.default_rng(0).integers(20, 60, len(frame))
    members = ("network",)
    SelfCalibratedClassifier(4, epochs=1, folds=2, repeats=1, members=members, random_state=0).fit(frame, y)
    assert not [w for w in recwarn if "near copy" in str(w.message)]
