"""What runs inside Ray: the application builder, both phases' servers, their engines and the KV transfer's records.

Ships alone into a cluster: it imports Ray Serve LLM, vLLM and the standard library around them, and nothing
else of diptych. `diptych.serving.builder:build_app` is the import path of the application.
"""
