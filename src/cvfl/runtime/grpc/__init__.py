"""Roles as processes on several machines: one gRPC stream a party, mutual TLS."""
