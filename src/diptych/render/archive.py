"""`diptych.serving` as a zip archive: the one part of rendering that reads files, those of this package."""

import io
import zipfile
from importlib.resources import files

_INIT = '"""What runs inside the pods of a cluster; the rest of Diptych stays outside."""\n'
_LONG_AGO = (1980, 1, 1, 0, 0, 0)
_FILE = 0o100644 << 16


def serving_archive() -> bytes:
    """`diptych/serving` alone, as Python imports it from a zip archive; the same bytes for the same code."""
    serving = files("diptych").joinpath("serving")
    content = {"diptych/__init__.py": _INIT.encode()}
    for file in sorted(serving.iterdir(), key=lambda each: each.name):
        if file.name.endswith(".py"):
            content[f"diptych/serving/{file.name}"] = file.read_bytes()
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_STORED) as packed:  # compressors differ between machines
        for name, data in content.items():
            entry = zipfile.ZipInfo(name, _LONG_AGO)
            entry.create_system = 3
            entry.external_attr = _FILE
            packed.writestr(entry, data)
    return archive.getvalue()
