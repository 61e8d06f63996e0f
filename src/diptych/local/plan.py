"""Everything the keeper needs to know, in one file: it asks nobody and decides nothing."""

from pathlib import Path
from typing import Any

from pydantic import BaseModel

from diptych.remembering import write_private


class Plan(BaseModel):
    """What to start and where. Sizes in bytes, times in seconds."""

    name: str
    run_id: str
    application: str
    topology: str
    model: str
    serve_config: dict[str, Any]
    host: str
    port: int
    api_key_file: str
    admin_key_file: str
    phases: list[str]
    engine_stages: list[str]
    events: str
    ray_directory: str
    ray_logs: str
    ray_token_file: str
    num_cpus: int
    num_gpus: int
    object_store_bytes: int
    start_deadline_s: float
    withheld_variables: list[str] = []
    haproxy_ports: list[int] = []

    @property
    def url(self) -> str:
        return f"http://{self.host}:{self.port}"

    @classmethod
    def load(cls, path: Path) -> "Plan":
        """Read a plan that `save` wrote."""
        return cls.model_validate_json(path.read_text())

    def save(self, path: Path) -> None:
        """Write the plan where only its owner can read it."""
        write_private(path, self.model_dump_json(indent=2))
