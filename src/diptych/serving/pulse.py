"""The pulse of an engine: its steps as its replica hears of them, and how long one may take.

With each turn of its loop vLLM's engine sends its statistics, whether the turn put out a token or not: a part of a long
prompt, or a look at a KV cache that has not arrived, is a step like any other. An engine that hangs inside the model
sends none, however busy its processor is.
"""

from math import inf
from typing import Any

from diptych.serving.costs import Line

_TELLING_TOKENS = 16
"""From so many computed tokens on a prompt tells what a token costs."""
_UNMEASURED_S = 120.0
"""What a step may take of an engine of which nothing is known yet: thousands of tokens on a few cores."""


class Pulse:
    """Counts an engine's steps, and learns from finished requests what computing a prompt takes.

    It has the methods of a vLLM stat logger.

    Args:
        most_tokens: that the engine computes in one step.
    """

    def __init__(self, most_tokens: int) -> None:
        self.steps = 0
        self._most_tokens = most_tokens
        self._cost = Line()

    def record(self, _: Any, iteration_stats: Any, **_more: Any) -> None:
        """Called by vLLM for each step; `iteration_stats` is None for one that put out no token."""
        self.steps += 1
        for done in iteration_stats.finished_requests if iteration_stats else ():
            computed = done.num_prompt_tokens - getattr(done, "num_cached_tokens", 0)
            if computed >= _TELLING_TOKENS:
                self._cost.add(computed, done.prefill_time)

    def expected_s(self, tokens: int) -> float:
        """The seconds of one step while prompts of so many tokens wait; generous before any was measured."""
        measured = self._cost.at(min(tokens, self._most_tokens))
        return _UNMEASURED_S if measured is None else measured

    def log(self) -> None:
        """Part of a stat logger; there is nothing to log."""

    def log_engine_initialized(self) -> None:
        """Likewise."""

    def record_sleep_state(self, sleep: int = 0, level: int = 0) -> None:
        """Likewise."""


class NoPulse:
    """Of an engine that keeps no statistics (`disable_log_stats`): its steps are not known, and may take for ever."""

    steps = 0

    def expected_s(self, tokens: int) -> float:
        return inf


def pulse_of(client: Any) -> Pulse | NoPulse:
    """Begin to follow an engine's steps.

    Args:
        client: vLLM's front end (`AsyncLLM`).
    """
    if client.logger_manager is None:
        return NoPulse()
    pulse = Pulse(client.vllm_config.scheduler_config.max_num_batched_tokens)
    client.logger_manager.stat_loggers.append(pulse)
    return pulse


def tokens_waiting(client: Any) -> int:
    """The tokens of all prompts in the engine that have no first token yet, those in its prefix cache included."""
    states = client.output_processor.request_states.values()
    return sum(state.prompt_len for state in states if state.is_prefilling)
