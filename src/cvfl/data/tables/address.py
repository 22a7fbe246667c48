"""The address of a database as it may be shown: its secrets are blotted out."""

from __future__ import annotations

from urllib.parse import quote

from cvfl.lazy import lazy

engine, errors = lazy("sqlalchemy.engine"), lazy("sqlalchemy.exc")

BLOT = "***"
PLAIN = frozenset({"sslmode", "charset", "driver", "connect_timeout", "application_name", "mode"})
"""Options of an address that hold no secret; of all others the value is blotted out."""


def without_password(address: str) -> str:
    """The address without a password and without options that may hold one.

    Of an address that nobody can read for certain, such as one with an @ in its password, only the ends are shown.
    """
    scheme, found, rest = address.partition("://")
    try:
        url = engine.make_url(address)
    except (errors.ArgumentError, ValueError):
        return f"{scheme}://{BLOT}" if found else BLOT
    unsure = rest.count("@") > 1 or (rest.count("@") == 1 and url.host is None)
    if unsure and not rest.startswith("/"):  # else it names no host, and so no user
        user, place = rest.partition(":")[0], rest.rpartition("@")[2]
        known = user if user.replace("_", "").isalnum() else BLOT
        return f"{scheme}://{known}:{BLOT}@{place.partition('?')[0]}"
    options = {key: value if key in PLAIN else BLOT for key, value in url.query.items()}
    shown: str = url.set(query=options).render_as_string(hide_password=True)
    return shown.replace(quote(BLOT), BLOT)
