"""Numbers in a simulation's model, such as ``5m``, ``60 * L ** 2`` or ``lognormal(5m, 1.0)``.

The random numbers come from streams, each identified by a text and cheap to create.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from struct import Struct
from typing import Any, Protocol, TypeVar

from ensemble_core import EnsembleError, Expression, did_you_mean, expression
from ensemble_core.cli.toolkit import parse_duration

_FUNCTION = re.compile(r"([A-Za-z_]\w*)\s*\((.*)\)", re.DOTALL)


def _normal(random: Randomness, mean: float, deviation: float) -> float:
    return random.gauss(mean, deviation)


def _lognormal(random: Randomness, median: float, sigma: float) -> float:
    # sigma is the standard deviation of the logarithm
    return median * math.exp(random.gauss(0.0, sigma))


def _exponential(random: Randomness, mean: float) -> float:
    return -mean * math.log(1.0 - random.random())


def _uniform(random: Randomness, low: float, high: float) -> float:
    return low + (high - low) * random.random()


#: Distributions by name, with their number of arguments.
_DISTRIBUTIONS: Mapping[str, tuple[Callable[..., float], int]] = {
    "normal": (_normal, 2),
    "lognormal": (_lognormal, 2),
    "uniform": (_uniform, 2),
    "exponential": (_exponential, 1),
}


@dataclass(frozen=True, slots=True)
class Draw:
    """A number in a model: constant, computed from a job's parameters, or random."""

    #: The number as written in the file.
    text: str
    constant: float | None = None
    #: Values from which one is drawn at random.
    values: tuple[float, ...] = ()
    distribution: Callable[..., float] | None = None
    #: Arguments of the distribution. Without a distribution: the expression for the number.
    arguments: tuple[float | Expression, ...] = ()
    #: Whether the number uses the job's names (parameters, index, cores …).
    uses_names: bool = field(init=False)

    def __post_init__(self) -> None:
        uses_names = not all(isinstance(each, float) for each in self.arguments)
        object.__setattr__(self, "uses_names", uses_names)

    def number(self, names: Mapping[str, Any], random: Randomness) -> float:
        """Return the number for a job with these names; nan if it is undefined."""
        if self.constant is not None:
            return self.constant
        if self.values:
            return random.choice(self.values)
        found: Sequence[Any] = self.arguments
        if self.uses_names:
            found = [each if isinstance(each, float) else _value(each, names) for each in found]
        if self.distribution is None:
            return float(found[0])
        try:
            return self.distribution(random, *found)
        except (OverflowError, ValueError):
            return math.nan


def _value(each: Expression, names: Mapping[str, Any]) -> float:
    found = each.evaluate(None, names, lambda path: None)
    return float(found) if isinstance(found, (bool, int, float)) else math.nan


def formula(text: str, names: Collection[str], whose: str = "jobs of this group") -> Expression:
    """Parse arithmetic with these names. Conditions in it have the value 1 or 0."""
    try:
        found = expression(text, texts=True)
    except EnsembleError:
        try:
            found = expression(f"1 if ({text}) else 0")
        except EnsembleError:
            found = expression(text)  # parsed first, to report mistakes in the user's own text
    unknown = sorted(found.names - set(names))
    if unknown:
        listed = f"known: {', '.join(sorted(names))}"
        raise EnsembleError(
            f"unknown name {unknown[0]!r} in {text!r}: {whose} do not have it",
            hint=did_you_mean(unknown[0], names, listed, cutoff=0.5),
            code="no-such-name",
        )
    if found.metrics:
        raise EnsembleError(
            f"{text!r} uses a metric, which is not available in a model",
            hint="write arithmetic over the job's parameters",
            code="bad-model",
        )
    return found


def parse(value: Any, names: Collection[str]) -> Draw:
    """Parse a number of a model. Arithmetic in it may use these names.

    Raises :class:`EnsembleError` if the value is invalid.
    """
    if isinstance(value, bool) or value is None or isinstance(value, Mapping):
        raise EnsembleError(
            f"{value!r} is not a number",
            hint='write a number, a duration such as "5m", arithmetic, '
            "normal(…), lognormal(…), uniform(…), exponential(…), or a list of numbers",
            code="wrong-type",
        )
    if isinstance(value, (int, float)):
        return Draw(str(value), constant=float(value))
    if isinstance(value, (list, tuple)):
        return _read_recorded(value)
    text = str(value).strip().removeprefix("=").strip()
    constant = _duration(text)
    if constant is not None:
        return Draw(text, constant=constant)
    called = _FUNCTION.fullmatch(text)
    if called is not None and called[1] not in _EXPRESSIONS and _is_closed(called[2]):
        name, inner = called[1], called[2]
        if name not in _DISTRIBUTIONS:
            known = ", ".join(_DISTRIBUTIONS)
            raise EnsembleError(
                f"unknown distribution {name!r}",
                hint=did_you_mean(name, _DISTRIBUTIONS, f"known: {known}", cutoff=0.5),
                code="no-such-distribution",
            )
        distribution, count = _DISTRIBUTIONS[name]
        parts = _split(inner)
        if len(parts) != count:
            raise EnsembleError(
                f"{name!r} has {len(parts)} argument{'s' * (len(parts) != 1)}, expected {count}",
                hint=f"write {_USAGE[name]}",
                code="bad-model",
            )
        arguments = tuple(_argument(part, names) for part in parts)
        return Draw(text, distribution=distribution, arguments=arguments)
    return Draw(text, arguments=(formula(text, names),))


_USAGE = {
    "normal": "normal(MEAN, DEVIATION)",
    "lognormal": "lognormal(MEDIAN, SIGMA): lognormal(5m, 0.5)",
    "uniform": "uniform(LOW, HIGH)",
    "exponential": "exponential(MEAN)",
}
#: Arithmetic functions. A text that calls one of them is an expression, not a distribution.
_EXPRESSIONS = frozenset(
    [
        "abs",
        "min",
        "max",
        "round",
        "ceil",
        "floor",
        "isnan",
        "isinf",
        "sqrt",
        "log",
        "exp",
        "metric",
    ]
)


def _read_recorded(values: Collection[Any]) -> Draw:
    found = [_duration(str(each)) for each in values]
    numbers = [each for each in found if each is not None]
    if not numbers or len(numbers) != len(found):
        raise EnsembleError(
            "a list of recorded values needs at least one value, and only numbers and durations",
            code="wrong-type",
        )
    return Draw(str(list(values)), values=tuple(numbers))


def _argument(text: str, names: Collection[str]) -> float | Expression:
    constant = _duration(text)
    return formula(text, names) if constant is None else constant


def _duration(text: str) -> float | None:
    try:
        return parse_duration(text)
    except EnsembleError:
        return None


def _is_closed(inner: str) -> bool:
    """Return whether the bracket at the start of this text is closed at its end."""
    depth = 0
    for char in inner:
        depth += (char == "(") - (char == ")")
        if depth < 0:
            return False
    return depth == 0


def _split(inner: str) -> list[str]:
    """Return the arguments of a call, separated at the commas outside of brackets."""
    parts, depth = [""], 0
    for char in inner:
        depth += (char in "([") - (char in ")]")
        if char == "," and not depth:
            parts.append("")
        else:
            parts[-1] += char
    return [part.strip() for part in parts if part.strip()]


_T = TypeVar("_T")
_EIGHT = Struct("<8Q").unpack


class Randomness(Protocol):
    """Random numbers for models; a part of the interface of :class:`random.Random`."""

    def random(self) -> float: ...

    def gauss(self, mu: float, sigma: float) -> float: ...

    def choice(self, seq: Sequence[_T]) -> _T: ...


class Stream:
    """A random stream. Streams with the same name yield the same numbers.

    The numbers are hashes: seeding a generator would take longer than drawing a job's few numbers.
    """

    __slots__ = ("_block", "_name", "_spare", "_words")

    def __init__(self, name: str) -> None:
        self._name = name
        self._block = 0
        self._words: list[int] = []
        self._spare: float | None = None

    def _more(self) -> int:
        salt = self._block.to_bytes(16, "little")
        words: list[int] = list(_EIGHT(blake2b(self._name.encode(), salt=salt).digest()))
        self._words = words
        self._block += 1
        return words.pop()

    def random(self) -> float:
        """Return a random number in [0, 1) with 53 bits."""
        words = self._words
        return ((words.pop() if words else self._more()) >> 11) * 2.0**-53

    def gauss(self, mu: float, sigma: float) -> float:
        """Return a normally distributed number (Box–Muller, two at a time)."""
        spare, self._spare = self._spare, None
        if spare is None:
            turn = self.random() * 2.0 * math.pi
            length = math.sqrt(-2.0 * math.log(1.0 - self.random()))
            spare = math.cos(turn) * length
            self._spare = math.sin(turn) * length
        return mu + spare * sigma

    def choice(self, seq: Sequence[_T]) -> _T:
        """Return one element of ``seq``, all with equal probability."""
        return seq[int(self.random() * len(seq))]
