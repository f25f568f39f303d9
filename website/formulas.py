"""Convert TeX formulas of pages to MathML, which browsers draw themselves: no script, no font to load.

Pages write formulas as GitHub does: `$p_k$` in a line, and `$$` on lines of its own around a displayed one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from xml.sax.saxutils import escape

_LETTERS = {
    "Delta": "Δ", "alpha": "α", "beta": "β", "delta": "δ", "ell": "ℓ", "eta": "η", "lambda": "λ", "mu": "μ", "nu": "ν",
    "phi": "φ", "psi": "ψ", "rho": "ρ", "tau": "τ",
}  # fmt: skip
_OPERATORS = {
    "approx": "≈", "cdot": "·", "dots": "…", "ge": "≥", "in": "∈", "infty": "∞", "lbrace": "{", "le": "≤", "lnot": "¬",
    "mid": "|", "ne": "≠", "pm": "±", "prod": "∏", "propto": "∝", "rbrace": "}", "sim": "∼", "sum": "∑", "times": "×",
    "top": "⊤",
}  # fmt: skip
_NAMES = ("exp", "log", "max", "min")
_SPACES = {",": "0.17em", ";": "0.28em", "quad": "1em", "qquad": "2em"}
_FIXED_SPACE = "\N{NO-BREAK SPACE}"
_ACCENTS = {"bar": "¯", "hat": "^", "tilde": "~"}
_TOKEN = re.compile(r"\\([A-Za-z]+|.)|(\d+(?:\.\d+)?)|(\S)")
_RAW = re.compile(r"\\(text|mathrm)\{([^{}]*)\}")
# Code is not changed; a displayed formula, or one in a line that neither begins nor ends with a space.
_FORMULA = re.compile(
    r"(?P<code>^```.*?^```$|`[^`\n]+`)|^\$\$\n(?P<shown>.+?)\n\$\$$|\$(?P<inline>[^\s$](?:[^$\n]*[^\s$])?)\$",
    re.MULTILINE | re.DOTALL,
)


class FormulaError(Exception):
    """A formula uses TeX that this module does not know."""


def convert_formulas(text: str) -> str:
    """Return a page with its formulas as MathML."""

    def replace(found: re.Match[str]) -> str:
        if found["shown"]:
            return f'<div class="formula">{mathml(found["shown"], display=True)}</div>'
        return f'<span class="formula">{mathml(found["inline"])}</span>' if found["inline"] else found[0]

    return _FORMULA.sub(replace, text)


def mathml(tex: str, *, display: bool = False) -> str:
    """Return a formula as MathML.

    >>> mathml("p_k / p_1")
    '<math><msub><mi>p</mi><mi>k</mi></msub><mo>/</mo><msub><mi>p</mi><mn>1</mn></msub></math>'
    """
    # Text keeps its spaces: it becomes one token, which stands for its place in this list.
    texts: list[str] = []

    def keep(found: re.Match[str]) -> str:
        texts.append(found[2])
        return f"\\{'T' * len(texts)} "

    parser = _Parser(_RAW.sub(keep, tex), texts, display)
    body = "".join(parser.row(None))
    kind = ' display="block"' if display else ""
    return f"<math{kind}>{body}</math>"


class _Parser:
    """Read the tokens of one formula from left to right."""

    def __init__(self, tex: str, texts: list[str], display: bool) -> None:
        self._tex, self._texts, self._display = tex, texts, display
        self._tokens = [(found[1], found[2], found[3]) for found in _TOKEN.finditer(tex)]
        self._next = 0

    def row(self, end: str | None) -> Iterator[str]:
        """Yield the elements up to the character or command `end`, or up to the end of the formula."""
        while self._next < len(self._tokens):
            command, _, character = self._tokens[self._next]
            if end is not None and end in (command if end == "right" else character,):
                self._next += 1
                return
            yield self._with_scripts(self._element())
        if end is not None:
            raise FormulaError(f"{self._tex!r} lacks {end!r}.")

    def _with_scripts(self, base: str) -> str:
        scripts: dict[str, str] = {}
        while self._next < len(self._tokens) and self._tokens[self._next][2] in ("_", "^", "'"):
            mark = self._tokens[self._next][2]
            self._next += 1
            if mark == "'":
                # As a superscript, the character would be tiny. Within <mi>, the letter would not be italic.
                base = f"<mrow>{base}<mo>′</mo></mrow>"
            else:
                scripts[mark] = self._element()
        if not scripts:
            return base
        limits = self._display and base in ("<mo>∑</mo>", "<mo>∏</mo>")
        kind = {"_": "under" if limits else "sub", "^": "over" if limits else "sup"}
        tag = "m" + "".join(kind[mark] for mark in ("_", "^") if mark in scripts)
        inner = "".join(scripts[mark] for mark in ("_", "^") if mark in scripts)
        return f"<{tag}>{base}{inner}</{tag}>"

    def _element(self) -> str:
        """Return the next element: a character, a number, a group or a command with its arguments."""
        if self._next == len(self._tokens):
            raise FormulaError(f"{self._tex!r} ends too early.")
        command, number, character = self._tokens[self._next]
        self._next += 1
        if number:
            return f"<mn>{number}</mn>"
        if character == "{":
            return f"<mrow>{''.join(self.row('}'))}</mrow>"
        if character:
            return f"<mi>{character}</mi>" if character.isalpha() else _operator(character, self._is_first())
        return self._command(command)

    def _fence(self) -> str:
        """Return the bracket after \\left or \\right, which is as high as the row."""
        _, _, character = self._tokens[self._next] if self._next < len(self._tokens) else ("", "", "")
        if character not in tuple("()[]|"):
            raise FormulaError(f"{self._tex!r} lacks a bracket after \\left or \\right.")
        self._next += 1
        return f"<mo>{character}</mo>"

    def _is_first(self) -> bool:
        """Return whether the token that was just read begins a formula, a group or a bracket."""
        return self._next < 2 or self._tokens[self._next - 2][2] in ("(", "[", "{")

    def _command(self, name: str) -> str:
        if set(name) == {"T"}:
            return f"<mtext>{escape(self._texts[len(name) - 1]).replace(' ', _FIXED_SPACE)}</mtext>"
        if name in _LETTERS:
            return f"<mi>{_LETTERS[name]}</mi>"
        if name in _OPERATORS:
            return _operator(_OPERATORS[name], self._is_first())
        if name in _NAMES:
            return f'<mi>{name}</mi><mspace width="0.17em"/>'
        if name in _SPACES:
            return f'<mspace width="{_SPACES[name]}"/>'
        if name in _ACCENTS:
            return f"<mover>{self._element()}<mo>{_ACCENTS[name]}</mo></mover>"
        if name == "frac":
            return f"<mfrac>{self._element()}{self._element()}</mfrac>"
        if name == "left":
            return f"<mrow>{self._fence()}{''.join(self.row('right'))}{self._fence()}</mrow>"
        if name == "sqrt":
            return f"<msqrt>{self._element()}</msqrt>"
        if name in ("{", "}"):
            return f"<mo>{name}</mo>"
        raise FormulaError(f"{self._tex!r} uses \\{name}, which website/formulas.py does not know.")


def _operator(character: str, first: bool) -> str:
    # Only \left and \right make brackets as high as what they enclose. A sign before a number has no space around it.
    kind = ' stretchy="false"' if character in "()[]{}|" else ' form="prefix"' if first and character in "-+±" else ""
    return f"<mo{kind}>{escape({'-': '−', '*': '∗'}.get(character, character))}</mo>"
