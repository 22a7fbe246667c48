"""The application: what each role brings, the handshake, and training on every runtime."""
