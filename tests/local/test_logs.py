"""An engine's own last words, out of logs as engines really write them."""

# ruff: noqa: E501 - lines of logs are as long as they are
import os
from pathlib import Path

from diptych.engine_log import clean, last_exception
from diptych.local.logs import last_words, other_log_files, phase_log_files

# vLLM 0.29 on a CPU, its process told to allocate more KV cache than there is; shortened.
ENGINE_LOG = """\
:job_id:01000000
:actor_name:ServeReplica:diptych:Decode:smollm2
INFO 11-29 21:02:11 [arg_utils.py:2138] Using ray runtime env (env vars redacted): {'env_vars': {'OMP_NUM_THREADS': '***'}}
\x1b[36m(EngineCore pid=811)\x1b[0m INFO 11-29 21:02:14 [core.py:101] Initializing a V1 LLM engine (v0.29.0)
(EngineCore pid=811) ERROR 11-29 21:02:19 [core.py:1136] EngineCore failed to start.
(EngineCore pid=811) ERROR 11-29 21:02:19 [core.py:1136] Traceback (most recent call last):
(EngineCore pid=811) ERROR 11-29 21:02:19 [core.py:1136]   File "/x/vllm/v1/engine/core.py", line 1110, in run_engine_core
(EngineCore pid=811) ERROR 11-29 21:02:19 [core.py:1136]     engine_core = EngineCoreProc(*args, **kwargs)
(EngineCore pid=811) ERROR 11-29 21:02:19 [core.py:1136]   File "/x/vllm/v1/core/kv_cache_utils.py", line 674, in _check_enough
(EngineCore pid=811) ERROR 11-29 21:02:19 [core.py:1136]     raise ValueError(
(EngineCore pid=811) ERROR 11-29 21:02:19 [core.py:1136] ValueError: To serve at least one request with the models's max seq len (8192), 0.35 GiB KV cache is needed.
(EngineCore pid=811) Process EngineCore:
(EngineCore pid=811) Traceback (most recent call last):
(EngineCore pid=811)   File "/root/.pyenv/versions/3.11.7/lib/python3.11/multiprocessing/process.py", line 314, in _bootstrap
(EngineCore pid=811)     self.run()
(EngineCore pid=811) ValueError: To serve at least one request with the models's max seq len (8192), 0.35 GiB KV cache is needed.
ERROR 2026-11-29 21:02:20,114 diptych_Decode:smollm2 k1 -- Exception during initialization
Traceback (most recent call last):
  File "/x/ray/llm/_internal/serve/core/server/llm_server.py", line 310, in start
    await self.engine.start()
RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {'EngineCore': 1}
"""

# The same engine killed by the kernel: only its front end is left to say something.
KILLED_LOG = """\
ERROR 11-29 23:23:05 [async_llm.py:819] AsyncLLM output_handler failed.
ERROR 11-29 23:23:05 [async_llm.py:819] Traceback (most recent call last):
ERROR 11-29 23:23:05 [async_llm.py:819]     raise self._format_exception(outputs) from None
ERROR 11-29 23:23:05 [async_llm.py:819] vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue. See stack trace (above) for the root cause.
"""

LISTENER_LOG = """\
(EngineCore pid=6770) Exception in thread nixl_handshake_listener:
(EngineCore pid=6770) Traceback (most recent call last):
(EngineCore pid=6770)   File "zmq/backend/cython/_zmq.py", line 190, in zmq.backend.cython._zmq._check_rc
(EngineCore pid=6770) zmq.error.ZMQError: Address already in use (addr='tcp://127.0.0.1:35475')
"""


def log(directory: Path, text: str, name: str = "worker-1.out") -> Path:
    path = directory / name
    path.write_text(text)
    return path


def test_last_words_are_the_cause_and_not_the_sentence_that_points_to_it(tmp_path: Path) -> None:
    assert last_words([log(tmp_path, ENGINE_LOG)]) == (
        "ValueError: To serve at least one request with the models's max seq len (8192), 0.35 GiB KV cache is needed."
    )


def test_the_cause_is_found_in_whatever_file_it_stands(tmp_path: Path) -> None:
    echo = "RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}\n"
    files = [log(tmp_path, LISTENER_LOG, "a.err"), log(tmp_path, echo, "b.log")]
    assert last_words(files) == "zmq.error.ZMQError: Address already in use (addr='tcp://127.0.0.1:35475')"


def test_where_nothing_but_the_echo_was_written_it_is_better_than_nothing(tmp_path: Path) -> None:
    words = last_words([log(tmp_path, KILLED_LOG)])
    assert words is not None
    assert words.startswith("vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue.")


def test_of_a_replica_that_did_not_start_the_last_exception_is_told() -> None:
    message = (
        "A replica failed to start with exception. Retrying 2 more time(s). Error:\n"
        "\x1b[36mray::ServeReplica:diptych:Decode:m.initialize_and_get_metadata()\x1b[39m (pid=7)\n"
        "RuntimeError: Traceback (most recent call last):\n"
        '  File "gate.py", line 84, in _holds\n'
        "    raise RuntimeError(judged.verdict.says)\n"
        "RuntimeError: LIBFABRIC was asked for, and UCX over tcp is in use.\n"
    )
    told = last_exception(message.splitlines())
    assert told == "RuntimeError: LIBFABRIC was asked for, and UCX over tcp is in use."
    assert last_exception(["nothing", "of the kind"]) is None


def test_a_log_without_an_exception_has_no_last_words(tmp_path: Path) -> None:
    quiet = "INFO 11-29 21:02:14 [core.py:101] Initializing\nNo errors here: ValueError was not raised\n"
    assert last_words([log(tmp_path, quiet), tmp_path / "missing.log"]) is None


def test_of_a_very_long_log_the_end_is_read(tmp_path: Path) -> None:
    long = (
        "OSError: an old one\n"
        + "INFO 11-29 21:02:14 [core.py:101] step\n" * 30_000
        + "MemoryError: the last one\n"
    )
    assert last_words([log(tmp_path, long)]) == "MemoryError: the last one"


def test_a_phases_files_are_its_own_workers_and_replicas_oldest_first(tmp_path: Path) -> None:
    (tmp_path / "serve").mkdir()
    old = log(tmp_path, ":job_id:1\n:actor_name:ServeReplica:diptych:Prefill:m\nx\n", "worker-a-1.err")
    new = log(tmp_path, "x\n", "serve/replica_diptych_Prefill_m_k1.log")
    log(tmp_path, ":actor_name:ServeReplica:diptych:Decode:m\n", "worker-b-2.err")
    log(tmp_path, ":actor_name:ServeReplica:other:Prefill:m\n", "worker-c-3.out")
    log(tmp_path, "x\n", "serve/replica_diptych_Decode_m_k2.log")
    os.utime(old, (1, 1))
    assert phase_log_files(tmp_path, "prefill") == [old, new]
    assert phase_log_files(tmp_path, "aggregated") == []


def test_rays_own_logs_are_those_of_its_store_node_and_serve(tmp_path: Path) -> None:
    (tmp_path / "serve").mkdir()
    for name in ("raylet.out", "gcs_server.err", "worker-a.out", "serve/controller_1.log", "dashboard.log"):
        log(tmp_path, "x", name)
    assert {path.name for path in other_log_files(tmp_path)} == {
        "raylet.out",
        "gcs_server.err",
        "controller_1.log",
    }


def test_lines_are_shown_without_colours_and_without_rays_bookkeeping() -> None:
    assert clean("\x1b[36m(EngineCore pid=8)\x1b[0m hello\n") == "(EngineCore pid=8) hello"
    assert clean(":actor_name:ServeReplica:diptych:Decode:m\n") is None
    assert clean("   \n") is None
