"""Compressed vertical federated learning."""
