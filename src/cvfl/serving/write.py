"""Scores as a file: CSV, or Parquet if its name says so. It is there whole or not at all."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq

from cvfl.errors import ConfigError, writing

_FORMS = (".csv", ".parquet", ".pq")


def check_form(path: Path) -> None:
    """Refuse a file of another kind, before anything is computed for it."""
    if path.suffix.lower() not in _FORMS:
        raise ConfigError(f"{path}: scores are written as {', '.join(_FORMS)}; name the file so")


def check_new(path: Path, force: bool = False) -> None:
    """Refuse a file of another kind, and to write over one that is there."""
    check_form(path)
    if path.exists() and not force:
        raise ConfigError(f"{path} exists already; choose another name or use --force")


def write_scores(batches: Iterable[pa.RecordBatch], path: Path) -> int:
    """Write scores as they come; how many rows there were."""
    check_form(path)
    partial, rows, writer = path.with_name(f".{path.name}.partial"), 0, None
    try:
        with writing(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            for batch in batches:
                writer = writer or _writer(partial, path.suffix.lower(), batch.schema)
                writer.write_batch(batch)
                rows += len(batch)
            if writer is not None:
                writer.close()
                partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
    return rows


def _writer(path: Path, form: str, schema: pa.Schema) -> pq.ParquetWriter | pa.csv.CSVWriter:
    return pa.csv.CSVWriter(path, schema) if form == ".csv" else pq.ParquetWriter(path, schema)
