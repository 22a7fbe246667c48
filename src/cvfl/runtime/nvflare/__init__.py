"""The carrier on NVIDIA FLARE, which does identity, job life cycle and reconnection; frames are bytes in its messages.

    server's job process                                      a site's job process
    Controller ─ conduct ─ Line a party ──parcel n, frames──▶ Executor ─ Mailbox ─ PartyRole
                                        ◀─parcel n, answers──

Only messaging.py, controller.py and executor.py import nvflare; the rest runs and is tested without it.
"""

from importlib.util import find_spec

from cvfl.errors import ConfigError


def require() -> None:
    """Say in one line what is missing if FLARE is not installed."""
    if find_spec("nvflare") is None:
        raise ConfigError("the nvflare runtime needs: pip install 'cvfl[nvflare]'")
