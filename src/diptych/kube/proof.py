"""The first prompts of a service on a cluster: up once a real KV transfer carried one, over what was asked for."""

from diptych.endpoint import Endpoint
from diptych.errors import ClusterError, DiptychError
from diptych.progress import View
from diptych.spec import Document
from diptych.verify import first
from diptych.verify.asking import Asking


def prove(document: Document, endpoint: Endpoint, view: View) -> str:
    """Send prompts of our own through each pair of replicas and look at what they did.

    Args:
        endpoint: with a file that holds an admin key.

    Returns:
        What was carried, in words.

    Raises:
        ClusterError: a prompt's KV cache did not cross from prefill to decode, or not over the transport that was
            asked for; the message says what happened instead.
    """
    asking = Asking(endpoint)
    try:
        if document.topology == "aggregated":
            first.answer(asking)
            return "it answers"
        carried = first.transfer(asking)
    except DiptychError as error:
        raise ClusterError(error.message, error.hint) from error
    finally:
        asking.close()
    if carried.remark:
        view.say(carried.remark)
    return f"a KV transfer is proven: {carried}"
