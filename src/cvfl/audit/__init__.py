"""What messages give away: attacks on what each role sees of a run."""
