"""The temporary copy of a CSV file or a query's result: columns of text in a Parquet file, written in a stream."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

import pyarrow as pa
import pyarrow.parquet as pq

from cvfl.errors import DataError

Report = Callable[[str, int], None]
_ROW_GROUP = 32 << 20  # bytes of text held before they are written: more makes fewer pieces, less keeps memory low


class Spill:
    """Takes batches of text and writes them in row groups of bounded size; reports the table's name and its rows."""

    def __init__(self, name: str, path: Path, columns: Sequence[str], report: Report | None) -> None:
        check_names(name, columns)
        self.name, self.path, self.rows = name, path, 0
        self.schema = pa.schema([(column, pa.string()) for column in columns])
        self._report, self._held, self._bytes = report, list[pa.RecordBatch](), 0
        try:
            self._writer = pq.ParquetWriter(
                path, self.schema, compression="lz4", use_dictionary=False, write_statistics=False
            )
        except OSError as error:
            raise self._no_room(error) from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        try:
            if error is None:
                self._write()
        finally:
            self._close(quietly=error is not None)
            pa.default_memory_pool().release_unused()  # the buffers of reading and writing are not needed any more

    def add(self, batch: pa.RecordBatch) -> None:
        """Take a batch; it is written once enough of them have come together."""
        self._held.append(batch)
        self._bytes += batch.nbytes
        if self._bytes >= _ROW_GROUP:
            self._write()
        self.rows += len(batch)
        if self._report:
            self._report(self.name, self.rows)

    def _write(self) -> None:
        if not self._held:
            return
        table = pa.Table.from_batches(self._held, self.schema)
        try:
            self._writer.write_table(table, row_group_size=max(1, len(table)))
        except OSError as error:
            raise self._no_room(error) from error
        self._held, self._bytes = [], 0

    def _close(self, *, quietly: bool) -> None:
        try:
            self._writer.close()
        except OSError as error:
            if not quietly:
                raise self._no_room(error) from error

    def _no_room(self, error: OSError) -> DataError:
        return DataError(
            f"{self.name}: its temporary copy in {self.path.parent} cannot be written ({one_line(error)}); "
            "set TMPDIR to a folder with room"
        )


def check_names(table: str, columns: Sequence[str]) -> None:
    """Refuse a table in which two columns have the same name."""
    if twice := [name for name, count in Counter(columns).items() if count > 1]:
        raise DataError(f"{table}: two columns are named {twice[0]!r}; rename one")


def one_line(error: object) -> str:
    """What a library said, on one line and of a length to read."""
    text = " ".join(str(error).split()).rstrip(".")
    return text if len(text) <= 300 else f"{text[:299]}…"
