"""The files to convert: RayServices among other objects, or a bare Serve configuration; the applications in them."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from diptych.spec.convert.application import model_ids
from diptych.spec.convert.parts import ConversionError, Part, Remark
from diptych.spec.problems import Problem, shown
from diptych.spec.source import Parsed, parse, parse_all

_OWN = "diptych.serving.builder:build_app"
_BUILDERS = re.compile(
    rf"ray\.[\w.]*llm[\w.]*[:.]build_(openai|pd_openai|dp_openai)_app|{re.escape(_OWN)}", re.ASCII
)
_PLACEHOLDER = re.compile(r"\$\{[A-Za-z_]\w*\}")
# Where `${NAME}` is meant for a shell, or for Ray, and stays.
_SHELL = frozenset({"command", "args", "exec", "env_vars"})
_HELM = "{{"
_SERVE_CONFIG = "serveConfigV2"


@dataclass(frozen=True)
class Application:
    """One application of Ray Serve that serves models, and the RayService around it.

    Args:
        values: as Ray Serve's `applications` has it.
        service: the RayService as Kubernetes has it; empty for a bare Serve configuration.
        serve: the rest of the Serve configuration.
    """

    values: Mapping[str, Any]
    service: Mapping[str, Any]
    serve: Mapping[str, Any]

    @property
    def is_own(self) -> bool:
        """Whether it is what Diptych renders."""
        return self.values.get("import_path") == _OWN

    @property
    def metadata(self) -> Mapping[str, Any]:
        """The RayService's metadata; empty without one."""
        found = self.service.get("metadata")
        return found if isinstance(found, dict) else {}

    @property
    def names(self) -> list[str]:
        """The names by which it can be chosen: the application's, the service's, its models'."""
        arguments = self.values.get("args")
        models = model_ids(arguments) if isinstance(arguments, dict) else []
        return [str(name) for name in (self.values.get("name"), self.metadata.get("name"), *models) if name]


def read(text: str, name: str) -> list[Any]:
    """The objects in a file called `name`: several YAML documents, and what is in lists of Kubernetes.

    Raises:
        ConversionError: it is no YAML, or has placeholders that nobody filled in.
    """
    parsed = parse_all(text)
    faults = [fault for each in parsed for fault in each.faults]
    if faults:
        _refuse_placeholders(_PLACEHOLDER.findall(_without_comments(text)), text, name)
        first = min(faults, key=lambda fault: fault.line)
        line = "".join(text.splitlines()[first.line - 1 : first.line])  # a fault may stand past the last line
        do = "Render the Helm chart first: helm template." if _HELM in line else ""
        problem = Problem(f"{name}:{first.line}", "", first.what, first.do, excerpt=first.excerpt)
        raise ConversionError(str(problem), do)
    _refuse_placeholders([each for one in parsed for each in _placeholders(one.value)], text, name)
    return [each for one in parsed for each in _flat(one.value)]


def choose(objects: Sequence[Any], name: str | None, file: str) -> tuple[Application, list[Remark]]:
    """The one application to convert, by any of its names if there are several; and a remark for what is beside it.

    Raises:
        ConversionError: there is none, several and no name, or none of that name.
    """
    remarks: list[Remark] = []
    found = [each for one in objects for each in _applications(one, remarks, file)]
    usable = [each for each in found if _BUILDERS.fullmatch(str(each.values.get("import_path")))]
    if not usable:
        raise ConversionError(*_nothing_to_convert(objects, found, file))
    chosen = [each for each in usable if name is None or name in each.names]
    if len(chosen) != 1:
        known = "; ".join(" / ".join(dict.fromkeys(each.names)) for each in usable)
        count = f"none called {name!r}" if not chosen else f"{len(chosen)} applications that serve models"
        raise ConversionError(f"{file} has {count}.", f"Say which with --app NAME: {known}.")
    for each in found:
        if each is not chosen[0]:
            label = f"application {each.values.get('name')}"
            remarks.append(
                Remark(label, "a document describes one application", "convert it on its own, with --app")
            )
    return chosen[0], remarks


def _applications(value: Any, remarks: list[Remark], file: str) -> Iterator[Application]:
    if not isinstance(value, dict):
        return
    if value.get("kind") == "RayService":
        spec = Part(value, "", []).part("spec")
        serve = _serve_config(spec.values.get(_SERVE_CONFIG), file)
        yield from _in_serve_config(serve, value)
    elif "applications" in value and "kind" not in value:
        yield from _in_serve_config(value, {})
    elif value.get("kind"):
        metadata = value.get("metadata")
        label = metadata.get("name") if isinstance(metadata, dict) else None
        remarks.append(Remark(f"{value['kind']} {label}", "a document describes the RayService alone", ""))


def _in_serve_config(serve: Mapping[str, Any], service: Mapping[str, Any]) -> Iterator[Application]:
    applications = serve.get("applications")
    for each in applications if isinstance(applications, list) else []:
        if isinstance(each, dict):
            yield Application(each, service, {k: v for k, v in serve.items() if k != "applications"})


def _serve_config(text: Any, file: str) -> Mapping[str, Any]:
    if text is None:
        return {}
    where = f"{file}: {_SERVE_CONFIG}"
    if not isinstance(text, str):
        raise ConversionError(
            f"{where} is {shown(text)}, and must be text.", "Write `serveConfigV2: |` before it."
        )
    parsed: Parsed = parse(text)
    if parsed.faults:
        first = parsed.faults[0]
        where += f", line {first.line}"
        raise ConversionError(str(Problem(where, "", first.what, first.do, excerpt=first.excerpt)))
    return parsed.value if isinstance(parsed.value, dict) else {}


def _flat(value: Any) -> Iterator[Any]:
    if (
        isinstance(value, dict)
        and isinstance(value.get("items"), list)
        and str(value.get("kind")).endswith("List")
    ):
        yield from value["items"]
    elif value is not None:
        yield value


def _placeholders(value: Any) -> Iterator[str]:
    if isinstance(value, str) and "\n" not in value:
        yield from _PLACEHOLDER.findall(value)
    elif isinstance(value, dict):
        for name, each in value.items():
            if name == _SERVE_CONFIG and isinstance(each, str):
                inner = parse(each)
                faulty = _PLACEHOLDER.findall(_without_comments(each))
                yield from faulty if inner.faults else _placeholders(inner.value)
            elif name not in _SHELL:
                yield from _placeholders(each)
    elif isinstance(value, list):
        for each in value:
            yield from _placeholders(each)


def _without_comments(text: str) -> str:
    return re.sub(r"(^|\s)#.*", "", text)


def _refuse_placeholders(found: Sequence[str], text: str, name: str) -> None:
    if not found:
        return
    lines = text.splitlines()
    places = {each: next((n for n, line in enumerate(lines, start=1) if each in line), 1) for each in found}
    words = ", ".join(
        f"{each} (line {line})" for each, line in sorted(places.items(), key=lambda item: item[1])
    )
    raise ConversionError(
        f"{name} still has placeholders: {words}.",
        "Fill them in first, for example with envsubst < FILE > FILLED.",
    )


def _nothing_to_convert(objects: Sequence[Any], found: Sequence[Application], file: str) -> tuple[str, str]:
    wanted = "Give a RayService, or a Serve configuration, that uses build_pd_openai_app or build_openai_app of Ray."
    if found:
        paths = ", ".join(sorted({str(each.values.get("import_path")) for each in found}))
        return f"No application in {file} is made by Ray Serve LLM: their import_path is {paths}.", wanted
    kinds = sorted({str(each.get("kind")) for each in objects if isinstance(each, dict) and each.get("kind")})
    if kinds:
        return f"{file} has no application of Ray Serve: there is {', '.join(kinds)} in it.", wanted
    return f"{file} has no application of Ray Serve.", wanted
