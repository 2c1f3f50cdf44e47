"""The server of the page: on this machine alone, or with a token."""

import os
import secrets
import socket
import tempfile
from collections.abc import Callable
from contextlib import nullcontext
from importlib.util import find_spec
from typing import Any, Final
from urllib.parse import parse_qs

from pyro_fmvae.app.explorer.exploration import Exploration
from pyro_fmvae.app.runs.run import CONFIG
from pyro_fmvae.files.checkpoint import alone

LOCAL: Final = "127.0.0.1"
PORT, PORTS = 7860, 100
"""The port if it is free, and how many are tried."""
COOKIE: Final = "explorer_token"
SILENT: Final = {
    "GRADIO_ANALYTICS_ENABLED": "False",
    "GRADIO_NUM_WORKERS": "0",
    "HF_HUB_OFFLINE": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "DO_NOT_TRACK": "1",
}
"""Environment in which gradio asks nothing of the network."""
POLICY: Final = b"default-src 'self' 'unsafe-inline' 'unsafe-eval' data: blob:"
"""Content that the page may load: gradio writes scripts and styles into it."""
LARGEST: Final = "64mb"  # of a picture


def serve(
    explored: Exploration, host: str = LOCAL, port: int | None = None, ready: Callable[[str], None] = print
) -> None:
    """Show the page until Ctrl-C.

    Args:
        explored: the run.
        host: address to listen on. With another one than that of this machine alone, the page's address has a
            token, without which nothing is answered.
        port: to listen on; None: the first free one from 7860.
        ready: is told the address.

    Raises:
        ValueError: gradio is not installed, the port or the host cannot be used, or another process explores
            the run.
    """
    check_installed()
    taken, token = listening(host, port), None if host in (LOCAL, "localhost") else secrets.token_urlsafe(24)
    os.environ |= SILENT
    folder = explored.run.folder  # of an exported model it is a file, and nothing is kept
    lock = alone(folder / CONFIG, "exploring") if folder.is_dir() else nullcontext()
    with taken, lock, tempfile.TemporaryDirectory() as temporary:
        os.environ["GRADIO_TEMP_DIR"] = temporary
        import uvicorn

        app = application(explored, token)
        address = f"http://{host}:{taken.getsockname()[1]}/" + (f"?token={token}" if token else "")
        ready(address)
        uvicorn.Server(uvicorn.Config(app, log_level="error")).run(sockets=[taken])


def check_installed() -> None:
    """Raise ValueError if gradio is not installed."""
    if find_spec("gradio") is None:
        raise ValueError("explore needs gradio: pip install 'pyro_fmvae[explorer]'")


def listening(host: str, port: int | None) -> socket.socket:
    """A socket that listens there.

    Raises:
        ValueError: it cannot; the message names the argument.
    """
    if port is not None and not 0 <= port < 65536:
        raise ValueError(f"port: expected a number in 0..65535, got {port}")
    error: OSError | None = None
    for number in range(PORT, PORT + PORTS) if port is None else [port]:
        found = socket.socket()
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            found.bind((host, number))
            found.listen()  # two that are only bound may have the same port
        except socket.gaierror:
            found.close()
            raise ValueError(f"host: expected an address of this machine, got '{host}'") from None
        except OSError as failed:
            found.close()
            error = failed
        else:
            return found
    assert error is not None
    where = f"{host}:{PORT}..{PORT + PORTS - 1}" if port is None else f"{host}:{port}"
    raise ValueError(f"host, port: cannot listen on {where} ({str(error.strerror).lower()})")


def application(explored: Exploration, token: str | None) -> Any:
    """The page as an ASGI application.

    Args:
        explored: the run.
        token: without which nothing is answered; None: names of this machine are answered alone, so that no
            page of another site gets at it by a name of its own.
    """
    import gradio
    from fastapi import FastAPI
    from starlette.middleware import Middleware
    from starlette.middleware.trustedhost import TrustedHostMiddleware

    from pyro_fmvae.app.explorer.layout import STYLE, THEME, layout

    own = Middleware(TrustedHostMiddleware, allowed_hosts=[LOCAL, "localhost"])
    gate = Middleware(TokenGate, token=token) if token else own
    app = FastAPI(middleware=[gate, Middleware(NothingFromElsewhere)])
    return gradio.mount_gradio_app(
        app,
        layout(explored),
        path="/",
        footer_links=[],
        run_history=False,
        show_error=True,
        max_file_size=LARGEST,
        ssr_mode=False,
        enable_monitoring=False,
        pwa=False,
        mcp_server=False,
        theme=THEME,
        css=STYLE,
    )


class NothingFromElsewhere:
    """ASGI middleware that has browsers ask no other server, whatever the page says.

    Args:
        app: what is behind it.
    """

    def __init__(self, app: Callable[..., Any]) -> None:
        self.app = app

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        """Answer a request."""

        async def answer(message: dict[str, Any]) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", ()), (b"content-security-policy", POLICY)]
            await send(message)

        await self.app(scope, receive, answer)


class TokenGate:
    """ASGI middleware that answers requests with a token alone.

    The token in the address of the first request becomes a cookie, and goes out of the address.

    Args:
        app: what is behind it.
        token: the token.
    """

    def __init__(self, app: Callable[..., Any], token: str) -> None:
        self.app, self.token = app, token

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        """Answer a request, or let it pass."""
        from starlette.requests import HTTPConnection
        from starlette.responses import PlainTextResponse, RedirectResponse

        if scope["type"] == "lifespan":
            return await self.app(scope, receive, send)
        connection = HTTPConnection(scope)
        if self._is(connection.cookies.get(COOKIE, "")):
            return await self.app(scope, receive, send)
        (given,) = parse_qs(scope.get("query_string", b"").decode("latin-1")).get("token", [""])[:1]
        if scope["type"] == "http" and self._is(given):
            answer = RedirectResponse(connection.url.path, status_code=303)
            answer.set_cookie(COOKIE, self.token, httponly=True, samesite="strict")
            return await answer(scope, receive, send)
        refusal = PlainTextResponse("The address needs the token that was printed.\n", status_code=403)
        return await refusal(scope, receive, send)

    def _is(self, given: str) -> bool:
        return secrets.compare_digest(given.encode(), self.token.encode())
