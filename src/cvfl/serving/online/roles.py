"""The roles of serving: what each brings to the handshake of a federation, which is that of training.

Rows are not aligned: the secret by which a party would have them ordered becomes the key of pseudonyms; the party of
the door gives it, which is in every session. One more term, `serve`, keeps roles that train or predict out. Which run
is served is settled later, and may change. Models that were prepared for absence are served while parties are away.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from cvfl.config.modes import does_without, scoring_party
from cvfl.config.schema import RunConfig
from cvfl.errors import ConfigError, LocalProtocolError, RemoteProtocolError
from cvfl.federation.agreement.facts import Facts, facts_of, read_facts
from cvfl.federation.agreement.labels import TableLabels, labelled
from cvfl.federation.agreement.terms import digest_of, started_log, terms_of
from cvfl.federation.consent import Use
from cvfl.federation.roles.party import PartyRole
from cvfl.federation.roles.server import ServerRole
from cvfl.federation.rows.party import PartyRows
from cvfl.federation.state import kept_secret
from cvfl.privacy.identity import Identity
from cvfl.privacy.keys import PairSecrets
from cvfl.privacy.wanted import Matches
from cvfl.protocol import Loss, PartyMachine, ServerMachine
from cvfl.protocol.release import Secret
from cvfl.runs.bundle import ServerBundle
from cvfl.runs.witness import ServingRecorder
from cvfl.runtime.observed import ObservedParty, Witness
from cvfl.serving.apart import NEVER
from cvfl.serving.course import Course
from cvfl.serving.online.desk import Desk
from cvfl.serving.online.kept import Kept
from cvfl.serving.online.machines import DoorParty, ServingParty, ServingServer
from cvfl.serving.online.scoring import Scoring
from cvfl.serving.online.stock import PartyStock
from cvfl.types import Direction
from cvfl.wire import Message
from cvfl.wire.control import Offer
from cvfl.wire.targets import Targets

_SIZES = [0, 0, 0]  # of rows that are settled: none is


def check_serves(config: RunConfig) -> None:
    """Refuse a federation whose rows cannot be served."""
    if config.data.name is not None:
        raise ConfigError(f"serving is for tables of the parties; {config.data.name} is a data set by name")
    if config.privacy.noise is not None:
        raise ConfigError("serving: with privacy.noise rows are not predicted apart yet; scores would be noise, too")


def serving_terms(config: RunConfig) -> dict[str, Any]:
    """The terms of serving: those of the training, and that it is no training."""
    return terms_of(config) | {"serve": True}


class ServingRows(PartyRows):
    """A party's rows, which are asked for by pseudonyms; `desk` is where they are asked for, at the door's party."""

    tables = True
    predicts = True
    serves = True

    def __init__(self, stock: PartyStock, desk: Desk | None = None) -> None:
        super().__init__(stock.config, stock.name, stock.bundle.names)
        self.stock, self.desk, self.does_without = stock, desk, does_without(stock.config)
        self.machine_now: ServingParty | None = None
        self._settled = False

    @property
    def categories(self) -> tuple[int, ...]:
        """Those of the training."""
        return self.stock.bundle.categories

    def ids(self) -> Sequence[str]:
        """They are not compared."""
        raise LocalProtocolError(f"{self.name}: rows that are served are not aligned")

    def settle(self, found: Matches | None, key: bytes) -> Targets | None:
        """Know rows by the pseudonyms of the key."""
        self.stock.key(key)
        self._settled = True
        if self.desk is not None:
            self.desk.key(key)
        return None

    def accept(self, targets: Targets) -> None:
        """Rows that are served have no targets."""
        raise RemoteProtocolError(f"{self.name}: from the server: targets for rows that are served")

    def sizes(self) -> list[int] | None:
        """None of them is settled."""
        return list(_SIZES) if self._settled else None

    def machine(
        self,
        facts: Facts,
        secrets: PairSecrets | None = None,
        noise_secret: Secret | None = None,
        folder: Path | None = None,
    ) -> PartyMachine:
        """The party of a session."""
        course, holder = _course(self.config, facts), scoring_party(self.config, self.names)
        if self.desk is None:
            self.machine_now = ServingParty(course, self.m, self.stock.kept, secrets, holder)
            return self.machine_now
        desk, stock = self.desk, self.stock
        door = DoorParty(course, self.m, stock.kept, secrets, stock.scoring, desk.answered, desk.owed)
        self.machine_now = door
        desk.begun(door)
        return door

    def left(self, away: Sequence[str] = ()) -> None:
        """A session is over."""
        self.machine_now = None
        if self.desk is not None:
            self.desk.left(away)

    def news(self) -> list[Message]:
        """What the others are to be told while a session goes on."""
        return self.machine_now.news() if self.machine_now is not None else []


class ServingEnd(ObservedParty):
    """A party's end, with witnesses, which has to say more than what a frame asks for."""

    def __init__(self, role: PartyRole, witnesses: Sequence[Witness]) -> None:
        super().__init__(role, witnesses)
        self.role = role

    def tell(self, messages: Iterable[Message]) -> Iterator[bytes]:
        """The frames of messages that no frame asked for."""
        for frame in self.role.tell(messages):
            self._hear(Direction.UP, frame)
            yield frame


def party_role(
    stock: PartyStock, folder: Path, state: Path, identity: Identity | None, desk: Desk | None = None
) -> PartyRole:
    """A party that serves; `folder` is for a while, `state` has the secret of the door's party for ever."""
    check_serves(stock.config)
    bundle, rows = stock.bundle, ServingRows(stock, desk)
    offer = Offer(width=bundle.width, compressor=bundle.compressor, label=stock.label)
    state.mkdir(mode=0o700, parents=True, exist_ok=True)
    secret = kept_secret(state / "pseudonyms.secret") if stock.label else b""
    return PartyRole(rows, serving_terms(stock.config), offer, folder, NEVER, identity, row_secret=secret)


class ServingLabels(TableLabels):
    """The server of serving: it has no labels, and models unless it only passes on."""

    predicts = True
    serves = True

    def __init__(self, config: RunConfig, names: Sequence[str], scoring: Kept[Scoring] | None) -> None:
        super().__init__(config, names)
        self.how, self._scoring, self._door = "as-is", scoring, 0
        self._machine: ServingServer | None = None
        self._progress = 0

    def enough(self, offers: Mapping[int, Offer]) -> bool:
        """All parties; of models that do without some, the door and whoever else is here."""
        if not does_without(self.config):
            return super().enough(offers)
        return any(offer.label for offer in offers.values())

    def giver(self, offers: Mapping[int, Offer]) -> int:
        """The party of the door."""
        return labelled(offers)

    def accept(self, targets: Targets) -> None:
        """Rows that are served have no targets."""
        raise RemoteProtocolError("targets for rows that are served")

    def settled(self, sizes: list[int]) -> list[int]:
        """No rows are settled."""
        if sizes != _SIZES:
            raise RemoteProtocolError("rows are settled that are to be served")
        self._sizes = sizes
        return sizes

    def facts(self, offers: Mapping[int, Offer]) -> dict[str, Any]:
        """What the parties must know of each other."""
        self._door = labelled(offers)
        bundle: ServerBundle | None = self._scoring.newest.bundle if self._scoring else None
        loss, outputs = (bundle.loss, bundle.outputs) if bundle else (Loss.BINARY, 1)
        return facts_of(self.names, offers, _SIZES, loss, outputs)

    def machine(self, facts: dict[str, Any], ids: Sequence[int] = (), folder: Path | None = None) -> ServerMachine:
        """The server of a session; what it has answered so far, and every session, is progress."""
        self._progress = 1 + (self._machine.t0 if self._machine else 0)
        course = _course(self.config, read_facts(facts))
        self._machine = ServingServer(course, self._door, self._scoring, self._progress)
        return self._machine

    def news(self) -> list[tuple[int, Message]]:
        """Which runs all have, if that has changed."""
        return self._machine.news() if self._machine else []

    def state(self) -> dict[str, Any]:
        """Nothing is kept."""
        return {}


def server_role(config: RunConfig, scoring: Kept[Scoring] | None, folder: Path) -> ServerRole:
    """The server; without models where labels stay with a party."""
    check_serves(config)
    names = tuple(config.party)
    return ServerRole(names, serving_terms(config), ServingLabels(config, names, scoring), folder, NEVER)


def serving_recorder(state: Path, own: str, config: RunConfig, run: str | None) -> ServingRecorder:
    """The log of a role, which says that it starts with the models of a run, unless it only passes on."""
    named = {"run": run} if run else {}
    log = started_log(state, own, config, digest_of(serving_terms(config)), use=str(Use.SERVING), **named)
    return ServingRecorder(log, own, tuple(config.party))


def _course(config: RunConfig, facts: Facts) -> Course:
    return Course(facts.names, facts.widths, facts.compressors, 0, config.seed, config.privacy.secure)
