"""Help texts in sections: what is used every day first, Spark last."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import click

# Section -> names of parameters, in the order of help texts; a command's own sections come before.
_SHARED: dict[str, tuple[str, ...]] = {
    "What is compared": ("max_rank", "by", "weighting", "non_functional", "force"),
    "Columns of the log": (
        "query",
        "doc",
        "ranker",
        "position",
        "click",
        "impression",
        "impressions",
        "clicks",
        "ranks",
        "original",
    ),
    "Where the log lies": ("table", "sql", "rankings", "rank", "duplicates"),
    "Engine": ("engine", "memory_limit", "threads"),
    "Spark": ("spark_master", "spark_conf"),
}
# Where an option goes that no section names.
_OUTPUT, _OTHERS = "Output", "Options"


class Sectioned(click.Command):
    """A command that lists its options in sections."""

    def __init__(self, *args: Any, sections: Mapping[str, Sequence[str]] | None = None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._sections = dict(sections or {})

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write each section that the command has options of."""
        options = (param for param in self.get_params(ctx) if isinstance(param, click.Option))
        told = {str(param.name): param.get_help_record(ctx) for param in options}
        own = {name for names in self._sections.values() for name in names}
        placed = own.union(*_SHARED.values())
        sections = {title: list(names) for title, names in self._sections.items()}
        sections.setdefault(_OUTPUT if _OUTPUT in sections else _OTHERS, []).extend(
            name for name in told if name not in placed
        )
        sections |= {title: [name for name in names if name not in own] for title, names in _SHARED.items()}
        for title, names in sections.items():
            rows = [row for row in map(told.get, names) if row is not None]
            if rows:
                with formatter.section(title):
                    formatter.write_dl(rows)
