"""The place "this machine": start, watch, show and stop one service with real engines.

`up` spawns a *keeper* (`keeper.py`), which starts Ray, deploys both phases, proves a KV transfer and stays until
`down`. Every process it starts carries the service's run id in its environment, which is how `status` finds them
and how `down` proves that none is left.
"""
