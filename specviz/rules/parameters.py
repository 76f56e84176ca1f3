"""A method's parameter: its default, range and meaning, declared once."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from ..errors import ParameterError

Value: TypeAlias = Any  # of a parameter: bool, int, float or str
Settings: TypeAlias = Mapping[str, Value]  # the parameters of a method, by name
LARGE = 1e6  # an upper limit that only keeps numbers finite: no useful value is near it


@dataclass(frozen=True)
class Parameter:
    """A method's parameter, declared once: checked before any work, shown in help and records.

    Parameters
    ----------
    name : str
        Keyword of `specviz.generate`.
    default : bool, int, float or str
        Its type is the parameter's type.
    low, high : float, optional
        Legal values, both ends included.
    choices : tuple of str
        Legal values of a string parameter; if empty, any string is legal.
    unit : str
        ``tokens``, ``probability``, ``nats`` ...
    meaning : str
        One sentence.
    symbol : str
        The paper's symbol.

    Raises
    ------
    ParameterError
        If the name is not an identifier, the default is not a legal value, or a number has choices.
    """

    name: str
    default: Value
    low: float | None = None
    high: float | None = None
    unit: str = ""
    meaning: str = ""
    symbol: str = ""
    choices: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not (isinstance(self.name, str) and self.name.isidentifier()):
            raise ParameterError(f"a parameter cannot be called {self.name!r}: take an identifier")
        if not isinstance(self.default, bool | int | float | str):
            raise ParameterError(
                f"{self.name}: a default is True, False, a number or a string, got {self.default!r:.60}"
            )
        if self.choices and not all(isinstance(each, str) for each in (self.default, *self.choices)):
            raise ParameterError(f"{self.name}: choices are strings, for a default that is one")
        self.check(self.default)

    def check(self, value: Value) -> Value:
        """Check a value and convert it to the parameter's type.

        Raises
        ------
        ParameterError
            If it has another type or is not a legal value.
        """
        kind = type(self.default)
        if kind is bool:
            if isinstance(value, bool | np.bool_):
                return bool(value)
            raise ParameterError(f"{self.name} must be True or False, got {_shown(value)}")
        if kind is str:
            if value in self.choices or (self.any_string and isinstance(value, str)):
                return value
            if self.any_string:
                raise ParameterError(f"{self.name} must be a string, got {_shown(value)}")
            raise ParameterError(f"{self.name} must be one of {', '.join(self.choices)}, got {_shown(value)}")
        number = isinstance(value, int | float | np.number) and not isinstance(value, bool)
        if not number or value != value or (kind is int and value % 1 != 0):
            raise ParameterError(
                f"{self.name} must be {'a whole' if kind is int else 'a'} number, got {value!r}"
            )
        low = -float("inf") if self.low is None else self.low
        high = float("inf") if self.high is None else self.high
        with suppress(OverflowError):  # of an integer beyond all floats
            if low <= value <= high:
                return kind(value)
        raise ParameterError(f"{self.name} must {self.range}, got {_shown(value, str):.40}")

    @property
    def any_string(self) -> bool:
        """Whether any string is legal, such as the name of a file."""
        return isinstance(self.default, str) and not self.choices

    @property
    def range(self) -> str:
        """The legal values in words."""
        if self.any_string:
            return "be a string"
        if self.choices:
            return "be one of " + ", ".join(self.choices)
        if self.low is not None and self.high is not None:
            return f"lie in [{_limit(self.low)}, {_limit(self.high)}]"
        if self.low is not None:
            return f"be at least {_limit(self.low)}"
        return "be a number" if self.high is None else f"be at most {_limit(self.high)}"


def _limit(value: float) -> str:
    return f"{value:,.15g}" if abs(value) >= LARGE else f"{value:g}"


def _shown(value: Value, how: Callable[[Value], str] = repr) -> str:
    try:
        return how(value)
    except ValueError:  # Python writes out no integer of thousands of digits
        return "an integer of too many digits"
