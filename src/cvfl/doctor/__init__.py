"""`cvfl doctor`: whether a role has what it needs, before a run finds out."""
