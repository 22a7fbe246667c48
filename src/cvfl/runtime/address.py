"""Addresses, as HOST:PORT: those that roles are reached at, and those that a process listens on."""

from __future__ import annotations

import ipaddress
import socket

from cvfl.errors import ConfigError

HERE = "127.0.0.1"
"""Where a process listens of which the port alone is given."""


def host_and_port(address: str, key: str = "network.address", otherwise: str = "") -> tuple[str, int]:
    """Both parts of an address; `key` names what is wrong if it is none, `otherwise` is the host if none is given."""
    host, _, port = address.rpartition(":")
    if not port.isdecimal() or int(port) > 65535 or not (host or otherwise):
        raise ConfigError(f"{key} {address!r} is no HOST:PORT; write it as in cvfl.example.org:8443")
    return host.strip("[]") or otherwise, int(port)


def is_loopback(host: str) -> bool:
    """Whether a host is this machine alone."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def bound(address: str, option: str) -> socket.socket:
    """A socket at HOST:PORT, not yet listening; one line that says why if it cannot be."""
    host, port = host_and_port(address, option, HERE)
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
