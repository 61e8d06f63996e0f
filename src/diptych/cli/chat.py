"""`diptych chat`: one question or a small talk, and below each answer what it cost.

An answer is text from elsewhere: it goes out through `console.write`, never through Rich's markup.
"""

import json
import re
import sys
from contextlib import closing
from dataclasses import dataclass, field

from diptych.cli.console import (
    err,
    format_bytes,
    format_ms,
    is_terminal,
    out,
    print_dim,
    print_error,
    write,
)
from diptych.endpoint import Endpoint
from diptych.endpoint.client import Message, chat, stream_chat
from diptych.endpoint.result import ChatResult, Timing
from diptych.errors import DiptychError, DocumentError

INTERRUPTED = 130
PIPE_CLOSED = 141
"""Exit codes that shells give to SIGINT and SIGPIPE."""

# A path of the request's way on which prefill and decode were not apart, though they should have been.
_NOT_SPLIT = {
    "local-whole": "not split: this request cannot be",
    "local-no-prefill": "not split: no prefill replica is ready",
    "recovered": "not split: prefill failed",
}

_COMMAND = re.compile(r"/[a-z]+")


def run_chat(
    endpoint: Endpoint,
    text: str | None,
    *,
    json_output: bool,
    max_tokens: int | None,
    system: str | None,
    temperature: float | None,
) -> int:
    """Ask `text` and print the answer, or talk when there is none; failures are printed too.

    Args:
        text: the prompt; `-` reads it from standard input, and so does None where that is no terminal.
        json_output: print `ChatResult.to_json()` alone, once the answer is whole.
        max_tokens, temperature: for the request; None leaves them to the server.
        system: the system prompt, if any.

    Returns:
        The exit code: 0, a `DiptychError`'s own, 130 after Ctrl-C, 141 when nobody reads the output any more.
    """
    try:
        system = None if system is None else _utf8(system, "The system prompt")
        conversation = Conversation(endpoint, max_tokens, temperature, system)
        prompt = _prompt(text, json_output)
        if prompt is None:
            talk(conversation)
        elif json_output:
            write(json.dumps(conversation.result(prompt).to_json()) + "\n")
        else:
            conversation.ask(prompt)
    except DiptychError as error:
        print_error(error)
        return error.exit_code
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        return PIPE_CLOSED
    return 0


@dataclass
class Conversation:
    """What was said so far, by both sides, and how to go on.

    After a failed or interrupted answer it holds what was printed of it. A question of whose answer nothing
    came is forgotten, since chat templates want the roles to alternate.
    """

    endpoint: Endpoint
    max_tokens: int | None = None
    temperature: float | None = None
    system: str | None = None
    _turns: list[Message] = field(default_factory=list)

    def reset(self) -> None:
        """Forget everything but the system prompt."""
        self._turns.clear()

    def result(self, prompt: str) -> ChatResult:
        """The whole answer to `prompt`, printed nowhere and not remembered."""
        messages = self._messages(prompt)
        return chat(self.endpoint, messages, max_tokens=self.max_tokens, temperature=self.temperature)

    def ask(self, prompt: str) -> None:
        """Print the answer to `prompt` as it comes, then what it cost.

        Raises:
            EndpointError: the endpoint failed; what had come stays printed.
        """
        answer, result, interrupted = "", None, False
        deltas = stream_chat(
            self.endpoint,
            self._messages(prompt),
            max_tokens=self.max_tokens,
            temperature=self.temperature,
        )
        try:
            with closing(deltas):
                for delta in deltas:
                    answer += delta.text
                    write(delta.text)
                    result = delta.result
        except KeyboardInterrupt:
            interrupted = True
            raise
        finally:
            self._remember(prompt, answer)
            # A terminal writes ^C behind the answer: its line is then not over, whatever the answer ends in.
            if (answer and not answer.endswith("\n")) or (interrupted and is_terminal(sys.stdout)):
                write("\n")
        if result is not None:
            print_cost(result)

    def _messages(self, prompt: str) -> list[Message]:
        system = [{"role": "system", "content": self.system}] if self.system else []
        return [*system, *self._turns, {"role": "user", "content": prompt}]

    def _remember(self, prompt: str, answer: str) -> None:
        if answer:
            self._turns += [{"role": "user", "content": prompt}, {"role": "assistant", "content": answer}]


def talk(conversation: Conversation) -> None:
    """Ask and answer on the terminal until the user leaves. Errors and interrupted answers do not end it."""
    _enable_history()
    endpoint = conversation.endpoint
    print_dim(out(), f"{endpoint.model} at {endpoint.url}. Ctrl-C stops an answer.")
    print_dim(out(), "/reset starts afresh; /exit or Ctrl-D leaves.")
    interrupted = False
    while True:
        try:
            line = input("> ").strip()
        except EOFError:
            write("\n")
            return
        except KeyboardInterrupt:
            write("\n")
            if interrupted:
                return
            interrupted = True
            print_dim(out(), "Ctrl-C once more leaves, and so does Ctrl-D.")
            continue
        if line == "/exit":
            return
        interrupted = not _take(conversation, line)


def _take(conversation: Conversation, line: str) -> bool:
    """Do what a line of the talk asks for; returns False when Ctrl-C stopped it."""
    try:
        if line == "/reset":
            conversation.reset()
            print_dim(out(), "Starting afresh.")
        elif _COMMAND.fullmatch(line):
            print_dim(out(), f"There is no {line}, only /reset and /exit.")
        elif line:
            conversation.ask(_utf8(line, "The line"))
    except DiptychError as error:
        print_error(error)
    except KeyboardInterrupt:
        print_dim(out(), "Stopped.")
        return False
    return True


def print_cost(result: ChatResult) -> None:
    """Print what a request cost: below the answer on a terminal, else on standard error."""
    if line := cost(result):
        print_dim(out() if is_terminal(sys.stdout) else err(), line)


def cost(result: ChatResult) -> str:
    """What a request cost, on one line; values that are not known are left out, computed ones marked."""
    timing = result.timing
    parts = (
        _counted(result.usage.prompt_tokens, "prompt token"),
        _NOT_SPLIT.get(result.path or "", ""),
        _named("prefill", _ms(result, "prefill_ms")),
        _kv_transfer(result),
        "" if timing.ttft_ms is None else f"first token {format_ms(timing.ttft_ms)}",
        _rate(timing, _counted(result.usage.completion_tokens, "token")),
    )
    return " · ".join(filter(None, parts))


def _kv_transfer(result: ChatResult) -> str:
    count = result.timing.kv_transfer_bytes
    moved = "" if count is None else _marked(result, "kv_transfer_bytes", format_bytes(count))
    took = _ms(result, "kv_transfer_ms")
    return _named("KV transfer", " in ".join(filter(None, (moved, took))))


def _rate(timing: Timing, tokens: str) -> str:
    if timing.tokens_per_s is None:
        return tokens
    return f"{timing.tokens_per_s:.1f} tokens/s ({tokens})"


def _ms(result: ChatResult, name: str) -> str:
    value = getattr(result.timing, name)
    return "" if value is None else _marked(result, name, format_ms(value))


def _marked(result: ChatResult, name: str, text: str) -> str:
    return f"{text} (computed)" if name in result.computed else text


def _named(name: str, value: str) -> str:
    return f"{name} {value}" if value else ""


def _counted(count: int | None, noun: str) -> str:
    return "" if count is None else f"{count} {noun}{'' if count == 1 else 's'}"


def _prompt(text: str | None, json_output: bool) -> str | None:
    """The prompt, from the command line or standard input; None where a talk is to begin."""
    if text is None and is_terminal(sys.stdin):
        if json_output or not is_terminal(sys.stdout):
            raise DocumentError(
                "There is nothing to ask: a talk needs a terminal for its answers, and has no --json.",
                'Give the prompt: `diptych chat "Hello"`.',
            )
        return None
    if text is None or text == "-":
        # Closed streams are None.
        text = sys.stdin.buffer.read().decode("utf-8", "surrogateescape") if sys.stdin else ""
    if not text.strip():
        raise DocumentError(
            "There is nothing to ask: the prompt is empty.",
            'Give it as TEXT, `diptych chat "Hello"`, or on standard input.',
        )
    return _utf8(text.rstrip("\n"), "The prompt")


def _utf8(text: str, what: str) -> str:
    """`text`, unless it came from bytes that were not UTF-8, which JSON cannot carry."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise DocumentError(
            f"{what} is not UTF-8.", "Convert it, for instance with `iconv -t UTF-8`."
        ) from None
    return text


def _enable_history() -> None:
    """Let `input` edit lines and bring back earlier ones; in memory only: prompts belong in no file."""
    try:
        import readline  # noqa: F401
    except ImportError:
        # Some builds of Python come without it: the talk works, without history.
        return
