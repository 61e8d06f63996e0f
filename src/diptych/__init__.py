"""Serve one large language model with prefill and decode apart."""

__version__ = "0.1.0"
