"""Free text as numbers: the TF-IDF of words and groups of letters, or its truncated SVD.

The vocabulary and the SVD are fitted on the training rows. They are stored as text and arrays.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from itertools import chain
from typing import ClassVar

import numpy as np
from scipy import sparse
from sklearn.preprocessing import normalize
from sklearn.utils.extmath import randomized_svd

from calibrant.data.columns.values import texts

MOST_TERMS = 10_000
"""The largest number of words, and of groups of letters, in a vocabulary: the most frequent ones."""
NUMBERS = 64
"""The largest number of outputs of a text column."""
ROWS_PER_NUMBER = 10
"""A text column has at most one output for this many training rows."""
SEVERAL_WORDS, MANY_LETTERS = 2, 20
"""Free text has at least this many words per value on average, or this many letters."""
_WORD = re.compile(r"[^\W\d_]{3,}")
_TOKEN = re.compile(r"\w+")
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
        """The TF-IDF of the terms, (rows, terms), as by :class:`sklearn.feature_extraction.text.TfidfVectorizer`."""
        counts, tokens = _token_counts(column)
        blocks, start = [], 0
        for split, terms in ((_word, self.words), (_groups, self.letters)):
            if not terms:
                continue
            block = counts @ _parts(tokens, split, {term: place for place, term in enumerate(terms)})
            block.data = (1 + np.log(block.data)) * self.idf[start + block.indices]
            blocks.append(normalize(block, copy=False) if len(column) else block)
            start += len(terms)
        return sparse.csr_matrix(sparse.hstack(blocks, format="csr"), dtype=np.float32)

    def encode(self, column: np.ndarray) -> np.ndarray:
        """The coordinates on the axes of the SVD, (rows, outputs)."""
        return np.asarray(self.terms(column) @ self.components.T.astype(np.float32))


def fit_free_text(name: str, column: np.ndarray, *, reduce: bool) -> FreeText | None:
    """Fit the vocabulary, and with ``reduce`` the SVD, to training rows; None if no term distinguishes rows."""
    counts, tokens = _token_counts(column)
    vocabularies, frequencies = [], []
    for split in (_word, _groups):
        places: dict[str, int] = {}
        for term in (term for token in tokens for term in split(token)):
            places.setdefault(term, len(places))
        rows_of = np.bincount((counts @ _parts(tokens, split, places)).indices, minlength=len(places))
        shared = sorted((-rows, term) for term, rows in zip(places, rows_of.tolist(), strict=True) if rows > 1)
        chosen = sorted(term for _, term in shared[:MOST_TERMS])
        vocabularies.append(tuple(chosen))
        frequencies.append(rows_of[[places[term] for term in chosen]])
    words, letters = vocabularies
    if not words and not letters:
        return None
    idf = 1 + np.log((1 + len(column)) / (1 + np.concatenate(frequencies).astype(np.float32)))
    none = np.empty(0)
    encoding = FreeText(name, words, letters, idf, np.empty((0, len(idf)), dtype=np.float16), none, none)
    terms = encoding.terms(column)
    if not (terms.max(axis=0) != terms.min(axis=0)).nnz:
        return None
    if not reduce:
        return encoding
    outputs = max(1, min(NUMBERS, len(column) // ROWS_PER_NUMBER, len(idf)))
    components = randomized_svd(terms, outputs, n_iter=5, random_state=0)[2].astype(np.float16)
    encoded = terms @ components.T.astype(np.float32)
    mean, std = encoded.mean(axis=0, dtype=float), encoded.std(axis=0, dtype=float)
    varies = std > 1e-6
    return replace(encoding, components=components[varies], mean=mean[varies], std=std[varies])


def is_free_text(values: Iterable[str], rows: int, most: int) -> bool:
    """Whether the distinct values of a column are free text.

    They are if they have at least two words or 20 letters on average, and if, without digits, more than ``most`` of
    them differ, or more than half of the rows. A word is a run of at least three letters.
    """
    without_digits = {_DIGITS.sub("", value) for value in values}
    if len(without_digits) <= min(most, rows / 2):
        return False
    words_by_value = [_WORD.findall(value) for value in without_digits]
    letters = sum(len(word) for value_words in words_by_value for word in value_words)
    count = len(words_by_value)
    return sum(map(len, words_by_value)) >= SEVERAL_WORDS * count or letters >= MANY_LETTERS * count


def _token_counts(column: np.ndarray) -> tuple[sparse.csr_matrix, list[str]]:
    """How often each token is in each row, and the different tokens, in lower case."""
    rows = [_TOKEN.findall((value or "").lower()) for value in texts(column)]
    places: dict[str, int] = {}
    indices = [places.setdefault(token, len(places)) for row in rows for token in row]
    ends = np.cumsum([0, *map(len, rows)])
    counts = sparse.csr_matrix((np.ones(len(indices), dtype=np.float32), indices, ends), (len(rows), len(places)))
    counts.sum_duplicates()
    return counts, list(places)


def _parts(tokens: list[str], split: Callable[[str], list[str]], places: dict[str, int]) -> sparse.csr_matrix:
    """How often each term is in each token, (tokens, terms)."""
    rows = [[places[term] for term in split(token) if term in places] for token in tokens]
    indices, ends = list(chain.from_iterable(rows)), np.cumsum([0, *map(len, rows)])
    return sparse.csr_matrix((np.ones(len(indices), dtype=np.float32), indices, ends), (len(rows), len(places)))


def _word(token: str) -> list[str]:
    return [token]


def _groups(token: str) -> list[str]:
    """The groups of three to five letters of a token, with a space before and after it."""
    padded = f" {token} "
    return [padded[k : k + size] for size in (3, 4, 5) for k in range(len(padded) - size + 1)]
