"""What Spark says, as errors that name the file and a remedy."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager

from posbias.engines.files import file_format
from posbias.engines.headers import odd_lines
from posbias.errors import PosbiasError
from posbias.findings import unusable
from posbias.logs.bounds import sums_overflow
from posbias.logs.schemas import Schema

INSTALL_JAVA = (
    "Spark needs Java 17 or newer, and no java command was found. Install one (on Debian and Ubuntu: apt install "
    "openjdk-17-jre-headless; on macOS: brew install openjdk@17) or point JAVA_HOME to it."
)
# What a message of Spark contains -> the name of the problem, and what to do.
_REMEDIES = {
    r"unexpected end-of-input": ("damaged-file", "The file looks truncated or damaged: copy or write it again."),
    r"invalid_json_record_type": ("not-a-log", "Expected one object for each row: JSON lines."),
    r"column_already_exists|ambiguous_column": (
        "names-differ-by-case",
        "Two columns have one name, or names that differ only by upper and lower case: rename or leave out one.",
    ),
    r"mixes line endings": ("broken-row", "Write the file again with one kind of line ending."),
    r"malformed csv": ("broken-row", "Mend or remove that row, or write the file again."),
    r"malformed_record|jsonparse": ("broken-row", "Expected one JSON object for each row: mend or remove that row."),
    r"no filesystem for scheme": (
        "unreadable",
        "Spark lacks the connector for such addresses: add it by the setting spark.jars.packages=NAME (conf).",
    ),
    r"path_not_found|filenotfound": ("missing-file", "Check the path, and that every worker sees it."),
    r"failed_read_file|file_footer|not a parquet file|eofexception|corrupt": (
        "damaged-file",
        "The file looks truncated or damaged: copy or write it again, or leave it out.",
    ),
    r"no space left": ("disk", "Free space in the folders of spark.local.dir, or point it to others."),
    r"parse_syntax_error|unresolved_column|table_or_view_not_found|unresolved_routine": (
        "bad-sql",
        "Check the query given as sql: it reads `source`.",
    ),
}


@contextmanager
def explained(file: str | None = None, schema: Schema | None = None) -> Iterator[None]:
    """Turn what Spark raises, while it reads a file or counts what is in a log, into an error of ours."""
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]
    from pyspark.errors import PySparkException

    try:
        yield
    except (PySparkException, Py4JError) as error:
        text = str(error)
        if "JAVA_GATEWAY_EXITED" in text:
            told = " ".join(getattr(error, "__notes__", []))
            raise PosbiasError(f"Spark needs Java 17 or newer, and it could not be started. {told}".strip()) from None
        if re.search("masters are unresponsive|could not connect|context was shut down|connection refused", text, re.I):
            raise PosbiasError(f"Spark cannot be reached: {gist(text)}. Check the address of its master.") from None
        low = text.lower()
        if (
            schema is not None
            and schema.aggregated
            and re.search("arithmetic_overflow|cast_overflow|out_of_range", low)
        ):
            raise sums_overflow(schema) from None
        name, remedy = next(
            (found for pattern, found in _REMEDIES.items() if re.search(pattern, low)),
            ("unreadable", "Read it with Spark itself to see what is wrong, or write it again as Parquet."),
        )
        named = re.search(r"reading file (?:file://)?(\S+?)\.?\s", text)
        where = named[1] if named else file
        said = gist(text)
        if name == "broken-row" and where and os.path.isfile(where) and file_format(where) == "csv":
            said = odd_lines(where) if "mixes" in odd_lines(where) else said
        what = f"The log cannot be read by Spark: {said}"
        raise unusable(name, f"{what} ({where!r})" if where else what, remedy) from None


def gist(text: str) -> str:
    """Return what Spark says, without its error class, its query and its Java.

    >>> gist("[TABLE_OR_VIEW_NOT_FOUND] The table `x` cannot be found. Verify. SQLSTATE: 42P01; line 1 pos 14;\\n'Pro")
    'The table `x` cannot be found'
    >>> gist("An error occurred while calling o7.json.\\n: org.apache.SparkException: [BAD] Not so. SQLSTATE: 1\\n")
    'Not so'
    """
    caused = re.findall(r"(?:Caused by|\n): [\w.$]+: (.+)", text)
    first = (caused[-1] if caused else text).strip().splitlines()[0]
    first = re.sub(r"^\[[\w.]+\] ", "", first)
    first = re.sub(r"@[0-9a-f]+", "", first)
    return re.split(r"\. | SQLSTATE| \(start marker", first)[0].rstrip(".")
