"""The configuration of a run: its keys, its file, and the first draft of one."""
