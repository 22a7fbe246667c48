"""The builder of roles, one for every runtime.

    configuration, Facts ──recipe.py──▶ Recipe ──machines.py──▶ what a runtime drives
                             plan.py makes its plan

A role on a machine of its own hears the facts in the handshake; where all roles are in one process they come from the
data, and `make_federation` builds them all.
"""
