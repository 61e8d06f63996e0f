"""What every replica has, of whatever phase: an engine that is watched, and tells of itself."""

import asyncio
import os
from typing import Any

from ray import serve

from diptych.serving.asked import engine_asks
from diptych.serving.background import keep_going
from diptych.serving.counters import read_counters
from diptych.serving.engine import Engine, has_ray_workers, kv_cache_tokens
from diptych.serving.generation import generation_of
from diptych.serving.loopback import keep_replica_on_loopback
from diptych.serving.pulse import pulse_of, tokens_waiting
from diptych.serving.ray_llm import ChatCompletionRequest
from diptych.serving.serve_log import reopen_serve_log
from diptych.serving.signals import ask_workers
from diptych.serving.surroundings import surroundings
from diptych.serving.vitals import EngineVitals

_LOOK_EVERY_S = 1.0


class Phase:
    """A replica: follows its engine's vitals, and answers `vitals()` and `signals()`."""

    phase = ""
    _default_engine_cls: type[Engine] = Engine
    engine: Engine
    _llm_config: Any
    _tasks: list["asyncio.Task[Any]"]
    _digest = ""

    async def _start_engine(self) -> None:
        keep_replica_on_loopback()
        await self.engine.start()
        reopen_serve_log(serve.get_replica_context())
        self._pulse = pulse_of(self.engine.client)
        await self._warm_up()
        self.generation = generation_of(self._digest, self._model)
        client = self.engine.client
        self._engine_vitals = EngineVitals(_engine_pid(client), sees_workers=not has_ray_workers(client))
        self._tasks = [self._watched()]

    def _watched(self) -> "asyncio.Task[None]":
        self._engine_dead = asyncio.Event()
        return keep_going("Watching the engine", self._watch_engine)

    @property
    def _model(self) -> str | None:
        source = self._llm_config.model_loading_config.model_source
        return source if isinstance(source, str) else None

    async def _warm_up(self) -> None:
        """Answer one chat request to nobody: templates, tokenizers and kernels load now, not at the first client's."""
        hello = ChatCompletionRequest(
            model=self._llm_config.model_id, messages=[{"role": "user", "content": "Hello"}], max_tokens=1
        )
        async for _ in self.engine.chat(hello, None):
            pass

    async def _watch_engine(self) -> None:
        while self._engine_vitals.problem is None:
            await asyncio.sleep(_LOOK_EVERY_S)
            client = self.engine.client
            waiting = client.output_processor.get_num_unfinished_requests()
            expected_s = self._pulse.expected_s(tokens_waiting(client))
            self._engine_vitals.look(waiting, self._pulse.steps, expected_s)
        self._engine_dead.set()
        self._engine_vitals.end()

    @property
    def engine_problem(self) -> str | None:
        """Why the engine counts as dead, or None."""
        client = self.engine.client
        if self._engine_vitals.problem is None and client is not None and client.errored:
            return "the engine reported a fatal error"
        return self._engine_vitals.problem

    async def check_health(self) -> None:
        """Called by Serve; raises when the engine is dead, whereupon Serve replaces this replica."""
        if self.engine_problem:
            raise RuntimeError(self.engine_problem)
        await super().check_health()  # type: ignore[misc]

    @property
    def replica_name(self) -> str:
        """This replica's name in Serve."""
        return _replica_name()

    async def vitals(self) -> dict[str, Any]:
        """This replica as `/diptych/v1/status` shows it."""
        return {
            "phase": self.phase,
            "replica": self.replica_name,
            "generation": self.generation,
            "pid": os.getpid(),
            "engine_pid": self._engine_vitals.pid,
            "model": self._llm_config.model_id,
            "ready": self.engine_problem is None,
            "problem": self.engine_problem,
            "kv_cache_tokens": kv_cache_tokens(self.engine.client),
            "counters": read_counters(),
        }

    async def signals(self) -> dict[str, Any]:
        """What this replica and its engine's workers use for KV transfers, as of now; docs/json.md has the fields."""
        workers = await ask_workers(self.engine.client)
        return {
            "phase": self.phase,
            "replica": self.replica_name,
            "generation": self.generation,
            "model": self._llm_config.model_id,
            "pid": os.getpid(),
            "engine_pid": self._engine_vitals.pid,
            **surroundings(),
            "asked": engine_asks(self.engine.client),
            "workers": workers,
            "counters": read_counters(),
        }


def _engine_pid(client: Any) -> int | None:
    manager = getattr(client.engine_core.resources, "engine_manager", None)
    processes = getattr(manager, "processes", None) or [None]
    return getattr(processes[0], "pid", None)


def _replica_name() -> str:
    name: str = serve.get_replica_context().replica_id.unique_id
    return name
