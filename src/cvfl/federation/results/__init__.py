"""What roles make of a run that is over: how good it is, what is needed to predict, what parties told."""
