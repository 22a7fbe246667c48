"""One session at the server: what the parties of it have kept, how their rows are settled, and where rounds begin.

    all parties      ──Have──▶ a run that all know goes on, or a new one begins ──Settle──▶ all parties
    settling.py      ──RowSecret, Blinded, Gone, Targets──▶ passed on, or taken in
    all parties      ──Settled──▶ back to the newest round that all have kept ──Begin──▶ all parties

A session begins with a Recall and is over when somebody leaves or comes; the next one knows nothing of it. Messages go
in and come out; what may come when is the affair of handshake.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from cvfl.errors import RemoteProtocolError
from cvfl.federation.agreement.admission import Kept, check_kept, common_round
from cvfl.federation.agreement.handshake import Anything
from cvfl.federation.agreement.labels import ServerRows
from cvfl.federation.rows.keeping import ServerKeeper
from cvfl.privacy import Aligned, AlignmentServer
from cvfl.wire import Blinded, Gone
from cvfl.wire.control import Begin, Control, Have, How, Offer, Recall, RowSecret, Settle, Settled
from cvfl.wire.targets import Targets

Said = Sequence[tuple[int, Anything]]
"""Messages, each with the party that it is for."""


class Session:
    """Session `number`, of the parties of these offers; `how` says how their rows are settled."""

    def __init__(self, number: int, offers: Mapping[int, Offer], rows: ServerRows, keeper: ServerKeeper) -> None:
        self.number, self.offers = number, offers
        self.how: How = "known"
        self._earlier = ""
        """The alignment that this one goes on with."""
        self._rows, self._keeper = rows, keeper
        self._have: dict[int, Have] = {}
        self._settled: dict[int, list[int]] = {}
        self._alignment: AlignmentServer | None = None

    def recall(self) -> Said:
        """All parties are to say what they have kept."""
        return self._to_all(lambda m: Recall(session=self.number))

    def has(self, m: int, have: Have) -> bool:
        """What party m has kept; whether all have said so."""
        self._have[m] = have
        return len(self._have) == len(self.offers)

    def knows(self, run: str) -> bool:
        """Whether all have the rows of this run, which then goes on."""
        return run != "" and self._rows.sizes() is not None and all(have.run == run for have in self._have.values())

    def check(self, kept: Kept, every: int) -> None:
        """Refuse to begin a new run with these parties."""
        for m, have in sorted(self._have.items()):
            check_kept(self._name(m), Kept(have.run, have.rounds), kept, every)
        self._rows.check(self.offers)

    def begin_rows(self) -> None:
        """The rows of a new run are to be found: as they are, as an alignment found them that is kept, or by one."""
        self.how = self._rows.how
        if self.how == "align":
            holder, (ids, new) = self._rows.outer(self.offers), self._ids()
            self.how, self._earlier = self._keeper.agree([one.kept for one in self._all], ids, new, holder)
            if self.how == "align":
                self._alignment = self._keeper.begin(ids, self._earlier, new, holder)

    def settle(self, run: str) -> Said:
        """How the rows of this run are settled."""
        ids, new = self._ids()
        settle = Settle(
            session=self.number,
            run=run,
            m=1,
            how=self.how,
            keys=[one.key for one in self._all if one.key],
            ids=ids,
            kept=self._earlier,
            new=new,
            giver=self._rows.giver(self.offers),
            here=list(self.offers) if len(self.offers) < len(self._rows.names) else [],
        )
        return self._to_all(lambda m: settle.model_copy(update={"m": m}))

    def pass_secret(self, m: int, secret: RowSecret) -> Said:
        """Pass on to each party what party m sealed for it."""
        others = [j for j in self.offers if j != m]
        if secret.session != self.number or len(secret.sealed) != len(others):
            raise RemoteProtocolError(f"{self._name(m)}: not one secret of the rows for each other party")
        sealed = zip(others, secret.sealed, strict=True)
        return [(j, RowSecret(session=self.number, sealed=[text])) for j, text in sealed]

    def align(self, m: int, message: Blinded | Gone) -> Said:
        """Pass on blinded ids, or say which all have."""
        if self._alignment is None:
            raise RemoteProtocolError(f"{self._name(m)}: blinded ids, but no alignment is under way")
        return self._alignment.receive(message)

    def aligned(self, run: str, owed: Callable[[], Sequence[int]]) -> Aligned | None:
        """What the alignment found, once it is over; it is kept, and owes the run so many bytes of each party."""
        if self._alignment is None or self._alignment.aligned is None:
            return None
        found = self._alignment.aligned
        self._keeper.keep(self._alignment, run, owed())
        self._alignment = None  # blinded ids take much room
        return found

    def tell(self, m: int, targets: Targets) -> Said:
        """Take what rows are for from party m, and tell the others."""
        self._rows.accept(targets)
        return [(j, self._rows.passed_on(targets, j)) for j in self.offers if j != m]

    def has_settled(self, m: int, settled: Settled) -> bool:
        """The rows of party m are in their order; whether those of all are."""
        if settled.session != self.number:
            raise RemoteProtocolError(f"{self._name(m)}: rows of session {settled.session}")
        self._settled[m] = settled.rows
        return len(self._settled) == len(self.offers)

    def common_round(self, kept: Kept, every: int) -> int:
        """The newest round that all have kept, if all have settled the same rows."""
        sizes = self._rows.settled(self._settled[min(self.offers)])
        for m, rows in sorted(self._settled.items()):
            if rows != sizes:
                raise RemoteProtocolError(
                    f"{self._name(m)} has {rows} training, validation and test rows, the server {sizes}"
                )
        return common_round(kept, [Kept(have.run, have.rounds) for have in self._all], every)

    def begin(self, t0: int, facts: dict[str, Any]) -> Said:
        """All parties go back to round t0."""
        return self._to_all(lambda m: Begin(session=self.number, m=m, t0=t0, facts=facts))

    @property
    def _all(self) -> list[Have]:
        return [self._have[m] for m in self.offers]

    def _ids(self) -> tuple[list[int], list[int]]:
        """How many ids each party has to align, and how many of them came since what it has kept."""
        return [one.ids for one in self._all], [one.new for one in self._all]

    def _name(self, m: int) -> str:
        return self._rows.names[m - 1]

    def _to_all(self, message: Callable[[int], Control]) -> Said:
        return [(m, message(m)) for m in self.offers]
