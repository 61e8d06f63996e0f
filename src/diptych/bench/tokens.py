"""A tokenizer for prompts at random, where the model's own is not at hand.

Prompts are sent as token ids, and the service counts tokens itself: all that matters is that the model has these ids.
"""

import json
from pathlib import Path

FIRST, LAST = 1000, 30000
"""Ids that every model of today has, and that are none of the special ones at the beginning."""


def stand_in(folder: Path) -> Path:
    """Write a tokenizer whose ids are `FIRST` to `LAST` into a folder of its own, which comes back."""
    made = folder / "tokenizer"
    made.mkdir(parents=True, exist_ok=True)
    vocabulary = {f"t{number}": number for number in range(FIRST, LAST)}
    content = {
        "version": "1.0",
        "added_tokens": [],
        "pre_tokenizer": {"type": "Whitespace"},
        "model": {"type": "WordLevel", "vocab": vocabulary, "unk_token": f"t{FIRST}"},
    }
    (made / "tokenizer.json").write_text(json.dumps(content))
    (made / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "PreTrainedTokenizerFast"}))
    return made
