"""How a party settles its rows with the others, once in a session: their order, who is shared, what rows are for.

    the giver       ──RowSecret──▶ the others        by what rows are ordered and split; the server cannot read it
    all             ◀──alignment──▶ all              unless rows are taken as they are, or as found before
    the label holder ──Targets──▶ the others         what each shared row is for, and which the receiver holds

The giver is the first party, or the one with the door where rows are served. Rows of a data set by name are in their
order already. Messages go in and come out; what may come when is the affair of handshake.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from cvfl.config.modes import label_holder
from cvfl.errors import RemoteProtocolError
from cvfl.federation.rows.keeping import PartyKeeper
from cvfl.federation.rows.party import PartyRows
from cvfl.privacy import AlignmentParty
from cvfl.privacy.keys import PairSecrets
from cvfl.privacy.sealing import Sealing
from cvfl.wire import Blinded, Gone, Matched
from cvfl.wire.control import RowSecret, Settle
from cvfl.wire.targets import Targets

Said = RowSecret | Blinded | Gone | Targets
_ABOUT, _HELD = b"row secret", b"rows that are held"


class Settling:
    """The settling of a party's rows that `settle` asked for; `done` says that they are settled.

    `row_secret` is what the giver has rows ordered by, `keeper` has the alignment of an earlier run.
    """

    def __init__(
        self,
        rows: PartyRows,
        settle: Settle,
        secrets: PairSecrets | None,
        row_secret: bytes,
        keeper: PartyKeeper,
    ) -> None:
        self.rows, self.run = rows, settle.run
        self.done = False
        self.blinded: dict[str, int] = {}
        """How many ids of each other party were blinded here."""
        self._alignment: AlignmentParty | None = None
        self._settle, self._key, self._keeper = settle, row_secret, keeper
        self._members = settle.members(len(rows.names))
        self._sealing = Sealing(secrets, rows.names, "rows", self._members) if secrets else None
        if rows.tables and self._sealing is None:
            raise RemoteProtocolError(f"{rows.name}: from the server: the keys of the parties are missing")

    def start(self) -> Iterator[Said]:
        """What is to be said first."""
        if not self.rows.tables:
            yield from self._in_order(self.rows.settle(None, b""))
        elif self.rows.m == self._settle.giver:
            others = [j for j in self._members if j != self.rows.m]
            sealed = [self._sealed.seal_bytes(j, self._key, _ABOUT).hex() for j in others]
            yield RowSecret(session=self._settle.session, sealed=sealed)
            yield from self._find_rows()

    def receive(self, message: RowSecret | Blinded | Matched | Targets) -> Iterable[Said]:
        """What is to be said to a message."""
        match message:
            case RowSecret():
                self._key = self._opened(message)
                return self._find_rows()
            case Targets():
                self.rows.accept(self._unsealed(message))
                self.done = True
                return []
        return self._align(message)

    @property
    def _sealed(self) -> Sealing:
        assert self._sealing is not None  # since there are tables
        return self._sealing

    def _opened(self, message: RowSecret) -> bytes:
        if message.session != self._settle.session or len(message.sealed) != 1:
            raise RemoteProtocolError(f"{self.rows.name}: from the server: no secret of the rows for this party")
        return self._sealed.open_bytes(
            self._settle.giver, bytes.fromhex(message.sealed[0]), _ABOUT, "the secret of the rows"
        )

    def _find_rows(self) -> Iterable[Said]:
        """The parties share the secret: take the rows as they are or were found before, or begin to align them."""
        settle = self._settle
        if settle.how == "as-is":
            return self._in_order(self.rows.settle(None, self._key))
        if settle.how == "kept":
            return self._in_order(self.rows.settle(self._keeper.found(self.rows.m), self._key))
        self._alignment = self._keeper.begin(
            self.rows.m, self.rows.ids(), settle.ids, self._sealed, settle.kept, settle.new
        )
        return self._alignment.start()

    def _align(self, message: Blinded | Matched) -> Iterable[Said]:
        assert self._alignment is not None  # since it has begun
        replies = self._alignment.receive(message)
        if self._alignment.found is None:
            return replies
        self.blinded = self._alignment.blinded
        self._keeper.keep(self._alignment, self.run)
        return self._in_order(self.rows.settle(self._alignment.found, self._key))

    def _in_order(self, targets: Targets | None) -> Iterator[Targets]:
        """The label holder says what the rows are for; the others wait until they hear it, unless they know."""
        self.done = self.rows.sizes() is not None
        if targets is not None:
            yield self._for_each(targets)

    def _for_each(self, targets: Targets) -> Targets:
        """Where labels stay with their holder the server need not know, either, which rows a party holds."""
        if not targets.present or not self.rows.config.privacy.relayed:
            return targets
        others = [j for j in range(1, len(self.rows.names) + 1) if j != self.rows.m]
        told = zip(others, targets.present, strict=True)
        present = tuple(self._sealed.seal_bytes(j, bits, _HELD) for j, bits in told)
        return replace(targets, present=present, sealed=True)

    def _unsealed(self, targets: Targets) -> Targets:
        config, names = self.rows.config, self.rows.names
        if not targets.present or not config.privacy.relayed:
            return targets
        if not targets.sealed or len(targets.present) != 1:
            raise RemoteProtocolError(f"{self.rows.name}: from the server: rows of others, or some that are not sealed")
        holder = label_holder(config, names)
        bits = self._sealed.open_bytes(holder, targets.present[0], _HELD, "which rows are held here")
        return replace(targets, present=(bits,), sealed=False)
