"""`diptych up` of what `diptych check` refuses on this machine: LIBFABRIC without EFA, or EFA itself.

Run as `python -m engines.unchecked ASKED SETTING …`. ASKED stands for what the document asks of the KV transfer
(`transport` of `build_app`), as JSON; null leaves that to the document.
"""

import json
import sys

from diptych.errors import DiptychError
from diptych.local.up import bring_up
from diptych.progress import View
from diptych.render import serve
from diptych.spec import load


def main() -> int:
    asked = json.loads(sys.argv[1])
    if asked is not None:
        serve.transport = lambda _: asked
    try:
        next(bring_up(load(None, sys.argv[2:]), None, View()))
    except DiptychError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
