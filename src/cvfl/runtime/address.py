"""Addresses, as HOST:PORT."""

from __future__ import annotations

import ipaddress

from cvfl.errors import ConfigError


def host_and_port(address: str, key: str = "network.address") -> tuple[str, int]:
    """Both parts of an address; `key` names what is wrong if it is none."""
    host, _, port = address.rpartition(":")
    if not port.isdecimal() or int(port) > 65535 or not host:
        raise ConfigError(f"{key} {address!r} is no HOST:PORT; write it as in cvfl.example.org:8443")
    return host.strip("[]"), int(port)


def is_loopback(address: str) -> bool:
    """Whether an address is of this machine alone."""
    host = address.rpartition(":")[0].strip("[]")
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
