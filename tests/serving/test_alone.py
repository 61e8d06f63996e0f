"""What runs inside Ray ships alone."""

import shutil
import subprocess
import sys
from pathlib import Path

import diptych

PACKAGE = Path(diptych.__file__).parent


def test_every_module_of_serving_is_imported_where_nothing_else_of_diptych_is(tmp_path: Path) -> None:
    lone = tmp_path / "diptych"
    lone.mkdir()
    (lone / "__init__.py").touch()
    shutil.copytree(PACKAGE / "serving", lone / "serving")
    modules = sorted(f"diptych.serving.{path.stem}" for path in (lone / "serving").glob("[!_]*.py"))
    code = (
        f"import sys; sys.path = [{str(tmp_path)!r}, *(p for p in sys.path if p != {str(PACKAGE.parent)!r})]\n"
        f"import importlib, diptych; assert diptych.__file__.startswith({str(tmp_path)!r}), diptych.__file__\n"
        f"for name in {modules!r}: importlib.import_module(name)\n"
        "print(*sorted(name for name in sys.modules if name.startswith('diptych')))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    assert set(done.stdout.splitlines()[-1].split()) == {"diptych", "diptych.serving", *modules}
