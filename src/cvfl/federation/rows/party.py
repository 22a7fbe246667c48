"""What a party brings to the handshake: rows that may need alignment, perhaps the labels, and its model.

Those of a data set by name are in named.py, those of its own table in table.py. What the server brings is in
agreement/labels.py.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

from cvfl.config.modes import label_holder
from cvfl.config.schema import RunConfig
from cvfl.data.tables.prepare import Preparation
from cvfl.errors import LocalProtocolError, RemoteProtocolError
from cvfl.federation.agreement.facts import AWAY, Facts
from cvfl.federation.builder.recipe import elsewhere, make_recipe, party_maker
from cvfl.federation.start import Start
from cvfl.federation.told_labels.randomise import Held
from cvfl.privacy.keys import PairSecrets
from cvfl.privacy.wanted import Matches, Wanted
from cvfl.protocol import Labels, PartyMachine, Recipe, Rows, Units
from cvfl.protocol.recipe import MakeModel
from cvfl.protocol.release import Secret
from cvfl.wire.control import How
from cvfl.wire.targets import Targets


class PartyRows(ABC):
    """What a party brings: rows that may need alignment, perhaps the labels, and its model."""

    how: How = "as-is"
    wanted: Wanted = Wanted.ALL
    """What an alignment is to tell of its ids."""
    tables: ClassVar[bool] = False
    """Whether parties bring tables, whose rows are settled."""
    predicts: ClassVar[bool] = False
    """Whether the rows are new ones, which are to be predicted."""
    serves: ClassVar[bool] = False
    """Whether these are served one by one, to whoever asks for them."""
    partly: bool = False
    """Whether they are those of the party with the label, and others may lack some."""
    does_without: bool = False
    """Whether a session may begin while some parties are away."""
    preparation: Preparation | None = None
    start: Start | None = None
    """The earlier run that this party starts from, if there is one."""

    def __init__(self, config: RunConfig, name: str, names: Sequence[str]) -> None:
        if name not in names:
            raise LocalProtocolError(f"{name!r} is no party of this federation ({', '.join(names)})")
        label_holder(config, names)  # refuses a name that is none
        self.config, self.name, self.names = config, name, tuple(names)

    @property
    def m(self) -> int:
        """Which party it is, by its own configuration."""
        return self.names.index(self.name) + 1

    @property
    def keyed(self) -> bool:
        """Whether the rounds need secrets that parties share and the server does not."""
        return self.config.privacy.keyed

    @property
    def holds(self) -> bool:
        """Whether this party holds labels that it told randomised, in training."""
        randomised = self.config.privacy.randomised is not None and not self.predicts
        return randomised and self.config.privacy.labels == self.name

    @property
    def held(self) -> Held | None:
        """The true labels, if this party holds them and told others in their place."""
        return None

    @abstractmethod
    def ids(self) -> Sequence[str]:
        """The ids to align."""

    @abstractmethod
    def settle(self, found: Matches | None, key: bytes) -> Targets | None:
        """Take the rows that were found, or all, in the order of the key; the label holder gives the targets."""

    @abstractmethod
    def accept(self, targets: Targets) -> None:
        """Hear from the label holder what each row is for."""

    @abstractmethod
    def sizes(self) -> list[int] | None:
        """Training, validation and test rows once they are settled."""

    def state(self) -> dict[str, Any]:
        """What a restart needs to have the same rows again."""
        return {}

    def restore(self, state: dict[str, Any]) -> None:
        """Have the rows that `state` told."""
        return

    def check(self, facts: Facts, width: int, compressor: str) -> None:
        """Hold the server to what this party knows itself: who takes part, what it sends, which rows there are."""
        known = (self.names, width, compressor, tuple(self.sizes() or ()))
        said = (facts.names, facts.widths[self.m - 1], facts.compressors[self.m - 1], facts.rows)
        if known != said or (AWAY in facts.widths and not self.does_without):
            raise RemoteProtocolError(f"{self.name}: from the server: facts that are not those of this party")

    @abstractmethod
    def machine(
        self,
        facts: Facts,
        secrets: PairSecrets | None = None,
        noise_secret: Secret | None = None,
        folder: Path | None = None,
    ) -> PartyMachine:
        """The party for these facts, with the secrets of this session and the party's own of this run.

        What it knows of rows is in the folder when its memory is too small.
        """

    def left(self, away: Sequence[str] = ()) -> None:
        """A session is over, perhaps since these parties are away."""
        return

    @property
    def classes(self) -> tuple[str, ...]:
        """Names of the classes, where the labels are."""
        return ()

    @property
    def units(self) -> Units | None:
        """Those of the label, if it is here."""
        return None

    @property
    @abstractmethod
    def categories(self) -> tuple[int, ...]:
        """How many codes each of the last columns has, once they are prepared."""

    def recipe(self, facts: Facts) -> Recipe:
        """The recipe of a run with these facts, without any model."""
        return self._recipe(facts, elsewhere)

    def _recipe(self, facts: Facts, maker: MakeModel) -> Recipe:
        makers = [maker if name == self.name else elsewhere for name in facts.names]
        return make_recipe(self.config, facts, makers)

    def _own_labels(self, recipe: Recipe, outputs: int) -> tuple[Labels, int] | None:
        """What a holder fits its private model to, if it has one."""
        if recipe.plan.private_holder != self.m or self.held is None:
            return None
        return self.held.labels, outputs

    def _recipe_for(self, facts: Facts, rows: Rows) -> Recipe:
        """The recipe with the model for these rows: a fresh one, or that of the earlier run."""
        recipe = self._recipe(facts, party_maker(self.config, self.name, rows, self.categories))
        if self.start is None:
            return recipe
        return self.start.warmed_role(recipe, facts.outputs, {self.name: (tuple(rows.shape[1:]), self.categories)})
