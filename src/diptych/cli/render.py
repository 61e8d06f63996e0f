"""`diptych render`: the files that a document stands for, into a folder, or one of them on standard output."""

from pathlib import Path

from diptych.check import Report, check_file
from diptych.cli.check import print_findings
from diptych.cli.console import err, print_dim, write
from diptych.cli.files import write_whole
from diptych.errors import DiptychError, DocumentError
from diptych.render.archive import serving_archive
from diptych.render.bundle import render, render_one
from diptych.render.inputs import Facts
from diptych.render.write import rendered_from
from diptych.spec import Document

_LONGEST_HEADER = 8192


def run_render(
    file: Path | None, overrides: list[str], *, folder: Path | None, what: str | None, force: bool
) -> int:
    """Render a document; 0 when it is done, 2 when the check finds errors in it.

    Raises:
        DiptychError: there is nowhere to write to, or files of somebody else are in the way.
    """
    if (folder is None) == (what is None):
        raise DocumentError(
            "Nothing says where to render to.", "Give -o FOLDER, or --what NAME for one file."
        )
    report = check_file(file, overrides, offline=True)
    if not report.ok or report.subject is None:
        print_findings(err(), report)
        return 2
    document, facts = report.subject.document, facts_of(report, file)
    if what is not None:
        write(render_one(document, facts, what))
        return 0
    assert folder is not None
    files = render(document, facts)
    _write_all(files, facts.source, folder, force=force)
    _tell(document, facts, folder, files)
    return 0


def facts_of(report: Report, file: Path | None) -> Facts:
    """What rendering is told beside the document, of what the check found."""
    subject = report.subject
    if subject is None:
        return Facts()
    return Facts(
        source=" ".join(file.name.split()) if file else "the default document",
        shape=subject.shape,
        checkpoint_bytes=subject.checkpoint_bytes,
        serving_archive=b"" if subject.is_local else serving_archive(),
    )


def _write_all(files: dict[str, str], source: str, folder: Path, *, force: bool) -> None:
    """Write the files, and remove those of an earlier rendering of the same document that are not among them."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        present = {each.name: _origin(each) for each in folder.iterdir() if not each.is_dir()}
        strangers = [name for name in sorted(files) if name in present and present[name] != source]
        if strangers and not force:
            raise DocumentError(
                f"{folder} holds files that were not made from {source}: {', '.join(strangers)}.",
                "Choose another folder, or write over them with --force.",
            )
        for stale in (name for name, origin in present.items() if origin == source and name not in files):
            folder.joinpath(stale).unlink()
        for name, text in files.items():
            write_whole(folder / name, text)
    except OSError as error:
        why = error.strerror or str(error)
        raise DiptychError(
            f"{folder} can't be written to: {why}.", "Choose another folder with -o."
        ) from None


def _origin(file: Path) -> str | None:
    """The document that a file was rendered from, if it is one of ours."""
    if file.is_symlink() or not file.is_file():
        return None
    with file.open(encoding="utf-8", errors="replace") as stream:
        return rendered_from(stream.read(_LONGEST_HEADER))


def _tell(document: Document, facts: Facts, folder: Path, files: dict[str, str]) -> None:
    console = err()
    for name in files:
        console.print(str(folder / name), highlight=False, soft_wrap=True)
    if facts.shape is None:
        print_dim(
            console,
            f"The config of {document.model.source} is not on this machine, so nothing was chosen for its kind of "
            "model; `diptych check` says where it was looked for.",
        )
