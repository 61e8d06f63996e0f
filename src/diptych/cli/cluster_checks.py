"""What `check` and `up` are told of an account or a cluster before anything is started: asked, never changed."""

from diptych.check import Account, ClusterFacts
from diptych.kube import remembered
from diptych.spec import Document


def ask_account(document: Document) -> Account:
    """Look at the AWS account that the shell means now; another one than the document is up in is a finding."""
    from diptych.eks.account import gather
    from diptych.eks.aws import Session

    known = remembered.recall(document.name, document.on)
    return gather(
        document,
        Session(document.eks.region),
        expected=known.account if known else None,
        expected_region=known.document.eks.region if known else None,
    )


def ask_cluster(document: Document) -> ClusterFacts:
    """Look at the cluster of the document's context, or of that in which it is up."""
    from diptych.kube.facts import gather
    from diptych.kube.kubeconfig import Target

    known = remembered.recall(document.name, document.on)
    context = document.kubernetes.context or (known.context if known else None)
    return gather(document, Target(None, context))
