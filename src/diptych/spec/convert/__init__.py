"""A document out of what is there already: a RayService, or a Serve configuration, that serves with Ray Serve LLM.

Everything in a manifest either gets into the document or is remarked on, with the reason.

manifests    the files: objects, applications, placeholders that nobody filled in
parts        a mapping of which everything is taken or left, with a remark
application  Ray Serve's side: engines with their model, arguments, replicas
pods, cluster, environment, quantities    KubeRay's side: head, worker groups, resources, variables
instances    node groups of EKS in place of labels
secrets      what no document may hold
serving, values, assembly    all of it put together, and checked
writer       the document as YAML
"""

from diptych.spec.convert.assembly import document_from
from diptych.spec.convert.manifests import read
from diptych.spec.convert.parts import ConversionError, Remark
from diptych.spec.convert.writer import to_text

__all__ = ["ConversionError", "Remark", "document_from", "read", "to_text"]
