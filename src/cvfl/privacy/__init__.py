"""What lets organisations work together without showing each other what they hold."""

from cvfl.privacy.alignment import Aligned, AlignmentParty, AlignmentServer

__all__ = ["Aligned", "AlignmentParty", "AlignmentServer"]
