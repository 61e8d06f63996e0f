"""One HTML file with the numbers and their pictures, which needs nothing else: to be looked at, kept and passed on."""

import html
import importlib.util
import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from statistics import median
from typing import Any

from diptych.bench.load import Load
from diptych.bench.results import Result
from diptych.bench.verdict import Comparison, verdict
from diptych.errors import SetupError

_AGGREGATED = "#d97706"
_SPLITS = ("#2563eb", "#16a34a", "#7c3aed", "#be123c")
_PARTS = (
    ("prefill_queue_ms", "prefill queue", "#94a3b8"),
    ("prefill_ms", "prefill", "#2563eb"),
    ("kv_transfer_ms", "KV transfer", "#16a34a"),
    ("decode_queue_ms", "decode queue", "#d8b4fe"),
    ("first_step_ms", "first decode step", "#a855f7"),
    ("local_queue_ms", "queue, without KV transfer", "#fcd34d"),
    ("local_prefill_ms", "prefill, without KV transfer", "#d97706"),
    ("other_ms", "the rest", "#e2e8f0"),
)
_MOST_POINTS = 4000
_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 70rem; padding: 0 1rem; color: #111 }
table { border-collapse: collapse; margin: 1rem 0 } th, td { padding: .25rem .8rem; text-align: right }
th:first-child, td:first-child { text-align: left } thead th { border-bottom: 1px solid #999 }
.verdict { font-size: 1.15rem; background: #f1f5f9; padding: .8rem 1rem; white-space: pre-line }
.dim { color: #666 }
"""


def require_plotly() -> None:
    """
    Raises:
        SetupError: plotly, which draws the pictures, is not installed.
    """
    if importlib.util.find_spec("plotly") is None:
        raise SetupError(
            "The HTML report's pictures need plotly, which is not installed.", "pip install 'diptych[bench]'"
        )


def comparison_page(comparisons: Sequence[Comparison]) -> str:
    """The page of a comparison, over one or several rates."""
    last = comparisons[-1]
    figures = [
        ("Latency against rate", _against_rate(_series(comparisons), last.load)),
        *_of_runs({last.name: last.split[0], "aggregated": last.aggregated[0]}),
    ]
    title = f"{last.split[0].model}: split against aggregated"
    return _page(title, verdict(comparisons), map(_ratio_table, comparisons), figures, last.split[0])


def results_page(results: Sequence[Result]) -> str:
    """The page of one service's runs, at one or several rates."""
    last = results[-1]
    said = [f"{result.load}: {_percents(result)}" for result in results]
    doubts = dict.fromkeys(f"Doubtful: {doubt}." for result in results for doubt in result.doubts)
    rates = {_rate(result.load): (result,) for result in results}
    figures = _of_runs({last.topology: last})
    if len(rates) > 1:
        against = _against_rate({last.topology: (_SPLITS[0], rates)}, last.load)
        figures = [("Latency against rate", against), *figures]
    title = f"{last.model}: {last.topology}"
    return _page(title, "\n".join([*said, *doubts]), map(_result_table, results), figures, last)


def _of_runs(results: Mapping[str, Result]) -> list[tuple[str, Any]]:
    return [
        ("Where the time to first token goes (means)", _waterfall(results)),
        ("Gaps between tokens over time, with the prompts that arrived", _gaps_over_time(results)),
    ]


Series = Mapping[str, tuple[str, Mapping[float, tuple[Result, ...]]]]
"""Each set-up's colour, and its runs by rate."""


def _against_rate(series: Series, load: Load) -> Any:
    """TTFT, TPOT and ITL of each set-up over the rates, and goodput where there is an SLO."""
    from plotly.subplots import make_subplots

    measures = [("ttft", "p50"), ("ttft", "p99"), ("tpot", "p50"), ("itl", "p99")]
    has_slo = all(run.slo for _, runs in series.values() for same in runs.values() for run in same)
    titles = [f"{measure.upper()} {percent}, ms" for measure, percent in measures]
    figure = make_subplots(
        rows=1, cols=len(titles) + has_slo, subplot_titles=[*titles, *(["within the SLO"] * has_slo)]
    )
    for name, (colour, runs) in series.items():
        rates = sorted(runs)
        lines = [[_middle(runs[rate], measure, percent) for rate in rates] for measure, percent in measures]
        if has_slo:
            lines.append([median(each.goodput or 0.0 for each in runs[rate]) for rate in rates])
        for column, values in enumerate(lines, 1):
            figure.add_scatter(
                x=rates, y=values, name=name, row=1, col=column, mode="lines+markers", showlegend=column == 1,
                marker_color=colour,
            )  # fmt: skip
    figure.update_xaxes(title_text="requests/s" if load.rate is not None else "requests at once")
    figure.update_yaxes(rangemode="tozero")
    return figure


def _series(comparisons: Sequence[Comparison]) -> Series:
    found: dict[str, tuple[str, dict[float, tuple[Result, ...]]]] = {}
    for each in comparisons:
        colour = _SPLITS[len(found) % len(_SPLITS)]
        found.setdefault(each.name, (colour, {}))[1][_rate(each.load)] = each.split
    found["aggregated"] = _AGGREGATED, {_rate(each.load): each.aggregated for each in comparisons}
    return found


def _waterfall(results: Mapping[str, Result]) -> Any:
    """One bar per run, its parts one after the other; together they are the service's mean TTFT."""
    import plotly.graph_objects as plot

    figure = plot.Figure()
    means = [result.parts.summary()["ttft_parts_mean_ms"] for result in results.values()]
    for key, name, colour in _PARTS:
        values = [told[key] for told in means]
        if not any(values):
            continue
        figure.add_bar(y=list(results), x=values, name=name, orientation="h", marker_color=colour)
    figure.update_layout(barmode="stack", xaxis_title="ms", legend_traceorder="normal")
    figure.update_yaxes(autorange="reversed")
    return figure


def _gaps_over_time(results: Mapping[str, Result]) -> Any:
    """Every gap between two tokens at its time, thinned out, and a tick for each prompt that arrived."""
    import plotly.graph_objects as plot

    figure = plot.Figure()
    for name, result in results.items():
        points = _thinned([point for sample in result.answered for point in _gaps(sample)])
        colour = _AGGREGATED if name == "aggregated" else _SPLITS[0]
        figure.add_scatter(
            x=[at for at, _ in points], y=[gap for _, gap in points], mode="markers", name=name,
            marker={"size": 3, "opacity": 0.5, "color": colour},
        )  # fmt: skip
    arrivals = [sample.sent_s for sample in next(iter(results.values())).samples]
    figure.add_scatter(
        x=arrivals, y=[0.0] * len(arrivals), mode="markers", name="a prompt arrives",
        marker={"symbol": "line-ns-open", "size": 9, "color": "#111"},
    )  # fmt: skip
    figure.update_layout(xaxis_title="seconds", yaxis_title="ITL, ms")
    return figure


def _gaps(sample: Any) -> Iterable[tuple[float, float]]:
    at_s = sample.sent_s + (sample.ttft_ms or 0.0) / 1000
    for gap in sample.itl_ms:
        at_s += gap / 1000
        yield at_s, gap


def _thinned(points: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """At most `_MOST_POINTS`: the longest gaps all, of the rest every so-many-th."""
    if len(points) <= _MOST_POINTS:
        return points
    ordered = sorted(points, key=lambda point: point[1], reverse=True)
    longest, rest = ordered[: _MOST_POINTS // 4], ordered[_MOST_POINTS // 4 :]
    step = -(-len(rest) // (_MOST_POINTS - len(longest)))
    return longest + rest[::step]


def _ratio_table(comparison: Comparison) -> str:
    rows: list[tuple[str, ...]] = [
        (
            ratio.name,
            f"{median(ratio.split):.1f}",
            f"{median(ratio.aggregated):.1f}",
            f"{ratio.value:.2f}",
            _noise(ratio),
        )
        for ratio in comparison.ratios
    ]
    if comparison.goodput("split"):
        shares = [f"{100 * median(comparison.goodput(side)):.0f} %" for side in ("split", "aggregated")]
        rows.append(("within the SLO", *shares, "", ""))
    usd = [comparison.usd_per_million_tokens(side) for side in ("split", "aggregated")]
    if None not in usd:
        rows.append(("USD per million output tokens", *(f"{each:.2f}" for each in usd), "", ""))
    return _table(str(comparison.load), ("ms", comparison.name, "aggregated", "ratio", ""), rows)


def _noise(ratio: Any) -> str:
    return "" if ratio.sure else "within the noise" if len(ratio.split) > 1 else "one run each"


def _result_table(result: Result) -> str:
    told = result.to_json()
    measures = [(name.upper(), told[f"{name}_ms"]) for name in ("ttft", "itl", "tpot", "e2e")]
    parts = [(name, told["phases"][key]) for key, name, _ in _PARTS]
    rows = [
        (name, *(f"{spread[column]:.1f}" for column in ("p50", "p90", "p95", "p99")))
        for name, spread in (*measures, *parts)
        if spread
    ]
    return _table(f"{result.load}, ms", ("", "p50", "p90", "p95", "p99"), rows)


def _table(title: str, head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    heads = "".join(f"<th>{html.escape(each)}</th>" for each in head)
    body = "".join(
        "<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>" for row in rows
    )
    return f"<h2>{html.escape(title)}</h2><table><thead><tr>{heads}</tr></thead><tbody>{body}</tbody></table>"


def _page(
    title: str, said: str, tables: Iterable[str], figures: Sequence[tuple[str, Any]], about: Result
) -> str:
    drawn = []
    for number, (name, figure) in enumerate(figures):
        figure.update_layout(height=380, margin={"t": 60, "l": 50, "r": 20, "b": 45}, template="plotly_white")
        code = figure.to_html(full_html=False, include_plotlyjs=number == 0, config={"displaylogo": False})
        drawn.append(f"<h2>{html.escape(name)}</h2>{code}")
    when = datetime.fromtimestamp(about.began_at, UTC).strftime("%Y-%m-%d %H:%M UTC")
    versions = ", ".join(f"{name} {version}" for name, version in about.versions.items())
    where = "; ".join(filter(None, [when, about.devices, versions]))
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{html.escape(title)}</title>'
        f"<style>{_STYLE}</style></head><body><h1>{html.escape(title)}</h1>"
        f'<p class="verdict">{html.escape(said)}</p><p class="dim">{html.escape(where)}</p>'
        f"{''.join(tables)}{''.join(drawn)}"
        f'<script type="application/json" id="load">{_json(about.load.to_json())}</script></body></html>\n'
    )


def _json(value: Mapping[str, Any]) -> str:
    return json.dumps(value).replace("<", "\\u003c")


def _percents(result: Result) -> str:
    ttft, tpot = result.measure("ttft"), result.measure("tpot")
    said = [f"TTFT p50 {ttft['p50']:.0f} ms, p99 {ttft['p99']:.0f} ms"] if ttft else []
    said += [f"TPOT p50 {tpot['p50']:.1f} ms"] if tpot else []
    said += [f"{100 * result.goodput:.0f} % within {result.slo}"] if result.goodput is not None else []
    return "; ".join(said)


def _rate(load: Load) -> float:
    return load.rate if load.rate is not None else float(load.concurrency or 0)


def _middle(results: Sequence[Result], measure: str, percent: str) -> float | None:
    found = [spread[percent] for result in results if (spread := result.measure(measure)) is not None]
    return median(found) if found else None
