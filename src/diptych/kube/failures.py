"""The words in which programs die, and what they mean."""

import re
from collections.abc import Iterable
from dataclasses import dataclass

from diptych.engine_log import clean, last_exception


@dataclass(frozen=True)
class Known:
    """A failure that is known by its words: what it means, what to do, and whether trying again may help."""

    words: re.Pattern[str]
    means: str
    do: str
    may_pass: bool = False


KNOWN = (
    Known(
        re.compile(r"429|Too Many Requests|rate limit", re.IGNORECASE),
        "the model hub turns it away for too many requests",
        "Set `model.token_env` (or another `model.token_…`): a token has a quota of its own. It tries again.",
        may_pass=True,
    ),
    Known(
        re.compile(r"is gated|gated repo|GatedRepo", re.IGNORECASE),
        "the model is gated, and this token has no access to it",
        "Accept the model's terms on its page, and set `model.token_env` or `model.token_secret`.",
    ),
    Known(
        re.compile(r"\b401\b|Unauthorized|Invalid username or password", re.IGNORECASE),
        "the model hub does not accept the token",
        "Put a valid one where `model.token_…` names it, and run `diptych up` again.",
    ),
    Known(
        re.compile(r"AccessDenied|Unable to locate credentials|can't be read with the rights of this pod"),
        "the pod may not read the bucket",
        "Give the service account of the workers a role that may (Pod Identity: `s3:GetObject`, `s3:ListBucket`).",
    ),
    Known(
        re.compile(
            r"Error while creating shared memory segment|No space left on device.*(?:shm|nccl)", re.IGNORECASE
        ),
        "shared memory (/dev/shm) is too small for NCCL",
        "Give the pods a larger /dev/shm: an emptyDir volume with `medium: Memory`, as `diptych render` writes it.",
    ),
    Known(
        re.compile(r"No space left on device|are needed: raise nodes\.volume_size"),
        "the node's disk is full",
        "Raise `nodes.volume_size`, or set `staging.path` to a larger disk.",
    ),
    Known(
        re.compile(
            r"Free memory on device|No available memory for the cache blocks|CUDA out of memory|OutOfMemoryError"
        ),
        "the GPU has too little free memory",
        "Lower `gpu_memory_utilization`, `max_model_len` or `max_num_seqs`; `diptych check` computes what fits.",
    ),
    Known(
        re.compile(r"libcudart\.so|nixl_ep"),
        "NIXL in the image was built for another CUDA than the engine",
        "Use an image in which NIXL and torch have one CUDA version.",
    ),
    Known(
        re.compile(r"EFA_\d+\.\d+' not found|version .EFA_[\d.]+. not found|undefined symbol: (?:fi|efadv)_"),
        "libfabric and the EFA driver library in the image do not belong together",
        "Use an image with one EFA installer's libraries, as AWS's ray-llm images have.",
    ),
    Known(
        re.compile(r"No network devices found|Topology discovery failed|fi_getinfo.*No data available"),
        "libfabric finds no EFA device in the pod",
        "The pod must ask for `vpc.amazonaws.com/efa`, and nothing may mount /dev/infiniband itself.",
    ),
    Known(
        re.compile(r"memlock|ibv_reg_mr.*(?:ENOMEM|Cannot allocate memory)|RLIMIT_MEMLOCK", re.IGNORECASE),
        "the pod may lock too little memory for RDMA",
        "Its containers need the capability IPC_LOCK, as `diptych render` writes it; a policy may take it away.",
    ),
    Known(
        re.compile(r"KeyError: '?[0-9a-f]{8}-[0-9a-f]{4}-"),
        "decode's handshake with a prefill engine was never completed",
        "Does a network policy keep the pods' side channel ports apart (`kv_transfer.ports`)?",
    ),
    Known(
        re.compile(r"Unknown engine argument|unexpected keyword argument|unrecognized arguments"),
        "the engine does not know one of its arguments",
        "Remove it from `engine_kwargs`; `diptych check` knows those of the image's vLLM.",
    ),
    Known(
        re.compile(r"(?:ray|wget): (?:command )?not found|No module named '?(?:ray|vllm|nixl)"),
        "the image has no Ray, vLLM, NIXL or wget, which the pods need",
        "Use a Ray LLM image; `image.name` in the document names it.",
    ),
)


def known(text: str) -> Known | None:
    """The known failure in a text; None where it has none."""
    return next((each for each in KNOWN if each.words.search(text)), None)


def last_words(lines: Iterable[str]) -> str:
    """The last exception, else the last line that says something."""
    kept = [text.strip() for line in lines if (text := clean(line))]
    return last_exception(kept) or (kept[-1] if kept else "")
