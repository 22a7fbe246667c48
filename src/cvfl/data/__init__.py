"""Where the rows come from and who holds which columns."""

from cvfl.data.sets.catalogue import load
from cvfl.data.vertical import VerticalData, quadrants, split_columns

__all__ = ["VerticalData", "load", "quadrants", "split_columns"]
