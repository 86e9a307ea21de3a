"""Writes data as YAML text."""

from __future__ import annotations

from typing import Any

from ensemble_core.config.yaml_reader import read_value


def write_yaml(data: Any) -> str:
    """Return the data as YAML text that the reader converts back to the same data."""
    import yaml

    class Dumper(yaml.SafeDumper):
        """Dumper that keeps the order of keys, uses no aliases, and quotes text for our reader."""

        def ignore_aliases(self, data: Any) -> bool:
            return True

    def text(dumper: Any, value: str) -> Any:
        plain = dumper.represent_scalar("tag:yaml.org,2002:str", value)
        if "\n" not in value and isinstance(_read(value), str):
            return plain
        style = "|" if "\n" in value else '"'
        return dumper.represent_scalar("tag:yaml.org,2002:str", value, style=style)

    Dumper.add_representer(str, text)
    dumped: str = yaml.dump(
        data, Dumper=Dumper, sort_keys=False, allow_unicode=True, width=100, default_flow_style=None
    )
    return dumped


def _read(value: str) -> Any:
    try:
        return read_value(value, "")[0]
    except Exception:  # not an unquoted scalar, so it is quoted anyway
        return value
