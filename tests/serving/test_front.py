"""The endpoint as a client meets it: vLLM's own application, with our door before it and both phases behind it."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock

import pytest

pytest.importorskip("ray.serve.llm")

from fastapi.testclient import TestClient

try:
    from vllm.entrypoints.generate.base.protocol import UsageInfo
    from vllm.entrypoints.launchers.app import build_app
    from vllm.entrypoints.launchers.cli_args import make_arg_parser
except ModuleNotFoundError:  # vLLM 0.26
    from vllm.entrypoints.openai.api_server import build_app
    from vllm.entrypoints.openai.cli_args import make_arg_parser
    from vllm.entrypoints.openai.engine.protocol import UsageInfo
from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionResponse
from vllm.utils.argparse_utils import FlexibleArgumentParser
from vllm.v1.engine.exceptions import EngineDeadError

from diptych.serving import nccl
from diptych.serving.front import ENGINE_PATHS, build_front
from diptych.serving.orchestrate import Orchestrator
from diptych.serving.pace import Pace
from diptych.serving.probe import wanted
from diptych.serving.readiness import Readiness
from diptych.serving.routes import OWN_ROUTES
from fakes.phases import ANSWER, PLACE, Client, LateAnswer, PrefillHandle, prefill_peers, prompt

KEY = "dk-right"
CHAT = "/v1/chat/completions"
HELLO = {"model": "m", "messages": [{"role": "user", "content": "Hello"}]}
OURS = {
    "/health",
    "/ready",
    *(f"/diptych/v1/{name}" for name in ("status", "canary", "probe", "nccl", "requests")),
}
RAYS = {"/v1/models/{model:path}"}
ASKS_FOR_RECORD = {"x-diptych-timing": "include"}


class Serving:
    """In place of vLLM's serving object for chat, which needs a model: asks the engine client as that does."""

    def __init__(self, client: Client) -> None:
        self._client = client

    async def create_chat_completion(self, request: Any, raw_request: Any) -> Any:
        params = request.to_sampling_params(9, {})
        outputs = self._client.generate(prompt(), params, f"chatcmpl-{request.request_id}")
        if request.stream:
            return self._stream(outputs)
        cached = [output.num_cached_tokens async for output in outputs][-1]
        usage = UsageInfo(prompt_tokens=3, prompt_tokens_details={"cached_tokens": cached})
        return ChatCompletionResponse(model="m", choices=[], usage=usage)

    async def _stream(self, outputs: Any) -> AsyncIterator[str]:
        try:
            async for output in outputs:
                yield f"data: {output.num_cached_tokens}\n\n"
        except Exception as error:
            yield f"data: {json.dumps({'error': {'message': str(error), 'code': 500}})}\n\n"
        yield "data: [DONE]\n\n"


class Server:
    """The replica, as the front sees it."""

    replica_name = "decode-1"
    engine_problem: str | None = None

    async def phases(self) -> dict[str, Any]:
        return {"prefill": [], "decode": []}

    def readiness(self) -> Readiness:
        return Readiness("ready", None, [])

    async def service_readiness(self) -> Readiness:
        return Readiness("degraded", "no prefill replica is ready", [])

    async def try_pairs(self) -> list[dict[str, Any]]:
        return []

    async def probe(self, body: bytes) -> dict[str, Any]:
        return {"pairs": [], "tokens": list(wanted(body, 16).tokens)}


class DyingServer(Server):
    """Its engine dies after the request came in."""

    looks = 0

    @property
    def engine_problem(self) -> str | None:  # type: ignore[override]
        self.looks += 1
        return "engine process 7 is gone" if self.looks > 1 else None


@pytest.fixture
def key_file(tmp_path: Path) -> Path:
    path = tmp_path / "keys"
    path.write_text(f"{KEY} admin")
    return path


@pytest.fixture
def front(key_file: Path) -> Any:
    """Builds the endpoint's application around an engine client, a prefill handle and a replica."""

    def build(client: Client, handle: PrefillHandle | None = None, server: Server | None = None) -> Any:
        app = build_app(make_arg_parser(FlexibleArgumentParser()).parse_args([]), ("generate",))
        app.state.openai_serving_chat = Serving(client)
        app.state.engine_client = SimpleNamespace(errored=False, is_running=True)
        app.state.server = SimpleNamespace()
        client.generate = Orchestrator(client, handle or PrefillHandle(), prefill_peers("prefill-1")).generate  # type: ignore[method-assign]
        return build_front(app, server or Server(), {"api_key_file": str(key_file)})

    return build


def browser(app: Any, key: str | None = KEY) -> TestClient:
    headers = {"authorization": f"Bearer {key}"} if key else {}
    return TestClient(app, headers=headers, raise_server_exceptions=False)


# Routes and the door


def test_every_route_that_clients_use_is_vllms_own_or_rays() -> None:
    app = build_app(make_arg_parser(FlexibleArgumentParser()).parse_args([]), ("generate",))
    theirs = {getattr(route, "path", None) for route in app.routes}
    assert theirs >= ENGINE_PATHS - RAYS


def test_of_the_engines_routes_only_those_stay(front: Any) -> None:
    app = front(Client())
    assert {route.path for route in app.routes} == (ENGINE_PATHS - RAYS) | OURS
    for path in ("/docs", "/openapi.json", "/inference/v1/generate", f"{CHAT}/render", "/load", "/ping"):
        assert browser(app).post(path, json={}).status_code == 404


def test_the_door_stands_before_every_route(front: Any) -> None:
    client = Client()
    app = front(client)
    for path in [
        *(route.path for route in app.routes if route.path not in ("/health", "/ready")),
        "/nowhere",
        f"{CHAT}/",
    ]:
        for method in ("GET", "HEAD", "POST", "PUT", "DELETE"):
            for key in (None, "dk-wrong"):
                assert browser(app, key).request(method, path, json=HELLO).status_code == 401, (method, path)
    assert browser(app, None).get("/health").status_code == 200
    assert client.asked == []


def test_our_own_routes_have_names_for_counts_and_log_lines() -> None:
    assert set(OWN_ROUTES) == OURS


def test_who_has_no_key_is_not_told_how_the_engine_is(front: Any) -> None:
    server = Server()
    server.engine_problem = "engine process 7 is gone"
    response = browser(front(Client(), server=server), None).post(CHAT, json=HELLO)
    assert response.status_code == 401
    assert "engine process" not in response.text


def test_a_browser_may_ask_whether_it_may_ask(front: Any) -> None:
    asks = {"origin": "http://localhost", "access-control-request-method": "POST"}
    response = browser(front(Client()), None).options(CHAT, headers=asks)
    assert response.status_code == 200
    assert response.headers["access-control-allow-origin"] == "*"


def test_health_is_ours_and_tells_of_a_dead_engine(front: Any) -> None:
    server = Server()
    client = browser(front(Client(), server=server))
    assert client.get("/health").status_code == 200
    server.engine_problem = "engine process 7 is gone"
    for response in (client.get("/health"), client.post(CHAT, json=HELLO)):
        assert response.status_code == 503
        assert int(response.headers["retry-after"]) > 0
        assert "engine process 7 is gone" in response.json()["error"]["message"]
    assert client.get("/version").status_code == 200


def test_status_tells_the_phases(front: Any) -> None:
    answer = browser(front(Client())).get("/diptych/v1/status")
    assert answer.json()["phases"] == {"prefill": [], "decode": []}
    assert answer.json()["readiness"]["why"] == "no prefill replica is ready"


def test_a_probe_is_answered_with_what_was_found(front: Any) -> None:
    answer = browser(front(Client())).post("/diptych/v1/probe", json={"tokens": [1, 2]})
    assert (answer.status_code, answer.json()) == (200, {"pairs": [], "tokens": [1, 2]})


def test_a_probe_that_can_not_be_made_is_refused_in_openais_words(front: Any) -> None:
    answer = browser(front(Client())).post("/diptych/v1/probe", json={"tokens": []})
    assert answer.status_code == 400
    assert answer.json()["error"]["type"] == "invalid_request_error"
    assert "1 to 16 sizes" in answer.json()["error"]["message"]


def test_whoever_asks_whether_the_service_is_ready_learns_the_state_and_no_more(front: Any) -> None:
    answer = browser(front(Client()), None).get("/ready")
    assert (answer.status_code, answer.json()) == (200, {"state": "degraded"})


def test_what_nccl_came_to_is_told_and_a_second_run_is_refused(
    front: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def skipped() -> dict[str, Any]:
        return {"skipped": "one node of the cluster has GPUs, and it takes two"}

    async def busy() -> dict[str, Any]:
        raise nccl.Busy

    monkeypatch.setattr(nccl, "measure", skipped)
    answer = browser(front(Client())).post("/diptych/v1/nccl")
    assert (answer.status_code, answer.json()) == (200, asyncio.run(skipped()))
    monkeypatch.setattr(nccl, "measure", busy)
    answer = browser(front(Client())).post("/diptych/v1/nccl")
    assert answer.status_code == 409
    assert "Wait for that run" in answer.json()["error"]["message"]


# Through both phases


def test_a_chat_goes_through_both_phases_and_its_headers_say_so(front: Any) -> None:
    client, handle = Client(), PrefillHandle()
    response = browser(front(client, handle)).post(CHAT, json=HELLO)
    assert response.status_code == 200
    assert response.headers["x-diptych-path"] == "remote"
    assert response.headers["x-diptych-uncached-tokens"] == "2"
    assert response.json()["usage"]["prompt_tokens_details"]["cached_tokens"] == 1
    assert "diptych" not in response.json()
    assert client.asked[0].kv_transfer_params == PLACE


def test_a_chat_whose_client_asked_has_the_record_in_its_answer(front: Any) -> None:
    response = browser(front(Client())).post(CHAT, json=HELLO, headers=ASKS_FOR_RECORD)
    told = response.json()["diptych"]
    assert (told["path"], told["prefill_replica"], told["decode_replica"]) == (
        "remote",
        "prefill-1",
        "decode-1",
    )
    assert int(response.headers["content-length"]) == len(response.content)


def test_a_stream_whose_client_asked_has_the_record_just_before_its_end(front: Any) -> None:
    client = browser(front(Client()))
    response = client.post(CHAT, json=HELLO | {"stream": True}, headers=ASKS_FOR_RECORD)
    events = response.text.split("\n\n")
    assert events[:2] == ["data: 1", "data: 1"]
    assert json.loads(events[2].removeprefix("data: "))["diptych"]["path"] == "remote"
    assert events[3:] == ["data: [DONE]", ""]
    assert response.headers["x-diptych-path"] == "remote"


def test_a_request_that_cannot_be_split_is_answered_and_says_why(front: Any) -> None:
    response = browser(front(Client())).post(CHAT, json=HELLO | {"n": 2})
    assert response.headers["x-diptych-path"] == "local-whole"
    assert response.headers["x-diptych-why"] == "n > 1"


@pytest.mark.parametrize("where", [{}, {"vllm_xargs": None}])
def test_transfer_settings_of_a_client_are_refused_at_the_door(front: Any, where: dict[str, Any]) -> None:
    client = Client()
    smuggled = {"kv_transfer_params": {"remote_host": "10.0.0.1"}}
    body = HELLO | ({"vllm_xargs": smuggled} if where else smuggled)
    response = browser(front(client)).post(CHAT, json=body)
    assert response.status_code == 400
    assert client.asked == []


def test_an_error_of_the_engines_front_end_keeps_its_status_and_words(front: Any) -> None:
    response = browser(front(Client())).post(CHAT, json=HELLO | {"n": "many"}, headers=ASKS_FOR_RECORD)
    assert response.status_code == 400
    assert "n" in response.json()["error"]["message"]
    assert "x-diptych-path" not in response.headers


# Engines that die


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("ray", ["2.60", "2.58"])
def test_an_engine_that_dies_before_the_first_token_is_503(front: Any, stream: bool, ray: str) -> None:
    app = front(Client(says=(EngineDeadError(),)), server=DyingServer())
    if ray == "2.58":  # whose application lacks what vLLM's own handler of this error reads
        del app.state.server
    response = browser(app).post(CHAT, json=HELLO | {"stream": stream}, headers=ASKS_FOR_RECORD)
    assert response.status_code == 503
    assert "retry-after" in response.headers
    assert response.json()["error"]["type"] == "service_unavailable"


def test_an_engine_that_dies_in_the_middle_of_a_stream_ends_it_as_vllm_does(front: Any) -> None:
    app = front(Client(says=(1, EngineDeadError())), server=DyingServer())
    response = browser(app).post(CHAT, json=HELLO | {"stream": True})
    events = response.text.split("\n\n")
    assert response.status_code == 200
    assert events[0] == "data: 1"
    assert json.loads(events[1].removeprefix("data: "))["error"]["code"] == 500
    assert events[2] == "data: [DONE]"


def test_a_full_queue_is_vllms_to_tell(front: Any) -> None:
    exceptions = pytest.importorskip("vllm.exceptions")
    if not hasattr(exceptions, "QueueOverflowError"):
        pytest.skip("this vLLM bounds no queue of its own")
    response = browser(front(Client(says=(exceptions.QueueOverflowError(),)))).post(CHAT, json=HELLO)
    assert response.status_code == 503
    assert "restarting" not in response.text


# Clients that leave


def leaves(app: Any, when: Any, body: dict[str, Any]) -> list[Any]:
    """Ask for a chat and close the connection at that moment; what was sent until then, once all work ended."""
    sent: list[Any] = []
    messages = [{"type": "http.request", "body": json.dumps(body).encode(), "more_body": False}]

    async def receive() -> dict[str, Any]:
        if messages:
            return messages.pop()
        while not when(sent):
            await asyncio.sleep(0)
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        sent.append(message)

    headers = [(b"authorization", f"Bearer {KEY}".encode()), (b"content-type", b"application/json")]
    scope = {"type": "http", "path": CHAT, "method": "POST", "headers": headers, "query_string": b""}

    async def ask() -> list[Any]:
        await asyncio.wait_for(app(scope, receive, send), 20)
        for _ in range(20):
            await asyncio.sleep(0)
        return sent

    return asyncio.run(ask())


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_who_leaves_during_prefill_has_it_cancelled(front: Any, stream: bool) -> None:
    client, handle = Client(), PrefillHandle(None)
    leaves(front(client, handle), lambda _: handle.asked, HELLO | {"stream": stream})
    assert handle.replicas[0].was_cancelled
    assert client.asked == []


def test_what_prefill_had_done_by_then_is_let_go(front: Any) -> None:
    client, handle = Client(), PrefillHandle(LateAnswer(ANSWER))
    leaves(front(client, handle), lambda _: handle.asked, HELLO)
    assert [place for _, place in client.freed] == [PLACE]
    assert client.freed[0][0].startswith("freed-")


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_who_leaves_before_the_first_token_has_decode_aborted(front: Any, stream: bool) -> None:
    client = Client(says=(None,))
    leaves(front(client), lambda _: client.asked, HELLO | {"stream": stream})
    assert client.aborted == [client.asked[0].id]


def test_a_client_who_leaves_in_the_middle_of_a_stream_has_decode_aborted(front: Any) -> None:
    client = Client(says=(1, None))
    sent = leaves(front(client), lambda sent: len(sent) > 1, HELLO | {"stream": True})
    assert client.aborted == [client.asked[0].id]
    assert [message["type"] for message in sent] == ["http.response.start", "http.response.body"]


# Writes


def test_a_stream_faster_than_anybody_reads_goes_out_whole_and_in_few_writes(
    front: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Pace, "rest", AsyncMock())  # this engine does not join what nobody has taken
    sent: list[bytes] = []

    async def play() -> None:
        body = json.dumps(HELLO | {"stream": True}).encode()
        headers = [(b"authorization", f"Bearer {KEY}".encode()), (b"content-type", b"application/json")]
        scope = {
            "type": "http",
            "method": "POST",
            "path": CHAT,
            "raw_path": CHAT.encode(),
            "root_path": "",
            "query_string": b"",
            "headers": headers,
            "http_version": "1.1",
            "scheme": "http",
            "client": ("127.0.0.1", 4),
            "server": ("127.0.0.1", 8000),
        }
        asked = [{"type": "http.request", "body": body, "more_body": False}]

        async def receive() -> Any:
            return asked.pop() if asked else await asyncio.Event().wait()

        async def send(message: Any) -> None:
            if message["type"] == "http.response.body":
                sent.append(message["body"])

        await front(Client(says=[1] * 400))(scope, receive, send)

    asyncio.run(play())
    assert b"".join(sent).count(b"data: ") == 401
    assert len(sent) < 200
