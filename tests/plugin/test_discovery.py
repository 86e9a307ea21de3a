"""Discovery of plugins in installed distributions: folders with metadata on the path, as pip creates
them. Broken plugins are listed with the reason and do not affect others."""

from __future__ import annotations

import importlib.metadata
import json
import subprocess
import sys
import textwrap
import zipfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest

import ensemble_core
from ensemble_core.errors import EnsembleError, PluginError
from ensemble_core.plugin import distributions
from ensemble_core.plugin.discovery import discover, executor_record, use_registry
from ensemble_core.plugin.registry import LoadedPlugin, Registry

ACTION = """
    from ensemble_core import ActionPlugin, hookimpl

    @hookimpl
    def ensemble_actions():
        return [ActionPlugin(name="{name}", summary="{summary}", run=lambda context: None)]
"""

EXECUTOR = """
    from ensemble_core import ExecutorPlugin, hookimpl

    @hookimpl
    def ensemble_executors():
        return [ExecutorPlugin(name="elsewhere", summary="runs elsewhere", build=lambda o: None)]
"""


class Site:
    """A folder of installed distributions."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def install(
        self,
        distribution: str,
        source: str | None,
        *,
        module: str | None = None,
        entry_points: str | None = None,
        version: str = "1.2",
        requires: str = "",
    ) -> None:
        module = module or distribution.replace("-", "_")
        if source is not None:
            file = self.folder / f"{module}.py"
            file.write_text(textwrap.dedent(source), encoding="utf-8")
        info = self.folder / f"{distribution.replace('-', '_')}-{version}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: {distribution}\nVersion: {version}\n"
            f"License: all\n  rights\n{requires or 'X-None:'}\n\nRequires-Dist: ensemble-core>=77\n"
        )
        lines = entry_points or f"[ensemble]\n{module.replace('_', '-')} = {module}\n"
        (info / "entry_points.txt").write_text(lines)


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    folder = tmp_path / "site"
    folder.mkdir()
    monkeypatch.syspath_prepend(folder)
    before = set(sys.modules)
    yield Site(folder)
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(tmp_path)):
            del sys.modules[name]


def found(registry: Registry, distribution: str) -> LoadedPlugin:
    plugins = [plugin for plugin in registry.plugins if plugin.distribution == distribution]
    assert len(plugins) == 1, plugins
    return plugins[0]


def test_installed_plugin_is_found(site: Site) -> None:
    site.install("ensemble-ping", ACTION.format(name="ping", summary="tell somebody"))
    registry = discover()
    assert found(registry, "ensemble-ping").to_dict() == {
        "name": "ensemble-ping",
        "distribution": "ensemble-ping",
        "version": "1.2",
        "module": "ensemble_ping",
        "builtin": False,
        "records": {"action": ["ping"]},
        "error": None,
    }
    assert "ping" in registry.actions
    assert registry.lookup("action", "ping").summary == "tell somebody"
    assert registry.lookup("action", "ensemble-ping:ping").summary == "tell somebody"
    assert not [text for text in registry.warnings if "ping" in text]


def test_built_ins_are_registered_like_plugins() -> None:
    registry = discover()
    assert [plugin for plugin in registry.broken if plugin.builtin] == []
    assert {"submit", "cancel", "terminate"} <= set(registry.actions)
    assert {"start", "metric"} <= set(registry.triggers)
    assert {"mean", "iqr"} <= set(registry.statistics)
    assert "json-lines" in registry.observers
    assert "local" in registry.executors
    assert registry.lookup("action", "ensemble-core:submit") is registry.actions["submit"]


#: Start of a hook; the test adds what it returns or raises.
HOOK = "from ensemble_core import *\n\n@hookimpl\ndef ensemble_actions():\n    "
NO_MARK = "ensemble_actions is not marked with @hookimpl"
BROKEN: dict[str, tuple[str, str]] = {
    "import error": ("import no_such_module_anywhere", "No module named 'no_such_module_anywhere'"),
    "syntax error": ("def broken(:", "SyntaxError"),
    "raises at import": ("raise RuntimeError('no licence')", "RuntimeError: no licence"),
    "exits at import": ("import sys; sys.exit('flux is missing')", "tried to exit the program"),
    "misspelt hook": (
        HOOK.replace("actions", "action") + "return []",
        "no hook 'ensemble_action'; did you mean 'ensemble_actions'?",
    ),
    "unmarked hook": ("def ensemble_actions(): return []", NO_MARK),
    "misspelt and unmarked hook": (
        "def ensemble_trigger(): return []",
        "did you mean 'ensemble_triggers'?",
    ),
    "no hook": ("x = 1", "no hook found"),
    "hook of another project": (
        "import pluggy\n\n@pluggy.HookimplMarker('pytest')\ndef ensemble_actions(): return []",
        NO_MARK,
    ),
    "bad signature": (
        HOOK.replace("()", "(config)") + "return []",
        "ensemble_actions(config); Argument(s) {'config'} are declared in the hookimpl but",
    ),
    "hook raises": (
        HOOK + "raise ValueError('out of luck')",
        "ensemble_actions raised ValueError: out of luck (SITE/ensemble_bad.py:5)",
    ),
    "generator hook raises": (
        HOOK + "yield 1 / 0",
        "ZeroDivisionError: division by zero (SITE/ensemble_bad.py:5)",
    ),
    "hook returns nothing": (
        HOOK + "pass",
        "ensemble_actions returned None, expected a list of ActionPlugin records",
    ),
    "hook returns text": (HOOK + "return 'ping'", "ensemble_actions returned a str, expected"),
    "hook is async": (
        HOOK.replace("def", "async def") + "return []",
        "ensemble_actions returned a coroutine",
    ),
    "record of another kind": (
        HOOK + "return [StatisticPlugin(name='x', summary='x', build=lambda options: None)]",
        "ensemble_actions returned a StatisticPlugin in its list",
    ),
    "one record without a list": (
        HOOK + "return ActionPlugin(name='x', summary='x', run=print)",
        "ensemble_actions returned one ActionPlugin",
    ),
    "record with an unknown field": (
        HOOK + "return [ActionPlugin(name='x', sumary='x', run=print)]",
        "sumary",
    ),
    "same name twice": (
        HOOK + "return [ActionPlugin(name='x', summary='x', run=print) for _ in range(2)]",
        "ensemble_actions returned two actions named 'x'",
    ),
    "hook exits": (
        HOOK + "raise SystemExit(3)",
        "ensemble_actions raised SystemExit: it tried to exit the program (exit code 3)",
    ),
    "hook under another name that is misspelt": (
        HOOK.replace("@hookimpl", "@hookimpl(specname='ensemble_acton')") + "return []",
        "no hook 'ensemble_acton'; did you mean 'ensemble_actions'?",
    ),
    "hook wrapper that is no generator": (
        HOOK.replace("@hookimpl", "@hookimpl(wrapper=True)") + "return []",
        "ensemble_actions(); Declared as wrapper=True or hookwrapper=True but function is not",
    ),
    "hook wrapper": (
        HOOK.replace("@hookimpl", "@hookimpl(wrapper=True)") + "return (yield)",
        "ensemble_actions is a hook wrapper",
    ),
}


@pytest.mark.parametrize("fault", BROKEN)
@pytest.mark.filterwarnings("error")
def test_broken_plugin_is_listed_with_its_reason(site: Site, fault: str) -> None:
    source, reason = BROKEN[fault]
    site.install("ensemble-bad", source)
    site.install("ensemble-good", ACTION.format(name="good", summary="works"))
    registry = discover()
    plugin = found(registry, "ensemble-bad")
    assert plugin.error is not None
    assert reason.replace("SITE", str(site.folder)) in plugin.error
    assert "\n" not in plugin.error
    assert plugin.records == {}
    said = [text for text in registry.warnings if "ensemble-bad" in text]
    assert len(said) == 1
    assert plugin.error in said[0]
    assert "good" in registry.actions
    assert "submit" in registry.actions


def test_hooks_under_other_names_are_called_and_optional_ones_may_be_unknown(site: Site) -> None:
    site.install(
        "ensemble-other",
        """
        from ensemble_core import ActionPlugin, StatisticPlugin, hookimpl

        @hookimpl(specname="ensemble_actions")
        def actions(more=()):
            return [ActionPlugin(name="other", summary="x", run=lambda context: None)]

        @hookimpl(specname="ensemble_statistics")
        def statistics():
            return [StatisticPlugin(name="other", summary="x", build=lambda options: None)]

        @hookimpl(optionalhook=True)
        def ensemble_of_a_later_version(argument):
            raise AssertionError
        """,
    )
    registry = discover()
    plugin = found(registry, "ensemble-other")
    assert plugin.error is None
    assert {"action", "statistic"} == set(plugin.records)


def test_broken_plugin_is_unregistered(site: Site) -> None:
    site.install(
        "ensemble-first",
        """
        from ensemble_core import ActionPlugin, hookimpl

        class Plugin:
            works = False

            @hookimpl
            def ensemble_actions(self):
                if not self.works:
                    self.works = True
                    raise RuntimeError("not yet")
                return [ActionPlugin(name="late", summary="x", run=lambda context: None)]

        plugin = Plugin()
        """,
        entry_points="[ensemble]\na = ensemble_first:plugin\nb = ensemble_first:plugin\n",
    )
    registry = discover()
    assert [plugin.name for plugin in registry.broken] == ["a"]
    assert "late" in registry.actions


@pytest.mark.parametrize("source", ["None", "3", "type('Odd', (), {'x': property(print)})()"])
def test_entry_point_without_hooks_is_reported(site: Site, source: str) -> None:
    site.install(
        "ensemble-odd", f"odd = {source}\n", entry_points="[ensemble]\na = ensemble_odd:odd\n"
    )
    assert "no hook found" in (found(discover(), "ensemble-odd").error or "")


def test_two_entry_points_with_the_same_name_are_two_plugins(site: Site) -> None:
    for name in ("one", "two"):
        source = textwrap.dedent(ACTION.format(name=name, summary="x"))
        (site.folder / f"ensemble_{name}.py").write_text(source)
    lines = "[ensemble]\nsame = ensemble_one\nsame = ensemble_two\n"
    site.install("ensemble-both", None, entry_points=lines)
    assert {"one", "two"} <= set(discover().actions)


RECORDS: dict[str, tuple[str, str]] = {
    "capital name": ("Action(name='Ping', run=f)", "'Ping' cannot be"),
    "name with colon": ("Action(name='a:b', run=f)", "'a:b' cannot be"),
    "name no text": ("Action(name=3, run=f)", "3 cannot be"),
    "empty summary": ("Action(summary=' ', run=f)", "one line of text"),
    "long summary": ("Action(summary='a\\nb', run=f)", "one line of text"),
    "neither": ("Action()", "neither of the functions 'run' and 'plan'"),
    "both": ("Action(run=f, plan=g)", "both of the functions 'run' and 'plan'"),
    "run without argument": ("Action(run=h)", "called with (context)"),
    "run no function": ("Action(run=3)", "expected a function"),
    "plan too short": ("Action(plan=f)", "called with (firing, opt"),
    "unknown need": ("Action(run=f, needs=frozenset({'grow'}))", "unknown capability 'grow'"),
    "needs as text": ("Action(run=f, needs='resize')", "a set of n"),
    "unknown capability": (
        "Executor(build=f, capabilities=frozenset('submit'))",
        "; known: avoid, cancel, detach, reattach, resize, signal, submit",
    ),
    "schema no mapping": ("Action(run=f, options=[])", "JSON Schema"),
    "schema of a wrong type": (
        "Action(run=f, options={'type': 'array'})",
        "has the type 'array', expected 'object'",
    ),
    "schema invalid": ("Action(run=f, options={'properties': {'a': 3}})", "is not valid"),
    "schema one level too high": (
        "Action(run=f, options={'message': {'type': 'string'}})",
        "'message' is not a keyword",
    ),
    "schema not JSON": ("Action(run=f, options={'default': {1, 2}})", "is not JSON"),
    "schema elsewhere": (
        "Action(run=f, options={'not': {'$ref': 'http://a.org/a'}})",
        "another document",
    ),
    "requires what is not there": (
        "Action(run=f, options={'required': ['a']})",
        "'a' under 'required'",
    ),
    "statistic called count": (
        "Statistic(name='count', build=f)",
        "'count' cannot be the name of a statistic",
    ),
    "statistic with a dot": ("Statistic(name='a.b', build=f)", "'a.b' cannot"),
    "trigger build too short": ("Trigger(build=f)", "(name, options)"),
    "trigger name means": ("Trigger(build=g, name_means='job')", "'name_means' is 'job'"),
    "trigger about": ("Trigger(build=g, about='job-over')", "'about' is 'job-over'"),
    "observer build missing": ("Observer(build=None)", "'build' is"),
}


@pytest.mark.parametrize("fault", RECORDS)
def test_bad_record_breaks_its_plugin(site: Site, fault: str) -> None:
    record, reason = RECORDS[fault]
    kind, _, fields = record.partition("(")
    site.install(
        "ensemble-bad",
        f"""
        from ensemble_core import *

        def f(a): ...
        def g(a, b): ...
        def h(): ...
        def made(kind, **fields):
            return kind(**{{"name": "x", "summary": "x", **fields}})

        @hookimpl
        def ensemble_{kind.lower()}s():
            return [made({kind}Plugin, {fields}]
        """,
    )
    error = found(discover(), "ensemble-bad").error
    assert error is not None
    assert reason in error


def test_missing_object_and_wrong_entry_point_are_reported(site: Site) -> None:
    site.install("ensemble-a", "x = 1", entry_points="[ensemble]\na = ensemble_a:nothing\n")
    site.install("ensemble-b", "x = 1", entry_points="[ensemble]\nb = not a module!\n")
    registry = discover()
    assert "nothing" in (found(registry, "ensemble-a").error or "")
    assert found(registry, "ensemble-b").error


@pytest.mark.parametrize(
    ("content", "listed"),
    [
        (b"[ensemble]\nodd\n", True),
        (b"[other]\nodd\n", False),
        (b"\xff\xfe[ensemble]\nodd = odd\n", True),
        (b"[ensemble]\n= odd\n", True),
    ],
)
def test_unreadable_metadata_does_not_hide_other_plugins(
    site: Site, content: bytes, listed: bool
) -> None:
    site.install("ensemble-good", ACTION.format(name="good", summary="works"))
    site.install("odd", "")
    (site.folder / "odd-1.2.dist-info" / "entry_points.txt").write_bytes(content)
    registry = discover()
    assert "good" in registry.actions
    assert "submit" in registry.actions
    assert [plugin.error is not None for plugin in registry.plugins if plugin.version == "1.2"] == [
        False,
        *([True] if listed else []),
    ]


def test_an_object_can_be_a_plugin(site: Site) -> None:
    site.install(
        "ensemble-object",
        """
        from ensemble_core import ActionPlugin, hookimpl

        class Plugin:
            def __init__(self, name):
                self.name = name

            @hookimpl
            def ensemble_actions(self):
                return [ActionPlugin(name=self.name, summary="x", run=lambda context: None)]

        first, second = Plugin("first"), Plugin("second")
        """,
        entry_points="[ensemble]\na = ensemble_object:first\nb = ensemble_object:second\n",
    )
    registry = discover()
    assert {"first", "second"} <= set(registry.actions)


def test_misspelt_hook_beside_a_valid_one_causes_a_warning(site: Site) -> None:
    site.install(
        "ensemble-near",
        ACTION.format(name="near", summary="x") + "\n    def ensemble_trigger():\n        pass\n",
    )
    registry = discover()
    assert found(registry, "ensemble-near").error is None
    assert any("'ensemble_triggers'" in text for text in registry.warnings)


def test_two_entry_points_for_one_module_are_one_plugin(site: Site) -> None:
    site.install(
        "ensemble-twice",
        ACTION.format(name="twice", summary="x"),
        entry_points="[ensemble]\na = ensemble_twice\nb = ensemble_twice\n",
    )
    registry = discover()
    assert found(registry, "ensemble-twice").error is None
    assert registry.lookup("action", "twice").name == "twice"


def test_reexported_hooks_are_called_once(site: Site) -> None:
    site.install(
        "ensemble-inner",
        ACTION.format(name="inner", summary="x"),
        entry_points="[ensemble]\na = ensemble_inner\nb = ensemble_outer\n",
    )
    (site.folder / "ensemble_outer.py").write_text("from ensemble_inner import ensemble_actions\n")
    registry = discover()
    assert registry.lookup("action", "inner").name == "inner"
    assert [plugin.error for plugin in registry.plugins if "inner" in plugin.distribution] == [
        None,
        None,
    ]


def test_reexported_hook_of_a_broken_plugin_is_called(site: Site) -> None:
    site.install(
        "ensemble-inner",
        ACTION.format(name="inner", summary="x") + "\n    @hookimpl\n    def ensemble_x(): ...\n",
        entry_points="[ensemble]\na = ensemble_inner\nb = ensemble_outer\n",
    )
    (site.folder / "ensemble_outer.py").write_text("from ensemble_inner import ensemble_actions\n")
    registry = discover()
    assert registry.lookup("action", "inner").name == "inner"
    assert [plugin.error is None for plugin in registry.plugins if plugin.version == "1.2"] == [
        False,
        True,
    ]


def test_same_distribution_twice_on_the_path_does_not_clash(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = tmp_path / "editable"
    other.mkdir()
    site.install("ensemble-dup", ACTION.format(name="dup", summary="old"), version="1.0")
    Site(other).install("ensemble-dup", ACTION.format(name="dup", summary="new"), version="1.1")
    monkeypatch.syspath_prepend(other)
    registry = discover()
    assert found(registry, "ensemble-dup").version == "1.1"
    assert registry.lookup("action", "dup").summary == "new"


def test_same_distribution_twice_in_one_folder_does_not_clash(site: Site) -> None:
    site.install("ensemble-dup", ACTION.format(name="dup", summary="x"), version="1.0")
    site.install("ensemble-dup", None, version="1.1")
    assert discover().lookup("action", "dup").name == "dup"


def build_wheel(folder: Path) -> Path:
    """Return a wheel with one module."""
    files = {
        "ensemble_wheel.py": textwrap.dedent(ACTION.format(name="wheel", summary="from a wheel")),
        "ensemble_wheel-2.0.dist-info/METADATA": (
            "Metadata-Version: 2.1\nName: ensemble-wheel\nVersion: 2.0\n"
        ),
        "ensemble_wheel-2.0.dist-info/WHEEL": (
            "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        ),
        "ensemble_wheel-2.0.dist-info/entry_points.txt": "[ensemble]\nwheel = ensemble_wheel\n",
    }
    wheel = folder / "ensemble_wheel-2.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for name, text in files.items():
            archive.writestr(name, text)
    return wheel


def test_plugin_in_a_wheel_is_found_in_a_fresh_interpreter(tmp_path: Path) -> None:
    wheel = build_wheel(tmp_path)
    code = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "from ensemble_core.plugin.discovery import discover\n"
        "print(discover().lookup('action', 'wheel').summary)"
    )
    unpacked = tmp_path / "site"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(unpacked)
    for place in (wheel, unpacked):
        done = subprocess.run(
            [sys.executable, "-c", code, str(place)], capture_output=True, text=True, check=True
        )
        assert done.stdout == "from a wheel\n"


def test_discovery_is_deterministic(site: Site) -> None:
    for name in ("zeta", "alpha", "mid"):
        site.install(f"ensemble-{name}", ACTION.format(name=name, summary="x"))
    first, second = discover(), discover()
    assert [str(plugin) for plugin in first.plugins] == [str(plugin) for plugin in second.plugins]
    order = [plugin.distribution for plugin in first.plugins]
    assert (
        order.index("ensemble-alpha") < order.index("ensemble-mid") < order.index("ensemble-zeta")
    )
    assert order[0] == "ensemble-core"


def test_ctrl_c_while_plugins_load_is_not_swallowed(site: Site) -> None:
    site.install("ensemble-slow", "raise KeyboardInterrupt")
    with pytest.raises(KeyboardInterrupt):
        discover()


def clash(look: Callable[[], object]) -> PluginError:
    with pytest.raises(PluginError) as caught:
        look()
    assert caught.value.code == "plugin-clash"
    return caught.value


def test_name_clash_names_both_plugins_and_how_to_choose(site: Site) -> None:
    site.install("ensemble-foo", ACTION.format(name="nightly", summary="foo's"))
    site.install("ensemble_bar", ACTION.format(name="nightly", summary="bar's"))
    registry = discover()
    assert "nightly" not in registry.actions
    for look in (
        lambda: registry.lookup("action", "nightly"),
        lambda: registry.actions["nightly"],
        lambda: registry.actions.get("nightly"),
    ):
        said = str(clash(look))
        assert "ensemble-foo" in said
        assert "ensemble_bar" in said
        assert "'ensemble-foo:nightly'" in said
        assert "'ensemble-bar:nightly'" in said
    assert registry.lookup("action", "ensemble-foo:nightly").summary == "foo's"
    assert registry.lookup("action", "ensemble_bar:nightly").summary == "bar's"
    assert registry.lookup("action", "Ensemble.Bar:nightly").summary == "bar's"
    assert {"ensemble-foo:nightly", "ensemble-bar:nightly"} <= set(registry.actions)
    assert "claimed by" in registry.explain_missing("action", "nightly")
    assert not [text for text in registry.warnings if "nightly" in text]


def test_built_in_keeps_its_bare_name(site: Site) -> None:
    own = discover().lookup("action", "submit")
    site.install("ensemble-greedy", ACTION.format(name="submit", summary="mine"))
    registry = discover()
    assert registry.lookup("action", "submit").summary == own.summary
    assert registry.lookup("action", "ensemble-greedy:submit").summary == "mine"
    warned = [text for text in registry.warnings if "'ensemble-greedy:submit'" in text]
    assert len(warned) == 1
    assert "ensemble-greedy:submit" in set(registry.actions)


def test_distribution_that_claims_a_name_twice_is_reported(site: Site) -> None:
    site.install(
        "ensemble-pair",
        ACTION.format(name="pair", summary="one"),
        entry_points="[ensemble]\na = ensemble_pair\nb = ensemble_pair_more\n",
    )
    (site.folder / "ensemble_pair_more.py").write_text(
        textwrap.dedent(ACTION.format(name="pair", summary="two"))
    )
    registry = discover()
    for name in ("pair", "ensemble-pair:pair"):
        said = str(clash(partial(registry.lookup, "action", name)))
        assert "ensemble_pair_more" in said
        assert "ensemble-pair" in said


def test_records_of_different_kinds_may_share_a_name(site: Site) -> None:
    site.install("ensemble-one", ACTION.format(name="local", summary="an action"))
    registry = discover()
    assert registry.lookup("action", "local").summary == "an action"


def test_every_listed_name_can_be_looked_up(site: Site) -> None:
    site.install("ensemble-foo", ACTION.format(name="nightly", summary="foo's"))
    site.install("ensemble-bar", ACTION.format(name="nightly", summary="bar's"))
    site.install("ensemble-greedy", ACTION.format(name="submit", summary="mine"))
    actions = discover().actions
    assert len(list(actions)) == len(set(actions)) == len(actions)
    for name in actions:
        assert name in actions
        assert actions[name].name == name.rpartition(":")[2]
    records = [id(actions[name]) for name in actions.names]
    assert len(records) == len(set(records))


def test_unknown_name_suggests_the_most_similar_one(site: Site) -> None:
    site.install("ensemble-ping", ACTION.format(name="ping", summary="x"))
    registry = discover()
    with pytest.raises(EnsembleError) as caught:
        registry.lookup("action", "pinng")
    assert caught.value.code == "no-such-action"
    assert "did you mean 'ping'?" in (caught.value.hint or "")
    assert "did you mean 'job-cancel'?" in registry.explain_missing("trigger", "job-cnacel")


@pytest.mark.parametrize(
    ("required", "met"),
    [
        (">=77.0", False),
        ("<3,>=77", False),
        (" (>=77.0)", False),
        ("==77.*", False),
        ("~=77.0", False),
        ("<1", False),
        ("!=1.*,!=2.*", False),
        ("", True),
        (">=1.0,<2", True),
        ("~=1.0", True),
        ("==1.*", True),
        (">=0.9.3", True),
        ("!=0.8", True),
        (">=77; extra == 'all'", True),
        ("[parquet]>=77", True),
        (" @ https://example.org/core.whl", True),
        ("-extras>=77", True),
        (">=seventy", True),
    ],
)
def test_a_plugin_for_another_version_of_the_core_is_listed_as_broken(
    site: Site, required: str, met: bool
) -> None:
    source = ACTION.format(name="late", summary="x") if met else "from ensemble_core import Later"
    site.install("ensemble-late", source, requires=f"Requires-Dist: Ensemble_Core{required}")
    registry = discover()
    plugin = found(registry, "ensemble-late")
    if met:
        assert plugin.error is None
        return
    needs = f"ensemble-core{required.strip(' ()')}"
    assert (
        plugin.error
        == f"ensemble-late 1.2 needs {needs}, but {ensemble_core.__version__} is installed"
    )
    with pytest.raises(PluginError) as caught:
        registry.lookup("action", "late")
    assert plugin.error in str(caught.value.hint)


def test_unknown_name_mentions_broken_plugins(site: Site) -> None:
    site.install("ensemble-bad", "import no_such_module_anywhere")
    hint = discover().explain_missing("action", "frobnicate")
    assert "plugin 'ensemble-bad' of ensemble-bad 1.2 is broken" in hint
    assert "no_such_module_anywhere" in hint


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make an uninstalled plugin known."""
    file = tmp_path / "known.json"
    file.write_text(
        '{"ensemble-cluster": {"install": "ensemble-cluster", "executor": ["cluster"]}}'
    )
    monkeypatch.setattr(distributions, "FILE", file)


@pytest.mark.usefixtures("elsewhere")
def test_hint_names_a_known_plugin_that_is_not_installed() -> None:
    hint = discover().explain_missing("executor", "cluster")
    assert "pip install ensemble-cluster" in hint


@pytest.mark.usefixtures("elsewhere")
@pytest.mark.parametrize("editable", [True, False])
def test_install_hint_works_from_a_checkout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, editable: bool
) -> None:
    home = tmp_path / "a check%out"
    plugin = home / "plugins" / "ensemble-cluster"
    plugin.mkdir(parents=True)
    (plugin / "pyproject.toml").write_text(
        "[tool.uv.sources]\n"
        "ensemble-core = { workspace = true }\nensemble-rack = { workspace = true }\n"
    )
    origin: dict[str, object] = {"url": home.as_uri(), "dir_info": {"editable": editable}}
    core = SimpleNamespace(read_text=lambda name: json.dumps(origin))
    monkeypatch.setattr(importlib.metadata, "distribution", lambda name: core)
    monkeypatch.chdir(home)
    hint = discover().explain_missing("executor", "cluster")
    assert "pip install ./plugins/ensemble-rack ./plugins/ensemble-cluster" in hint
    (tmp_path / "other").mkdir()
    monkeypatch.chdir(tmp_path / "other")
    assert f"'{home}/plugins/ensemble-cluster'" in discover().explain_missing("executor", "cluster")
    origin["url"] = f"{home.as_uri()}/dist/ensemble_core-1.0.0-py3-none-any.whl"
    assert "pip install ensemble-cluster" in discover().explain_missing("executor", "cluster")


@pytest.mark.usefixtures("elsewhere")
def test_hint_does_not_reinstall_a_broken_plugin(
    site: Site,
) -> None:
    site.install("ensemble-cluster", "import no_such_cluster")
    hint = discover().explain_missing("executor", "cluster")
    assert "pip install" not in hint
    assert "ensemble-cluster 1.2 is broken" in hint
    assert "no_such_cluster" in hint


def test_executor_record_returns_an_installed_executor(site: Site) -> None:
    site.install("ensemble-cluster", EXECUTOR)
    assert executor_record("elsewhere").summary == "runs elsewhere"
    assert executor_record("ensemble-cluster:elsewhere").summary == "runs elsewhere"
    assert executor_record is ensemble_core.executor_record
    with pytest.raises(PluginError, match="no executor 'elsewere'") as caught:
        executor_record("elsewere")
    assert "'elsewhere'" in str(caught.value.hint)
    site.install("ensemble-other", EXECUTOR)
    with pytest.raises(PluginError, match="claimed by ensemble-cluster and by ensemble-other"):
        executor_record("elsewhere")


def test_observer_record_returns_a_built_in_observer(site: Site) -> None:
    assert ensemble_core.observer_record("regex").name == "regex"
    with pytest.raises(PluginError, match="regexp"):
        ensemble_core.observer_record("regexp")


def test_executor_record_finds_plugin_files_while_an_executor_is_built(site: Site) -> None:
    file = site.folder / "there.py"
    file.write_text(textwrap.dedent(EXECUTOR))
    with pytest.raises(PluginError, match="no executor 'elsewhere'"):
        executor_record("elsewhere")
    with use_registry(discover([file])):
        assert executor_record("elsewhere").summary == "runs elsewhere"
        assert executor_record("there:elsewhere").summary == "runs elsewhere"
    with pytest.raises(PluginError, match="no executor 'elsewhere'"):
        executor_record("elsewhere")


#: The exception of Python before 3.12 for a Ctrl-C during the creation of a class.
CTRL_C = "raise RuntimeError('in a class') from KeyboardInterrupt()"


@pytest.mark.parametrize(
    "source",
    [
        CTRL_C,
        f"from ensemble_core import hookimpl\n\n@hookimpl\ndef ensemble_actions():\n    {CTRL_C}\n",
    ],
)
def test_ctrl_c_during_a_load_is_not_reported_as_a_broken_plugin(site: Site, source: str) -> None:
    file = site.folder / "there.py"
    file.write_text(source)
    with pytest.raises(KeyboardInterrupt):
        discover([file])
    site.install("cut-off", source)
    with pytest.raises(KeyboardInterrupt):
        discover()
