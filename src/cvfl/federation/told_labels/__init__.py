"""Labels that are told randomised: their draw, its secret, and what their holder alone can say at the end."""
