"""The versions of Ray that the adapter (`ray_llm`) serves: those on which its names were seen to be the same."""

RAY_VERSIONS = {"2.58": "0.26", "2.60": "0.29"}
"""Of each, the vLLM that belongs to it."""


def require_ray(version: str) -> None:
    """Refuse a Ray whose internals nobody has looked at.

    Raises:
        ImportError: this version is none of `RAY_VERSIONS`; the message says which are.

    >>> require_ray("2.60.0")
    """
    if ".".join(version.split(".")[:2]) in RAY_VERSIONS:
        return
    pairs = " or ".join(f"Ray {ray} with vLLM {vllm}" for ray, vllm in RAY_VERSIONS.items())
    raise ImportError(
        f"diptych.serving extends internals of Ray Serve LLM, and those of Ray {version} it does not know. "
        f"Install {pairs}, or take an image that has them."
    )
