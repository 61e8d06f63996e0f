"""The benchmarks are scripts: their folder is on the path when they run, and here."""

import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[2] / "benchmarks" / part) for part in ("", "instant")]
