"""What is known of objects: of each the newest version, in whatever order it is told."""

from __future__ import annotations

from typing import Any

from ensemble_operator.cache import Cache
from ensemble_operator.names import LABEL

KEY = ("default", "study")


def found(version: int, uid: str = "a", **more: Any) -> dict[str, Any]:
    metadata = {
        "name": "study",
        "namespace": "default",
        "uid": uid,
        "resourceVersion": str(version),
        "labels": {LABEL: "study"},
    }
    return {"metadata": metadata, **more}


def known(cache: Cache) -> tuple[str, str] | None:
    metadata = cache.children(KEY).get(("Deployment", "study"), {}).get("metadata")
    return metadata and (metadata["uid"], metadata["resourceVersion"])


def test_an_answer_older_than_the_news_is_passed_over() -> None:
    cache = Cache()
    cache.told("Deployment", found(7))
    cache.wrote(KEY, "Deployment", found(5))
    assert known(cache) == ("a", "7")
    cache.told("Ensemble", found(9))
    cache.wrote(KEY, "Ensemble", found(8))
    assert cache.ensembles[KEY]["metadata"]["resourceVersion"] == "9"


def test_what_is_gone_does_not_come_back_with_a_late_answer() -> None:
    cache = Cache()
    cache.told("Deployment", found(7))
    cache.told("Deployment", found(8), gone=True)
    cache.wrote(KEY, "Deployment", found(9))
    assert known(cache) is None
    cache.wrote(KEY, "Deployment", found(10, "b"))
    assert known(cache) == ("b", "10")


def test_the_end_of_an_object_is_not_that_of_another_of_its_name() -> None:
    """Watches tell of each object in order, and not of two: the old one's end may come last."""
    cache = Cache()
    cache.told("Deployment", found(7))
    cache.told("Deployment", found(9, "b"))
    cache.told("Deployment", found(8))
    cache.told("Deployment", found(8), gone=True)
    assert known(cache) == ("b", "9")
