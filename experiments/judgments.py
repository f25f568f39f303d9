"""Judgments: queries, their candidate documents, and how relevant people found each of them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from posbias._arrays import BoolArray, IntArray
from posbias.errors import PosbiasError


def csr_features(values: npt.NDArray[np.float32], indices: Any, ends: Any, width: int) -> Any:
    """Return sparse features, with 32-bit indices if they fit: scipy would widen both for the sake of one."""
    from scipy.sparse import csr_array

    small = np.int32 if len(values) < 2**31 else np.int64
    return csr_array((values, indices.astype(small), ends.astype(small)), shape=(len(ends) - 1, width))


# Compared by identity: arrays have no single truth value.
@dataclass(frozen=True, eq=False)
class Judgments:
    """A learning-to-rank data set: what rankers are trained on and simulated users look for.

    Arguments:
        offsets: Q + 1 numbers; the documents of query q are the rows `offsets[q]:offsets[q + 1]`.
        grades: how relevant each document is, from 0.
        features: a row for each document, float32, dense or a `scipy.sparse` CSR matrix.

    Example:
        >>> judgments = Judgments(np.array([0, 2, 3]), np.array([4, 0, 1], np.int8), np.eye(3, dtype=np.float32))
        >>> judgments
        <Judgments of 2 queries and 3 documents, grades 0 to 4, 3 features>
        >>> judgments.relevant().tolist(), judgments.take(np.array([1])).grades.tolist()
        ([True, False, False], [1])
    """

    offsets: IntArray
    grades: npt.NDArray[np.int8]
    features: Any

    def __post_init__(self) -> None:
        rows = len(self.grades)
        sound = len(self.offsets) > 1 and self.offsets[0] == 0 and self.offsets[-1] == rows
        if not sound or np.any(np.diff(self.offsets) < 0):
            raise PosbiasError(
                f"offsets must rise from 0 to the number of documents, {rows}, in one step for each query, "
                f"found {len(self.offsets)} of them: {self.offsets[:3]} … {self.offsets[-3:]}"
            )
        if self.features.ndim != 2 or self.features.shape[0] != rows:
            raise PosbiasError(
                f"features must have a row for each of the {rows} grades, found the shape {self.features.shape}"
            )

    def __repr__(self) -> str:
        grades = f"grades {self.grades.min()} to {self.grades.max()}" if self.documents else "no grades"
        return (
            f"<Judgments of {self.queries:,} queries and {self.documents:,} documents, {grades}, "
            f"{self.features.shape[1]} features>"
        )

    @property
    def queries(self) -> int:
        """The number of queries."""
        return len(self.offsets) - 1

    @property
    def documents(self) -> int:
        """The number of documents, over all queries."""
        return len(self.grades)

    @property
    def sizes(self) -> IntArray:
        """How many candidates each query has."""
        return np.diff(self.offsets)

    @cached_property
    def query_of(self) -> IntArray:
        """The query that each document belongs to."""
        return np.repeat(np.arange(self.queries), self.sizes)

    def relevant(self, threshold: int = 3) -> BoolArray:
        """Whether each document is graded `threshold` or better. With grades 0 to 2, ask for 1 or 2."""
        return np.asarray(self.grades >= threshold)

    def take(self, query_ids: IntArray) -> Judgments:
        """Return the judgments of some queries, in that order."""
        query_ids = np.asarray(query_ids, dtype=np.int64)
        sizes = self.sizes[query_ids]
        offsets = np.concatenate([[0], np.cumsum(sizes)])
        rows = np.repeat(self.offsets[query_ids] - offsets[:-1], sizes) + np.arange(offsets[-1])
        return Judgments(offsets, self.grades[rows], self.features[rows])
