"""A user's frames as the tables of parties: pandas, polars, Arrow, or anything else that speaks Arrow's C interface."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from cvfl.errors import DataError


def write_frames(frames: Mapping[str, Any], folder: Path) -> dict[str, Path]:
    """Write each frame to `folder` as NAME.parquet, which roles of every runtime can read."""
    paths = {name: folder / f"{name}.parquet" for name in frames}
    for name, frame in frames.items():
        pq.write_table(_plain(_arrow(name, frame)), paths[name])
    return paths


def _arrow(name: str, frame: Any) -> pa.Table:
    if isinstance(frame, pa.Table):
        return frame
    if not hasattr(frame, "__arrow_c_stream__"):
        raise DataError(
            f"{name}: a frame is a pandas, polars or Arrow table, or anything with __arrow_c_stream__, "
            f"not a {type(frame).__name__}"
        )
    table = pa.RecordBatchReader.from_stream(frame).read_all()
    # An index without a name is not a column.
    return table.drop_columns([column for column in table.column_names if column.startswith("__index_level_")])


def _plain(table: pa.Table) -> pa.Table:
    """Categories as their values and views of text as text: what Parquet files commonly hold."""
    kinds = {field.name: _plain_type(field.type) for field in table.schema}
    return table.cast(pa.schema([pa.field(name, kind) for name, kind in kinds.items()]))


def _plain_type(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_dictionary(kind):
        return _plain_type(kind.value_type)
    if kind in (pa.string_view(), pa.large_string()):
        return pa.string()
    return kind
