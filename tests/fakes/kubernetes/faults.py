"""What goes wrong on the way to the API server."""

from dataclasses import dataclass
from fnmatch import fnmatchcase


@dataclass
class Fault:
    """Answers some requests with a failure, `times` over.

    Attributes:
        method, path: patterns like "PATCH" or "*/rayservices/*" (the path without its query); "*" is any.
        status: the HTTP status that is answered; 0 drops the connection without an answer.
        retry_after_s: the `Retry-After` header, whole seconds.
        delay_s: seconds before the answer. With `status` None, the true answer follows.
        times: how many requests are hit; it counts down.
        after: the write is done before the failure is answered.
    """

    method: str = "*"
    path: str = "*"
    status: int | None = 500
    retry_after_s: int | None = None
    delay_s: float = 0.0
    times: int = 1
    after: bool = False

    def hits(self, method: str, path: str) -> bool:
        """Whether it hits this request; then it counts it."""
        if self.times > 0 and fnmatchcase(method, self.method) and fnmatchcase(path, self.path):
            self.times -= 1
            return True
        return False
