"""What a party of a data set by name brings to the handshake: all roles have the rows, in one order."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from cvfl.config.schema import RunConfig
from cvfl.data import VerticalData
from cvfl.errors import LocalProtocolError, RemoteProtocolError
from cvfl.federation.agreement.facts import Facts
from cvfl.federation.builder.machines import holding_of, labels_of, party_machine
from cvfl.federation.rows.party import PartyRows
from cvfl.federation.told_labels.randomise import Held
from cvfl.privacy.keys import PairSecrets
from cvfl.privacy.wanted import Matches
from cvfl.protocol import PartyMachine
from cvfl.protocol.release import Secret
from cvfl.wire.targets import Targets


class NamedRows(PartyRows):
    """A party of a data set by name: rows are aligned, and labels come with the data."""

    def __init__(self, config: RunConfig, name: str, data: VerticalData, held: Held | None = None) -> None:
        super().__init__(config, name, data.names)
        self.data, self._held = data, held

    @property
    def held(self) -> Held | None:
        """Those of the data set, which all roles have."""
        return self._held if self.holds else None

    def ids(self) -> Sequence[str]:
        """There are none."""
        raise LocalProtocolError(f"{self.name}: the rows of a data set by name have no ids")

    def settle(self, found: Matches | None, key: bytes) -> Targets | None:
        """The rows are in their order already."""
        return None

    def accept(self, targets: Targets) -> None:
        """Labels come with the data, so nobody should send them."""
        raise RemoteProtocolError(f"{self.name}: targets for a data set that has its own")

    def sizes(self) -> list[int]:
        """Training, validation and test rows."""
        return [len(y) for y in (self.data.train_labels, self.data.validation_labels, self.data.test_labels)]

    @property
    def categories(self) -> tuple[int, ...]:
        """Those of the data set."""
        return self.data.categories[self.m - 1] if self.data.categories else ()

    def machine(
        self,
        facts: Facts,
        secrets: PairSecrets | None = None,
        noise_secret: Secret | None = None,
        folder: Path | None = None,
    ) -> PartyMachine:
        """The party with its part of the data."""
        at = self.m - 1
        recipe = self._recipe_for(facts, self.data.train[at])
        labels, holding = labels_of(self.data, recipe.plan.device), holding_of(self.data, at, recipe.plan)
        codecs = recipe.codecs(folder)
        return party_machine(
            recipe, self.m, holding, labels, codecs, secrets, noise_secret, own=self._own_labels(recipe, facts.outputs)
        )
