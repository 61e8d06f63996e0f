"""The aggregated engine's greedy answers: vLLM alone, in one process, in float32.

Run as `python reference.py MODEL QUESTIONS ANSWERS`; both files are JSON lists.
"""

import json
import os
import sys
from pathlib import Path

os.environ |= {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_HOST_IP": "127.0.0.1",
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
}


def main() -> None:
    from vllm import LLM, SamplingParams

    model, questions, answers = sys.argv[1:]
    prompts = json.loads(Path(questions).read_text())
    engine = LLM(model, dtype="float32", enforce_eager=True, max_model_len=2048, kv_cache_memory_bytes=2**28)
    greedy = SamplingParams(temperature=0, max_tokens=24)
    completions = engine.generate(prompts, greedy, use_tqdm=False)
    chats = engine.chat([[{"role": "user", "content": prompt}] for prompt in prompts], greedy, use_tqdm=False)
    rows = [
        {"prompt": prompt, "completion": completion.outputs[0].text, "chat": chat.outputs[0].text}
        for prompt, completion, chat in zip(prompts, completions, chats, strict=True)
    ]
    Path(answers).write_text(json.dumps(rows))


if __name__ == "__main__":
    main()
