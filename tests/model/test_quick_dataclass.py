"""Our dataclasses behave as those of the standard library."""

from __future__ import annotations

import copy
import dataclasses
import pickle
from dataclasses import FrozenInstanceError, field, fields, replace
from typing import Any, ClassVar

import pytest

from ensemble_core.quick_dataclass import dataclass as quick
from ensemble_core.quick_dataclass import replace as quick_replace

BOTH = pytest.mark.parametrize("dataclass", [dataclasses.dataclass, quick])
VARIANTS = pytest.mark.parametrize(
    "options",
    [{}, {"slots": True}, {"frozen": True, "eq": False, "slots": True}, {"frozen": True}],
)


@pytest.fixture(params=[0, 2], autouse=True)
def uncompiled(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Test constructors that are compiled, and those of the first two objects."""
    monkeypatch.setattr("ensemble_core.quick_dataclass._UNCOMPILED", request.param)


def classes(dataclass: Any, options: dict[str, Any]) -> tuple[type[Any], type[Any]]:
    """Return a class and its subclass."""

    @dataclass(**options)
    class Base:
        kind: ClassVar[str] = "base"
        a: int
        b: list[int] = field(default_factory=list)

    @dataclass(kw_only=True, **options)
    class Derived(Base):
        c: str = "c"
        d: int

    return Base, Derived


@BOTH
@VARIANTS
def test_constructor_takes_the_same_arguments(dataclass: Any, options: dict[str, Any]) -> None:
    base, derived = classes(dataclass, options)
    one = derived(1, d=4)
    assert [getattr(one, each.name) for each in fields(one)] == [1, [], "c", 4]
    assert base(2).b is not base(2).b
    assert base(b=[3], a=2).b == [3]
    assert replace(one, c="x").c == "x"
    assert derived.__match_args__ == ("a", "b")
    for words, named in (((), {}), ((1,), {}), ((1, [], "c"), {"d": 4}), ((1,), {"d": 1, "e": 2})):
        with pytest.raises(TypeError, match=r"__init__\(\)"):
            derived(*words, **named)


@BOTH
@VARIANTS
def test_replace_copies_all_other_fields(dataclass: Any, options: dict[str, Any]) -> None:
    @dataclass(**options)
    class Single:
        a: list[int]

    @dataclass(**options)
    class Nothing:
        pass

    _, derived = classes(dataclass, options)
    one = derived(1, [2], d=4)
    changed = quick_replace(one, a=5, c="x")
    assert type(changed) is derived
    assert [getattr(changed, each.name) for each in fields(changed)] == [5, [2], "x", 4]
    assert changed.b is one.b
    assert (one.a, one.c) == (1, "c")
    assert quick_replace(Single([1, 2])).a == [1, 2]
    assert quick_replace(Single([1]), a=[3]).a == [3]
    assert isinstance(quick_replace(Nothing()), Nothing)
    with pytest.raises(TypeError, match="'e'"):
        quick_replace(one, e=1)


@BOTH
def test_frozen_record_rejects_changes_and_can_be_copied(dataclass: Any) -> None:
    base, derived = classes(dataclass, {"frozen": True, "eq": False, "slots": True})
    one = derived(1, d=4)
    for of in (one, base(1)):
        with pytest.raises(FrozenInstanceError, match="cannot assign to field 'a'"):
            of.a = 2
        with pytest.raises(FrozenInstanceError, match="cannot delete field 'a'"):
            del of.a
        assert of.a == 1
    twin = copy.deepcopy(one)
    assert (twin.a, twin.b, twin.c, twin.d) == (1, [], "c", 4)
    assert twin.b is not one.b
    assert copy.copy(one).b is one.b


@BOTH
def test_a_subclass_that_is_no_dataclass_can_have_attributes_of_its_own(dataclass: Any) -> None:
    base, _ = classes(dataclass, {"frozen": True, "eq": False})

    class Own(base):  # type: ignore[misc, valid-type]
        def __init__(self) -> None:
            super().__init__(1)
            self.more = 2

    one = Own()
    assert (one.a, one.more) == (1, 2)
    with pytest.raises(FrozenInstanceError):
        one.a = 2


def test_constructor_of_a_frozen_class_makes_objects_of_subclasses() -> None:
    base, _ = classes(quick, {"frozen": True, "eq": False, "slots": True})

    class Plain(base):  # type: ignore[misc, valid-type]
        pass

    one = Plain(1)
    assert (type(one), type(base(2)), one.a) == (Plain, base, 1)
    with pytest.raises(FrozenInstanceError):
        one.a = 2


@BOTH
@VARIANTS
def test_the_standard_library_makes_subclasses(dataclass: Any, options: dict[str, Any]) -> None:
    """Plugins derive their events from ours."""
    base, _ = classes(dataclass, options)

    @dataclasses.dataclass(**options)
    class Theirs(base):  # type: ignore[misc, valid-type]
        e: int = 5

    assert (Theirs(1).a, Theirs(1, [2], 6).b, Theirs(1, [2], 6).e) == (1, [2], 6)
    for frozen in (True, False):
        if frozen == options.get("frozen", False):
            continue
        for other in (dataclasses.dataclass, dataclass):
            with pytest.raises(TypeError, match="frozen"):
                other(frozen=frozen, eq=False)(type("Mixed", (base,), {}))
    assert Theirs.__dataclass_params__.init


@BOTH
def test_what_follows_the_constructor_is_called_and_a_field_may_be_no_parameter(
    dataclass: Any,
) -> None:
    @dataclass(eq=False)
    class Doubled:
        a: int
        twice: int = field(init=False)

        def __post_init__(self) -> None:
            self.twice = 2 * self.a

    assert Doubled(4).twice == 8
    with pytest.raises(TypeError):
        Doubled(4, 8)


@BOTH
@pytest.mark.parametrize("frozen", [True, False])
@pytest.mark.parametrize("slots", [True, False])
def test_comparison_hash_and_repr_are_by_fields(dataclass: Any, frozen: bool, slots: bool) -> None:
    @dataclass(frozen=frozen, slots=slots)
    class Pair:
        a: Any
        b: int = field(default=0, compare=False)
        c: int = field(default=0, repr=False, hash=False)

    @dataclass(frozen=frozen, slots=slots)
    class Single:
        a: Any

    @dataclass(frozen=frozen, slots=slots, repr=False)
    class Own:
        a: int

        def __eq__(self, other: object) -> bool:
            return True

        def __hash__(self) -> int:
            return 5

    assert Pair(1, 2) == Pair(1, 3)
    assert Pair(1, c=2) != Pair(1, c=3)
    assert Pair(1) != Single(1)
    nan = float("nan")
    assert Single(nan) == Single(nan)
    assert repr(Pair(1, 2, 3)).endswith("Pair(a=1, b=2)")
    around: list[Any] = []
    around.append(Single(around))
    assert "Single(a=[...])" in repr(around)
    assert (Own(1) == 7, hash(Own(1)), "Own(a" in repr(Own(1))) == (True, 5, False)
    assert Pair.__dataclass_params__.eq
    assert [each.type for each in fields(Pair)] == ["Any", "int", "int"]
    assert Pair.__annotations__ == {"a": "Any", "b": "int", "c": "int"}
    if frozen:
        assert len({Pair(1, 2, 3), Pair(1, 3, 3), Pair(2)}) == 2
        assert hash(Pair(1, c=2)) == hash(Pair(1, c=3))
    else:
        with pytest.raises(TypeError, match="unhashable"):
            hash(Pair(1))


@quick(frozen=True, eq=False, slots=True)
class Kept:
    """At the top of the module, where pickle finds it."""

    a: int
    b: str = "b"


def test_record_can_be_pickled() -> None:
    again = pickle.loads(pickle.dumps(Kept(3)))  # noqa: S301  (our own bytes)
    assert (again.a, again.b) == (3, "b")
    with pytest.raises(FrozenInstanceError):
        again.a = 4
