"""How good a trained federation is: figures of held-out rows, and what each party brings."""
