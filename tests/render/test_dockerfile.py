"""The Dockerfile for further packages: it leaves alone what the image was tested with."""

import subprocess
from pathlib import Path

from diptych.render.dockerfile import dockerfile
from diptych.spec import Document


def text(**image: object) -> str | None:
    return dockerfile(Document.model_validate({"on": "eks", "model": "a/b", "image": image}), "d.yaml")


def test_there_is_none_without_packages() -> None:
    assert text() is None


def test_it_starts_from_the_tested_image_or_the_documents() -> None:
    tested = "FROM public.ecr.aws/deep-learning-containers/ray:serve-llm-cuda-v1.0.0\n"
    assert tested in (text(packages=["a"]) or "")
    assert "FROM mine:1\n" in (text(packages=["a"], base="mine:1") or "")


def test_the_shell_hands_pip_each_package_whole_and_what_is_installed_as_constraints(tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text(f'#!/bin/bash\nprintf "%s\\n" "$@" "" >> {tmp_path}/calls\n')
    python.chmod(0o755)
    command = (text(packages=["accelerate[torch]==1.10.0", "hf_xet>=1.1,<2"]) or "").partition("RUN ")[2]
    subprocess.run(["bash", "-ec", command], env={"PATH": f"{tmp_path}:/usr/bin:/bin"}, check=True)
    listing, installing = (tmp_path / "calls").read_text().rstrip().split("\n\n")
    assert listing.split() == ["-m", "pip", "list", "--format=freeze", "--exclude-editable"]
    constraint, *packages = installing.splitlines()[-3:]
    assert constraint == "/tmp/constraints.txt"
    assert packages == ["accelerate[torch]==1.10.0", "hf_xet>=1.1,<2"]
