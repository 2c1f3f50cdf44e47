"""The command ``explore``: what it refuses, and who may open the page."""

import asyncio
import socket

import pytest

from pyro_fmvae.app.explorer import serving
from pyro_fmvae.app.explorer.serving import COOKIE, POLICY, NothingFromElsewhere, TokenGate, listening
from tests.small_runs import command


def test_a_missing_extra_is_one_line(monkeypatch, tmp_path):
    monkeypatch.setattr(serving, "find_spec", lambda name: None)
    expected = "pyro-fmvae: error: explore needs gradio: pip install 'pyro_fmvae[explorer]'\n"
    assert command("explore", tmp_path) == (2, "", expected)


def test_a_folder_that_is_no_run_is_one_line(monkeypatch, tmp_path):
    monkeypatch.setattr(serving, "find_spec", lambda name: True)
    status, _, err = command("explore", tmp_path)
    assert status == 2 and err.startswith(f"pyro-fmvae: error: run: {tmp_path} is no run")


@pytest.mark.parametrize(
    ("host", "port", "said"),
    [
        ("127.0.0.1", 70000, "port: expected a number in 0..65535, got 70000"),
        ("no.such.host.invalid", 0, "host: expected an address of this machine, got 'no.such.host.invalid'"),
        ("192.0.2.1", 0, r"host, port: cannot listen on 192.0.2.1:0 \(.*assign.*\)"),
    ],
)
def test_bad_addresses_are_named(host, port, said):
    with pytest.raises(ValueError, match=said):
        listening(host, port)


def test_a_port_in_use_is_named_and_passed_over_by_default(monkeypatch):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(ValueError, match=f"cannot listen on 127.0.0.1:{port}"):
            listening("127.0.0.1", port)
        monkeypatch.setattr(serving, "PORT", port)
        with listening("127.0.0.1", None) as found, listening("127.0.0.1", None) as later:
            assert port < found.getsockname()[1] < later.getsockname()[1]


def answer(query=b"", cookie=None, kind="http"):
    """Status and headers of what the gate answers; None where the request passes."""
    pytest.importorskip("starlette")
    sent, passed = [], []

    async def app(*_):
        passed.append(True)

    async def send(message):
        sent.append(message)

    async def receive():
        return {"type": "http.request", "body": b""}

    headers = [(b"host", b"x"), *([(b"cookie", f"{COOKIE}={cookie}".encode())] if cookie else [])]
    scope = {"type": kind, "method": "GET", "path": "/a", "query_string": query, "headers": headers}
    scope |= {"scheme": "http", "server": ("x", 80), "root_path": ""}
    asyncio.run(TokenGate(app, "secret")(scope, receive, send))
    return None if passed else (sent[0]["status"], dict(sent[0]["headers"]))


@pytest.mark.parametrize("query", [b"", b"token=", b"token=secre", b"token=x&token=secret", b"token=%FF"])
def test_the_gate_is_shut_without_the_token(query):
    assert answer(query)[0] == 403
    assert answer(query, cookie="other")[0] == 403


def test_the_token_becomes_a_cookie_and_leaves_the_address():
    status, headers = answer(b"token=secret")
    assert (status, headers[b"location"]) == (303, b"http://x/a" if b"//" in headers[b"location"] else b"/a")
    cookie = headers[b"set-cookie"].decode().lower()
    assert f"{COOKIE}=secret".lower() in cookie and "httponly" in cookie and "samesite=strict" in cookie


def test_the_cookie_opens_the_gate():
    assert answer(cookie="secret") is None and answer(cookie="secret", kind="websocket") is None


def test_browsers_are_told_to_ask_no_other_server():
    sent = []

    async def app(scope, receive, send):
        await send({"type": "http.response.start", "status": 200, "headers": [(b"x", b"y")]})

    async def send(message):
        sent.append(message)

    asyncio.run(NothingFromElsewhere(app)({"type": "http"}, None, send))
    (started,) = sent
    headers = dict(started["headers"])
    assert headers[b"x"] == b"y" and headers[b"content-security-policy"].startswith(b"default-src 'self' ")
    assert b"http" not in POLICY and b"*" not in POLICY
