"""How one request is answered: who asks, what for, and what the store makes of it."""

import asyncio
import copy
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import yaml
from aiohttp import web

from fakes.kubernetes import discovery, patches, pods, protobuf, watching
from fakes.kubernetes.errors import Json, Refusal, not_found
from fakes.kubernetes.kinds import REVIEWS, Kind
from fakes.kubernetes.objects import Writer
from fakes.kubernetes.selectors import fields_match, labels_match
from fakes.kubernetes.store import Store

if TYPE_CHECKING:
    from fakes.kubernetes.fake import FakeKubernetes

_VERBS = {"GET": "get", "POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}


@dataclass(frozen=True)
class Target:
    """What a path names."""

    kind: Kind
    version: str
    namespace: str
    name: str
    subresource: str

    @property
    def resource(self) -> str:
        return self.kind.plural + (f"/{self.subresource}" if self.subresource else "")


def target(store: Store, path: str) -> Target:
    """What a path names; 404 where the fake serves no such thing."""
    group, version, rest = discovery.split_path(path)
    namespace = ""
    if len(rest) > 2 and rest[0] == "namespaces" and rest[2] not in ("status", "finalize"):
        namespace, rest = rest[1], rest[2:]
    kind = store.kinds.get((group, rest[0])) if rest else None
    if kind is None or version not in kind.versions:
        raise Refusal(404, "the server could not find the requested resource")
    name, subresource = (*rest[1:3], "", "")[:2]
    return Target(kind, version, namespace, name, subresource)


async def answer(fake: "FakeKubernetes", request: web.Request, body: Any) -> web.StreamResponse:
    """The answer to an authenticated request."""
    store, path, query = fake.store, request.path, request.query
    meta = discovery.about(path, list(store.kinds.values()), fake.version)
    if meta is not None:
        return web.json_response(meta)
    group, version, rest = discovery.split_path(path)
    review = REVIEWS.get(f"{group}/{version}")
    if review and rest[0] == review[1]:
        return web.json_response(_review(fake, body), status=201)
    found = target(store, path)
    is_watch = query.get("watch") in ("1", "true") and not found.subresource
    verb = _verb(request.method, found, is_watch)
    _refuse_denied(fake, found, verb)
    if found.kind.plural == "pods" and found.subresource in ("log", "portforward"):
        return await getattr(pods, found.subresource)(fake, request, found.namespace, found.name)
    if is_watch:
        return await watching.stream(store, request, found.kind, found.namespace, found.name)
    with store.lock:
        try:
            status, thing = _act(fake, request, found, body)
        except Refusal as refusal:
            raise refusal.about(
                found.kind.name if refusal.code == 422 else found.kind.plural, found.kind.group, found.name
            ) from None
        text = json.dumps(_versioned(thing, found))
    return web.Response(text=text, status=status, content_type="application/json")


def _verb(method: str, found: Target, is_watch: bool) -> str:
    if method == "GET" and not found.name:
        return "watch" if is_watch else "list"
    if method == "DELETE" and not found.name:
        return "deletecollection"
    return _VERBS[method]


def _review(fake: "FakeKubernetes", body: Json) -> Json:
    if body["kind"] == "SelfSubjectReview":
        return {**body, "status": {"userInfo": {"username": fake.user, "groups": ["system:authenticated"]}}}
    asked = body["spec"].get("resourceAttributes", {})
    resource = "/".join(filter(None, (asked.get("resource"), asked.get("subresource"))))
    allowed = fake.allows(asked.get("verb", ""), resource)
    return {
        **body,
        "status": {"allowed": allowed} | ({} if allowed else {"reason": "no rule of RBAC allows it"}),
    }


def _refuse_denied(fake: "FakeKubernetes", found: Target, verb: str) -> None:
    if not fake.allows(verb, found.resource):
        where = f' in the namespace "{found.namespace}"' if found.namespace else " at the cluster scope"
        named = f'{found.kind.resource} "{found.name}"' if found.name else found.kind.resource
        raise Refusal(
            403,
            f'{named} is forbidden: User "{fake.user}" cannot {verb} resource "{found.resource}" in API group '
            f'"{found.kind.group}"{where}',
        )


def _act(fake: "FakeKubernetes", request: web.Request, found: Target, body: Any) -> tuple[int, Json]:
    store, query, kind = fake.store, request.query, found.kind
    writer = _writer(request)
    if kind.plural == "pods" and found.subresource == "eviction":
        return pods.evict(store, found.namespace, found.name, writer)
    if found.subresource not in ("", "status", "finalize"):
        raise Refusal(404, "the server could not find the requested resource")
    if found.subresource == "status" and not kind.has_status:
        raise Refusal(404, "the server could not find the requested resource")
    match request.method:
        case "GET" if found.name:
            return 200, store.get(kind, found.namespace, found.name)
        case "GET":
            return 200, watching.listed(store, found, query)
        case "POST":
            _refuse_mismatch(found, body)
            return 201, store.create(kind, body, found.namespace, writer)
        case "PUT":
            _refuse_mismatch(found, body)
            before = store.get(kind, found.namespace, found.name)
            return 200, store.replace(kind, before, body, writer, found.subresource)
        case "PATCH":
            return _patch(store, request, found, body, writer)
        case "DELETE" if found.name:
            thing = store.get(kind, found.namespace, found.name)
            return 200, _delete(store, kind, thing, query, body, writer)
        case "DELETE":
            gone = [
                each
                for each in store.all(kind, found.namespace)
                if labels_match(query.get("labelSelector", ""), each["metadata"].get("labels", {}))
                and fields_match(query.get("fieldSelector", ""), each, kind.plural)
            ]
            for each in gone:
                _delete(store, kind, each, query, body, writer)
            return 200, {
                "kind": f"{kind.name}List",
                "apiVersion": kind.api_version(),
                "metadata": {},
                "items": gone,
            }
    raise Refusal(405, "the server does not allow this method on the requested resource")


def _writer(request: web.Request) -> Writer:
    agent = request.headers.get("User-Agent", "unknown").split("/")[0]
    manager = request.query.get("fieldManager") or agent
    if len(manager) > 128:
        raise Refusal(422, "fieldManager: Too long: may not be more than 128 bytes")
    dry_run = request.query.getall("dryRun", [])
    if dry_run not in ([], ["All"]):
        raise Refusal(400, f"Invalid value: {dry_run}: dryRun supports only All")
    return Writer(manager, dry_run=bool(dry_run))


def _refuse_mismatch(found: Target, body: Any) -> None:
    if not isinstance(body, dict):
        raise Refusal(400, "the body of the request is no object")
    wanted = found.kind.api_version(found.version)
    if body.get("kind", found.kind.name) != found.kind.name or body.get("apiVersion", wanted) != wanted:
        raise Refusal(
            400,
            f"{body.get('apiVersion')}, Kind={body.get('kind')} does not match the expected {wanted}, "
            f"Kind={found.kind.name}",
        )
    metadata = body.get("metadata") or {}
    if metadata.get("namespace", found.namespace) != found.namespace:
        raise Refusal(
            400, "the namespace of the provided object does not match the namespace sent on the request"
        )
    if found.name and metadata.get("name", found.name) != found.name:
        words = (
            f"the name of the object ({metadata['name']}) does not match the name on the URL ({found.name})"
        )
        raise Refusal(400, words)


def _patch(store: Store, request: web.Request, found: Target, body: Any, writer: Writer) -> tuple[int, Json]:
    kind = found.kind
    before = store.find(kind, found.namespace, found.name)
    form = request.content_type
    if form == "application/apply-patch+yaml":
        return _apply(store, request.query, found, body, writer, before)
    if before is None:
        raise not_found(kind.resource, found.name)
    if form == "application/merge-patch+json":
        after = patches.merge_patch(before, body)
    elif form == "application/json-patch+json":
        after = patches.json_patch(before, body)
    elif form == "application/strategic-merge-patch+json" and not kind.is_custom:
        schema = kind.schema
        after = patches.strategic_merge(copy.deepcopy(before), body, schema.resolve(schema.raw), schema)
    else:
        words = "the body of the request was in an unknown format - accepted media types include: "
        raise Refusal(
            415,
            words + "application/json-patch+json, application/merge-patch+json, application/apply-patch+yaml",
        )
    return 200, store.replace(kind, before, after, writer, found.subresource)


def _apply(
    store: Store, query: Mapping[str, str], found: Target, body: Any, writer: Writer, before: Json | None
) -> tuple[int, Json]:
    _refuse_mismatch(found, body)
    if not query.get("fieldManager"):
        raise Refusal(
            422,
            'PatchOptions.meta.k8s.io "" is invalid: fieldManager: Required value: is required for apply patch',
        )
    if not body.get("apiVersion") or not body.get("kind"):
        raise Refusal(400, "apiVersion and kind must be set in an apply patch")
    kind, wanted = found.kind, copy.deepcopy(body)
    wanted.setdefault("metadata", {})["name"] = found.name
    if found.kind.has_status and found.subresource != "status":
        wanted.pop("status", None)
    if before is None and found.subresource:
        raise not_found(kind.resource, found.name)
    live = before or {"apiVersion": body["apiVersion"], "kind": kind.name, "metadata": {}}
    if found.subresource == "status":
        wanted = {
            **{name: wanted[name] for name in ("apiVersion", "kind", "metadata")},
            "status": wanted["status"],
        }
    entry = writer.entry(kind, "Apply", found.subresource)
    merged = patches.apply(live, wanted, kind.schema, entry, force=query.get("force") in ("true", "1"))
    if before is None:
        return 201, store.create(kind, merged, found.namespace, writer)
    return 200, store.replace(kind, before, merged, writer, found.subresource, tracked=True)


def _delete(
    store: Store, kind: Kind, thing: Json, query: Mapping[str, str], body: Any, writer: Writer
) -> Json:
    options = body if isinstance(body, dict) else {}
    preconditions = options.get("preconditions") or {}
    for name, field in (("uid", "uid"), ("resourceVersion", "resourceVersion")):
        if preconditions.get(name) not in (None, thing["metadata"][field]):
            raise Refusal(
                409,
                f"Precondition failed: {name}: {preconditions[name]}, in object: {thing['metadata'][field]}",
            )
    if options.get("dryRun") == ["All"]:
        writer = Writer(writer.manager, dry_run=True)
    grace = options.get("gracePeriodSeconds", query.get("gracePeriodSeconds"))
    propagation = options.get("propagationPolicy") or query.get("propagationPolicy") or "Background"
    grace_s = None if grace is None else float(grace)
    return store.delete(kind, thing, writer, propagation=propagation, grace_s=grace_s)


def _versioned(thing: Json, found: Target) -> Json:
    """With the version that was asked for: all versions of a kind are alike here."""
    wanted = found.kind.api_version(found.version)
    if "items" in thing:
        items = [{**each, "apiVersion": wanted} for each in thing["items"]]
        return {**thing, "apiVersion": wanted, "items": items}
    return {**thing, "apiVersion": wanted} if thing.get("kind") == found.kind.name else thing


async def read_body(request: web.Request) -> Any:
    """The request's body as JSON or YAML; None where it has none."""
    raw = await request.read()
    if not raw:
        return None
    if request.content_type == protobuf.CONTENT_TYPE:
        return protobuf.decode(raw)
    loop = asyncio.get_running_loop()
    try:
        return json.loads(raw)
    except ValueError:
        pass
    try:
        return await loop.run_in_executor(None, lambda: yaml.load(raw, yaml.CSafeLoader))
    except yaml.YAMLError as error:
        raise Refusal(400, f"error decoding YAML: {error}") from error
