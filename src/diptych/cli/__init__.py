"""The command line: thin Typer commands over the places, the endpoint and the checks."""

from diptych.cli.app import main

__all__ = ["main"]
