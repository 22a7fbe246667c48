"""What a role has of the runs whose models it can serve: the newest, and older ones as long as they are asked for."""

from __future__ import annotations

from typing import Generic, TypeVar

T = TypeVar("T")


class Kept(Generic[T]):
    """Things by run, the oldest first. Threads may read it while one adds to it: what is read is never changed."""

    def __init__(self, run: str, thing: T) -> None:
        self._of = {run: thing}

    @property
    def runs(self) -> tuple[str, ...]:
        """The oldest first."""
        return tuple(self._of)

    @property
    def newest(self) -> T:
        """That of the newest run."""
        return [*self._of.values()][-1]

    def get(self, run: str) -> T | None:
        """That of a run, if it is here."""
        return self._of.get(run)

    def put(self, run: str, thing: T) -> None:
        """Have this for a run, which is the newest if it was not known; of those before it one stays."""
        of = self._of | {run: thing}
        self._of = dict([*of.items()][-2:])

    def asked(self, run: str) -> None:
        """All roles have this run: older ones are not asked for again."""
        runs = self.runs
        if run in runs and runs[0] != run:
            self._of = {one: self._of[one] for one in runs[runs.index(run) :]}
