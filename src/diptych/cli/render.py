"""`diptych render`: the files that a document stands for, into a folder, or one of them on standard output."""

from pathlib import Path

from diptych.check import Report, check_file
from diptych.cli.check import print_findings
from diptych.cli.console import err, print_dim, write
from diptych.errors import DiptychError, DocumentError
from diptych.render.archive import serving_archive
from diptych.render.bundle import render, render_one
from diptych.render.inputs import Facts
from diptych.render.write import is_rendered
from diptych.spec import Document


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
    _write_all(files, folder, force=force)
    _tell(document, facts, folder, files)
    return 0


def facts_of(report: Report, file: Path | None) -> Facts:
    """What rendering is told beside the document, of what the check found."""
    subject = report.subject
    if subject is None:
        return Facts()
    return Facts(
        source=file.name if file else "the default document",
        shape=subject.shape,
        model_revision=subject.facts.model.commit,
        checkpoint_bytes=subject.facts.model.checkpoint_bytes,
        serving_archive=b"" if subject.is_local else serving_archive(),
    )


def _write_all(files: dict[str, str], folder: Path, *, force: bool) -> None:
    """Write the files, and remove those of an earlier rendering that are not among them."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        present = [each for each in sorted(folder.iterdir()) if each.is_file()]
        ours = [each for each in present if is_rendered(each.read_text(errors="replace"))]
        strangers = [each.name for each in present if each.name in files and each not in ours]
        if strangers and not force:
            raise DocumentError(
                f"{folder} holds files that Diptych did not make: {', '.join(strangers)}.",
                "Choose another folder, or write over them with --force.",
            )
        for stale in (each for each in ours if each.name not in files):
            stale.unlink()
        for name, text in files.items():
            folder.joinpath(name).write_text(text, encoding="utf-8")
    except OSError as error:
        why = error.strerror or str(error)
        raise DiptychError(
            f"{folder} can't be written to: {why}.", "Choose another folder with -o."
        ) from None


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
