"""What watches a run while it goes on, and has something to tell its people."""
