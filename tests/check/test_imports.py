"""A check is quick: it imports neither the engines nor a client for the network."""

import json
import subprocess
import sys
from pathlib import Path

HEAVY = ("ray", "vllm", "torch", "transformers", "httpx", "numpy", "diptych.serving")


def test_a_check_without_network_imports_no_engine_and_no_client(tmp_path: Path) -> None:
    document = tmp_path / "diptych.yaml"
    document.write_text("on: eks\nmodel: Qwen/Qwen3-8B\n")
    program = (
        "import sys, json\n"
        "from pathlib import Path\n"
        "from diptych.cli.check import run_check\n"
        f"run_check(Path({str(document)!r}), [], show=True, json_output=False, offline=True, ray=False)\n"
        f"print(json.dumps([name for name in {HEAVY!r} if name in sys.modules]))\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout.splitlines()[-1]) == []
