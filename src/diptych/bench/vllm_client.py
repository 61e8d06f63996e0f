"""Runs vLLM's benchmark client: `python -m diptych.bench.vllm_client ARGUMENTS`, those of `vllm bench serve`."""

import sys
from typing import Any


class AsTokens:
    """A tokenizer that leaves prompts as token ids.

    vLLM 0.26's client writes a trace's tokens as text, which the server reads as more or fewer tokens; 0.29's sends
    them as they are.
    """

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer

    def decode(self, tokens: Any, *_: Any, **__: Any) -> Any:
        return tokens

    def __call__(self, *arguments: Any, **more: Any) -> Any:
        return self._tokenizer(*arguments, **more)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tokenizer, name)


def main() -> None:
    """Send a load as the arguments have it, and leave the results where they say."""
    from vllm.benchmarks import serve
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    samples_of = serve.get_samples
    serve.get_samples = lambda args, tokenizer: samples_of(args, AsTokens(tokenizer))
    parser = FlexibleArgumentParser()
    serve.add_cli_args(parser)
    serve.main(parser.parse_args(sys.argv[1:]))


if __name__ == "__main__":
    main()
