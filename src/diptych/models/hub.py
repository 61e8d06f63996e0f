"""Where a model's files are: the embedded one, a directory, or the Hugging Face hub and its cache here."""

import json
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import httpx

from diptych.errors import ModelError
from diptych.models.embedded import EMBEDDED, ENVIRONMENT, Progress, prepare_embedded
from diptych.models.hub_cache import HUB_ID

REACH_SECONDS = 5.0
INSTEAD = "To go on without it, use the model that needs no hub: `--model embedded`."
TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "tekken.json", "vocab.json", "*.tiktoken")
SETTINGS_FILES = ["*.json", "*.jinja", "*.txt", "*.model", "*.tiktoken", "*.py"]
# Copies of the weights that some repositories carry for other programs.
OTHER_COPIES = ["original/*", "onnx/*", "metal/*", "openvino/*", "consolidated*"]
LFS_POINTER = b"version https://git-lfs"


def resolve_model(
    source: str,
    revision: str | None = None,
    progress: Progress | None = None,
    *,
    token: str | None = None,
    cache_dir: Path | None = None,
) -> Path:
    """The directory that the engine loads.

    Args:
        source: `embedded` (or that model's name); a directory; or a Hugging Face id, whose files come from
            the hub's cache on this disk if they are all there, else from the hub.
        revision: branch, tag or commit of a Hugging Face id.
        progress: told in one line what takes seconds or longer.
        token: for the hub; without one, the hub's own settings hold (HF_TOKEN, a login).
        cache_dir: where the embedded model is kept; by default this user's cache directory.

    Raises:
        ModelError: names what is missing, refused or out of reach, and what to do.
    """
    say = progress or (lambda _: None)
    if source in ("embedded", EMBEDDED.name):
        return prepare_embedded(cache_dir, say)
    if source.startswith(("/", "./", "../", "~")) or source in (".", "..") or Path(source).is_dir():
        return _local(source)
    if not HUB_ID.fullmatch(source):
        raise ModelError(
            f"{source!r} is neither a directory nor a Hugging Face id (owner/name).",
            "Correct the model's source.",
        )
    return _from_hub(source, revision, token, say)


def missing_parts(directory: Path) -> list[str]:
    """What a checkpoint in this directory lacks, in words; nothing if the engine can load it."""
    lacks = []
    if not (directory / "config.json").is_file() and not (directory / "params.json").is_file():
        lacks.append("config.json")
    lacks += _missing_weights(directory)
    if not any(next(directory.glob(name), None) for name in TOKENIZER_FILES):
        lacks.append("a tokenizer (tokenizer.json or tokenizer.model)")
    return lacks


def _missing_weights(directory: Path) -> list[str]:
    for index in ("model.safetensors.index.json", "pytorch_model.bin.index.json"):
        if (directory / index).is_file():
            try:
                shards = sorted(set(json.loads((directory / index).read_bytes())["weight_map"].values()))
            except (ValueError, KeyError, AttributeError):
                return [f"a readable {index}"]
            return [shard for shard in shards if not _is_real(directory / shard)]
    weights = [*directory.glob("*.safetensors"), *directory.glob("*.bin")]
    if not weights:
        return ["weights (*.safetensors)"]
    return [
        f"{file.name} itself (it is a Git LFS pointer: run `git lfs pull`)"
        for file in weights
        if not _is_real(file)
    ]


def _is_real(file: Path) -> bool:
    """Whether the file exists and is no Git LFS pointer."""
    if not file.is_file():
        return False
    with file.open("rb") as stream:
        return stream.read(len(LFS_POINTER)) != LFS_POINTER


def _local(source: str) -> Path:
    directory = Path(source).expanduser().absolute()
    if not directory.exists():
        raise ModelError(f"There is no directory {directory}.", "Correct the model's source.")
    if not directory.is_dir():
        raise ModelError(
            f"{directory} is a file; a model is a directory with config.json and *.safetensors.",
            "Name the directory, or convert the file to a Hugging Face checkpoint first.",
        )
    lacks = missing_parts(directory)
    if lacks:
        raise ModelError(
            f"{directory} is not a whole model: it lacks {', '.join(lacks)}.", "Add what is missing."
        )
    return directory


def _from_hub(repo: str, revision: str | None, token: str | None, say: Progress) -> Path:
    try:
        import huggingface_hub
        import huggingface_hub.constants
        import huggingface_hub.errors
        import huggingface_hub.utils
    except ImportError as error:
        raise ModelError(
            f"{repo} can't be looked up: this Python environment lacks huggingface_hub.",
            ENVIRONMENT,
        ) from error
    cached = _cached(huggingface_hub, repo, revision)
    if cached:
        return cached
    endpoint = huggingface_hub.constants.ENDPOINT
    if huggingface_hub.constants.HF_HUB_OFFLINE:
        raise ModelError(
            f"{repo} is not (wholly) in the cache of the hub, and HF_HUB_OFFLINE forbids fetching it.",
            f"Unset HF_HUB_OFFLINE, or name a directory with `--model DIRECTORY`. {INSTEAD}",
        )
    _require_reachable(repo, endpoint)
    with _explained(huggingface_hub, repo, revision, endpoint, has_token=bool(token)):
        info = huggingface_hub.HfApi(token=token).model_info(
            repo, revision=revision, timeout=REACH_SECONDS * 2, files_metadata=True
        )
        return _download(huggingface_hub, info, repo, revision, token, say)


def _cached(hub: Any, repo: str, revision: str | None) -> Path | None:
    """The snapshot's directory, if the hub's cache has every file that the engine needs."""
    for name in ("config.json", "params.json"):
        file = hub.try_to_load_from_cache(repo, name, revision=revision)
        if isinstance(file, str) and not missing_parts(Path(file).parent):
            return Path(file).parent
    return None


def _download(hub: Any, info: Any, repo: str, revision: str | None, token: str | None, say: Progress) -> Path:
    sizes = {file.rfilename: file.size or 0 for file in info.siblings}
    wanted = _wanted(list(sizes))
    total = sum(sizes[name] for name in wanted)
    cache = Path(hub.constants.HF_HUB_CACHE)
    blobs = cache / f"models--{repo.replace('/', '--')}" / "blobs"
    _require_space(cache, repo, total - _bytes_in(blobs))
    hub.utils.disable_progress_bars()
    say(f"fetching {repo}: {_size(total)} in {len(wanted)} files")
    with _watched(blobs, lambda done: say(f"fetching {repo}: {_size(min(done, total))} of {_size(total)}")):
        snapshot = Path(hub.snapshot_download(repo, revision=revision, allow_patterns=wanted, token=token))
    lacks = missing_parts(snapshot)
    if lacks:
        raise ModelError(
            f"{repo} on the hub is not a model that the engine loads: it lacks {', '.join(lacks)}.",
            "Name a repository with a Hugging Face checkpoint, not one with GGUF or adapter files alone.",
        )
    return snapshot


def _wanted(names: list[str]) -> list[str]:
    """The repository's files to fetch: settings, tokenizer, and weights once, safetensors if there are any.

    >>> _wanted(["config.json", "a.safetensors", "a.bin", "onnx/a.onnx", "README.md"])
    ['config.json', 'a.safetensors']
    """

    def matching(patterns: list[str]) -> list[str]:
        return [name for name in names if any(fnmatch(name, pattern) for pattern in patterns)]

    others = matching(OTHER_COPIES)
    weights = next(
        (kind for kind in ("*.safetensors", "*.bin") if set(matching([kind])) - set(others)), "consolidated*"
    )
    return [
        name
        for name in matching([*SETTINGS_FILES, weights])
        if name not in others or (weights == "consolidated*" and fnmatch(name, weights))
    ]


def _require_reachable(repo: str, endpoint: str) -> None:
    """Refuse within seconds where the hub's own client would go on trying; name look-ups included."""
    failure: list[str] = ["no answer"]

    def probe() -> None:
        try:
            # Any answer will do, so nothing is sent and no certificate is judged: the hub's client does that.
            httpx.head(endpoint, timeout=REACH_SECONDS, verify=False)
            failure.clear()
        except httpx.HTTPError as error:
            failure[:] = [str(error) or type(error).__name__]

    thread = threading.Thread(target=probe, daemon=True)
    thread.start()
    thread.join(REACH_SECONDS * 1.5)
    if failure:
        raise ModelError(
            f"{repo} is not on this disk, and the hub at {endpoint} can't be reached ({failure[0]}).",
            f"Check the network or HTTPS_PROXY, set HF_ENDPOINT to a mirror, or name a directory. {INSTEAD}",
        )


@contextmanager
def _explained(
    hub: Any, repo: str, revision: str | None, endpoint: str, *, has_token: bool
) -> Iterator[None]:
    """Turn the hub's refusals into sentences. The order matters: a gated model is a kind of missing one."""
    errors, page = hub.errors, f"{endpoint}/{repo}"
    has_token = has_token or bool(hub.get_token())
    try:
        yield
    except errors.GatedRepoError as error:
        do = (
            "Ask for access there with the account of HF_TOKEN"
            if has_token
            else "Accept its terms there and set HF_TOKEN"
        )
        raise ModelError(
            f"{repo} is gated: its owner grants access on {page}.", f"{do}. {INSTEAD}"
        ) from error
    except errors.RepositoryNotFoundError as error:
        do = "Check the spelling" if has_token else "Check the spelling; for a private model set HF_TOKEN"
        raise ModelError(
            f"There is no model {repo} at {endpoint} that you may read.", f"{do}. {INSTEAD}"
        ) from error
    except errors.RevisionNotFoundError as error:
        raise ModelError(
            f"{repo} has no revision {revision!r}.", f"See {page}/tree/main for its branches."
        ) from error
    except errors.HfHubHTTPError as error:
        status = error.response.status_code
        if status in (401, 403):
            do = "HF_TOKEN is not accepted: set a valid one" if has_token else "Set HF_TOKEN"
            raise ModelError(f"The hub refuses {repo} (HTTP {status}).", f"{do}. {INSTEAD}") from error
        raise ModelError(
            f"The hub answered {repo} with HTTP {status}.", f"Try again later. {INSTEAD}"
        ) from error
    except (OSError, errors.HTTPError) as error:
        told = (str(error).strip().splitlines() or [""])[0]
        raise ModelError(
            f"{repo} could not be fetched ({type(error).__name__}: {told}).",
            f"Run the same command again; what has been fetched is kept. {INSTEAD}",
        ) from error


@contextmanager
def _watched(directory: Path, tell: Callable[[int], None], every: float = 5.0) -> Iterator[None]:
    """Tell, every few seconds, how many bytes the directory holds."""
    ended = threading.Event()

    def watch() -> None:
        while not ended.wait(every):
            tell(_bytes_in(directory))

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def _bytes_in(directory: Path) -> int:
    total = 0
    for file in directory.glob("*"):
        try:
            total += file.stat().st_size
        except FileNotFoundError:  # renamed when its download ended
            continue
    return total


def _require_space(cache: Path, repo: str, needed: int) -> None:
    place = next(place for place in (cache, *cache.parents) if place.exists())
    free = shutil.disk_usage(place).free
    if free < needed:
        raise ModelError(
            f"{repo} needs {_size(needed)} more in {cache}, where {_size(free)} are free.",
            "Free some space, or set HF_HOME to a directory on a larger disk.",
        )


def _size(count: int) -> str:
    """
    >>> _size(3_100_000_000), _size(93_000_000)
    ('3.1 GB', '93 MB')
    """
    return f"{count / 1e9:.1f} GB" if count >= 1e9 else f"{count / 1e6:.0f} MB"
