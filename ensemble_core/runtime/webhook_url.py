"""Reads and checks the URLs of webhooks, which are in environment variables and never in files."""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import urlsplit

#: Hosts to which plain http is safe.
_HERE = frozenset({"localhost", "127.0.0.1", "::1"})


def webhook_url(name: str, environment: Mapping[str, str]) -> str:
    """Return the URL of a webhook from the environment variable ``name``.

    Raises ``ValueError`` if the variable is not set or its URL is not safe. The message does not
    contain the URL.
    """
    url = environment.get(name, "").strip()
    if not url:
        raise ValueError(f"{name} is not set: it must contain the URL of the webhook")
    try:
        parts = urlsplit(url)
        host, sound = parts.hostname, parts.port != 0 and parts.username is None
    except ValueError:
        host, sound = None, False
    if not host or not sound or not (url.isascii() and url.isprintable() and " " not in url):
        raise ValueError(f"the value of {name} is not a valid URL of a webhook")
    if parts.scheme != "https" and not (parts.scheme == "http" and host in _HERE):
        raise ValueError(f"the URL in {name} must begin with https:// (http only to localhost)")
    return url
