"""Base class for frozen dataclasses, with comparison, hash and repr by their fields.

Subclasses use ``@dataclass(eq=False, repr=False)``.
"""

from __future__ import annotations

from ensemble_core.quick_dataclass import equal_fields, hash_of_fields, repr_of_fields

__all__ = ["Value"]


class Value:
    """Base class with comparison, hash and repr by the fields of a dataclass."""

    __slots__ = ()
    __repr__ = repr_of_fields
    __eq__ = equal_fields
    __hash__ = hash_of_fields
