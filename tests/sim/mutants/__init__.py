"""Faults put into the product on purpose, one at a time, to see that the simulator finds them.

A mutant is a function that replaces something of the core, the client session or the simulated shell by a broken
one, and says which rule of the design that breaks. Nothing in the product knows of them.
"""

from tests.sim.mutants import barriers, clients, durable, generations, ids, keys, sessions, workers
from tests.sim.mutants.mutant import Mutant

MUTANTS: dict[str, Mutant] = {
    one.name: one
    for module in (sessions, generations, barriers, keys, ids, durable, clients, workers)
    for one in module.MUTANTS
}
"""All of them, by name."""
