"""The prefix caches, by the names that a user gives them."""

from .hash_cache import HashCache
from .prefix_cache import NoCache
from .radix_cache import RadixCache

CACHES = {"none": NoCache, "hash": HashCache, "radix": RadixCache}
