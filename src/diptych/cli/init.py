"""`diptych init`: a document to start from, out of nothing or out of what serves already."""

import difflib
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import get_args

from diptych.catalog.instances import instance_type, instance_types
from diptych.cli.console import err, out, print_dim, safe, write
from diptych.cli.files import write_whole
from diptych.errors import DocumentError, SetupError
from diptych.spec import EMBEDDED, Place, is_path, schema_text, validate_options
from diptych.spec.convert import Remark, document_from, read, to_text
from diptych.spec.file import read_stream, read_text
from diptych.spec.starter import starter

STANDARD = Path("-")
"""Standard output as a file to write, and standard input as one to read."""

_PLACES: tuple[Place, ...] = get_args(Place)
_SIMILAR = 3


def run_init(
    file: Path,
    *,
    model: str | None,
    on: str | None,
    instance: str | None,
    name: str | None,
    from_: Path | None,
    app: str | None,
    force: bool,
) -> int:
    """Write a document to `file`; what could not be carried over from `from_` goes to standard error."""
    place = _place(on, "local" if from_ is None else "kubernetes")
    _check_instance_type(instance, place)
    if app is not None and from_ is None:
        raise DocumentError(
            "--app chooses out of the file given with --from.", "Give --from FILE, or leave it out."
        )
    if model is not None and is_path(model) and file != STANDARD:
        model = _from_folder(model, file.parent)
    validate_options({"--name": ("name", name), "--model": ("model.source", model)})
    if model is not None:
        _check_model(model, place)
    if file != STANDARD:
        _check_target(file, force)
    remarks: Sequence[Remark] = ()
    if from_ is None:
        called = "diptych.yaml" if file == STANDARD else str(file)
        text = starter(place, model=model, instance=instance, name=name or "diptych", file=called)
    else:
        source = "standard input" if from_ == STANDARD else str(from_)
        values, remarks = document_from(
            read(_text(from_, source), source),
            app=app,
            on=place,
            model=model,
            instance_type=instance,
            name=name,
            file=source,
        )
        text = to_text(values, _header(source))
    if file == STANDARD:
        write(text)
    else:
        _save(text, file)
        _say_what_is_next(file, place)
    _print_remarks(remarks)
    return 0


def run_schema() -> int:
    """Print the document's JSON schema."""
    write(schema_text())
    return 0


def _text(file: Path, name: str) -> str:
    return read_stream(sys.stdin.buffer, name) if file == STANDARD else read_text(file)


def _place(given: str | None, default: Place) -> Place:
    if given is None:
        return default
    for place in _PLACES:
        if place == given:
            return place
    raise DocumentError(f"--on is {given!r}, and can be {', '.join(_PLACES)}.", "Write one of them.")


def _check_instance_type(name: str | None, place: Place) -> None:
    if name is None:
        return
    if place == "local":
        raise DocumentError(
            "--instance-type is about nodes, and there are none on this machine.", "Add --on eks."
        )
    known = instance_type(name)
    if known is None:
        similar = difflib.get_close_matches(name, list(instance_types()), n=_SIMILAR, cutoff=0.6)
        hint = f"Did you mean {', '.join(similar)}?" if similar else "Write it like g6.8xlarge."
        raise DocumentError(f"--instance-type: no EC2 type with NVIDIA GPUs called {name!r} is known.", hint)
    if not known.gpus:
        has = "part of a GPU only" if known.sliced_gpu else "no GPU"
        raise DocumentError(f"--instance-type: {name} has {has}.", "Choose one with a GPU, like g6.8xlarge.")


def _check_model(model: str, place: Place) -> None:
    if model == EMBEDDED and place != "local":
        raise DocumentError(
            "--model: the embedded model exists on this machine only.", "Name one of the hub: owner/name."
        )
    if model != EMBEDDED and "/" not in model and not is_path(model):
        raise DocumentError(
            f"--model: {model} names no owner on the hub.",
            f"Write owner/{model}, or ./{model} for a folder.",
        )


def _from_folder(model: str, folder: Path) -> str:
    """A relative path as seen from the document's folder."""
    if model.startswith(("/", "~")):
        return model
    path = os.path.relpath(model, folder)
    return path if path.startswith("..") else f"./{path}"


def _check_target(file: Path, force: bool) -> None:
    if file.is_dir():
        raise DocumentError(f"{file} is a folder.", "Give the name of a file in it.")
    if not file.parent.is_dir():
        raise DocumentError(f"{file} can't be written: there is no folder {file.parent}.", "Make it first.")
    if file.exists() and not force:
        raise DocumentError(f"{file} exists already.", "Give another name, or --force to write over it.")


def _save(text: str, file: Path) -> None:
    target = file.resolve()
    try:
        if target.exists() and not target.is_file():  # a pipe or a device
            target.write_text(text, encoding="utf-8")
        else:
            write_whole(target, text)
    except OSError as error:
        raise SetupError(f"{file} can't be written: {error.strerror}.", "Give another name.") from error


def _header(source: str) -> list[str]:
    return [
        f"What to serve, and where; made by `diptych init` from {Path(source).name}.",
        "Every field has a default; docs/document.md describes them all.",
    ]


def _say_what_is_next(file: Path, place: Place) -> None:
    last = f"up {file}      start it" if place == "local" else f"render {file}  what a cluster gets"
    for line in (f"Wrote {file}.", f"  diptych check {file}   what would fail", f"  diptych {last}"):
        out().print(safe(line), soft_wrap=True)


def _print_remarks(remarks: Sequence[Remark]) -> None:
    """What is lost, each with what to do; then what Diptych does itself."""
    lost = {(each.why, each.do): _places(remarks, each) for each in remarks if each.do}
    replaced = {each.why: _places(remarks, each) for each in remarks if not each.do}
    if lost:
        err().print("Not carried over, look at each:")
    for (why, do), places in lost.items():
        err().print(safe(f"  {places}: {why}; {do}"), soft_wrap=True)
    if replaced:
        print_dim(err(), "Left out, and nothing is lost:")
    for why, places in replaced.items():
        print_dim(err(), f"  {places}: {why}")


def _places(remarks: Sequence[Remark], like: Remark) -> str:
    """Every place with the same reason."""
    same = [each.where for each in remarks if (each.why, each.do) == (like.why, like.do)]
    return ", ".join(dict.fromkeys(same))
