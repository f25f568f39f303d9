"""What comes next, as one would type it in Python; the command types its own."""

from __future__ import annotations

from posbias.reporting.reports import Part

# The commands, with what each is for.
PURPOSES = {
    "estimate": "the curve in a file, with its covariance",
    "weights": "weights and exposure to learn from",
    "diagnose": "what speaks against the curve, again",
    "plan": "how much more data it needs, and what other traffic would bring",
}
_LEVEL = 0.95


def in_python(part: Part) -> dict[str, str]:
    """Return what to type for each purpose, from what the curve of a part was made of."""
    curve = part.curve
    name = "".join(word.capitalize() for word in curve.estimator.split("-"))
    level = "" if curve.level in (None, _LEVEL) else f"level={curve.level:g}"
    typed = {
        "estimate": f"posbias.{name}({level}).fit(harvest).curve().save('curve.json')",
        "weights": "posbias.ips_weights(log, 'curve.json', 'weights.parquet')",
        "diagnose": "print(posbias.diagnose(harvest))",
        "plan": "print(posbias.plan(harvest))",
    }
    made = {"the harvest": "\n".join(part.origin.python)} if part.origin.python else {}
    return made | {purpose: typed[command] for command, purpose in PURPOSES.items()}
