"""Profiles: named settings of a site or user, which an ensemble file need not repeat.

A profile has the executor, its options, and defaults of all job groups, ``pilots:`` and
``limits:``. The configuration files of the site and of the user define profiles.
:func:`read_profile` combines what they say about one profile, and :func:`apply_profile` fills its
defaults into the data of an ensemble file before the file is checked. Each value keeps the position
where it was written.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Any

from ensemble_core.config.context import Context, Known
from ensemble_core.config.document import Document, Path, shown
from ensemble_core.config.limits import WHOLE_RUN
from ensemble_core.config.schema import PROFILE_FIELDS, Validators
from ensemble_core.config.schema_check import check_shape
from ensemble_core.config.yaml_reader import read_document
from ensemble_core.errors import EnsembleError, FileErrors, Location, UsageError, did_you_mean
from ensemble_core.model.codec import NOTHING
from ensemble_core.model.option_values import merged, nodes
from ensemble_core.plugin.registry import Registry
from ensemble_core.quick_dataclass import dataclass, replace

#: The name that switches profiles off.
NO_PROFILE = "none"


@dataclass(frozen=True, slots=True)
class Profile:
    """A profile: its values and, by path, where each was written and how it was spelled."""

    name: str
    executor: str | None = None
    options: Mapping[str, Any] = field(default_factory=lambda: NOTHING)
    jobs: Mapping[str, Any] = field(default_factory=lambda: NOTHING)
    limits: Mapping[str, Any] = field(default_factory=lambda: NOTHING)
    pilots: Mapping[str, Any] = field(default_factory=lambda: NOTHING)
    places: Mapping[Path, tuple[Location, str | None]] = field(default_factory=dict)

    def at(self, *path: str) -> Location | None:
        """Return the position of a value, or of the nearest mapping around it."""
        for length in range(len(path), 0, -1):
            if path[:length] in self.places:
                return self.places[path[:length]][0]
        return None

    def described(self) -> dict[str, Any]:
        """Return the profile as JSON data, for the journal."""
        return {
            "name": self.name,
            "jobs": dict(self.jobs),
            "limits": dict(self.limits),
            "pilots": dict(self.pilots),
            "places": [[[*path], *place[:3], how] for path, (place, how) in self.places.items()],
        }

    @classmethod
    def from_journal(cls, data: Mapping[str, Any] | None) -> Profile | None:
        """Return the profile that a journal describes. Its files may have changed since."""
        if not data:
            return None
        places: dict[Path, tuple[Location, str | None]] = {
            tuple(path): (Location(file, line, column, quoted=False), how)
            for path, file, line, column, how in data["places"]
        }
        parts = {part: data.get(part, NOTHING) for part in ("jobs", "limits", "pilots")}
        return cls(data["name"], **parts, places=places)


def read_config(text: str, file: str, registry: Registry) -> Document:
    """Parse a configuration file and check everything but its profiles.

    Each profile is checked when it is used, because it may need plugins that others have not
    installed. Raises :class:`FileErrors`.
    """
    try:
        document = read_document(text, file)
    except FileErrors as errors:
        if errors.errors[0].code != "empty-file":
            raise
        return Document({}, file, text)  # perhaps all lines are comments
    context = Context(document, Validators(registry), None, Known())
    check_shape(context, "config")
    if not context.errors and NO_PROFILE in (document.get(("profiles",)) or {}):
        path = ("profiles", NO_PROFILE)
        context.report(
            path,
            f"a profile cannot have the name {NO_PROFILE!r}",
            hint=f"choose another name: '--profile {NO_PROFILE}' uses no profile",
            code="bad-name",
            where=document.at_key(path),
        )
    for name, profile in (document.get(("profiles",)) or {}).items():
        if isinstance(profile, dict) and "default" in profile:
            context.report(
                ("profiles", name, "default"),
                f"the profile {shown(name)} cannot say that it is the default",
                hint=f"write 'default: {name}' beside 'profiles:'",
                code="unknown-key",
                where=document.at_key(("profiles", name, "default")),
            )
    if context.errors:
        raise FileErrors(context.errors)
    return document


def profile_names(files: Sequence[Document]) -> list[str]:
    """Return the names of all profiles in these files."""
    return list(dict.fromkeys(n for each in files for n in each.get(("profiles",)) or {}))


def default_profile(files: Sequence[Document]) -> tuple[str | None, Location | None]:
    """Return the name of the default profile and where it is set. Later files take precedence."""
    for document in reversed(files):
        if "default" in document.data:
            return document.data["default"], document.at(("default",))
    return None, None


def read_profile(
    name: str, files: Sequence[Document], registry: Registry, where: Location | None = None
) -> Profile:
    """Combine what the files say about a profile. Values of later files take precedence.

    ``where`` is the position at which the profile is named. Raises :class:`FileErrors` if a file
    has errors in this profile, and :class:`UsageError` if no file has the profile.
    """
    at: Path = ("profiles", name)
    having = [each for each in files if name in (each.get(("profiles",)) or {})]
    if not having:
        known = profile_names(files)
        listed = f"known profiles: {', '.join(known)}" if known else "no profile is defined"
        hint = did_you_mean(name, known, listed)
        if hint != listed and known:
            hint = f"{hint}; {listed}"
        raise UsageError(
            f"there is no profile {shown(name)}", where=where, hint=hint, code="no-such-profile"
        )
    errors: list[EnsembleError] = []
    values: dict[str, Any] = {}
    for document in having:
        context = Context(document, Validators(registry), None, Known())
        check_shape(context, "profile", at)
        errors += context.errors
        if not context.errors:
            values = _merged(values, document.get(at) or {}, ("jobs", "within"))
    if errors:
        raise FileErrors(errors)
    places: dict[Path, tuple[Location, str | None]] = {}
    for path, _ in nodes(values):
        for document in having:
            place = document.at((*at, *path))
            if place is not None and document.get((*at, *path)) is not None:
                places[path] = (place, document.spelled.get((*at, *path)))
    profile = Profile(
        name,
        values.get("executor"),
        values.get("options", NOTHING),
        values.get("jobs", NOTHING),
        values.get("limits", NOTHING),
        values.get("pilots", NOTHING),
        places,
    )
    if profile.options and profile.executor is None:
        raise UsageError(
            f"profile {name!r} has options of an executor, but no executor",
            where=profile.at("options"),
            hint="add 'executor: NAME' to the profile; options of job groups go under 'jobs:'",
            code="missing-key",
        )
    if profile.executor is not None and profile.executor not in registry.executors:
        raise UsageError(
            f"there is no executor {profile.executor!r}",
            where=profile.at("executor"),
            hint=registry.explain_missing("executor", profile.executor),
            code="no-such-executor",
        )
    return profile


def apply_profile(context: Context, profile: Profile | None) -> None:
    """Fill a profile's defaults into the job groups, pilots and limits of a file.

    Values of the file take precedence. Null in the file removes a value of the profile. Without
    such a value, null has no effect, so that a file can be used with and without the profile.
    """
    document = context.document
    defaults = Profile("") if profile is None else profile
    entries = document.data.get("jobs")
    for number, entry in enumerate(entries if isinstance(entries, list) else ()):
        if isinstance(entry, dict):
            given = {name: entry[name] for name in PROFILE_FIELDS if name in entry}
            _fill(context, ("jobs", number), entry, given, defaults, "jobs")
    pilots = document.data.get("pilots")
    if defaults.pilots and pilots is None:
        pilots = document.data["pilots"] = {}
    if isinstance(pilots, dict):
        _fill(context, ("pilots",), pilots, dict(pilots), defaults, "pilots")
    limits = document.data.get("limits")
    if defaults.limits and limits is None:
        limits = document.data["limits"] = {}
    if isinstance(limits, dict):
        most = defaults.limits.get("at_once")
        if isinstance(limits.get("at_once"), dict) and isinstance(most, int):
            # The profile's limit on the whole run holds together with limits that groups share.
            place = defaults.places.get(("limits", "at_once"))
            more = {} if place is None else {("limits", "at_once", WHOLE_RUN): place}
            defaults = replace(
                defaults,
                limits={**defaults.limits, "at_once": {WHOLE_RUN: most}},
                places={**defaults.places, **more},
            )
        _fill(context, ("limits",), limits, dict(limits), defaults, "limits")


def _fill(
    context: Context,
    at: Path,
    target: dict[str, Any],
    given: Mapping[str, Any],
    profile: Profile,
    part: str,
) -> None:
    defaults: Mapping[str, Any] = getattr(profile, part)
    removed = [path for path, value in nodes(given) if value is None]
    if not defaults and not removed:
        return
    document = context.document
    for path in removed:
        # An empty mapping, as in 'environment:', has always been allowed.
        if _get(defaults, path) is None and path not in (("environment",), ("options",)):
            name = ".".join(path)
            context.warnings.append(
                f"{document.at_key((*at, *path))}: {name!r} is empty, which has no effect: it only "
                "removes a value of a profile"
            )
    result = _merged(defaults, given, ("within",))
    for name in given:
        target.pop(name, None)
    target.update(result)
    for path, value in nodes(result):
        if _get(given, path) is None and value is not None:
            whole: Path = (*at, *path)
            place = profile.places.get((part, *path))
            if place is not None:
                document.overrides[whole] = place[0]
                document.spelled.pop(whole, None)
                if place[1] is not None:
                    document.spelled[whole] = place[1]


def _merged(base: Mapping[str, Any], changes: Mapping[str, Any], whole: Path) -> dict[str, Any]:
    """Merge the changes. The value at the path ``whole`` is replaced: its order matters."""
    if _get(changes, whole) is None:
        return merged(base, changes)
    nothing: Any = None
    for step in reversed(whole):
        nothing = {step: nothing}
    return merged(merged(base, nothing), changes)


def _get(value: Mapping[str, Any], path: Path) -> Any:
    here: Any = value
    for step in path:
        here = here.get(step) if isinstance(here, Mapping) else None
    return here
