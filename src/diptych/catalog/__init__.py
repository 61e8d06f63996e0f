"""Public facts that need no look-up: EC2 instance types, engine versions that belong together, engine arguments.

Tables are read when first asked for; importing this package reads none. `scripts/instances.py` and
`scripts/engine_args.py` make those in `data/`.
"""
