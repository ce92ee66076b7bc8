"""The reader of the Hub and of Hugging Face's cache, against a server of this machine and folders as huggingface_hub makes them."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from megatron_memory_estimator import ConfigError, TrainingJob
from megatron_memory_estimator.inputs.catalog import entries
from megatron_memory_estimator.inputs.hf import hub
from megatron_memory_estimator.inputs.hf.load import load

MODEL = "someone/a-model"
CONFIG = json.dumps(entries()["Qwen/Qwen3-8B"]["config"])
VARIABLES = (
    "HF_HOME", "HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "XDG_CACHE_HOME", "HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HF_TOKEN_PATH",
    "HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "HF_ENDPOINT", "HF_HUB_DISABLE_IMPLICIT_TOKEN",
)  # fmt: skip


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home of its own, where no variable says anything."""
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


class Server:
    """What it answers by path: a status, headers and a body; and the requests that came, with their tokens."""

    def __init__(self) -> None:
        self.answers: dict[str, tuple[int, dict[str, str], bytes]] = {}
        self.asked: list[tuple[str, str | None]] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                outer.asked.append((self.path, self.headers.get("Authorization")))
                status, headers, body = outer.answers.get(self.path, (404, {}, b""))
                self.send_response(status)
                for name, value in headers.items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *args: Any) -> None:
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"http://127.0.0.1:{self.http.server_address[1]}"
        threading.Thread(target=self.http.serve_forever, args=(0.01,), daemon=True).start()


@pytest.fixture
def servers(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Server, Server]]:
    """The Hub, and another host that it may send to."""
    both = Server(), Server()
    monkeypatch.setenv("HF_ENDPOINT", both[0].address + "/")
    yield both
    for one in both:
        one.http.shutdown()
        one.http.server_close()


PATH = f"/{MODEL}/resolve/main/config.json"


def test_a_config_of_the_hub_is_read(servers: tuple[Server, Server], home: Path) -> None:
    server = servers[0]
    server.answers[PATH] = 200, {}, CONFIG.encode()
    assert TrainingJob.from_hf(MODEL, 8).model == TrainingJob.from_hf("Qwen/Qwen3-8B", 8).model
    assert server.asked == [(PATH, None)]
    assert not list(home.iterdir()), "nothing is written"


@pytest.mark.parametrize("where", ["HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HF_TOKEN_PATH", "HF_HOME"])
def test_a_token_goes_to_the_hub_and_to_no_other_host(
    where: str, servers: tuple[Server, Server], home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server, other = servers
    (home / "token").write_text("secret\n")
    monkeypatch.setenv(where, {"HF_TOKEN_PATH": str(home / "token"), "HF_HOME": str(home)}.get(where, "secret"))
    server.answers[PATH] = 307, {"Location": "/renamed/resolve/main/config.json"}, b""
    server.answers["/renamed/resolve/main/config.json"] = 302, {"Location": f"{other.address}/file"}, b""
    other.answers["/file"] = 200, {}, CONFIG.encode()
    assert hub.fetched(MODEL) == CONFIG.encode()
    assert server.asked == [(PATH, "Bearer secret"), ("/renamed/resolve/main/config.json", "Bearer secret")]
    assert other.asked == [("/file", None)]
    monkeypatch.setenv("HF_HUB_DISABLE_IMPLICIT_TOKEN", "1")
    hub.fetched(MODEL)
    assert server.asked[2] == (PATH, None)


@pytest.mark.parametrize("status", [401, 403, 404, 500])
def test_what_the_hub_refuses_is_said(status: int, servers: tuple[Server, Server]) -> None:
    servers[0].answers[PATH] = status, {}, b"no"
    with pytest.raises(ConfigError, match=rf"no readable config.json for \"{MODEL}\" \(HTTP {status}\); "):
        load(MODEL)


@pytest.mark.parametrize(
    ("body", "said"),
    [(b"<html>", "is not valid JSON"), (b"\xff", "is not UTF-8"), (b"[]", "must hold a JSON object"), (b" " * (17 << 20), "larger than")],
    ids=["a page", "bytes", "a list", "large"],
)  # fmt: skip
def test_an_answer_that_is_no_config(body: bytes, said: str, servers: tuple[Server, Server]) -> None:
    servers[0].answers[PATH] = 200, {}, body
    with pytest.raises(ConfigError, match=said):
        load(MODEL)


def test_no_answer_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    for endpoint in ("http://127.0.0.1:9", "nonsense", "file:///etc"):
        monkeypatch.setenv("HF_ENDPOINT", endpoint)
        with pytest.raises(ConfigError, match="the Hugging Face Hub cannot be reached; "):
            load(MODEL)


@pytest.mark.parametrize("variable", ["HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_HOME", "XDG_CACHE_HOME", "HOME"])
def test_the_cache_is_where_huggingface_hub_has_it(variable: str, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    below = {"HF_HOME": "hub", "XDG_CACHE_HOME": "huggingface/hub", "HOME": ".cache/huggingface/hub"}.get(variable, ".")
    monkeypatch.setenv(variable, str(home))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(ConfigError, match="HF_HUB_OFFLINE is set"):
        load(MODEL)
    folder = home / below / "models--someone--a-model"
    (folder / "snapshots" / "abc").mkdir(parents=True)
    (folder / "refs").mkdir()
    (folder / "snapshots" / "abc" / "config.json").write_text(CONFIG)
    for wrong in ("", "../../abd", "abd"):
        (folder / "refs" / "main").write_text(wrong)
        assert hub.cached(MODEL) is None
    (folder / "refs" / "main").write_text("abc")
    assert load(MODEL).source == f"local Hugging Face cache ({MODEL})"
    library = pytest.importorskip("huggingface_hub")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(home / below))
    assert library.try_to_load_from_cache(MODEL, "config.json", cache_dir=home / below) == hub.cached(MODEL)
