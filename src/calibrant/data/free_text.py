"""Free text as numbers: the TF-IDF of words and groups of letters, or its truncated SVD.

The vocabulary and the SVD are fitted on the training rows. They are stored as text and arrays.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import numpy as np
from scipy import sparse
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.utils.extmath import randomized_svd

from calibrant.data.columns import texts

MOST_TERMS = 10_000
"""The largest number of words, and of groups of letters, in a vocabulary: the most frequent ones."""
NUMBERS = 64
"""The largest number of outputs of a text column."""
ROWS_PER_NUMBER = 10
"""A text column has at most one output for this many training rows."""
SEVERAL_WORDS, MANY_LETTERS = 2, 20
"""Free text has at least this many words per value on average, or this many letters."""
_ANALYZERS = {"word": (1, 1), "char_wb": (3, 5)}
"""How texts are divided into terms, and the shortest and the longest term: words, and groups of letters in a word."""
_WORD = re.compile(r"[^\W\d_]{3,}")
_DIGITS = re.compile(r"\d+")


@dataclass(frozen=True, eq=False)
class FreeText:
    """Sentences, titles and other texts of several words. A missing text has no terms.

    Terms are words and groups of three to five letters that occur in two rows. ``mean`` and ``std`` scale the outputs.
    Without an SVD, there are no outputs, only terms.
    """

    name: str
    words: tuple[str, ...]
    letters: tuple[str, ...]
    idf: np.ndarray
    """The inverse document frequencies of words and groups of letters, (terms,)."""
    components: np.ndarray
    """The axes of the SVD, (outputs, terms), in half precision."""
    mean: np.ndarray
    std: np.ndarray

    kind: ClassVar[str] = "text"
    size: ClassVar[int] = 0
    missing: ClassVar[bool] = False

    def __post_init__(self) -> None:
        shape = (len(self.mean), len(self.words) + len(self.letters))
        if self.components.shape != shape or self.idf.shape != shape[1:] or self.std.shape != self.mean.shape:
            raise ValueError(f"The vocabulary and matrices of column {self.name!r} do not fit. Fit the encoder again.")

    @property
    def outputs(self) -> list[str]:
        return [f"{self.name} (text {number})" for number in range(1, len(self.mean) + 1)]

    @property
    def term_names(self) -> list[str]:
        """The names of the terms: ``title: data`` for a word, ``title: …dat…`` for a group of letters."""
        terms = [*self.words, *(f"…{group}…" for group in self.letters)]
        return [f"{self.name}: {term}" for term in terms]

    def terms(self, column: np.ndarray) -> sparse.csr_matrix:
        """The TF-IDF of the terms, (rows, terms)."""
        values = [value or "" for value in texts(column)]
        return sparse.hstack([vectorizer.transform(values) for vectorizer in self._vectorizers], format="csr")

    def encode(self, column: np.ndarray) -> np.ndarray:
        """The coordinates on the axes of the SVD, (rows, outputs)."""
        return np.asarray(self.terms(column) @ self.components.T.astype(np.float32))

    @cached_property
    def _vectorizers(self) -> list[TfidfVectorizer]:
        vectorizers, start = [], 0
        for analyzer, vocabulary in zip(_ANALYZERS, (self.words, self.letters), strict=True):
            if vocabulary:
                vectorizers.append(_vectorizer(analyzer, vocabulary=vocabulary))
                vectorizers[-1].idf_ = self.idf[start : start + len(vocabulary)]
            start += len(vocabulary)
        return vectorizers


def fit_free_text(name: str, column: np.ndarray, *, reduce: bool) -> FreeText | None:
    """Fit the vocabulary, and with ``reduce`` the SVD, to training rows; None if no term distinguishes rows."""
    values = [value or "" for value in texts(column)]
    blocks, vocabularies, frequencies = [], [], []
    for analyzer in _ANALYZERS:
        vectorizer = _vectorizer(analyzer, min_df=2, max_features=MOST_TERMS)
        try:
            blocks.append(vectorizer.fit_transform(values))
        except ValueError:  # no term occurs in two rows
            vocabularies.append(())
        else:
            vocabularies.append(tuple(vectorizer.get_feature_names_out().tolist()))
            frequencies.append(vectorizer.idf_)
    if not blocks:
        return None
    terms = sparse.hstack(blocks, format="csr")
    if not (terms.max(axis=0) != terms.min(axis=0)).nnz:
        return None
    components = np.empty((0, terms.shape[1]), dtype=np.float16)
    if reduce:
        outputs = max(1, min(NUMBERS, len(values) // ROWS_PER_NUMBER, terms.shape[1]))
        components = randomized_svd(terms, outputs, n_iter=5, random_state=0)[2].astype(np.float16)
    encoded = terms @ components.T.astype(np.float32)
    mean, std = encoded.mean(axis=0, dtype=float), encoded.std(axis=0, dtype=float)
    varies = std > 1e-6
    return FreeText(name, *vocabularies, np.concatenate(frequencies), components[varies], mean[varies], std[varies])


def is_free_text(values: Iterable[str], rows: int, most: int) -> bool:
    """Whether the distinct values of a column are free text.

    They are if they have at least two words or 20 letters on average, and if, without digits, more than ``most`` of
    them differ, or more than half of the rows. A word is a run of at least three letters.
    """
    without_digits = {_DIGITS.sub("", value) for value in values}
    if len(without_digits) <= min(most, rows / 2):
        return False
    words = [_WORD.findall(value) for value in without_digits]
    letters = sum(len(word) for found in words for word in found)
    return sum(map(len, words)) >= SEVERAL_WORDS * len(words) or letters >= MANY_LETTERS * len(words)


def _vectorizer(analyzer: str, **settings: object) -> TfidfVectorizer:
    return TfidfVectorizer(
        analyzer=analyzer, ngram_range=_ANALYZERS[analyzer], sublinear_tf=True, dtype=np.float32, **settings
    )
