"""Tests of member names, which are checked before anything is submitted."""

from __future__ import annotations

import pytest
from ensemble_minicluster import ensemble_executors
from ensemble_service import member_name

from ensemble_core import UsageError


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("ensemble", "default/ensemble"),
        ("default/ensemble", "default/ensemble"),
        ("team-7/a", "team-7/a"),
        (f"{'n' * 63}/{'m' * 63}", f"{'n' * 63}/{'m' * 63}"),
    ],
)
def test_a_name_without_a_namespace_is_in_default(text: str, name: str) -> None:
    assert member_name(text) == name


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("", "empty"),
        ("/", "empty"),
        ("default/", "empty"),
        ("/ensemble", "a part of it is empty"),
        ("a/b/c", "more than one slash"),
        ("a//b", "more than one slash"),
        ("Default/ensemble", "use only"),
        ("default/my_cluster", "use only"),
        ("default/-a", "no '-' at either end"),
        ("default/a-", "use only"),
        ("default/a.b", "use only"),
        ("default/a\n", "use only"),
        ("default/ä", "use only"),
        (" default/a", "use only"),
        (f"default/{'a' * 64}", "64 characters"),
    ],
)
def test_an_invalid_member_name_is_rejected_with_the_reason(text: str, cause: str) -> None:
    with pytest.raises(UsageError) as caught:
        member_name(text)
    assert cause in str(caught.value.cause)
    assert "NAMESPACE/NAME" in str(caught.value.hint)
    (record,) = ensemble_executors()
    with pytest.raises(UsageError):  # the executor checks it, too
        record.build({"name": text, "mock": True})
