"""`python -m cvfl.cli` is the `cvfl` command."""

from cvfl.cli import main

main()
