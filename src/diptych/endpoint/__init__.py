"""A running endpoint, seen from outside: a URL and a key file, and nothing about how it was started.

| module | holds |
|---|---|
| `address` | `Endpoint`: where it is, which model, and how a request authenticates |
| `client` | `stream_chat`, `chat`: one chat completion, streamed, with what each phase took |
| `result` | `Delta`, `ChatResult`, `Usage`, `Timing`: what comes back |
| `answer` | `Answer`: the stream's chunks collected into a result |
| `metrics` | `fetch_status`, `fetch_models`: what the endpoint says about itself |
| `sse` | `events`: server-sent events out of bytes |
| `failures` | every way a request fails, as an `EndpointError` |

Only `Endpoint` is imported here: `client` and `metrics` import httpx, a quarter of a second that a command
which sends nothing need not pay.
"""

from diptych.endpoint.address import Endpoint

__all__ = ["Endpoint"]
