"""What a role serves, as it is on disk now: models of its folder, rows of its table; looked at again and again.

A new bundle is loaded beside the old one, and a changed table takes the place of the old one when all of it is read and
embedded. What cannot be read, such as a bundle that is half written, is said once and tried again.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from cvfl.config.schema import RunConfig
from cvfl.data.tables.sources import open_table
from cvfl.errors import ConfigError, CvflError, DataError, suggest
from cvfl.runs.bundle import PRIVATE, PartyBundle, server_module
from cvfl.serving.apart import check_terms
from cvfl.serving.bundles import Bundles, read_bundles
from cvfl.serving.online.kept import Kept
from cvfl.serving.online.scoring import Scoring
from cvfl.serving.online.store import PartyModel, Rows, Store
from cvfl.serving.rows import source_of
from cvfl.types import OnStep

SAME = ("width", "compressor", "names", "precision")
"""What a new model must have as the old one has it, since a session is agreed on it."""
Signature = tuple[Any, ...]
Check = Callable[[PartyBundle], None]
"""Refuses a model that the owner of the party has not approved."""
_PATIENCE = 2.0
"""Seconds in which what is being read when all is over has to end; it is left alone then."""


class _GivenUpError(Exception):
    """Nobody waits for what is being read any more."""


class _Watched:
    """Something on disk that may change: tried again when it did, or when it could not be read."""

    def __init__(self, signature: Callable[[], Signature]) -> None:
        self._signature, self._known, self._failed = signature, signature(), ""

    def look(self, take: Callable[[], str]) -> list[str]:
        """Take it anew if it changed; lines to be shown."""
        now = self._signature()
        if now == self._known and not self._failed:
            return []
        try:
            note = take()
        except (CvflError, OSError) as error:
            before, self._failed = self._failed, str(error)
            return [f"not taken, and tried again: {error}"] if before != self._failed else []
        self._known, self._failed = now, ""
        return [note] if note else []


class PartyStock:
    """That of a party: embeddings of its rows by run, and of the party with which labels stay the server model."""

    def __init__(
        self,
        config: RunConfig,
        name: str,
        model: Path,
        memory: int,
        refresh: float,
        on_step: OnStep = lambda *_: None,
        check: Check = lambda bundle: None,
    ) -> None:
        if name not in config.party:
            raise ConfigError(f"there is no section party.{name}{suggest(name, config.party)}")
        self.config, self.name, self._folder, self._memory, self._told = config, name, model, memory, on_step
        self._refresh, self._lock, self._secret, self._check = refresh, threading.Lock(), b"", check
        self.over = threading.Event()
        """Set when nobody looks any more: what is being read is given up."""
        self._roles = {name, "server"} if config.privacy.scores_at(name) else {name}
        self._models = _Watched(lambda: _files(model, self._roles))
        self._tables = _Watched(self._table_now)
        bundles = self._bundles()
        bundle = bundles.parties[name]
        self._rows = self._open(bundle)
        own = PartyModel.load(bundle, bundles.folders[name])
        self.scoring = Kept(bundle.run, self._scoring(bundles)) if "server" in self._roles else None
        self.kept = Kept(bundle.run, Store(own, self._rows, memory, self._on_step))

    @property
    def bundle(self) -> PartyBundle:
        """That of the newest run."""
        return self.kept.newest.model.bundle

    @property
    def label(self) -> bool:
        """Whether this party had the label."""
        return self.bundle.table is not None and self.bundle.table.label is not None

    @property
    def notes(self) -> list[str]:
        """What was found in the table."""
        return self._rows.notes

    def key(self, secret: bytes) -> None:
        """Know rows by the pseudonyms of this secret."""
        with self._lock:
            self._secret = secret
            self._rows.key(secret)

    def look(self) -> list[str]:
        """See what is new on disk; lines to be shown."""
        return self._models.look(self._new_model) + self._tables.look(self._new_table)

    def _on_step(self, what: str, done: int, total: int) -> None:
        if self.over.is_set():
            raise _GivenUpError
        self._told(what, done, total)

    def _bundles(self) -> Bundles:
        bundles = read_bundles([self._folder], self._roles)
        if self.name not in bundles.parties:
            raise DataError(f"{self._folder}: there is no model of {self.name}; name its folder with --model")
        check_terms(self.config, bundles.parties[self.name], self._folder)
        return bundles

    def _scoring(self, bundles: Bundles) -> Scoring:
        if bundles.server is None:
            raise DataError(f"{self._folder}: the server model is missing, which the label holder scores with")
        return Scoring(bundles.server, server_module(bundles.server, bundles.folders["server"]))

    def _new_model(self) -> str:
        bundles = self._bundles()
        bundle = bundles.parties[self.name]
        if bundle.run in self.kept.runs:
            return ""
        if other := [key for key in SAME if getattr(bundle, key) != getattr(self.bundle, key)]:
            raise DataError(f"{self._folder}: run {bundle.run} has another {other[0]}; start this role again with it")
        try:
            self._check(bundle)
        except CvflError as error:
            raise ConfigError(f"{self._folder}: run {bundle.run}: {error}") from None
        scoring = self._scoring(bundles) if self.scoring is not None else None
        store = Store(PartyModel.load(bundle, bundles.folders[self.name]), self._rows, self._memory, self._on_step)
        if self.scoring is not None and scoring is not None:
            self.scoring.put(bundle.run, scoring)
        self.kept.put(bundle.run, store)
        return f"run {bundle.run} is loaded"

    def _new_table(self) -> str:
        rows = self._open(self.bundle)
        models = [store.model for run in self.kept.runs if (store := self.kept.get(run))]
        stores = [Store(model, rows, self._memory, self._on_step) for model in models]
        with self._lock:
            if self._secret:
                rows.key(self._secret)
            self._rows = rows
            for model, store in zip(models, stores, strict=True):
                if model.bundle.run in self.kept.runs:
                    self.kept.put(model.bundle.run, store)
        return f"the table was read again: {len(rows):,} rows"

    def _open(self, bundle: PartyBundle) -> Rows:
        section = self.config.party[self.name]
        if not section.has_table or bundle.table is None:
            raise ConfigError(f"party.{self.name} has no table; give table, or url and query, of the rows to serve")
        place = section.table if section.table else (section.url or "", section.query or "")
        report: Callable[[str, int], None] = lambda what, rows: self._on_step(f"{what}: reading", rows, 0)  # noqa: E731
        return Rows(open_table(source_of(bundle, place), report), bundle, self._on_step)

    def _table_now(self) -> Signature:
        """What changes when the table does; a query is asked again from time to time."""
        table = self.config.party[self.name].table
        return (int(time.monotonic() / self._refresh),) if table is None else _file(table)


class ServerStock:
    """That of a server which scores."""

    def __init__(self, config: RunConfig, model: Path) -> None:
        self.config, self._folder = config, model
        self._models = _Watched(lambda: _files(model, {"server"}))
        scoring = self._load()
        self.kept = Kept(scoring.bundle.run, scoring)

    def look(self) -> list[str]:
        """See whether there is a new bundle; lines to be shown."""
        return self._models.look(self._new_model)

    def _load(self) -> Scoring:
        bundles = read_bundles([self._folder], {"server"})
        if bundles.server is None:
            raise DataError(f"{self._folder}: there is no server model; name the run directory with --model")
        check_terms(self.config, bundles.server, self._folder)
        return Scoring(bundles.server, server_module(bundles.server, bundles.folders["server"]))

    def _new_model(self) -> str:
        scoring = self._load()
        if scoring.bundle.run in self.kept.runs:
            return ""
        self.kept.put(scoring.bundle.run, scoring)
        return f"run {scoring.bundle.run} is loaded"


class Watch:
    """Looks at a stock every second in a thread of its own; `on_news` hears lines, when something was taken.

    `over` is set when nobody looks any more.
    """

    def __init__(
        self,
        look: Callable[[], list[str]],
        on_news: Callable[[list[str]], None],
        every: float = 1.0,
        over: threading.Event | None = None,
    ) -> None:
        self._look, self._on_news, self._every = look, on_news, every
        self._over = over or threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True, name="cvfl-watch")

    def __enter__(self) -> Watch:
        self._over.clear()
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._over.set()
        self._thread.join(_PATIENCE)

    def _run(self) -> None:
        with suppress(_GivenUpError):
            while not self._over.wait(self._every):
                if lines := self._look():
                    self._on_news(lines)


def _files(model: Path, roles: set[str]) -> Signature:
    """What changes when one of the roles' bundles does."""
    folders = [folder / below for folder in (model, model / "parameters") for below in ("", PRIVATE)]
    places = (path for role in sorted(roles) for folder in folders for path in folder.glob(f"{role}.*"))
    return tuple(_file(path) for path in sorted(places))


def _file(path: Path) -> Signature:
    try:
        found = path.stat()
    except OSError:
        return (str(path),)
    return str(path), found.st_mtime_ns, found.st_size, found.st_ino
