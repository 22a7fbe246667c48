"""What lets organisations work together without showing each other what they hold."""

from cvfl.privacy.alignment import AlignmentParty
from cvfl.privacy.matching import Aligned, AlignmentServer

__all__ = ["Aligned", "AlignmentParty", "AlignmentServer"]
