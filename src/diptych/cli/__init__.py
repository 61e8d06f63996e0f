"""The command line: thin Typer commands over the places, the endpoint and the checks."""

import sys


def main() -> None:
    """Run the command line; Ctrl-C while it is still being loaded is no failure of ours either."""
    try:
        from diptych.cli.app import main as run
    except KeyboardInterrupt:
        sys.exit(130)
    run()
