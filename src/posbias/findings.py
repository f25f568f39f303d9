"""Findings: what posbias reports about a log, a harvest or a curve, with a table of all finding codes.

Findings are printed, saved with a harvest, and added up when harvests are merged.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
import warnings
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from posbias._text import Arguments, as_python, printable, spelled, wrap
from posbias.errors import LogError, PosbiasWarning, Spelling, with_arguments

Severity = Literal["error", "warning", "info"]
_WORD = re.compile(r"(?!posbias)[a-z]+[ ,:;]")
MARKS: dict[Severity, str] = {"error": "✗", "warning": "!", "info": "·"}


def unusable(
    code: str, what: str, remedy: str, *, count: int = 1, arguments: Arguments | None = None
) -> UnusableLogError:
    """Return the error of a log that cannot be opened, with one finding."""
    return UnusableLogError(Finding(code, "error", what, count, remedy=remedy, arguments=arguments or {}))


class UnusableLogError(LogError):
    """A log cannot be used, for the reasons in its findings."""

    def __init__(self, *findings: Finding, lead: str = "", tail: str = "", arguments: Arguments | None = None) -> None:
        self.findings = findings
        self.lead = lead
        self.tail = tail
        super().__init__("", arguments)

    def sentence(self, spell: Spelling) -> str:
        """Return the findings with the arguments that would help, as Python or as flags."""
        if not self.lead:
            return "\n".join(finding.sentence(spell) for finding in self.findings)
        tail = [f"{self.tail} add {spell(self.arguments)}"] if self.arguments else []
        return "\n".join([self.lead, *(f"  - {finding.sentence(spell)}" for finding in self.findings), *tail])


@dataclass(frozen=True)
class Finding:
    """One finding about a log, a harvest or a curve.

    Attributes:
        code (str): the kind of finding, for programs: a key of `posbias.findings.CODES`.
        severity (str): "error" if the data cannot be used, "warning" if it can, "info" if there is no problem.
        what (str): the finding as text, in which `{count}` and the names of numbers in the evidence are replaced.
        count (int): how often it was found.
        example (str or None): one place where it was found.
        evidence (mapping): numbers and names that support it.
        remedy (str): what to do.
        arguments (mapping): arguments to add to ClickLog or a function as a remedy, by name.
    """

    code: str
    severity: Severity
    what: str
    count: int = 0
    example: str | None = None
    evidence: Mapping[str, Any] = field(default_factory=dict)
    remedy: str = ""
    arguments: Arguments = field(default_factory=dict)

    @property
    def message(self) -> str:
        """The finding with its numbers, without a full stop."""
        text = self.what
        for name, value in {"count": self.count, **self.evidence}.items():
            if isinstance(value, int):
                text = text.replace(f"{{{name}}}", f"{value:,}")
        # A name such as ubi_events stays as it is.
        return text[:1].upper() + text[1:] if _WORD.match(text) else text

    def sentence(self, spell: Spelling = as_python) -> str:
        """Return the finding, its example and remedy on one line, with arguments as Python or as flags."""
        example = f", for example {self.example}" if self.example else ""
        return with_arguments(f"{_ended(f'{self.message}{example}')} {self.remedy}".rstrip(), self.arguments, spell)

    def block(self, spell: Spelling = as_python) -> str:
        """Return the finding as a few lines: its mark and message, then example, remedy and arguments to add."""
        lines = wrap_printable(_ended(self.message), f"{MARKS[self.severity]} ", "  ")
        if self.example:
            lines += wrap_printable(self.example, "    example  ", " " * 13)
        if self.remedy:
            lines += wrap_printable(spelled(self.remedy, spell), "    remedy   ", " " * 13)
        # The arguments are to be copied, so they stay on one line.
        return "\n".join([*lines, f"    add      {printable(spell(self.arguments))}"] if self.arguments else lines)

    def to_dict(self, spell: Spelling = as_python) -> dict[str, Any]:
        """Return the finding as a JSON record, as `--json` prints it."""
        return {
            "code": self.code,
            "severity": self.severity,
            "message": self.message,
            "count": self.count,
            "example": self.example,
            "evidence": dict(self.evidence),
            "remedy": spelled(self.remedy, spell),
            "add": spell(self.arguments),
        }

    def __str__(self) -> str:
        return self.sentence()


def _ended(sentence: str) -> str:
    """Return a sentence with a full stop, unless it is a question."""
    return sentence if sentence.endswith("?") else f"{sentence}."


def wrap_printable(text: str, first: str, rest: str) -> list[str]:
    """Return text as indented lines with control characters escaped."""
    # Ids, names and commands are never broken.
    return wrap(printable(text), first, rest, breaking=False)


def legend(findings: Iterable[Finding]) -> str:
    """Return what the marks of these findings mean.

    >>> legend([Finding("a", "info", "a"), Finding("b", "error", "b")])
    '✗ error  · information'
    """
    names: dict[Severity, str] = {"error": "error", "warning": "warning", "info": "information"}
    used = {finding.severity for finding in findings}
    return "  ".join(f"{MARKS[severity]} {name}" for severity, name in names.items() if severity in used)


def any_error(findings: Iterable[Finding]) -> bool:
    """Return whether any finding is an error."""
    return any(finding.severity == "error" for finding in findings)


def serious(findings: Iterable[Finding]) -> list[Finding]:
    """Return the findings of severity "warning" or "error"."""
    return [finding for finding in findings if finding.severity != "info"]


def warn(sentences: Iterable[str]) -> None:
    """Warn a Python user at the line that called a function of posbias."""
    level = _frames_to_user()
    for sentence in dict.fromkeys(sentences):
        warnings.warn(printable(sentence), PosbiasWarning, stacklevel=level)


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Keep posbias from warning, where the findings are reported in another way."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PosbiasWarning)
        yield


def _frames_to_user() -> int:
    """Return the `stacklevel` of the caller outside the package and outside `contextlib`, whose decorators it uses."""
    package = os.path.join(os.path.dirname(__file__), "")
    frame, level = sys._getframe(1), 1
    while frame.f_back is not None and frame.f_code.co_filename.startswith((package, contextlib.__file__)):
        frame, level = frame.f_back, level + 1
    return level


def merge_findings(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Return the findings of several harvests as those of the whole: equal ones are merged, and their counts added.

    >>> day = Finding("left-out", "warning", "{count} of {rows} rows were left out", 2, evidence={"rows": 1000})
    >>> [finding.message for finding in merge_findings([day, day, day])]
    ['6 of 3,000 rows were left out']
    """
    merged: dict[tuple[str, str, str], Finding] = {}
    for finding in findings:
        key = (finding.code, finding.severity, finding.what)
        merged[key] = _sum(merged[key], finding) if key in merged else finding
    return tuple(merged.values())


def _sum(first: Finding, second: Finding) -> Finding:
    evidence = dict(first.evidence)
    for name, value in second.evidence.items():
        numbers = isinstance(value, int) and isinstance(evidence.get(name), int)
        evidence[name] = evidence[name] + value if numbers else evidence.get(name, value)
    return replace(first, count=first.count + second.count, evidence=evidence, example=first.example or second.example)


# Every finding code, with what it means. `tests/test_findings.py` compares it with the codes used in the package.
CODES: dict[str, str] = {
    # ---- Reading files and tables
    "ambiguous-table": "The DuckDB file has several tables, and none was named.",
    "bad-sql": "The SQL query that was given as the log cannot be run.",
    "broken-row": "A row of a CSV or JSON file cannot be parsed.",
    "copied-files": "A file of the log is a copy of another one, so its rows would be counted twice.",
    "damaged-file": "A file is truncated or damaged.",
    "file-changed": "A file of the log changed while it was read.",
    "disk-full": "The disk for temporary files is full.",
    "empty-file": "A file is empty and has no columns.",
    "empty-log": "The log has no rows.",
    "empty-rankings": "The table of rankings has no rows.",
    "file-locked": "Another process has the file open for writing.",
    "missing-file": "A file or folder does not exist, or holds no log file.",
    "mixed-files": "The files of a log have different columns or types.",
    "mixed-formats": "The files of a log have different formats, such as CSV and Parquet.",
    "needs-extension": "Reading the source needs a DuckDB extension, and posbias loads none.",
    "no-header": "A CSV file has no header line with column names.",
    "not-a-file": "The path is a pipe, a device or a socket, not a file.",
    "not-a-log": "The source is not a table of rows, or the file holds something else.",
    "not-utf-8": "A text file is not encoded as UTF-8.",
    "reads-other-files": "A view in a DuckDB file reads other files, which is not allowed.",
    "unknown-format": "The format of a file is not known from its name.",
    "unknown-table": "The named table is not in the DuckDB file.",
    "unreadable": "The source cannot be read.",
    # ---- Columns
    "column-name-taken": "The impressions already have a column with the name of one that posbias adds.",
    "column-only-in-path": "A column exists only as the name of folders, not in the files.",
    "column-with-two-roles": "One column was named for two roles, such as query and document.",
    "counts-overflow": "A sum of counts could exceed 64 bits.",
    "duplicate-column": "Two columns have the same name.",
    "identical-ranker-names": "Two ranker names are equal once they are converted to the type of the ranker column.",
    "ids-differ-in-type": "Ids are fractions in one table and whole numbers in the other.",
    "missing-column": "A required column is missing.",
    "missing-ranker-column": "The log has the ranks of each ranker, but no column with the ranker that was shown.",
    "missing-ranks": "No column matches the pattern of rank columns.",
    "names-differ-by-case": "Two columns have names that differ only by upper and lower case.",
    "nested-id": "An id column holds lists or objects instead of plain values.",
    "not-a-number": "The column of positions or ranks holds true and false instead of numbers.",
    "not-an-array": "The column of documents holds no arrays.",
    "too-many-rankers": "The log names more rankers than can be compared, so the column may hold something else.",
    "unused-rank-columns": "The log has columns that look like ranks of each ranker, and they are not used.",
    "overlap-not-tested": "In replay, no column has the time, so nothing shows whether rankers overlap.",
    "possible-proxy": "A column that is not used may serve as a proxy of relevance.",
    "heavy-unit": "One unit has a large share of the rows: its id may stand for all users without an id.",
    "useless-unit": "The column of the unit has no values, only one, or more values than there are page views.",
    "unused-unit": "A column that looks like the user is not used, although each of its values saw only one ranker.",
    "window-is-timestamp": "The window column holds points in time, but a period such as a day is expected.",
    # ---- Rows
    "clicks-exceed-impressions": "A row of an aggregated log has more clicks than impressions.",
    "contradicted-rank": "A document was shown at another position than the rank that its ranker gives it.",
    "duplicates": "Rows repeat a result of the same page view at the same position.",
    "ids-written-two-ways": "Ids are whole numbers in one place and fractions such as 7.0 in another.",
    "negative-position": "A position is negative.",
    "no-common-ids": "The log and the table of rankings have no id in common.",
    "not-a-click": "The click column holds a value that is neither 0 nor 1.",
    "not-a-count": "The impressions or clicks column holds a value that is not a count.",
    "not-a-position": "The position column holds a value that is not a whole number from 1 on.",
    "not-a-rank": "A rank column holds a value that is not a whole number from 1 on.",
    "note": "A note from a harvest file of an earlier format, which had no codes.",
    "null": "A required value is missing.",
    "rounded-ids": "Ids are floats that are too large to be exact, so different ids became one.",
    "unknown-ranker": "Rows name a ranker whose ranks are not known.",
    "zero-based-position": "Positions count from 0 instead of 1.",
    "zero-based-rank": "Ranks count from 0 instead of 1.",
    # ---- Page views and queries
    "clicks-on-all-above": "All results above a click were clicked, too.",
    "clicks-without-page-view": "Clicked documents have a click on every page view: the join left out the page view.",
    "document-at-several-positions": "A page view shows one document at several positions.",
    "flat-curve": "Documents get as many clicks at deep ranks as at top ranks, though click rates fall with rank.",
    "interleaved": "The page views interleave the lists of several rankers.",
    "missing-rows": "No position is logged on every page view, so rows are missing.",
    "non-functional-ranker": "A ranker shows one document at several ranks for the same query.",
    "page-length-follows-clicks": "The number of rows of a page view depends on its clicks, so rows are missing.",
    "pages-begin-late": "Page views have nothing at position 1.",
    "pages-end-at-click": "Page views end at the last click or a fixed number of rows below, so rows are missing.",
    "positions-start-again": "Positions seem to start again on each page of a longer list.",
    "query-is-request-id": "Almost every query id occurs once, so it may be the id of a request.",
    "several-rankers-in-page-view": "A page view holds results of several rankers.",
    "several-results-at-position": "One position of a page view holds two or more results.",
    # ---- Positions and clicks
    "no-clicks": "The log has no clicks.",
    "no-clicks-at-rank-1": "Rank 1 has no clicks, and propensities are relative to rank 1.",
    "no-first-position": "Nothing was shown at position 1, and propensities are relative to it.",
    "nothing-shown": "Nothing was shown within the top ranks.",
    "only-clicks": "Every row was clicked, so results without a click are missing.",
    "only-clicks-at-position": "Every result at a position was clicked, so results without a click are missing there.",
    # ---- Impressions and clicks as events
    "click-without-impression": "Clicks match no result that was shown.",
    "conflicting-page-view": "One page view id has different queries, rankers or documents at the same position.",
    "double-clicks": "Clicks repeat a click on the same result of the same page view.",
    "mixed-first-positions": "Some page views begin at position 0 and others at position 1.",
    "empty-page": "Page views show no results.",
    "later-pages": "Requests ask for a later page of results, on which positions start again from the top.",
    "nested-document": "Elements of the document array look like JSON objects, and each was taken as an id.",
    "returned-counted-as-shown": "Some applications log no impressions, so the results they returned count as shown.",
    "too-many-applications": "The events name more applications than can be handled.",
    # ---- Rankers and traffic
    "biased-weighting": "In replay, the weighting `traffic` biases the curve.",
    "little-data": "The log has too few page views or clicks for a curve.",
    "few-page-views": "A ranker has few page views.",
    "few-repeated-pairs": "Few query-document pairs were shown at two ranks.",
    "mixed-engines": "Merged harvests come from engines that put queries into different buckets.",
    "units-not-counted": "The log has units but names no ranker, so intervals cluster by query alone.",
    "mixed-units": "Merged harvests have different units, or some of them have none.",
    "no-disagreement": "The rankers never put a document at different ranks, so nothing can be compared.",
    "no-ranker": "The log names no ranker, so each document is compared with itself at other ranks.",
    "not-random": "A ranker that should show its results in random order does not.",
    "one-sided-ranks": "The ranks of a ranker are known only where it was shown itself.",
    "query-dependent-traffic": "The choice of the ranker depends on the query.",
    "ranker-without-traffic": "A ranker with known ranks was never shown.",
    "rankers-overlap": "The rankers served at the same time.",
    "rankers-replaced": "The rankers served at different times, at least in part; the curve compares these.",
    "relevance-drifts": "In replay, comparisons within an eighth of the time give another curve than all comparisons.",
    "repeated-pairs": "The share of query-document pairs that were shown at two ranks.",
    "sample-ratio-as-intended": "Page views are split among the rankers as intended.",
    "sample-ratio-mismatch": "Page views are not split among the rankers as intended.",
    "sample-ratio-not-tested": "Whether page views are split among the rankers as intended could not be tested.",
    "similar-rankers": "Two rankers put most documents at the same ranks.",
    "single-ranker": "The log has only one ranker.",
    "sticky-traffic": "Page views of one query were assigned to rankers together, not one by one.",
    # ---- Diagnosis of a curve
    "contradictory-pairs": "Pairs of ranks contradict each other: no single curve fits the clicks of all rankers.",
    "crawlers-not-tested": "Whether crawlers clicked was not tested, because the log does not show page views.",
    "crawlers": "Page views have more clicks than users make, or clicks on any result alike: crawlers, or tests.",
    "curves-differ-by-proxy": "Documents of different relevance classes have different curves.",
    "dominant-bucket": "At some ranks, the estimate depends mostly on a single bucket of queries.",
    "estimators-disagree": "Two estimators that should agree give different curves.",
    "few-degrees-of-freedom": "Some ranks have few degrees of freedom, because their estimates come from few queries.",
    "one-click-pages": "Page views have fewer second clicks than independent clicks would give.",
    "one-curve": "One curve fits all pairs of ranks.",
    "one-curve-not-tested": "Whether one curve fits all pairs of ranks could not be tested.",
    "only-clicked-pages": "Every page view has a click, so page views without clicks may be missing.",
    "page-clicks": "The number of page views with two clicks or more.",
    "page-depth": "Pages end at different ranks; curves and intervals allow for it.",
    "proxy-not-tested": "Whether curves differ between relevance classes could not be tested.",
    "ranker-effect": "A ranker gets more clicks on the same documents than ranks and traffic explain.",
    "same-curve-by-proxy": "Documents of different relevance classes have the same curve.",
    "segments-differ": "The segments have different curves.",
    "sums-only": "The harvest holds sums over pairs of ranks, so whether one curve fits all pairs is not tested.",
    "support": "The ranks with the least data, and the comparisons that their estimates come from.",
    # ---- Weights
    "candidate-queries-not-in-log": "Queries of the candidates are not in the log; they are left out.",
    "few-clicks-for-ips": "Queries have too few page views or clicks to train a ranker with IPS weights alone.",
    "kept-column-varies": "A kept column has several values for one query-document pair.",
    "much-weight-capped": "The cap removes much of the total weight.",
    "other-depth": "The curve was estimated from results at ranks that the log never shows.",
    "other-rankers": "The curve was estimated from other rankers than those of the log.",
    "queries-without-candidates": "Queries of the log have no candidates.",
    "zero-propensity-rank": "The estimated propensity of a rank at which results were shown is 0.",
    "shown-documents-not-in-candidates": "Documents that were shown are not among the candidates of their query.",
    # ---- Judgments
    "few-judged-pairs": "Too few query-document pairs are judged to divide them into grades of equal size.",
    # ---- Evaluation of rankings
    "documents-never-shown": "The top of a ranking holds documents that were never shown for that query.",
    "documents-shown-deeper": "The top of a ranking holds documents that were shown only below the top ranks.",
    "memorised-clicks": "A ranking follows single clicks more closely than relevance can explain.",
    "ranking-lacks-documents": "A ranking lacks some of the clicked documents.",
    "empty-ranks": "Page views leave a rank empty above other results.",
}
