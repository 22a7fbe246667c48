"""What people read of runs: tables, figures and a page."""
