"""Lists, by pages, and watches."""

import asyncio
import base64
import json
from collections.abc import AsyncIterator, Mapping
from typing import TYPE_CHECKING

from aiohttp import web

from fakes.kubernetes.errors import Json, Refusal
from fakes.kubernetes.kinds import Kind
from fakes.kubernetes.selectors import fields_match, labels_match
from fakes.kubernetes.store import Event, Store

if TYPE_CHECKING:
    from fakes.kubernetes.handler import Target

_BOOKMARK_EVERY_S = 5.0


def listed(store: Store, found: "Target", query: Mapping[str, str]) -> Json:
    """A list, or one page of it (`limit`, `continue`)."""
    kind = found.kind
    things = [each for each in store.all(kind, found.namespace) if _selected(each, kind, query)]
    revision, start = store.revision, 0
    if token := query.get("continue"):
        held = json.loads(base64.b64decode(token))
        revision, start = held["revision"], held["start"]
        if revision < store.forgotten:
            raise Refusal(
                410, "The provided continue parameter is too old to display a consistent list result."
            )
    limit = int(query.get("limit") or 0)
    metadata: Json = {"resourceVersion": str(revision)}
    if limit and len(things) > start + limit:
        page = json.dumps({"revision": revision, "start": start + limit})
        metadata["continue"] = base64.b64encode(page.encode()).decode()
        metadata["remainingItemCount"] = len(things) - start - limit
    items = things[start : start + limit] if limit else things[start:]
    return {
        "kind": f"{kind.name}List",
        "apiVersion": kind.api_version(found.version),
        "metadata": metadata,
        "items": items,
    }


def _selected(thing: Json, kind: Kind, query: Mapping[str, str]) -> bool:
    return labels_match(query.get("labelSelector", ""), thing["metadata"].get("labels", {})) and fields_match(
        query.get("fieldSelector", ""), thing, kind.plural
    )


async def stream(
    store: Store, request: web.Request, kind: Kind, namespace: str, name: str
) -> web.StreamResponse:
    """A watch: one JSON object a line until `timeoutSeconds`, or the client goes."""
    query = dict(request.query)
    if name:
        query["fieldSelector"] = f"metadata.name={name}"
    response = web.StreamResponse(headers={"Content-Type": "application/json"})
    await response.prepare(request)
    try:
        async for line in _events(store, kind, namespace, query):
            await response.write(json.dumps(line).encode() + b"\n")
    except (ConnectionError, asyncio.CancelledError):
        return response
    await response.write_eof()
    return response


async def _events(store: Store, kind: Kind, namespace: str, query: Mapping[str, str]) -> AsyncIterator[Json]:
    loop, queue = asyncio.get_running_loop(), asyncio.Queue[Event]()
    until = loop.time() + float(query.get("timeoutSeconds") or 1800)

    def listen(event: Event) -> None:
        if event.kind.key == kind.key:
            loop.call_soon_threadsafe(queue.put_nowait, event)

    with store.lock:
        since = query.get("resourceVersion") or "0"
        wants_state = since == "0" or query.get("sendInitialEvents") == "true"
        is_too_old = not wants_state and int(since) < store.forgotten
        state = (
            [each for each in store.all(kind, namespace) if _selected(each, kind, query)]
            if wants_state
            else []
        )
        missed = [] if wants_state else [each for each in store.history if each.revision > int(since)]
        for event in missed:
            listen(event)
        revision = store.revision
        store.listeners.append(listen)
    try:
        if is_too_old:
            gone = Refusal(410, f"too old resource version: {since} ({store.forgotten})")
            yield {"type": "ERROR", "object": gone.status}
            return
        for thing in state:
            yield {"type": "ADDED", "object": thing}
        if query.get("sendInitialEvents") == "true":
            yield _bookmark(kind, revision, {"k8s.io/initial-events-end": "true"})
        while (left := until - loop.time()) > 0:
            seen = store.revision  # what came before this is in the queue when the wait below has passed
            try:
                event = await asyncio.wait_for(queue.get(), min(left, _BOOKMARK_EVERY_S))
            except TimeoutError:
                if query.get("allowWatchBookmarks") == "true":
                    yield _bookmark(kind, seen, {})
                continue
            line = _seen(event, namespace, query)
            if line:
                yield line
    finally:
        store.listeners.remove(listen)


def _seen(event: Event, namespace: str, query: Mapping[str, str]) -> Json | None:
    """An event as a watch with selectors sees it: what leaves the selection is deleted to it."""
    if namespace not in ("", event.thing["metadata"].get("namespace", "")):
        return None
    is_in = _selected(event.thing, event.kind, query)
    was_in = event.before is not None and _selected(event.before, event.kind, query)
    if event.type == "DELETED":
        return {"type": "DELETED", "object": event.thing} if was_in else None
    if is_in:
        return {"type": "MODIFIED" if was_in else "ADDED", "object": event.thing}
    return {"type": "DELETED", "object": event.thing} if was_in else None


def _bookmark(kind: Kind, revision: int, annotations: Mapping[str, str]) -> Json:
    metadata = {"resourceVersion": str(revision), "annotations": dict(annotations)}
    thing = {"kind": kind.name, "apiVersion": kind.api_version(), "metadata": metadata}
    return {"type": "BOOKMARK", "object": thing}
