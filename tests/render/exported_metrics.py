"""The metrics that Diptych and the installed Ray and vLLM export on Ray's metrics port, read from their source."""

import ast
import importlib.util
from collections.abc import Iterator
from pathlib import Path

# What a metric of each kind is called on the port. Ray ends every counter in _total.
_ENDINGS = {"counter": ("_total",), "gauge": ("",), "histogram": ("_bucket", "_sum", "_count")}
_VLLM_KINDS = {"_counter_cls": "counter", "_gauge_cls": "gauge", "_histogram_cls": "histogram"}
_RAY_KINDS = {"Counter": "counter", "Gauge": "gauge", "Histogram": "histogram"}
_VLLM_FILES = ("v1/metrics/loggers.py", "distributed/kv_transfer/kv_connector/v1/nixl/stats.py")
_RAY_FOLDERS = ("serve/_private", "dashboard/modules/reporter")


def source_of(package: str) -> Path | None:
    """The folder of an installed package; None where it is not installed."""
    spec = importlib.util.find_spec(package)
    return Path(spec.origin).parent if spec is not None and spec.origin else None


def exported_by_vllm(source: Path) -> set[str]:
    """Names like `ray_vllm_num_requests_running`."""
    found: set[str] = set()
    for file in _VLLM_FILES:
        for kind, name in _metrics(source / file, _VLLM_KINDS):
            found |= _names(kind, name.replace(":", "_"))
    return found


def exported_by_ray(source: Path) -> set[str]:
    """Names like `ray_serve_num_http_requests_total`."""
    found: set[str] = set()
    for folder in _RAY_FOLDERS:
        for file in sorted((source / folder).glob("*.py")):
            for kind, name in _metrics(file, _RAY_KINDS):
                found |= _names(kind, name)
    return found


def exported_by_diptych(source: Path) -> dict[str, set[str]]:
    """Names like `ray_diptych_requests_total`, and the labels of each."""
    found: dict[str, set[str]] = {}
    for node in ast.walk(ast.parse((source / "serving/metrics.py").read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call) and _called(node.func) == "Metric":
            name, kind, _, *more = node.args
            labels = set(ast.literal_eval(more[0])) if more else set()
            for each in _names(ast.literal_eval(kind), f"diptych_{ast.literal_eval(name)}"):
                found[each] = labels
    return found


def _names(kind: str, name: str) -> set[str]:
    endings = ("",) if kind == "counter" and name.endswith("_total") else _ENDINGS[kind]
    return {f"ray_{name}{ending}" for ending in endings}


def _metrics(file: Path, kinds: dict[str, str]) -> Iterator[tuple[str, str]]:
    """Kind and name of each metric that is made in a file."""
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call) and (kind := kinds.get(_called(node.func))):
            name = next((each.value for each in node.keywords if each.arg == "name"), None)
            text = _text(name if name is not None else next(iter(node.args), None))
            if text:
                yield kind, text


def _called(function: ast.expr) -> str:
    if isinstance(function, ast.Attribute):
        return function.attr
    return function.id if isinstance(function, ast.Name) else ""


def _text(node: ast.expr | None) -> str | None:
    """A literal, or an f-string whose only blank is the protocol."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(part.value if isinstance(part, ast.Constant) else "http" for part in node.values)
    return None
