"""What to do about new rows that cannot be read: their table can be changed, settings are those of the training."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from cvfl.errors import DataError

_INSTEAD = (
    ("; keep one row each", '; keep one row each, or train with duplicates = "first" or "last"'),
    ("; mend it, add it to `missing`", "; write its values as the table of the training has them, or leave them empty"),
    ("; set types.", "; write its values as the table of the training has them"),
    ("; set id_type", '; write ids alike in all new tables, or train with id_type = "caseless"'),
)
"""Where the advice to those who train begins, and what those who predict can do."""


@contextmanager
def for_new_rows() -> Iterator[None]:
    """Turn the advice of an error about a table into one for new rows."""
    try:
        yield
    except DataError as error:
        text = str(error)
        for start, instead in _INSTEAD:
            if start in text:
                raise DataError(text[: text.index(start)] + instead) from error
        raise
