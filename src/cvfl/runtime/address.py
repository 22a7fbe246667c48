"""Addresses that a process listens on: which of them only this machine reaches."""

from __future__ import annotations

import ipaddress
import socket

from cvfl.errors import ConfigError


def split_address(address: str, option: str) -> tuple[str, int]:
    """Host and port of HOST:PORT, or of PORT alone, which is for this machine."""
    host, _, port = address.rpartition(":")
    if not port.isdecimal() or int(port) > 65535:
        raise ConfigError(f"{option} {address}: write HOST:PORT")
    return host.strip("[]") or "127.0.0.1", int(port)


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches it."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def bound(address: str, option: str) -> socket.socket:
    """A socket at HOST:PORT, not yet listening; one line that says why if it cannot be."""
    host, port = split_address(address, option)
    # With its protocol named, asyncio has small answers sent at once.
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    found = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        found.bind((host, port))
    except OSError as error:
        found.close()
        raise ConfigError(f"{option} {address}: {error.strerror or error}; is another process there?") from None
    return found
