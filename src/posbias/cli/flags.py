"""Arguments of the library as flags of the command."""

from __future__ import annotations

import shlex

from posbias.wording import Arguments

# Flags that are not called as the argument they become.
_FLAGS = {"conf": "spark-conf", "features": "feature", "master": "spark-master"}


def as_flags(arguments: Arguments) -> str:
    """Return arguments as one would type them in a shell.

    >>> as_flags({"query": "my query", "rankers": ["a", "b"], "non_functional": "share"})
    "--query 'my query' --rankers a --rankers b --non-functional share"
    """
    words: list[str] = []
    for name, given in arguments.items():
        flag = f"--{_FLAGS.get(name, name).replace('_', '-')}"
        if isinstance(given, bool):
            words.append(flag)
        else:
            words += [f"{flag} {shlex.quote(value)}" for value in ([given] if isinstance(given, str) else given)]
    return " ".join(words)
