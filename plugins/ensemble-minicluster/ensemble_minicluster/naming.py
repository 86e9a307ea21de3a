"""The names of members, ``NAMESPACE/NAME``, as the executor is given them."""

from __future__ import annotations

import re

from ensemble_core import UsageError

__all__ = ["member_name"]

#: A label of RFC 1123, which is what Kubernetes calls namespaces and objects by.
_LABEL = re.compile(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?")
_LONGEST = 63


def member_name(text: str) -> str:
    """A member's name in full; ``NAME`` alone is in the namespace ``default``.

    Raises :class:`UsageError` for what can name no member.

    >>> member_name("ensemble"), member_name("physics/melt")
    ('default/ensemble', 'physics/melt')
    """
    namespace, slash, name = text.partition("/")
    if not slash:
        namespace, name = "default", text
    for part in (namespace, name):
        if not part:
            cause = "the name before the slash is missing" if name else "the name is missing"
        elif "/" in part:
            cause = "it has more than one slash"
        elif len(part) > _LONGEST:
            cause = f"{part[:20]}… has {len(part)} characters, and {_LONGEST} are the most"
        elif not _LABEL.fullmatch(part):
            cause = (
                f"{part!r} may have only a-z, 0-9 and '-', and begins and ends with a "
                "letter or a digit"
            )
        else:
            continue
        raise UsageError(
            f"{text[:140]!r} is not the name of a member",
            cause=cause,
            hint="write NAMESPACE/NAME, or NAME for one in 'default'",
            code="bad-member",
        )
    return f"{namespace}/{name}"
