"""How a model learns: losses, steps, metrics, when to stop, and the randomness inside layers."""
