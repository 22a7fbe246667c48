"""Records that stand beside the summary of a run, each a JSON file: written whole or not at all, checked when read."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, TypeVar

from pydantic import Field, ValidationError

from cvfl.errors import DataError, writing
from cvfl.runs.journal import write_whole
from cvfl.types import Section

Finite = Annotated[float, Field(allow_inf_nan=False)]
AnySection = TypeVar("AnySection", bound=Section)


def write_beside(record: Section, path: Path, indent: int | None = None) -> None:
    """Write a record."""
    with writing(path):
        write_whole(path, record.model_dump_json(indent=indent) + "\n")


def read_beside(kind: type[AnySection], path: Path) -> AnySection | None:
    """The record, if there is one; a file that is none is refused by name."""
    try:
        return kind.model_validate_json(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except ValidationError as error:
        first = error.errors()[0]
        raise DataError(f"{path}: {'.'.join(map(str, first['loc'])) or 'the file'}: {first['msg']}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: cannot be read ({type(error).__name__})") from None
