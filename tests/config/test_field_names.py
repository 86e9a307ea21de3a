"""Names of an observer's fields that rules cannot use: the error says what to write."""

from __future__ import annotations

from pathlib import Path

import pytest
from ensemble_testing import Story

from ensemble_core.cli.main import main as command
from ensemble_core.errors import EnsembleError

TEXT = """
jobs: [{name: sim, command: x, observe: {OBSERVER: {fields: FIELDS}}}]
rules: [{trigger: start, action: {name: submit}}]
"""


@pytest.mark.parametrize("observer", ["json-lines", "key-value", "table"])
@pytest.mark.parametrize(
    ("fields", "hint"),
    [
        ("[metrics.loss]", "{loss: metrics.loss}"),
        ("[epoch, train/loss]", "{epoch: epoch, loss: train/loss}"),
        ("[train/loss, val/loss]", "{loss: train/loss, val_loss: val/loss}"),
        ("[loss, train/loss]", "{loss: loss, train_loss: train/loss}"),
        ('["Temperature (K)"]', "{Temperature_K: 'Temperature (K)'}"),
        ("[Total energy]", "{Total_energy: 'Total energy'}"),
        ("[duration]", "{duration_value: duration}"),
        ("[run.duration]", "{run_duration: run.duration}"),
        ("[µ]", "{field_0: 'µ'}"),
        ("{metrics.loss: loss}", "{loss: metrics.loss}"),
    ],
)
def test_the_error_shows_how_to_rename_the_field(observer: str, fields: str, hint: str) -> None:
    with pytest.raises(EnsembleError) as caught:
        Story(TEXT.replace("OBSERVER", observer).replace("FIELDS", fields))
    assert f"fields: {hint}" in str(caught.value)
    assert "does not match" not in str(caught.value)
    Story(TEXT.replace("OBSERVER", observer).replace("FIELDS", hint))  # the hint is valid


def test_a_value_of_set_gets_the_same_hint(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    file = tmp_path / "a.yaml"
    file.write_text(TEXT.replace("OBSERVER", "json-lines").replace("FIELDS", "[a]"))
    given = "jobs.sim.observe.json-lines.fields=[train/loss]"
    with pytest.raises(SystemExit) as ended:
        command(["validate", str(file), "--set", given])
    assert ended.value.code == 2
    assert "fields: {loss: train/loss}" in capsys.readouterr().err


def test_an_empty_name_is_an_error_without_a_proposal() -> None:
    with pytest.raises(EnsembleError, match="cannot be the name of a column") as caught:
        Story(TEXT.replace("OBSERVER", "table").replace("FIELDS", '[""]'))
    assert "hint" not in str(caught.value)
