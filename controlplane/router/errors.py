"""Refusals and failures as the client sees them: OpenAI-shaped JSON that never names an internal address."""

from __future__ import annotations

import orjson

from controlplane.core.routing import Reason

STATUS_TEXT = {
    200: b"OK",
    400: b"Bad Request",
    401: b"Unauthorized",
    403: b"Forbidden",
    404: b"Not Found",
    405: b"Method Not Allowed",
    408: b"Request Timeout",
    413: b"Content Too Large",
    422: b"Unprocessable Content",
    429: b"Too Many Requests",
    431: b"Request Header Fields Too Large",
    500: b"Internal Server Error",
    502: b"Bad Gateway",
    503: b"Service Unavailable",
    504: b"Gateway Timeout",
}


class ApiError(Exception):
    """An answer that is an error. `retry_after_s` becomes a Retry-After header."""

    def __init__(
        self,
        status: int,
        message: str,
        reason: Reason,
        *,
        code: str | None = None,
        param: str | None = None,
        retry_after_s: int | None = None,
        type: str = "",
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.reason = reason
        self.code = code or reason.value
        self.param = param
        self.retry_after_s = retry_after_s
        self._type = type

    @property
    def type(self) -> str:
        if self._type:
            return self._type
        if self.status == 401:
            return "authentication_error"
        if self.status == 403:
            return "permission_error"
        return "invalid_request_error" if self.status < 500 else "server_error"

    def document(self) -> bytes:
        """The JSON body, also used as the last event of a broken stream."""
        error = {"message": self.message, "type": self.type, "param": self.param, "code": self.code}
        return orjson.dumps({"error": error})


def bad_request(message: str, param: str | None = None, code: str | None = None) -> ApiError:
    return ApiError(400, message, Reason.BAD_REQUEST, code=code, param=param)


def no_engine(model: str) -> ApiError:
    return ApiError(
        503, f"No engine of model {model!r} is ready. Try again soon.", Reason.NO_ENGINE, code="no_engine", retry_after_s=1
    )


def engine_fault() -> ApiError:
    return ApiError(
        502, "The engine failed while serving this request. Try again.", Reason.ENGINE_FAULT, code="engine_fault"
    )


def engine_timeout() -> ApiError:
    return ApiError(504, "The engine did not answer in time. Try again.", Reason.ENGINE_TIMEOUT, code="engine_timeout")


def stopping() -> ApiError:
    return ApiError(503, "This router is being stopped. Try again.", Reason.STOPPING, code="stopping", retry_after_s=1)
