"""How many lines a user writes: those that are neither empty, nor a comment, nor within a docstring."""

from __future__ import annotations

import ast
import io
import tokenize
from pathlib import Path

_NOTHING = (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER)


def code_lines(path: Path) -> int:
    """Lines of a Python file with code on them."""
    text = path.read_text(encoding="utf-8")
    found: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in _NOTHING:
            found |= set(range(token.start[0], token.end[0] + 1))
    return len(found - _docstrings(text))


def _docstrings(text: str) -> set[int]:
    found: set[int] = set()
    for node in ast.walk(ast.parse(text)):
        body = getattr(node, "body", None)
        first = body[0] if isinstance(body, list) and body else None
        value = first.value if isinstance(first, ast.Expr) else None
        if first is not None and isinstance(value, ast.Constant) and isinstance(value.value, str):
            found |= set(range(first.lineno, (first.end_lineno or first.lineno) + 1))
    return found
