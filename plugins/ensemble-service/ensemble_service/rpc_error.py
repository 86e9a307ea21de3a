"""The error that ends an RPC with a gRPC status."""

from __future__ import annotations


class Refused(Exception):
    """The RPC is rejected. ``code`` is a name in ``grpc.StatusCode``."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message

    def without_traceback(self) -> Refused:
        """Return a copy without traceback.

        A traceback's frames would keep the call, and all its data, in memory.
        """
        return Refused(self.code, self.message)
