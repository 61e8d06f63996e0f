"""The serving code as it ships: alone, the same bytes each time, and of a size that a ConfigMap takes."""

import io
import os
import subprocess
import sys
import zipfile
from pathlib import Path

from diptych.render.archive import serving_archive

MOST_BYTES = 900 * 1024


def test_it_is_the_same_each_time_and_small() -> None:
    assert serving_archive() == serving_archive()
    assert len(serving_archive()) < MOST_BYTES


def test_it_holds_the_serving_code_alone() -> None:
    names = zipfile.ZipFile(io.BytesIO(serving_archive())).namelist()
    assert names[0] == "diptych/__init__.py"
    assert all(name.startswith("diptych/serving/") for name in names[1:])
    assert {"diptych/serving/builder.py", "diptych/serving/stage.py", "diptych/serving/drain.py"} <= {*names}


def test_reading_it_imports_none_of_it() -> None:
    code = "import sys, diptych.render.archive as a; a.serving_archive(); print('diptych.serving' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_python_imports_the_application_from_it_and_nothing_else_of_diptych(tmp_path: Path) -> None:
    archive = tmp_path / "serving.zip"
    archive.write_bytes(serving_archive())
    # What is installed here comes after PYTHONPATH, as it does in the pods.
    code = (
        "import sys, diptych.serving.builder as builder\n"
        "loaded = {name: str(module.__file__) for name, module in sys.modules.items() if name.startswith('diptych')}\n"
        f"strays = [name for name, file in loaded.items() if not file.startswith({str(archive)!r})]\n"
        "others = [name for name in loaded if name != 'diptych' and not name.startswith('diptych.serving')]\n"
        "print(builder.build_app.__name__, strays, others)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(archive)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.splitlines()[-1] == "build_app [] []"
