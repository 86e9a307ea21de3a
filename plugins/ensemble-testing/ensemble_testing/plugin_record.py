"""Contract of a plugin's record: it is valid, described, and its schema rejects unknown options."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from ensemble_core.plugin.record_validation import check_record


class RecordContract:
    """Tests of a plugin's record. The suites for each kind of plugin inherit them.

    - ``plugin``: the record
    - ``options``: valid options
    - ``bad_options``: options that the record's schema must reject
    """

    plugin: ClassVar[Any]
    options: ClassVar[Mapping[str, Any]] = {}
    bad_options: ClassVar[Sequence[Mapping[str, Any]]] = ()

    def _accepts(self, options: Mapping[str, Any]) -> bool:
        import jsonschema_rs

        # Schemas are closed by default when they join the file's schema.
        closed = {"type": "object", "additionalProperties": False, **self.plugin.options}
        schema = json.loads(json.dumps(closed, default=dict))
        accepted: bool = jsonschema_rs.Draft202012Validator(schema).is_valid(dict(options))
        return accepted

    def test_record_is_valid(self) -> None:
        check_record(self.plugin)

    def test_option_schema_accepts_the_options(self) -> None:
        assert self._accepts(self.options)

    def test_option_schema_rejects_unknown_options(self) -> None:
        unknown = {**self.options, "no-such-option-anywhere": 1}
        assert not self._accepts(unknown), (
            "the schema of the options is open, so a misspelled option would be silently ignored: "
            "list the options under 'properties'"
        )

    def test_option_schema_rejects_bad_options(self) -> None:
        for options in self.bad_options:
            assert not self._accepts(options), f"{options!r} should be rejected"

    def test_every_option_is_described(self) -> None:
        for name, schema in self.plugin.options.get("properties", {}).items():
            assert schema.get("description"), f"option {name!r} has no description"
