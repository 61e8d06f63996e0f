"""The Dockerfile for further Python packages on an image that is known to work."""

import shlex

from diptych.render.image import base_image
from diptych.render.write import header
from diptych.spec import Document

_TEMPLATE = """\
FROM {base}

# What the image was tested with stays as it is: a package that needs another version of it is refused here.
RUN python -m pip list --format=freeze --exclude-editable > /tmp/constraints.txt \\
 && python -m pip install --no-cache-dir --constraint /tmp/constraints.txt \\
      {packages} \\
 && rm /tmp/constraints.txt
"""


def dockerfile(document: Document, source: str) -> str | None:
    """The Dockerfile that `image.name` is the result of; None without further packages.

    Args:
        source: name of the document's file, for the header.
    """
    packages = document.image.packages
    if not packages:
        return None
    quoted = " \\\n      ".join(shlex.quote(package) for package in packages)
    purpose = "The image of all pods: build it, push it, and name it in image.name."
    return header(source, purpose) + _TEMPLATE.format(base=base_image(document), packages=quoted)
