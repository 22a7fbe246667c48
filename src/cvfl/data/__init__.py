"""Where the rows come from and who holds which columns."""

from cvfl.data.sets.catalogue import Reader, load, register
from cvfl.data.vertical import VerticalData, quadrants, split_columns

__all__ = ["Reader", "VerticalData", "load", "quadrants", "register", "split_columns"]
