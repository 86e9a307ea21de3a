"""Full names of members (the clusters of a run): ``NAMESPACE/NAME``."""

from __future__ import annotations

import re

from ensemble_core import UsageError

#: An RFC 1123 label, as for Kubernetes namespaces and objects.
_LABEL = re.compile(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?")
_LONGEST = 63


def member_name(text: str) -> str:
    """Return a member's full name. The default namespace is ``default``.

    Raises :class:`UsageError` for invalid names.

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
            cause = f"{part[:20]}… has {len(part)} characters; the limit is {_LONGEST}"
        elif not _LABEL.fullmatch(part):
            cause = (
                f"{part!r} may have only a-z, 0-9 and '-', and must begin and end with a letter "
                f"or digit"
            )
        else:
            continue
        raise UsageError(
            f"invalid member name {text[:140]!r}",
            cause=cause,
            hint="write NAMESPACE/NAME, or NAME for a member in 'default'",
            code="bad-member",
        )
    return f"{namespace}/{name}"
