"""How long the commands take that start nothing, against a Python that does nothing, in turn in one run.

Each figure is the median of RUNS whole processes, whose bytecode is compiled and whose files are in the page cache.
Exits 1 when a goal is missed.
"""

import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

RUNS = 15
EXAMPLE = str(Path(__file__).parents[1] / "examples" / "qwen3.5-9b-g6.yaml")
DIPTYCH = [sys.executable, "-m", "diptych"]


def main() -> int:
    with tempfile.TemporaryDirectory() as folder:
        commands = {
            "python -c pass": ([sys.executable, "-c", "pass"], None),
            "diptych --help": ([*DIPTYCH, "--help"], 0.3),
            "diptych check --offline": ([*DIPTYCH, "check", EXAMPLE, "--offline"], 1.0),
            "diptych render": ([*DIPTYCH, "render", EXAMPLE, "-o", folder, "--force"], 1.0),
        }
        took: dict[str, list[float]] = {name: [] for name in commands}
        for turn in range(RUNS + 1):
            for name, (command, _) in commands.items():
                began = time.perf_counter()
                subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
                if turn:  # the first turn warms the page cache
                    took[name].append(time.perf_counter() - began)
    medians = {name: statistics.median(times) for name, times in took.items()}
    least = medians["python -c pass"]
    missed = False
    for name, (_, goal) in commands.items():
        median = medians[name]
        missed |= goal is not None and median > goal
        goal_text = "" if goal is None else f"goal < {goal} s"
        print(
            f"{name:26} {median:6.3f} s  (worst {max(took[name]):.3f})  {median / least:5.1f} × python  {goal_text}"
        )
    return int(missed)


if __name__ == "__main__":
    sys.exit(main())
