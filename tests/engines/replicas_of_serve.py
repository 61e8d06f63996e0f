"""A program: two replicas of Ray Serve's, asked past its routing; what was seen comes out as one line of JSON."""

import asyncio
import json

import ray
from ray import serve

from diptych.serving.ray_llm import remember, remembers
from diptych.serving.replicas import ask_replicas


@serve.deployment(num_replicas=2, ray_actor_options={"num_cpus": 0})
class Told:
    """Tells its name and what it was told."""

    async def tell(self, *arguments: object) -> dict[str, object]:
        name = serve.get_replica_context().replica_id.unique_id
        return {"replica": name, "arguments": list(arguments)}

    async def hang(self) -> dict[str, object]:
        await asyncio.sleep(60)
        return {}


async def seen(handle: object) -> dict[str, object]:
    everyone: list[dict[str, object]] = []
    while len(everyone) < 2:  # the handle learns of them a moment after they are up
        await asyncio.sleep(0.2)
        everyone = await ask_replicas(handle, "tell", within_s=5)
    names = sorted(str(each["replica"]) for each in everyone)
    return {
        "names": names,
        "only": await ask_replicas(handle, "tell", [1, 2], 3, within_s=5, only=names[1]),
        "gone": await ask_replicas(handle, "tell", within_s=5, only="nobody"),
        "hanging": await ask_replicas(handle, "hang", within_s=0.5),
        "broken": await ask_replicas(handle, "no_such_method", within_s=5),
    }


def main() -> None:
    ray.init(num_cpus=1, include_dashboard=False, log_to_driver=False)
    serve.start(proxy_location="Disabled")
    handle = serve.run(Told.bind(), name="told", route_prefix=None)
    found = asyncio.run(seen(handle))
    before = remembers("proven/here")
    remember("proven/here")
    print(
        "SEEN", json.dumps({**found, "remembered": [before, remembers("proven/here"), remembers("proven/x")]})
    )
    serve.shutdown()
    ray.shutdown()


if __name__ == "__main__":
    main()
