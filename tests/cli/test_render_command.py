"""`diptych render` as a user runs it: which files it writes, which it leaves alone, and what it says."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

EXAMPLE = Path(__file__).parents[2] / "examples" / "qwen3.5-9b-g6.yaml"
FILES = {
    *("cluster.yaml", "efa-security-group.yaml", "namespace.yaml", "kuberay-values.yaml"),
    *("policies.yaml", "rayservice.yaml", "serve-config.yaml", "monitoring.yaml"),
}


def render(*arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "diptych", "render", *arguments],
        env=os.environ | {"COLUMNS": "120"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "out"


@pytest.fixture
def document(tmp_path: Path) -> Path:
    file = tmp_path / "mine.yaml"
    file.write_text(EXAMPLE.read_text())
    return file


def test_it_writes_what_the_document_stands_for_and_the_same_bytes_again(
    document: Path, folder: Path, tmp_path: Path
) -> None:
    done = render(str(document), "-o", str(folder))
    assert (done.returncode, done.stdout) == (0, "")
    assert {file.name for file in folder.iterdir()} == FILES
    assert set(done.stderr.split()) == {str(folder / name) for name in FILES}
    again = tmp_path / "again"
    assert render(str(document), "-o", str(again)).returncode == 0
    assert {f.name: f.read_bytes() for f in folder.iterdir()} == {
        f.name: f.read_bytes() for f in again.iterdir()
    }


def test_a_file_that_the_document_needs_no_more_goes(document: Path, folder: Path) -> None:
    render(str(document), "-o", str(folder))
    (folder / "notes.txt").write_text("mine")
    assert render(str(document), "-o", str(folder), "--set", "monitoring=false").returncode == 0
    assert {file.name for file in folder.iterdir()} == FILES - {"monitoring.yaml"} | {"notes.txt"}


def test_files_of_others_are_not_touched_without_force(document: Path, folder: Path, tmp_path: Path) -> None:
    render(str(document), "-o", str(folder))
    other = tmp_path / "other.yaml"
    other.write_text(document.read_text())
    before = {file.name: file.read_bytes() for file in folder.iterdir()}
    done = render(str(other), "-o", str(folder))
    assert done.returncode == 2
    assert "that were not made from other.yaml" in done.stderr
    assert {file.name: file.read_bytes() for file in folder.iterdir()} == before
    assert render(str(other), "-o", str(folder), "--force").returncode == 0


def test_nothing_is_written_through_a_link(document: Path, folder: Path, tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("mine")
    folder.mkdir()
    (folder / "cluster.yaml").symlink_to(victim)
    assert render(str(document), "-o", str(folder)).returncode == 2
    assert render(str(document), "-o", str(folder), "--force").returncode == 0
    assert victim.read_text() == "mine"
    assert not (folder / "cluster.yaml").is_symlink()


def test_what_prints_one_file_and_writes_none(document: Path) -> None:
    done = render(str(document), "--what", "rayservice")
    kinds = [each["kind"] for each in yaml.safe_load_all(done.stdout)]
    assert kinds == ["ServiceAccount", "ConfigMap", "RayService"]
    assert done.returncode == 0


def test_the_start_deadline_is_long_enough_for_the_checkpoint_to_be_fetched(document: Path) -> None:
    objects = list(yaml.safe_load_all(render(str(document), "--what", "rayservice").stdout))
    timeout = objects[-1]["metadata"]["annotations"]["ray.io/initializing-timeout"]
    fetched_s = 19.3e9 / 50e6  # of a hub that gives 50 MB/s
    assert int(timeout.removesuffix("s")) > fetched_s + 2000


def test_a_model_that_is_not_known_here_is_told_in_the_file_itself(document: Path) -> None:
    done = render(str(document), "--what", "serve", "--set", "model.source=someone/something")
    assert "config of someone/something was not at hand" in done.stdout.split("proxy_location")[0]


def test_a_name_of_a_file_can_not_put_lines_into_what_is_rendered(tmp_path: Path) -> None:
    file = tmp_path / "a\nb: c.yaml"
    file.write_text(EXAMPLE.read_text())
    text = render(str(file), "--what", "kuberay-values").stdout
    assert "from a b: c.yaml; change that" in text
    assert "b" not in yaml.safe_load(text)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "Nothing says where to render to"),
        (["--what", "rayservise"], "rayservise"),
        (["--what", "dockerfile"], "needs no Dockerfile"),
        (["--what", "serve", "--set", "decode.engine_kwargs.block_size=48"], "P203"),
    ],
)
def test_what_can_not_be_rendered_is_said_and_nothing_is_printed(
    document: Path, arguments: list[str], said: str
) -> None:
    done = render(str(document), *arguments)
    assert done.returncode == 2
    assert said in done.stderr
    assert done.stdout == ""
    assert "Traceback" not in done.stderr


def test_a_folder_that_is_a_file_is_told(document: Path, tmp_path: Path) -> None:
    done = render(str(document), "-o", str(document))
    assert done.returncode == 1
    assert "can't be written to" in done.stderr
