"""Alignments that roles keep: the next run of the same parties goes on with one.

    nothing kept                         all ids are compared, under new keys, and the result is kept
    kept, and no id has changed          nothing is sent
    kept, and some ids came or went      what was kept is forgotten, these ids are compared, and the result is kept

Forgotten first, so that an alignment that breaks off is never tried again under its keys: whoever could have ids
blinded again and again under one key could guess those of others. A folder may be none: then nothing is kept. What
cannot be written is not kept, either; the next run is none the worse for it. An outer alignment and one of the people
whom all hold tell parties different things: neither goes on with the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from datetime import date
from pathlib import Path
from typing import Any

from cvfl.errors import OutputError, writing
from cvfl.privacy import Aligned, AlignmentParty, AlignmentServer
from cvfl.privacy.blinding import OPEN
from cvfl.privacy.kept import Count, Earlier, KeptByParty, KeptByServer
from cvfl.privacy.sealing import Sealing
from cvfl.privacy.wanted import Matches, Wanted
from cvfl.runtime.checkpoint import Checkpoints
from cvfl.types import SERVER
from cvfl.wire import Spelling
from cvfl.wire.control import How


def alignment_folder(config: Path) -> Path:
    """Where the roles of a run in one process keep theirs: beside the configuration file, to be found from anywhere."""
    return config.absolute().parent / "state" / config.stem / "train"


class _Folder:
    """Where a role has its alignment; only the user who runs it can read it."""

    def __init__(self, path: Path | None) -> None:
        self._path = path

    def load(self) -> dict[str, Any] | None:
        """What was kept, if it is whole."""
        if self._path is None or not self._path.is_dir():
            return None
        files = Checkpoints(self._path, "alignment")
        return files.load(0) if files.rounds() else None

    def save(self, state: dict[str, Any]) -> None:
        if self._path is not None:
            with suppress(OutputError, OSError):
                self._path.mkdir(mode=0o700, parents=True, exist_ok=True)
                Checkpoints(self._path, "alignment").save(0, state)

    def forget(self) -> None:
        if self._path is not None and self._path.is_dir():
            with writing(self._path):
                Checkpoints(self._path, "alignment").drop_after(-1)


class PartyKeeper:
    """What a party of the federation of `names` keeps of its alignments.

    `key` is OPEN where all of them are in this process; elsewhere such an alignment is not gone on with.
    """

    def __init__(
        self, folder: Path | None, names: Sequence[str], key: bytes | None = None, wanted: Wanted = Wanted.ALL
    ) -> None:
        self._folder, self._names, self._key, self._wanted = _Folder(folder), tuple(names), key, wanted
        self._kept: KeptByParty | None = None
        self._earlier: Earlier | None = None
        self.reused = ""
        """The date of the alignment whose result was taken as it is, if one was."""
        with suppress(KeyError, TypeError, ValueError):  # of another version
            if state := self._folder.load():
                typed = {"count": Count(**state["count"]), "wanted": Wanted(state.get("wanted", Wanted.ALL))}
                kept = KeptByParty(**state | typed)
                own = (kept.names, kept.wanted) == (self._names, wanted)
                self._kept = kept if own and (kept.key != OPEN or key == OPEN) else None

    def forget(self) -> None:
        """Begin anew."""
        self._kept = self._earlier = None
        self._folder.forget()

    def has(self, ids: Sequence[str]) -> tuple[str, int]:
        """Which alignment is kept, if any, and how many of these ids came since."""
        self._earlier = self._kept.against(ids) if self._kept else None
        return (self._earlier.kept.number, len(self._earlier.came)) if self._earlier else ("", 0)

    def confirms(self, how: How, number: str) -> bool:
        """Whether an alignment that is to be taken up is the one that is kept here, and its result still holds."""
        if self._earlier is None:
            return how != "kept" and not number
        own = number == self._earlier.kept.number
        return own and self._earlier.unchanged if how == "kept" else own or not number

    def found(self, m: int) -> Matches:
        """The result that party m kept, which holds."""
        assert self._earlier is not None
        self.reused = self._earlier.kept.date
        return self._earlier.found(m)

    def begin(
        self, m: int, ids: Sequence[str], sizes: Sequence[int], sealing: Sealing, number: str, came: Sequence[int]
    ) -> AlignmentParty:
        """Party m of an alignment that starts now: of all ids, or with a number of those that came since then."""
        earlier, self.reused = self._earlier if number else None, ""
        self.forget()
        return AlignmentParty(m, ids, sizes, sealing, earlier, came if earlier else None, self._key, self._wanted)

    def keep(self, alignment: AlignmentParty, number: str) -> None:
        """The alignment is over."""
        self._kept = alignment.kept(number, _today())
        self._folder.save(asdict(self._kept))


class ServerKeeper:
    """What the server of a federation keeps of its alignments; `holder` is the label holder of outer ones."""

    def __init__(self, folder: Path | None, names: Sequence[str]) -> None:
        self._folder, self.names = _Folder(folder), tuple(names)
        self._kept: KeptByServer | None = None
        with suppress(KeyError, TypeError, ValueError):  # of another version
            if state := self._folder.load():
                typed = {"count": Count(**state["count"]), "spellings": tuple(map(Spelling, state["spellings"]))}
                kept = KeptByServer(**state | typed)
                self._kept = kept if kept.names == self.names else None

    def forget(self) -> None:
        """Begin anew."""
        self._kept = None
        self._folder.forget()

    def agree(
        self, numbers: Sequence[str], sizes: Sequence[int], came: Sequence[int], holder: int = SERVER
    ) -> tuple[How, str]:
        """How rows are found, and with which earlier alignment, for parties that have kept these."""
        if self._kept is None or not self._kept.serves(numbers, sizes, came, holder):
            return "align", ""
        return ("kept" if self._kept.unchanged(sizes, came) else "align"), self._kept.number

    def aligned(self) -> Aligned:
        """The result that was kept."""
        assert self._kept is not None
        kept = self._kept
        return Aligned(self.names, kept.sizes, kept.common, kept.date, holder=kept.holder, held=kept.held)

    def begin(self, sizes: Sequence[int], number: str, came: Sequence[int], holder: int = SERVER) -> AlignmentServer:
        """The server of an alignment that starts now."""
        earlier = self._kept if number else None
        self.forget()
        return AlignmentServer(self.names, sizes, earlier, came if earlier else None, holder)

    def keep(self, alignment: AlignmentServer, number: str, owed: Sequence[int] = ()) -> None:
        """The alignment is over; the run that first uses it owes it so many bytes of each party."""
        self._save(replace(alignment.kept(number, _today()), owed=tuple(owed)))

    @property
    def owed(self) -> tuple[int, ...]:
        """Bytes of each party that the alignment took and no run has counted yet."""
        return self._kept.owed if self._kept else ()

    def counted(self) -> None:
        """A run counts them from now on."""
        if self._kept is not None and self._kept.owed:
            self._save(replace(self._kept, owed=()))

    def _save(self, kept: KeptByServer) -> None:
        self._kept = kept
        self._folder.save(asdict(kept))


def _today() -> str:
    return date.today().isoformat()
