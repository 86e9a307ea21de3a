"""Profiles of the user's and the site's configuration file."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from click.shell_completion import ShellComplete
from click.testing import CliRunner, Result

import ensemble_core
from ensemble_core.cli.main import main
from ensemble_core.errors import FileErrors, UsageError

STUDY = """\
jobs:
- {name: a, command: "sh -c 'echo $COLOR-$SIZE > color.txt'", environment: {SIZE: 2.50}}
rules: [{trigger: start, action: {name: submit, label: a}}]
"""
LAB = """\
default: lab
profiles:
  lab:
    executor: local
    options: {slots: 2, bind: false}
    jobs:
      environment: {COLOR: red, SIZE: 1.10}
      duration: 1h
    limits: {submits_per_second: 50, jobs: 7}
  other: {executor: local}
"""


class Home:
    """A user's configuration folder, a site's file and an ensemble file."""

    def __init__(self, folder: Path) -> None:
        self.user = folder / "config" / "ensemble" / "config.yaml"
        self.site = folder / "site" / "config.yaml"
        self.file = folder / "study.yaml"
        self.state = folder / "state"
        for path in (self.user, self.site):
            path.parent.mkdir(parents=True, mode=0o755)
        self.file.write_text(STUDY)
        self.write(self.user, LAB)
        self.write(self.site, "")

    def write(self, path: Path, text: str) -> None:
        path.write_text(text)
        path.chmod(0o644)

    def call(self, *words: object) -> Result:
        return CliRunner().invoke(main, [str(word) for word in words])

    def run(self, *words: object) -> Result:
        return self.call("run", self.file, "--state", self.state, "--tag", "t", *words)

    def resolved(self, *words: object) -> dict[str, tuple[Any, str]]:
        done = self.call("validate", self.file, "--resolved", "--json", *words)
        assert done.exit_code == 0, done.output
        values = json.loads(done.stdout)["values"]
        return {each["key"]: (each["value"], each["source"]) for each in values}


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    found = Home(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("ENSEMBLE_PROFILE", raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("ENSEMBLE_SITE_CONFIG", str(found.site))
    return found


def test_first_line_of_a_run_names_its_profile(home: Home) -> None:
    done = home.run()
    assert done.exit_code == 0, done.output
    first = done.output.splitlines()[0]
    assert first.startswith("executor local (slots=2, bind=False): profile lab;"), first


def test_jobs_get_the_defaults_of_the_profile_and_keep_their_own_values(home: Home) -> None:
    assert home.run().exit_code == 0
    assert (home.file.parent / "color.txt").read_text() == "red-2.50\n"


def test_json_output_of_a_run_names_its_profile(home: Home) -> None:
    assert json.loads(home.run("--json").stdout.splitlines()[0])["profile"] == "lab"


def test_each_value_is_shown_with_its_source(home: Home) -> None:
    found = home.resolved("-o", "bind=true", "--set", "limits.jobs=3")
    assert found["executor"] == ("local", f"{home.user}:4:15")
    assert found["options.slots"] == (2, f"{home.user}:5:22")
    assert found["options.bind"] == (True, "-o")
    assert found["limits.jobs"] == (3, "--set limits.jobs=3")
    assert found["limits.submits_per_second"] == (50, f"{home.user}:9:34")
    assert found["limits.chain"] == (100, "built-in")
    assert found["jobs.a.environment.COLOR"] == ("red", f"{home.user}:7:28")
    assert found["jobs.a.environment.SIZE"] == (2.5, f"{home.file}:2:83")
    assert found["jobs.a.nodes"] == (1, "built-in")
    text = home.call("validate", home.file, "--resolved").output
    assert text.startswith("profile: lab\n")
    assert "2.50" in text
    assert ["limits.stop", "300", "built-in"] in [line.split() for line in text.splitlines()]


def test_the_user_takes_precedence_over_the_site_key_by_key(home: Home) -> None:
    home.write(
        home.site,
        "default: other\n"
        "profiles:\n"
        "  lab:\n"
        "    jobs: {environment: {COLOR: blue, SITE: x, GONE: y}, nodes: 1}\n"
        "  site-only: {limits: {jobs: 3}}\n",
    )
    home.write(home.user, LAB.replace("COLOR: red", "COLOR: red, GONE: null"))
    found = home.resolved()
    assert found["jobs.a.environment.COLOR"] == ("red", f"{home.user}:7:28")
    assert found["jobs.a.environment.SITE"] == ("x", f"{home.site}:4:45")
    assert "jobs.a.environment.GONE" not in found
    assert home.resolved("--profile", "site-only")["limits.jobs"] == (3, f"{home.site}:5:30")


def test_limit_of_the_profile_on_the_whole_run_holds_beside_names_of_the_file(home: Home) -> None:
    home.write(home.user, LAB.replace("jobs: 7", "jobs: 7, at_once: 5"))
    assert home.resolved()["limits.at_once"][0] == 5
    text = STUDY.replace("command:", "uses: gpu, command:")
    home.file.write_text(text + "limits: {at_once: {gpu: 2}}\n")
    found = home.resolved()
    assert (found["limits.at_once.gpu"][0], found["limits.at_once.jobs"][0]) == (2, 5)


def test_null_in_the_file_removes_a_value_of_the_profile(home: Home) -> None:
    home.file.write_text(STUDY.replace("{SIZE: 2.50}", "{COLOR: null}, duration: null"))
    found = home.resolved()
    assert "jobs.a.environment.COLOR" not in found
    assert found["jobs.a.environment.SIZE"][0] == 1.1
    assert found["jobs.a.duration"] == (0.0, "built-in")


def test_null_without_a_profile_only_warns(home: Home) -> None:
    home.file.write_text(STUDY.replace("SIZE: 2.50", "COLOR: null"))
    done = home.call("validate", home.file, "--profile", "none")
    assert done.exit_code == 0, done.output
    assert "'environment.COLOR' is empty, which has no effect" in done.output


@pytest.mark.parametrize("how", ["flag", "variable"])
def test_a_profile_is_chosen_by_flag_or_variable(
    home: Home, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["--profile", "other"] if how == "flag" else []
    monkeypatch.setenv("ENSEMBLE_PROFILE", "lab" if words else "other")
    assert "jobs.a.environment.COLOR" not in home.resolved(*words)


def test_profile_none_reads_no_file(home: Home) -> None:
    home.write(home.user, "][")
    assert home.run("--profile", "none").exit_code == 0
    assert (home.file.parent / "color.txt").read_text() == "-2.50\n"


@pytest.mark.checkout  # it needs ensemble-slurm
def test_options_of_another_executor_are_not_used_and_that_is_said(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    home.write(
        home.user, LAB.replace("executor: local\n    options", "executor: slurm\n    options")
    )
    first = home.run("--executor", "local").output.splitlines()[0]
    assert "profile lab without its options, which are for slurm" in first


@pytest.mark.parametrize("words", [[], ["--accept-changes"]])
def test_resume_does_not_read_the_profile_again(home: Home, words: list[str]) -> None:
    home.file.write_text(
        "jobs:\n"
        "- {name: a, command: \"sh -c 'test -e go || sleep 600'\"}\n"
        "- {name: b, command: \"sh -c 'echo $COLOR > color.txt'\"}\n"
        "rules:\n"
        "- {trigger: start, action: {name: submit, label: a}}\n"
        "- {trigger: job-success, name: a, action: {name: submit, label: b}}\n"
    )
    begun = home.run("--wall", "1s")
    assert begun.exit_code == 5, begun.output
    (home.file.parent / "go").touch()
    home.write(home.user, LAB.replace("COLOR: red", "COLOR: blue").replace("local", "nosuch"))
    if words:
        home.file.write_text(home.file.read_text().replace("echo ", "echo changed-"))
    resumed = home.call("resume", "t", "--state", home.state, *words)
    assert resumed.exit_code == 0, resumed.output
    assert (home.file.parent / "color.txt").read_text() == f"{'changed-' if words else ''}red\n"
    replayed = home.call("replay", "t", "--state", home.state)
    assert replayed.exit_code == 0, replayed.output


@pytest.mark.parametrize(
    ("old", "new", "where", "message"),
    [
        ("    jobs:\n", "    job:\n", "6:5", "did you mean 'jobs'?"),
        ("duration: 1h", "duratoin: 1h", "8:7", "did you mean 'duration'?"),
        ("duration: 1h", "duration: 1 fortnight", "8:17", "duration"),
        ("COLOR: red", "COLOR: '{nosuch}'", "7:28", "nosuch"),
        ("slots: 2", "slotz: 2", "5:22", "did you mean 'slots'?"),
        ("slots: 2", "slots: many", "5:22", "not of type"),
        ("executor: local", "executor: locla", "4:15", "'local'"),
        ("limits: {", "limits: {job: 1, ", "9:14", "did you mean 'jobs'?"),
        ("jobs: 7", "jobs: seven", "9:44", "expected a whole number"),
        ("    executor: local\n", "    custom: 'x = 1'\n", "4:5", "a profile names no code"),
        ("    executor: local\n", "", "4:14", "add 'executor: NAME' to the profile"),
        ("default: lab\n", "default: lab\ndefault: other\n", "2:1", "default"),
        ("default: lab", "default: [lab, other]", "1:10", "expected a string"),
        ("default: lab", "default: lba", "1:10", "known profiles: lab, other"),
        ("default: lab", "defualt: lab", "1:1", "did you mean 'default'?"),
        ("  other:", "  none:", "10:3", "uses no profile"),
        ("    jobs:\n", "    jobs: {options: {slurmm: {}}}\n    x:\n", "6:22", "slurmm"),
    ],
)
def test_mistake_in_a_profile_is_reported_at_its_place(
    home: Home, old: str, new: str, where: str, message: str
) -> None:
    assert old in LAB
    home.write(home.user, LAB.replace(old, new, 1))
    done = home.run()
    assert done.exit_code == 2, done.output
    assert f"{home.user}:{where}: " in done.output
    assert message in done.output


def test_unknown_profile_lists_the_known_ones(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    done = home.run("--profile", "lap")
    assert done.exit_code == 2
    assert "--profile lap: error: there is no profile 'lap'" in done.output
    assert "did you mean 'lab'?; known profiles: lab, other" in done.output
    home.user.unlink()
    monkeypatch.setattr("ensemble_core.session.profile_files._SITE", str(home.site / "nothing"))
    monkeypatch.delenv("ENSEMBLE_SITE_CONFIG")
    assert f"define it in {home.user}" in home.run("--profile", "lab").output


@pytest.mark.parametrize("which", ["file", "folder"])
def test_file_that_others_can_change_is_refused(home: Home, which: str) -> None:
    changed = home.user if which == "file" else home.user.parent
    changed.chmod(0o775)
    done = home.run()
    assert done.exit_code == 2
    assert "can be changed by other users" in done.output
    assert f"chmod go-w {changed}" in done.output


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_file_of_another_user_is_refused(home: Home) -> None:
    os.chown(home.site, 12345, 12345)
    done = home.run()
    assert done.exit_code == 2
    assert "belongs to another user" in done.output


@pytest.mark.parametrize("how", ["folder", "latin", "missing"])
def test_unreadable_file_is_an_error(home: Home, how: str) -> None:
    home.site.unlink()
    if how == "folder":
        home.site.mkdir()
    elif how == "latin":
        home.site.write_bytes(b"default: \xe9\n")
    done = home.run()
    assert done.exit_code == 2
    assert str(home.site) in done.output
    assert "hint" in done.output


def test_names_of_profiles_are_completed(home: Home) -> None:
    def names(incomplete: str) -> list[str]:
        completion = ShellComplete(main, {}, "ensemble", "_ENSEMBLE_COMPLETE")
        found = completion.get_completions(["run", "x.yaml", "--profile"], incomplete)
        return [each.value for each in found]

    assert names("") == ["lab", "other", "none"]
    assert names("o") == ["other"]
    home.write(home.user, "][")
    assert names("") == ["none"]


def test_dry_run_and_validate_use_the_profile(home: Home) -> None:
    assert "COLOR=red" in home.run("--dry-run").output
    assert "(profile lab)" in home.call("validate", home.file).output


def test_python_reads_profiles_only_if_asked(home: Home) -> None:
    assert "COLOR" not in ensemble_core.load(home.file).groups["a"].environment
    asked = ensemble_core.load(home.file, profile="lab")
    assert asked.groups["a"].environment == {"COLOR": "red", "SIZE": "2.50"}
    ran = ensemble_core.run(home.file, profile="lab", state=home.state, tag="p")
    assert ran.exit_code == 0
    assert (home.file.parent / "color.txt").read_text() == "red-2.50\n"
    with pytest.raises(UsageError, match="no profile 'x'"):
        ensemble_core.load(home.file, profile="x")
    home.write(home.user, LAB.replace("duration: 1h", "duration: soon"))
    with pytest.raises((FileErrors, UsageError)):
        ensemble_core.load(home.file, profile="lab")


def test_schema_of_configuration_files_accepts_and_rejects(home: Home) -> None:
    import jsonschema_rs
    import yaml

    schema = json.loads(home.call("schema", "--config").stdout)
    validator = jsonschema_rs.validator_for(schema)
    assert validator.is_valid(yaml.safe_load(LAB))
    assert not validator.is_valid(yaml.safe_load(LAB.replace("duration", "duratoin")))


def test_two_profiles_that_say_they_are_the_default_are_an_error(home: Home) -> None:
    home.write(home.user, "profiles: {a: {default: true}, b: {default: true}}\n")
    done = home.run()
    assert done.exit_code == 2
    assert f"{home.user}:1:16: the profile 'a' cannot say that it is the default" in done.output
    assert "hint: write 'default: a' beside 'profiles:'" in done.output
    assert "the profile 'b'" in done.output


def test_a_configuration_file_that_is_a_link_to_nothing_is_an_error(home: Home) -> None:
    home.user.unlink()
    home.user.symlink_to("/no/such/file")
    done = home.run()
    assert done.exit_code == 2
    assert "is a link to '/no/such/file', which does not exist" in done.output
    assert "hint: mend it; '--profile none' reads no file" in done.output
