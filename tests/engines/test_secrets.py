"""Prompts and keys appear in no log, no command line and no environment."""

from pathlib import Path

import httpx
import psutil
import pytest

from engines.service import Service

pytestmark = pytest.mark.engines

SECRET = "zanzibar-quokka-7731"
KEY_FILES = {"api-key", "curl-header"}


@pytest.fixture
def asked(service: Service) -> Service:
    """The service after prompts that it answered, refused and could not read."""
    messages = [{"role": "user", "content": SECRET}]
    with service.client() as client:
        assert client.post(
            "/v1/chat/completions", json={"model": service.model, "messages": messages, "max_tokens": 2}
        ).is_success
        assert client.post(
            "/v1/completions", json={"model": service.model, "prompt": SECRET, "max_tokens": 0}
        ).is_client_error
        assert client.post(
            "/v1/completions", json={"model": service.model, "prompt": [[SECRET]]}
        ).is_client_error
        assert client.post("/v1/completions", content=f'{{"prompt": "{SECRET}"').is_client_error
        assert client.post(
            "/v1/completions", json={"model": service.model, "prompt": SECRET, "n": 2, "max_tokens": 2}
        ).is_success
    httpx.get(
        f"{service.url}/v1/models?key={SECRET}",
        headers={"authorization": f"Bearer {SECRET}"},
        trust_env=False,
    )
    service.run("chat", "--max-tokens", "2", SECRET)
    return service


def files_with(word: str, *directories: Path) -> list[str]:
    files = (path for directory in directories for path in directory.rglob("*") if not path.is_symlink())
    return [str(path) for path in files if path.is_file() and word.encode() in path.read_bytes()]


def test_no_log_holds_a_prompt_or_the_key(asked: Service) -> None:
    logs = asked.ray_directory, asked.directory
    assert sum(path.is_file() for path in asked.ray_directory.rglob("*")) > 20
    assert files_with(SECRET, *logs) == []
    with_key = {Path(path).name for path in files_with(asked.key, *logs)}
    assert with_key == KEY_FILES


def test_no_command_line_and_no_environment_holds_the_key_or_rays_token(asked: Service) -> None:
    token = (asked.directory / "ray-token").read_text().strip()
    shown = []
    for process in asked.processes():
        for source in ("cmdline", "environ"):
            try:
                text = Path(f"/proc/{process.pid}/{source}").read_bytes()
            except (OSError, psutil.Error):
                continue
            shown += [
                (process.pid, source) for secret in (asked.key, token, SECRET) if secret.encode() in text
            ]
    assert shown == []
