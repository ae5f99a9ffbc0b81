"""Small objects that never change, and are made for every part of every request.

A type checker holds a ``record`` for a frozen dataclass. At run time nothing guards it: a dataclass
that guards itself takes three times as long to make.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

T = TypeVar("T")

if TYPE_CHECKING:
    from typing_extensions import dataclass_transform

    @dataclass_transform(frozen_default=True, field_specifiers=(field,))
    def record(cls: type[T]) -> type[T]:
        """A frozen dataclass."""
        return cls
else:
    record = dataclass(slots=True)
