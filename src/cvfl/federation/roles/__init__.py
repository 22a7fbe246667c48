"""One role of a federation on this machine, between its transport and what it leaves on disk.

a transport ◀──frames──▶ server.py with links.py ◀──▶ server_run.py    the server and its records
                         party.py                ◀──▶ party_run.py     a party, its table and its model
"""

from cvfl.federation.roles.party_run import PartyRun
from cvfl.federation.roles.server_run import ServerRun

__all__ = ["PartyRun", "ServerRun"]
