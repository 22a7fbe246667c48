"""Data sets by name, in their publishers' layouts."""
