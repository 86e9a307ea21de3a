"""Contract suite for generators, and a driver that calls a generator in place of a run."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar

from ensemble_core.cli.toolkit import option_defaults
from ensemble_core.model.generators import Exchange, Generator, Point, Variable, Vocs
from ensemble_core.plugin.hookspecs import GeneratorPlugin
from ensemble_core.plugin.untrusted_code import build_generator
from ensemble_testing.plugin_record import RecordContract

__all__ = ["GeneratorContract", "PlayedGenerator", "build_generator"]

#: Returns the values of a point, or ``None`` if it is lost.
Evaluate = Callable[[Mapping[str, Any]], Mapping[str, float] | None]


class PlayedGenerator:
    """Calls a generator as a run does. Points end in the order of their suggestion.

    Up to ``at_once`` points are evaluated at a time.
    """

    def __init__(self, build: Callable[[], Generator], vocs: Vocs, at_once: int = 1) -> None:
        self.generator = build()
        self.vocs = vocs
        #: All suggested points.
        self.points: list[Point] = []
        #: All calls of the generator.
        self.exchanges: list[Exchange] = []
        self._build = build
        self._at_once = at_once
        self._under_way: list[Point] = []
        self._over: list[Point] = []

    def play(self, calls: int, evaluate: Evaluate) -> list[Mapping[str, Any]]:
        """Make ``calls`` calls, or fewer if the generator is exhausted. Return the parameters of
        all points so far.
        """
        for _ in range(calls):
            told, self._over = tuple(self._over), []
            if told:
                self.generator.ingest(told)
            asked = self._at_once - len(self._under_way)
            found = list(self.generator.suggest(asked))
            assert len(found) <= asked, f"{len(found)} points, but only {asked} were requested"
            suggested = tuple(map(self._point, found))
            self.exchanges.append(Exchange(told, (), suggested))
            if not self._under_way:
                break
            point = self._under_way.pop(0)
            values = evaluate(point.parameters)
            point.state = "lost" if values is None else "done"
            point.values = values or {}
            self._over.append(point)
        return [point.parameters for point in self.points]

    def _point(self, found: Mapping[str, Any]) -> Point:
        parameters = {name: value for name, value in found.items() if name != "_id"}
        why = self.vocs.refused(parameters)
        assert why is None, why
        point = Point(number=len(self.points), parameters=parameters, tag=found.get("_id"))
        self.points.append(point)
        self._under_way.append(point)
        return point

    def learn(self, points: Iterable[Point]) -> None:
        """Report the points of another generator before the next call, as after a switch."""
        self._over += [point.copy_for("other") for point in points if point.state != "pending"]

    def renew(self) -> None:
        """Rebuild the generator and repeat all calls, as in a resumed run."""
        self.generator = self._build()
        self.generator.resume(list(self.exchanges))


class GeneratorContract(RecordContract):
    """Tests of a generator plugin. Subclass it in your own tests::

        class TestHalving(GeneratorContract):
            plugin = HALVING                 # your GeneratorPlugin
            vocs = Vocs(variables=(Variable(name="x", low=-1.0, high=1.0),),
                        objectives={"E": "minimize"})

    The method ``evaluate`` returns the values of a point. Set ``repeats`` to ``False`` if the
    generator may suggest different points after a resume.
    """

    plugin: ClassVar[GeneratorPlugin]
    vocs: ClassVar[Vocs] = Vocs(
        variables=(
            Variable(name="x", low=-5.0, high=5.0),
            Variable(name="y", low=0.001, high=10.0, log=True),
            Variable(name="n", low=2, high=8, step=2),
        ),
        objectives={"E": "minimize"},
    )
    calls: ClassVar[int] = 24
    repeats: ClassVar[bool] = True

    def evaluate(self, parameters: Mapping[str, Any]) -> Mapping[str, float]:
        """Return a parabola over all numeric variables, for every output of ``vocs``."""
        numbers = [float(each) for each in parameters.values() if not isinstance(each, str)]
        value = sum((each - 1.0) ** 2 for each in numbers)
        return dict.fromkeys(self.vocs.outputs, value)

    def _played_generator(self, at_once: int = 1, vocs: Vocs | None = None) -> PlayedGenerator:
        problem = vocs or self.vocs
        options = option_defaults(self.plugin.options, self.options)
        return PlayedGenerator(
            lambda: build_generator(self.plugin, problem, options, "run"), problem, at_once
        )

    def _values(self, vocs: Vocs) -> Evaluate:
        def values(parameters: Mapping[str, Any]) -> Mapping[str, float]:
            found = self.evaluate(parameters)
            missing = ", ".join(name for name in vocs.outputs if name not in found)
            assert not missing, f"the suite's method 'evaluate' returns no value for {missing}"
            return {name: found[name] for name in vocs.outputs}

        return values

    def test_generator_accepts_the_problem(self) -> None:
        if self.plugin.check is not None:
            self.plugin.check(self.vocs, option_defaults(self.plugin.options, self.options))

    def test_suggestions_are_valid_and_not_too_many(self) -> None:
        for at_once in (1, 3):
            assert self._played_generator(at_once).play(self.calls, self._values(self.vocs))

    def test_same_seed_and_results_give_the_same_points(self) -> None:
        values = self._values(self.vocs)
        assert self._played_generator(2).play(self.calls, values) == self._played_generator(2).play(
            self.calls, values
        )

    def test_lost_points_do_not_stop_the_generator(self) -> None:
        values = self._values(self.vocs)
        played = self._played_generator(2)
        before = len(played.play(4, lambda parameters: None))
        after = len(played.play(4, values))
        assert after >= before

    def test_suggested_values_are_plain_or_numpy(self) -> None:
        for point in self._played_generator().play(3, self._values(self.vocs)):
            for value in point.values():
                plain = value.item() if hasattr(value, "item") else value
                assert isinstance(plain, (int, float, str))

    def test_rebuilt_generator_continues_from_the_record(self) -> None:
        values = self._values(self.vocs)
        undisturbed = self._played_generator(2).play(self.calls, values)
        for stop in (1, self.calls // 2):
            played = self._played_generator(2)
            played.play(stop, values)
            played.renew()
            found = played.play(self.calls - stop, values)
            if self.repeats:
                assert found == undisturbed
            else:
                assert len(found) >= stop

    def test_points_of_another_generator_are_accepted(self) -> None:
        values = self._values(self.vocs)
        other = self._played_generator(2)
        other.play(6, values)
        played = self._played_generator(2)
        before = len(played.play(2, values))
        played.learn(other.points)
        found = played.play(4, values)
        assert len(found) >= before
        again = self._played_generator(2)
        again.play(2, values)
        again.learn(other.points)
        again.play(1, values)
        again.renew()
        if self.repeats:
            assert again.play(3, values) == found
