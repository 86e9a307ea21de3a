"""Generates charts and tables of the page "Performance" from ``docs/performance.json``.

    python scripts/performance.py [--check]

Writes ``docs/pictures/performance-*.svg`` and the tables of ``docs/performance.md`` between
``<!-- NAME -->`` and ``<!-- end -->``. ``--check`` writes nothing; the exit code is 1 if a
table differs from the JSON. The JSON comes from ``benchmarks/peers``, its ``pilots.py``, and
``benchmarks/scale.py``.
"""

from __future__ import annotations

import argparse
import importlib
import json
import re
import statistics
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from ensemble_plot.drawing import figure_bytes, new_figure
from matplotlib.figure import Figure

ROOT = Path(__file__).resolve().parents[1]
FIGURES = ROOT / "docs" / "performance.json"
PAGE = ROOT / "docs" / "performance.md"
PICTURES = ROOT / "docs" / "pictures"
OURS, THEIRS = "#0072B2", "#bbbbbb"
COLOURS = ("#0072B2", "#D55E00", "#009E73")
RULES = (0, 10, 100, 1_000)
#: Figures of the tables: work, figure, heading, and the format of a value.
COLUMNS: dict[str, tuple[tuple[str, str, str], ...]] = {
    "a": (
        ("cpu_per_job_ms", "CPU ms per job", ".2f"),
        ("per_job_ms", "wall ms per job", ".1f"),
        ("start_cpu", "CPU s to start and end", ".2f"),
    ),
    "b": (("utilisation", "share of the slots' time", ".3f"),),
    "c": (("reaction_ms", "ms, median of the chain", ".1f"), ("worst_ms", "ms, longest", ".0f")),
    "d": (
        ("cpu_per_job_ms", "CPU ms per job", ".2f"),
        ("wall", "wall s", ".0f"),
        ("peak_mb", "MB, peak of the controller", ".0f"),
    ),
    "e": (
        ("continues", "s until a new job begins", ".2f"),
        ("again", "jobs begun twice", ".0f"),
        ("lost", "jobs lost", ".0f"),
    ),
    "g": tuple((f"us_{count}", f"µs with {count:,} rules", ".3g") for count in RULES),
    "pilots jobs": (
        ("cpu_per_job_ms", "CPU ms per job", ".2f"),
        ("per_second", "jobs per second", ".0f"),
    ),
    "pilots busy": (("utilisation", "share of the slots' time", ".3f"),),
    "pilots hours": (("requested_per_used", "core-hours of allocations / of jobs", ".2f"),),
    "pilots reaction": (("reaction_ms", "ms", ".1f"),),
    "pilots nodes": tuple((f"us_{count}", f"{count:,} nodes", ".0f") for count in (10, 100, 1_000)),
}

Data = dict[str, Any]


def values(data: Data, work: str, figure: str) -> dict[str, list[float]]:
    """Return the values of a figure in all rounds, by peer, ordered by median."""
    found: dict[str, list[float]] = {}
    for one in data["works"][work]["rounds"]:
        for name, measured in one.items():
            if figure in measured:
                found.setdefault(name, []).append(measured[figure])
    return dict(sorted(found.items(), key=lambda pair: statistics.median(pair[1])))


# -- tables ----------------------------------------------------------------------------------------


def work_table(data: Data, work: str) -> Iterator[str]:
    """Return a row for each peer: the median of each figure, with minimum and maximum."""
    if work not in data["works"]:
        yield "Not measured yet."
        return
    columns = COLUMNS[work]
    yield "| | " + " | ".join(heading for _, heading, _ in columns) + " |"
    yield "|---" * (len(columns) + 1) + "|"
    by_figure = {figure: values(data, work, figure) for figure, _, _ in columns}
    names = dict.fromkeys(name for found in by_figure.values() for name in found)
    for name in names:
        cells = []
        for figure, _, form in columns:
            all_of = by_figure[figure].get(name)
            if not all_of:
                cells.append("")
                continue
            middle, low, high = statistics.median(all_of), min(all_of), max(all_of)
            spread = f" ({low:{form}}–{high:{form}})" if len(all_of) > 1 else ""
            cells.append(f"{middle:{form}}{spread}")
        yield f"| {name} | " + " | ".join(cells) + " |"
    measured = data["works"][work]
    yield ""
    rounds = len(measured["rounds"])
    least = min(len(found) for found in next(iter(by_figure.values())).values())
    slots = "" if work.startswith("pilots") else f"{measured['slots']} slots, "  # always 16
    yield (
        f"{measured['size']:,} jobs, {slots}{rounds} "
        f"round{'s' * (rounds > 1)}"
        + (f" (at least {least} of each)" if least < rounds else "")
        + f", load {measured['load'][0]:.0f}."
    )


def scale_table(data: Data) -> Iterator[str]:
    yield "| | size | jobs | s to read the file | s to play | µs per event | MB, peak |"
    yield "|---|---|---|---|---|---|---|"
    for one in data["scale"]["points"]:
        yield (
            f"| {one['curve']} | {one['size']:,} | {one['jobs']:,} | {one['read_seconds']:.2f} | "
            f"{one['play_seconds']:.2f} | {one['us_per_event']:.1f} | {one['peak_mb']:.0f} |"
        )
    for line in data["scale"]["left_out"]:
        yield f"\nNot run: {line}."


def machine_table(data: Data) -> Iterator[str]:
    machine = data["machine"]
    yield "| | |"
    yield "|---|---|"
    yield f"| processor | {machine['processor']}, {machine['cores']} cores |"
    yield f"| memory | {machine['memory_gb']} GB |"
    yield f"| system | {machine['system']}, Python {machine['python']} |"
    dates = sorted({work["date"] for work in data["works"].values()})
    yield f"| date | {' to '.join(dict.fromkeys((dates[0], dates[-1])))} |"
    versions = [f"{name} {version}" for name, version in data["versions"].items() if version]
    yield f"| versions | {', '.join(versions)} |"
    for name, why in data["skipped"].items():
        yield f"| skipped | {name}: {why} |"


def peers_table(data: Data) -> Iterator[str]:
    """Return how each peer was set up, from the benchmark's files."""
    sys.path.insert(0, str(ROOT / "benchmarks" / "peers"))
    yield "| peer | how it was set up | output of jobs | durable |"
    yield "|---|---|---|---|"
    about = [
        importlib.import_module(path.stem).PEER
        for path in sorted((ROOT / "benchmarks" / "peers").glob("run_*.py"))
    ]
    for peer in about:
        yield f"| {peer.name} | {peer.settings} | {peer.output} | {peer.durable} |"
    yield ""
    for peer in about:
        if peer.objection:
            yield f"- **{peer.name}**: “{peer.objection}” {peer.answer}"


def left_out_table(data: Data) -> Iterator[str]:
    page = PAGE.read_text("utf-8")
    sections: dict[tuple[str, str], list[str]] = {}
    for work, measured in data["works"].items():
        section = re.findall(r"(?m)^## (.+)$", page.partition(f"<!-- {work} -->")[0])[-1]
        for name, why in measured["left_out"].items():
            sections.setdefault((name, why), []).append(f"“{section}”")
    for (name, why), of in sections.items():
        yield f"- {name} is not compared under {', '.join(dict.fromkeys(of))}: {why}"


TABLES: dict[str, Callable[[Data], Iterator[str]]] = {
    "machine": machine_table,
    "peers": peers_table,
    "left out": left_out_table,
    "scale": scale_table,
    **{work: lambda data, work=work: work_table(data, work) for work in COLUMNS},
}


def filled(page: str, data: Data) -> str:
    """Return the page with new tables."""

    def table(found: re.Match[str]) -> str:
        name = found[1]
        lines = "\n".join(TABLES[name](data))
        return f"<!-- {name} -->\n\n{lines}\n\n<!-- end -->"

    return re.sub(r"<!-- ([\w ]+) -->\n.*?<!-- end -->", table, page, flags=re.S)


# -- charts ----------------------------------------------------------------------------------------


def bars(data: Data, work: str, figure: str, label: str) -> Figure:
    """Draw a bar for each peer: the median, with a line from the minimum to the maximum."""
    found = values(data, work, figure)
    drawn = new_figure((6.4, 0.55 + 0.32 * len(found)))
    axes = drawn.subplots()
    for place, (name, all_of) in enumerate(found.items()):
        colour = OURS if name == "ensemble" else THEIRS
        middle = statistics.median(all_of)
        axes.barh(place, middle, color=colour, height=0.6)
        axes.plot([min(all_of), max(all_of)], [place, place], color="#222222", linewidth=1)
        axes.annotate(
            f"{middle:.3g}", (max(middle, *all_of), place), (4, 0), textcoords="offset points",
            va="center", fontsize=8.5,
        )  # fmt: skip
    axes.set_yticks(range(len(found)), list(found))
    axes.invert_yaxis()
    axes.set_xscale("log")
    axes.set_xlabel(label)
    axes.grid(visible=False, axis="y")
    axes.margins(x=0.12)
    return drawn


def lines(
    panels: Sequence[tuple[str, str, dict[str, list[tuple[float, float]]], bool]],
) -> Figure:
    """Draw panels side by side: axis labels, curves by name, and whether y is logarithmic."""
    drawn = new_figure((3.6 * len(panels) + 0.6, 3.0))
    for axes, (across, up, curves, logarithmic) in zip(
        drawn.subplots(1, len(panels), squeeze=False)[0], panels, strict=True
    ):
        for (name, points), colour in zip(curves.items(), COLOURS, strict=False):
            axes.plot(
                *zip(*points, strict=True), marker="o", markersize=4, color=colour, label=name
            )
        axes.set_xscale("log")
        if logarithmic:
            axes.set_yscale("log")
        else:
            axes.set_ylim(bottom=0)
        axes.set_xlabel(across)
        axes.set_ylabel(up)
        axes.legend(fontsize=8)
    return drawn


def rule_curves(data: Data) -> Figure:
    curves: dict[str, list[tuple[float, float]]] = {}
    for count in RULES:
        for name, all_of in values(data, "g", f"us_{count}").items():
            curves.setdefault(name, []).append((max(count, 1), statistics.median(all_of)))
    return lines([("rules (0 is shown at 1)", "µs of CPU time per event", curves, True)])


def scale_curves(data: Data) -> Figure:
    time: dict[str, list[tuple[float, float]]] = {}
    memory: dict[str, list[tuple[float, float]]] = {}
    for one in data["scale"]["points"]:
        time.setdefault(one["curve"], []).append((one["jobs"], one["us_per_event"]))
        memory.setdefault(one["curve"], []).append((one["jobs"], one["peak_mb"]))
    return lines(
        [
            ("jobs", "µs of CPU time per event", time, False),
            ("jobs", "MB, peak of the process", memory, True),
        ]
    )


CHARTS: dict[str, Callable[[Data], Figure]] = {
    "no-ops": lambda data: bars(data, "a", "cpu_per_job_ms", "CPU time of one /bin/true, ms"),
    "reaction": lambda data: bars(data, "c", "reaction_ms", "from a job's stamp to the next, ms"),
    "rules": rule_curves,
    "scale": scale_curves,
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument(
        "--check", action="store_true", help="write nothing; exit code 1 if a table is outdated"
    )
    options = parser.parse_args()
    data = json.loads(FIGURES.read_text("utf-8"))
    page = PAGE.read_text("utf-8")
    new = filled(page, data)
    if options.check:
        if new != page:
            print(
                f"{PAGE.relative_to(ROOT)} differs from {FIGURES.relative_to(ROOT)}: "
                "run scripts/performance.py",
                file=sys.stderr,
            )
        return int(new != page)
    for name, draw in CHARTS.items():
        file = PICTURES / f"performance-{name}.svg"
        file.write_bytes(figure_bytes(lambda draw=draw: draw(data), "svg"))
        print(file.relative_to(ROOT))
    PAGE.write_text(new, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
