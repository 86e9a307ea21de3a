"""The error that ends one RPC or one stream with a status of gRPC, and nothing else."""

from __future__ import annotations

__all__ = ["Refused"]


class Refused(Exception):
    """The connection or the request is not allowed; ``code`` is a name of ``grpc.StatusCode``."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message

    def without_traceback(self) -> Refused:
        """The same without the frames that this one was raised through. What one of those keeps it
        by is kept by them in turn, with all that they have of the call."""
        return Refused(self.code, self.message)
