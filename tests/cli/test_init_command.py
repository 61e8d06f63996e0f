"""`diptych init`: what it writes, where, and what it says."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from diptych.spec import json_schema, load

MANIFEST = Path(__file__).parents[1] / "spec" / "manifests" / "rayservice-qwen3.5-9b.yaml"


def init(folder: Path, *arguments: str, given: str = "") -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "diptych", "init", *arguments],
        cwd=folder,
        env=os.environ,
        input=given,
        capture_output=True,
        text=True,
        timeout=60,
    )


def test_it_writes_a_document_and_says_what_is_next(tmp_path: Path) -> None:
    done = init(tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == [
        "Wrote diptych.yaml.",
        "  diptych check diptych.yaml   what would fail",
        "  diptych up diptych.yaml      start it",
    ]
    assert load(tmp_path / "diptych.yaml", environ={}).on == "local"


@pytest.mark.parametrize("place", ["kubernetes", "eks"])
def test_for_a_cluster_rendering_is_next_for_up_serves_on_this_machine_only(
    tmp_path: Path, place: str
) -> None:
    done = init(tmp_path, "--on", place)
    assert (done.returncode, done.stderr) == (0, "")
    assert "  diptych render diptych.yaml" in done.stdout
    text = (tmp_path / "diptych.yaml").read_text()
    assert "diptych up" not in done.stdout + text
    assert "`diptych render`" in text


@pytest.mark.parametrize("text", ["[1,2\n", "{a: 1\n", "%FOO\n"])
def test_a_file_that_ends_too_soon_is_told_as_such(tmp_path: Path, text: str) -> None:
    done = init(tmp_path, "-", "--from", "-", given=text)
    assert done.returncode == 2
    assert "Error: standard input:" in done.stderr


def test_a_file_that_is_there_is_kept_unless_forced(tmp_path: Path) -> None:
    (tmp_path / "x.yaml").write_text("name: mine\n")
    done = init(tmp_path, "x.yaml")
    assert done.returncode == 2
    assert done.stderr == "Error: x.yaml exists already.\nGive another name, or --force to write over it.\n"
    assert (tmp_path / "x.yaml").read_text() == "name: mine\n"
    assert init(tmp_path, "x.yaml", "--force").returncode == 0
    assert load(tmp_path / "x.yaml", environ={}).name == "diptych"


def test_a_dash_prints_the_document_alone(tmp_path: Path) -> None:
    done = init(
        tmp_path, "-", "--on", "eks", "--instance-type", "g6e.8xlarge", "--name", "llm", "--model", "a/b"
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "x.yaml").write_text(done.stdout)
    document = load(tmp_path / "x.yaml", environ={})
    assert (document.on, document.name, document.model.source) == ("eks", "llm", "a/b")
    assert document.nodes.instance_type == "g6e.8xlarge"


@pytest.mark.parametrize(
    ("arguments", "message", "hint"),
    [
        (["--on", "aws"], "--on is 'aws', and can be local, kubernetes, eks.", "Write one of them."),
        (["--instance-type", "g6.8xlarge"], "--instance-type is about nodes", "Add --on eks."),
        (
            ["--on", "eks", "--instance-type", "g6.8xlrge"],
            "no EC2 type with NVIDIA GPUs called 'g6.8xlrge' is known.",
            "Did you mean g6.8xlarge, ",
        ),
        (["--on", "eks", "--instance-type", "zzz"], "called 'zzz' is known", "Write it like g6.8xlarge."),
        (["--on", "eks", "--instance-type", "m7i.xlarge"], "m7i.xlarge has no GPU.", "Choose one with a GPU"),
        (
            ["--on", "eks", "--instance-type", "g6f.xlarge"],
            "g6f.xlarge has part of a GPU only.",
            "Choose one",
        ),
        (["--name", "A b"], "--name: is 'A b', which can't name a service", "use at most 40"),
        (["--model", "a b"], "--model: is 'a b': not `embedded`, no Hugging Face id", "a bucket with s3://"),
        (
            ["no/such/x.yaml"],
            "no/such/x.yaml can't be written: there is no folder no/such.",
            "Make it first.",
        ),
        (["."], ". is a folder.", "Give the name of a file in it."),
        (["--model", "mine"], "--model: mine names no owner on the hub.", "Write owner/mine, or ./mine"),
        (
            ["--on", "eks", "--model", "embedded"],
            "the embedded model exists on this machine only.",
            "Name one of the hub",
        ),
        (["--app", "x"], "--app chooses out of the file given with --from.", "Give --from FILE"),
        (["--from", "no.yaml"], "no.yaml: there is no such file", "check the name"),
        (["--from", "."], ".: it is a folder", "give a file in it"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_what_can_not_be_written_is_said_with_what_to_do(
    tmp_path: Path, arguments: list[str], message: str, hint: str
) -> None:
    done = init(tmp_path, *arguments)
    assert done.returncode == 2
    assert message in done.stderr
    assert hint in done.stderr
    assert done.stdout == ""
    assert list(tmp_path.iterdir()) == []


def test_a_relative_model_is_found_from_the_documents_folder(tmp_path: Path) -> None:
    (tmp_path / "documents").mkdir()
    assert init(tmp_path, "documents/x.yaml", "--model", "./models/mine").returncode == 0
    document = load(tmp_path / "documents" / "x.yaml", environ={})
    assert document.model.source == str(tmp_path / "models" / "mine")


def test_a_rayservice_becomes_a_document_and_what_is_lost_is_listed(tmp_path: Path) -> None:
    done = init(tmp_path, "--from", str(MANIFEST))
    assert done.returncode == 0
    assert done.stdout.startswith("Wrote diptych.yaml.\n")
    lost, _, replaced = done.stderr.partition("Left out, and nothing is lost:\n")
    assert lost.splitlines()[0] == "Not carried over, look at each:"
    assert "  worker group gpu-workers: volume model-cache: it mounts /mnt/model-cache of the node" in lost
    assert "set staging.path to /mnt/model-cache" in lost
    assert (
        "  spec.serviceUnhealthySecondThreshold, spec.deploymentUnhealthySecondThreshold: "
        "deprecated, and KubeRay ignores it\n"
    ) in replaced
    document = load(tmp_path / "diptych.yaml", environ={})
    assert (document.name, document.on, document.kv_transfer.backend) == (
        "ray-llm",
        "kubernetes",
        "LIBFABRIC",
    )


def test_a_manifest_may_come_through_a_pipe_and_options_win_over_it(tmp_path: Path) -> None:
    done = init(
        tmp_path,
        "-",
        "--from",
        "-",
        "--on",
        "eks",
        "--instance-type",
        "g6.8xlarge",
        "--name",
        "other",
        "--model",
        "a/b",
        given=MANIFEST.read_text(),
    )
    assert done.returncode == 0
    assert "made by `diptych init` from standard input" in done.stdout
    (tmp_path / "x.yaml").write_text(done.stdout)
    document = load(tmp_path / "x.yaml", environ={})
    assert (document.on, document.name, document.model.source) == ("eks", "other", "a/b")
    assert (document.model.name, document.nodes.instance_type) == ("qwen3.5-9b", "g6.8xlarge")


def test_a_manifest_with_placeholders_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    done = init(tmp_path, "--from", "-", given=MANIFEST.read_text().replace("ray-llm", "${NAME}"))
    assert done.returncode == 2
    assert (
        "Error: standard input still has placeholders: ${NAME} (line 11).\nFill them in first" in done.stderr
    )
    assert list(tmp_path.iterdir()) == []


def test_the_schema_is_printed_for_editors(tmp_path: Path) -> None:
    done = init(tmp_path, "--schema")
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout) == json_schema()
