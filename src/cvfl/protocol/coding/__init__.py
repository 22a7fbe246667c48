"""Compressors at their places in the protocol: tensors to packet bytes, and what is learned on the way."""
