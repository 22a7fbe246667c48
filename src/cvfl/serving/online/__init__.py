"""Scores while somebody waits: an HTTP door at the party that had the label, parties that answer by pseudonyms."""
