"""A party inside what seals its messages: it is still the party that trains, and others find it by `party_of`."""

from __future__ import annotations

from collections.abc import Mapping

from torch import nn

from cvfl.errors import LocalProtocolError, RemoteProtocolError
from cvfl.privacy.sealing import Sealing
from cvfl.protocol import Certificate, Measured, Party, PartyMachine


class SealedParty:
    """In the place of a party; without keys it can only hand over what a run that is over has left."""

    def __init__(self, party: Party, sealing: Sealing | None) -> None:
        self.party, self.m, self.plan, self._keys = party, party.m, party.plan, sealing

    @property
    def _sealing(self) -> Sealing:
        if self._keys is None:
            raise RemoteProtocolError(f"{self.party.holding.name}: the server began without the keys of the parties")
        return self._keys

    @property
    def t0(self) -> int:
        """The round of the party."""
        return self.party.t0

    @property
    def measured(self) -> Measured | None:
        """The error of its last embedding, if it was measured."""
        return self.party.measured

    @property
    def certified(self) -> Certificate | None:
        """The certificate of its last embedding, if there is one."""
        return self.party.certified

    @property
    def models(self) -> Mapping[str, nn.Module]:
        """The party's own."""
        return self.party.models


def party_of(machine: PartyMachine) -> Party:
    """The party itself, which trains."""
    match machine:
        case Party():
            return machine
        case SealedParty():
            return machine.party
    raise LocalProtocolError(f"{type(machine).__name__} stands where a party trains")
