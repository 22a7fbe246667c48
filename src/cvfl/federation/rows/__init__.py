"""The rows of a run: what a party brings, how it is loaded where all are here, alignments that are kept."""
