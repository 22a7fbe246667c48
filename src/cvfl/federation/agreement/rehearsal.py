"""The set-up of a run in one process: the frames that its roles would exchange as a server and parties on their own.

In one process nobody has to say hello. So that a run counts the same bytes wherever its roles are, the frames of an
undisturbed handshake are made here, with what each role would say, and counted; nobody reads them. Keys come without
certificates here. Between machines each party's certificate and signature are added, once up and once to every party.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from cvfl.config.schema import RunConfig
from cvfl.federation.agreement.around import around
from cvfl.federation.agreement.facts import facts_of
from cvfl.federation.agreement.targets import LOSSES, label_bytes, units_told
from cvfl.federation.agreement.terms import offer_of, terms_from, terms_of, told_certificates, told_errors
from cvfl.federation.rows.load import Loaded, row_key
from cvfl.federation.start import Start
from cvfl.protocol import Certificate, Plan, Recipe
from cvfl.runtime.meter import Meter
from cvfl.types import SERVER, Direction
from cvfl.wire.bits import packed_size
from cvfl.wire.control import (
    Begin,
    Complete,
    Control,
    End,
    Have,
    Hello,
    Offer,
    PublicKey,
    Recall,
    RowSecret,
    Settle,
    Settled,
    encode_control,
)
from cvfl.wire.targets import Targets

_RUN, _SESSION = "0" * 16, 1
_KEY = PublicKey(public="0" * 64)
_SEAL = 16
Said = Iterator[tuple[int, Direction, Control | Targets]]
UP, DOWN = Direction.UP, Direction.DOWN


@dataclass(frozen=True)
class Rehearsal:
    """What a server and parties with this configuration and these rows would say to each other around the rounds."""

    config: RunConfig
    recipe: Recipe
    loaded: Loaded
    start: Start | None = None

    def foreseen(self) -> int:
        """Bytes around the rounds as a budget foresees them."""
        sizes = self.loaded.aligned.sizes if self.loaded.aligned else ()
        return around(self.config, self._facts, sizes, self._plan.evaluations, self.start)

    def begin(self, meter: Meter) -> None:
        """Count what is said before the first round; the alignment was counted when it was run."""
        meter.include(self.loaded.found.traffic.parties)
        self._count(meter, self._before())
        meter.begin()

    def end(
        self, meter: Meter, parameters: Mapping[str, str], history: Sequence[Mapping[str, Any]], outputs: str = ""
    ) -> None:
        """Count what is said after the last round; `outputs` are for the holder of randomised labels."""
        self._count(meter, self._after(parameters, history, outputs))

    @property
    def _plan(self) -> Plan:
        return self.recipe.plan

    @property
    def _rows(self) -> list[int]:
        return [self._plan.rows, self._plan.validation_rows, self._plan.test_rows]

    @property
    def _facts(self) -> dict[str, Any]:
        data = self.loaded.data
        return facts_of(self.recipe.names, dict(enumerate(self._offers, start=1)), self._rows, data.loss, data.outputs)

    @property
    def _parties(self) -> list[tuple[int, str]]:
        return list(enumerate(self.recipe.names, start=1))

    @property
    def _offers(self) -> list[Offer]:
        widths = zip(self.recipe.names, self.recipe.offered, strict=True)
        classes = self.loaded.assembled.classes
        offers = {name: offer_of(self.config, name, classes, self.start) for name in self.recipe.names}
        return [offers[name].model_copy(update={"width": width}) for name, width in widths]

    def _count(self, meter: Meter, said: Said) -> None:
        for m, direction, message in said:
            meter.add(m, direction, encode_control(message, m if direction is UP else SERVER))

    def _before(self) -> Said:
        plan, terms, offers = self._plan, terms_of(self.config) | terms_from(self.start), self._offers
        tables, aligned, found = len(self.loaded.told) > 0, self.loaded.aligned, self.loaded.found
        ids = list(aligned.sizes) if aligned else [0] * plan.M
        new, kept = list(found.came) or [0] * plan.M, list(found.kept) or [""] * plan.M
        key = _KEY if tables or self.config.privacy.keyed else None
        rows, facts = self._rows, self._facts
        keys = [key] * plan.M if key else []
        for m, name in self._parties:
            yield m, UP, Hello(name=name, terms=terms, offer=offers[m - 1])
            yield m, DOWN, Recall(session=_SESSION)
            has, since, came = ids[m - 1], kept[m - 1], new[m - 1]
            yield m, UP, Have(session=_SESSION, run="", rounds=[], ids=has, kept=since, new=came, key=key)
            settle = Settle(session=_SESSION, run=_RUN, m=m, how=found.how, keys=keys, ids=ids)
            yield m, DOWN, settle.model_copy(update={"kept": found.earlier, "new": new})
            yield m, UP, Settled(session=_SESSION, rows=rows)
            yield m, DOWN, Begin(session=_SESSION, m=m, t0=0, facts=facts)
        if tables:
            yield from self._rows_settled([offer.label for offer in offers].index(True) + 1)

    def _rows_settled(self, holder: int) -> Said:
        """By what rows are ordered, from the first party; what they are for, from the one that holds the labels."""
        plan = self._plan
        sealed = "00" * (len(row_key(self.config)) + _SEAL)
        yield 1, UP, RowSecret(session=_SESSION, sealed=[sealed] * (plan.M - 1))
        labels = 0 if self.config.privacy.relayed else plan.rows + plan.validation_rows + plan.test_rows
        yield holder, UP, self._targets(labels, UP)
        for m, _ in self._parties:
            if m != 1:
                yield m, DOWN, RowSecret(session=_SESSION, sealed=[sealed])
            if m != holder:
                yield m, DOWN, self._targets(min(labels, plan.rows) if plan.algorithm == 1 else 0, DOWN)

    def _targets(self, labels: int, direction: Direction) -> Targets:
        data = self.loaded.data
        told = torch.cat([data.train_labels, data.validation_labels, data.test_labels])[:labels]
        units = units_told(data.loss, data.units) if direction is UP and labels else ()
        loss, parts = LOSSES.index(data.loss), self.loaded.told
        return Targets(0, loss, data.outputs, parts, label_bytes(told), units, *self._present(direction))

    def _present(self, direction: Direction) -> tuple[tuple[bytes, ...], bool]:
        """Which rows parties hold, to the server of all but the label holder: bits that have the right size."""
        if self.loaded.data.present is None:
            return (), False
        sealed = self.config.privacy.relayed
        bits = bytes(packed_size(len(self.loaded.told), 1) + (_SEAL if sealed else 0))
        return (bits,) * (self._plan.M - 1 if direction is UP else 1), sealed

    def _after(self, parameters: Mapping[str, str], history: Sequence[Mapping[str, Any]], outputs: str) -> Said:
        rounds = len(history) if self._plan.patience else self._plan.rounds
        for m, name in self._parties:
            roles = (name, "server") if m == self.recipe.holder else (name,)
            hashes = {role: parameters[role] for role in roles}
            found = {line["round"]: line.get("compression_error", {}).get(name) for line in history}
            errors = told_errors({t0: tuple(error.values()) for t0, error in found.items() if error})
            told = {line["round"]: line.get("certificate", {}).get(name) for line in history}
            certificates = told_certificates({t0: Certificate(**one) for t0, one in told.items() if one})
            complete = Complete(session=_SESSION, rounds=rounds, parameters=hashes, errors=errors)
            yield m, UP, complete.model_copy(update={"certificates": certificates})
            yield m, DOWN, End(rounds=rounds, outputs=outputs if name == self.config.privacy.labels else "")
            yield m, UP, End(rounds=rounds)
