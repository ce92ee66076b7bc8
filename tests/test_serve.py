"""The server: the library's answers over HTTP, one sentence for every mistake, and nothing for pages of other sites."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from importlib import import_module
from typing import Any

import pytest
from starlette.testclient import TestClient

from megatron_memory_estimator import TrainingJob, estimate
from megatron_memory_estimator.cli.serve import listener
from megatron_memory_estimator.inputs.catalog import entries
from megatron_memory_estimator.report.classic import stage_report
from megatron_memory_estimator.service.answers import TOOLS, answered
from megatron_memory_estimator.service.arguments import arguments
from megatron_memory_estimator.service.pool import Workers
from megatron_memory_estimator.service.schema import TOOLS as STATED
from megatron_memory_estimator.web.app import server
from megatron_memory_estimator.web.documents import schema_of
from megatron_memory_estimator.web.guard import HEADERS, LARGEST_BODY

from .helpers import ROOT
from .serving import OWN, PORT, RUN

JSON_KINDS: dict[str, Any] = {
    "object": dict, "array": list, "string": str, "integer": int, "number": (int, float), "boolean": bool, "null": type(None),
}  # fmt: skip
OTHERS = {"mbridge", "megatron_config"}
"""Tools that are asked at mbridge's paths."""
SERVED = [name for name, tool in STATED.items() if tool.own_path]


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    """A client of a server with a page of its own; it answers in one process for quick tools and one for slow ones."""
    page = tmp_path_factory.mktemp("page")
    (page / "index.html").write_text(
        '<!doctype html><meta name="engine" content="http"><script src="page.js"></script>'
    )
    (page / "page.js").write_text("export {}\n")
    (page.parent / "secret.txt").write_text("hunter2")
    workers = Workers(None, 30, hub=False, quick=(1, 64), slow=(1, 64))
    with TestClient(server(workers, page=page, allowed=("box.example",)), base_url=OWN) as found:
        yield found


def asked(client: TestClient, tool: str, arguments: Any, **headers: str) -> tuple[int, Any]:
    answer = client.post(f"/api/v1/{tool}", json=arguments, headers=headers)
    assert answer.headers["content-type"] == "application/json"
    return answer.status_code, answer.json()


def test_the_arguments_that_are_checked_are_those_of_the_models(monkeypatch: pytest.MonkeyPatch) -> None:
    """`arguments.json`, which needs no pydantic, is made of the models."""
    monkeypatch.syspath_prepend(ROOT / "scripts")
    assert arguments() == import_module("docs_tools").kinds()
    assert {name: {*tool.arguments.model_fields, "detail"} for name, tool in STATED.items()} == {
        name: set(known) for name, known in arguments().items()
    }


def test_every_tool_is_stated_once() -> None:
    assert set(STATED) == set(TOOLS) == {*SERVED, *OTHERS}


@pytest.mark.parametrize("tool", SERVED)
def test_answers_are_those_of_the_tools_and_as_described(tool: str, client: TestClient) -> None:
    stated = STATED[tool]
    status, found = asked(client, tool, stated.example)
    expected = answered(
        {"tool": tool, "arguments": {**stated.example, "detail": "full"}, "folder": None, "seconds": 60, "hub": False}
    )
    assert status == 200 and found == json.loads(json.dumps(expected["answer"]))
    found = found[0] if isinstance(found, list) else found
    schema = schema_of(stated)
    described = (schema["anyOf"][0] if stated.rows else schema)["properties"]
    assert found.keys() == described.keys()
    for name, one in described.items():
        if "const" in one:
            assert found[name] == one["const"]
        else:
            assert isinstance(found[name], tuple(JSON_KINDS[kind] for kind in one["type"])), name


def test_an_estimate_is_the_librarys_to_the_byte(client: TestClient) -> None:
    expected = estimate(TrainingJob.from_hf("Qwen/Qwen3-8B", 8, tensor_model_parallel_size=2))
    assert asked(client, "estimate", RUN) == (200, json.loads(json.dumps(expected.to_dict())))
    config = entries()["Qwen/Qwen3-8B"]["config"]
    for text in (config, json.dumps(config)):
        status, found = asked(client, "estimate", {**RUN, "model": None, "text": text})
        assert status == 200 and found["stages"] == json.loads(json.dumps(expected.to_dict()["stages"]))
    status, short = asked(client, "estimate", {**RUN, "detail": "summary"})
    assert status == 200 and short["verdict"]["verdict"] == expected.verdict().word and "schema" not in short


def test_lists_answer_to_get_too(client: TestClient) -> None:
    for tool in (name for name, tool in STATED.items() if tool.read):
        assert client.get(f"/api/v1/{tool}").json() == asked(client, tool, {})[1]
    assert client.get("/api/v1/models", params={"model": "Qwen/Qwen3-8B"}).json()["name"] == "Qwen/Qwen3-8B"
    assert [one["name"] for one in client.get("/api/v1/models").json()] == list(entries())


REFUSED: dict[str, tuple[str, Any, int, str]] = {
    "layout": ("estimate", {**RUN, "settings": {"tp": 3}}, 422, "tensor_model_parallel_size"),
    "argument": ("estimate", {**RUN, "modle": "x"}, 422, 'unknown argument "modle" of estimate; settings go under "settings". Did you '
                 'mean "model"?'),
    "setting": ("estimate", {**RUN, "settings": {"recompute_granularty": "full"}}, 422, 'Did you mean "recompute_granularity"?'),
    "choice": ("explain", {**RUN, "at": "stedy"}, 422, 'Did you mean "steady"?'),
    "kind": ("estimate", {**RUN, "num_gpus": "8"}, 422, "num_gpus: Input should be a valid integer"),
    "switch for a number": ("estimate", {**RUN, "num_gpus": True}, 422, "num_gpus: Input should be a valid integer"),
    "range": ("plan", {**RUN, "top": 51}, 422, "top: Input should be less than or equal to 50"),
    "list": ("estimate", [RUN], 422, "the body must be a JSON object of arguments"),
    "nothing": ("estimate", {}, 422, "give either model, a name, or text"),
    "tool": ("estimat", {}, 404, 'no tool "estimat". Did you mean "estimate"?'),
    "unlike any": ("xyzzy", {}, 404, "The tools are estimate, "),
    "stage": ("explain", {**RUN, "stage": 7}, 422, "the run has 1 stage, counted from 0"),
    "path": ("estimate", {"model": "/etc/passwd"}, 422, "this looks like a file, and none is opened here"),
    "relative path": ("estimate", {"model": "../../etc/passwd.yaml"}, 422, "this looks like a file, and none is opened here"),
    "name elsewhere": ("estimate", {"model": "somebody/unheard-of"}, 422, "is not in the catalogue"),
    "follow": ("estimate", {**RUN, "settings": {"follow": True}}, 422, "follow opens files anywhere"),
    "half a character": ("estimate", {"model": "\ud800"}, 422, "is not in the catalogue"),
    "cases": ("compare", {"models": ["Qwen/Qwen3-8B"] * 21}, 422, "at most 20 cases"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_mistakes_are_one_sentence(name: str, client: TestClient) -> None:
    tool, arguments, expected, words = REFUSED[name]
    answer = client.post(f"/api/v1/{tool}", content=json.dumps(arguments), headers={"content-type": "application/json"})
    assert answer.status_code == expected and list(answer.json()) == ["error"]
    assert words in answer.json()["error"] and "\n" not in answer.json()["error"]


BODIES: dict[str, tuple[bytes, str, int, str]] = {
    "no JSON": (b"{", "application/json", 422, "the body is not JSON"),
    "no body": (b"", "application/json", 422, "must be a JSON object"),
    "deep": (b"[" * 100_000, "application/json", 400, "parsing the body"),
    "no text": (b'{"model": "\xff"}', "application/json", 400, "parsing the body"),
    "a form": (b"model=x", "application/x-www-form-urlencoded", 415, "application/json"),
    "plain text": (b"{}", "text/plain", 415, "application/json"),
    "long": (b" " * (LARGEST_BODY + 1), "application/json", 413, "longer than 2097152 bytes"),
}


@pytest.mark.parametrize("name", BODIES)
def test_bodies_that_are_not_read(name: str, client: TestClient) -> None:
    body, kind, expected, words = BODIES[name]
    answer = client.post("/api/v1/estimate", content=body, headers={"content-type": kind})
    assert answer.status_code == expected and words in answer.json()["error"]


def test_a_long_body_in_chunks_is_refused(client: TestClient) -> None:
    chunks = (b" " * 2**20 for _ in range(3))
    answer = client.post("/api/v1/estimate", content=chunks, headers={"content-type": "application/json"})
    assert "content-length" not in answer.request.headers and answer.status_code == 413


def test_methods_and_paths_that_are_not_there(client: TestClient) -> None:
    wrong = client.get("/api/v1/estimate")
    assert (wrong.status_code, wrong.headers["allow"]) == (405, "POST") and "asked with POST" in wrong.json()["error"]
    assert client.options("/api/v1/estimate").status_code == 405  # no other site may ask whether it may ask
    assert client.get("/nowhere").json() == {"error": "there is nothing at '/nowhere'"}
    assert client.get("/%2e%2e/secret.txt").status_code == 404
    assert client.post("/", json={}).status_code == 405


STRANGERS: dict[str, dict[str, str]] = {
    "another name for this address": {"host": "evil.example"},
    "another name with our port": {"host": f"evil.example:{PORT}"},
    "our name with another port": {"host": "127.0.0.1:9999"},
    "our name without a port": {"host": "localhost"},
    "a page of another site": {"origin": "http://evil.example"},
    "a page without an origin": {"origin": "null"},
    "another program's page on this machine": {"origin": "http://127.0.0.1:9999"},
    "another site, by the browser": {"sec-fetch-site": "cross-site"},
    "a neighbour, by the browser": {"sec-fetch-site": "same-site"},
}


@pytest.mark.parametrize("name", STRANGERS)
def test_pages_of_other_sites_are_refused(name: str, client: TestClient) -> None:
    for answer in (
        client.post("/api/v1/estimate", json=RUN, headers=STRANGERS[name]),
        client.post("/estimate_with_mbridge", json={"hf_model_path": "Qwen/Qwen3-8B"}, headers=STRANGERS[name]),
        client.get("/local-hf-configs", headers=STRANGERS[name]),
    ):
        assert answer.status_code == 403 and answer.json()["error"]


def test_own_pages_and_names_that_are_allowed_are_answered(client: TestClient) -> None:
    for headers in (
        {"origin": OWN, "sec-fetch-site": "same-origin"},
        {"host": f"localhost:{PORT}", "origin": f"http://localhost:{PORT}"},
        {"host": f"[::1]:{PORT}"},
        {"host": "box.example", "origin": "https://box.example"},
        {"host": "Box.example:4433"},
    ):
        assert asked(client, "models", {"model": "Qwen/Qwen3-8B"}, **headers)[0] == 200, headers
    link = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"}
    assert client.get("/", headers=link).status_code == 200


@pytest.mark.parametrize(
    "path", ["/", "/page.js", "/nowhere", "/api/v1/docs", "/api/v1/openapi.json", "/api/v1/models", "/api/v1/xyzzy"]
)
def test_every_answer_has_the_headers(path: str, client: TestClient) -> None:
    for answer in (client.get(path), client.get(path, headers={"host": "evil.example"})):
        assert {name: answer.headers.get(name) for name in HEADERS} == HEADERS
        assert answer.headers["cache-control"] == ("no-store" if path.startswith("/api/") else "no-cache")
        assert "access-control-allow-origin" not in answer.headers
    policy = HEADERS["content-security-policy"]
    assert "default-src 'none'" in policy and "unsafe" not in policy and "http" not in policy


def test_the_page_is_its_files(client: TestClient) -> None:
    assert client.get("/").headers["content-type"].startswith("text/html")
    assert 'name="engine" content="http"' in client.get("/").text
    assert client.get("/page.js").headers["content-type"].startswith("text/javascript")


def test_large_documents_are_compressed(client: TestClient) -> None:
    answer = client.post("/api/v1/estimate", json=RUN, headers={"accept-encoding": "gzip"})
    assert answer.headers["content-encoding"] == "gzip" and answer.json()["schema"] == "megatron-memory-estimate/1"


def test_lines_end_with_the_answer_or_the_error(client: TestClient) -> None:
    for given, last in ((RUN, "answer"), ({**RUN, "settings": {"tp": 3}}, "error")):
        answer = client.post("/api/v1/estimate", json=given, headers={"accept": "application/x-ndjson"})
        assert (
            answer.headers["content-type"].startswith("application/x-ndjson")
            and "content-encoding" not in answer.headers
        )
        lines = [json.loads(line) for line in answer.text.splitlines()]
        assert [list(line) for line in lines] == [*[["progress"]] * (len(lines) - 1), [last]]
    whole = client.post("/api/v1/estimate", json=RUN).json()
    lines_of = client.post("/api/v1/estimate", json=RUN, headers={"accept": "application/x-ndjson"}).text.splitlines()
    assert json.loads(lines_of[-1]) == {"answer": whole}


def test_the_description_has_every_tool_with_words_and_examples(client: TestClient) -> None:
    description = client.get("/api/v1/openapi.json").json()
    paths = description["paths"]
    expected = {f"/api/v1/{tool}" for tool in SERVED}
    assert {path for path in paths if path.startswith("/api/v1/")} == expected
    for path in expected:
        operation = paths[path]["post"]
        body = operation["requestBody"]["content"]["application/json"]["schema"]
        fields = description["components"]["schemas"][body["$ref"].rpartition("/")[2]]["properties"]
        assert operation["summary"] and all(len(one["description"]) > 15 for one in fields.values())
        assert body["examples"] and {"200", "403", "413", "415", "422", "429"} <= set(operation["responses"])
        assert operation["responses"]["200"]["content"]["application/json"]["schema"]
    assert description["components"]["schemas"].keys().isdisjoint({"HTTPValidationError", "ValidationError"})


def test_the_page_of_the_description_needs_nothing_else(client: TestClient) -> None:
    page = client.get("/api/v1/docs").text
    assert "<script" not in page and "style=" not in page and "http://" not in page and "https://" not in page
    for tool in SERVED:
        assert f"<code>POST /api/v1/{tool}</code>" in page
        assert all(f"<code>{name}</code>" in page for name in STATED[tool].arguments.model_fields)
    assert client.get("/api/v1/docs.css").headers["content-type"].startswith("text/css")


def test_mbridge_clients_are_answered(client: TestClient) -> None:
    names = client.get("/local-hf-configs").json()
    assert names == list(entries())
    config = client.get("/get-megatron-config/Qwen/Qwen3-30B-A3B").json()
    assert (config["num_layers"], config["num_moe_experts"], config["moe_router_topk"]) == (48, 128, 8)
    settings: dict[str, Any] = {"tp": 2, "pp": 2, "ep": 4}
    request = {
        "hf_model_path": "Qwen/Qwen3-30B-A3B",
        "num_gpus": 16,
        "mbs": 2,
        "seq_len": 8192,
        "recompute_granularity": "full",
        **settings,
    }
    answer = client.post("/estimate_with_mbridge", json=request)
    job = TrainingJob.from_hf(
        "Qwen/Qwen3-30B-A3B", 16, micro_batch_size=2, seq_length=8192, recompute_granularity="full", recompute_method="uniform",
        recompute_num_layers=1, **settings,
    )  # fmt: skip
    expected = json.loads(json.dumps([stage_report(stage) for stage in estimate(job).stages]))
    assert answer.status_code == 200 and answer.json()["raw_report"] == expected and len(expected) == 2
    assert [
        row.keys() - report.keys() for row, report in zip(expected, answer.json()["processed_report"], strict=True)
    ] == [{"details"}] * 2
    custom = {**request, "hf_model_path": "mine", "custom_hf_config": entries()["Qwen/Qwen3-30B-A3B"]["config"]}
    assert client.post("/estimate_with_mbridge", json=custom).json()["raw_report"] == expected


def test_mistakes_of_mbridge_clients_are_one_sentence(client: TestClient) -> None:
    for answer, words in (
        (client.post("/estimate_with_mbridge", json={"num_gpus": 8}), "give hf_model_path"),
        (
            client.post("/estimate_with_mbridge", json={"hf_model_path": "Qwen/Qwen3-8B", "seqlen": 8}),
            'Did you mean "seq_len"?',
        ),
        (
            client.post("/estimate_with_mbridge", json={"hf_model_path": "Qwen/Qwen3-8B", "num_gpus": 8, "tp": 3}),
            "tensor_model_parallel",
        ),
        (client.get("/get-megatron-config/somebody/unheard-of"), "is not in the catalogue"),
        (client.get("/get-megatron-config//etc/passwd"), "this looks like a file"),
    ):
        assert answer.status_code == 422 and words in answer.json()["error"] == answer.json()["detail"]


def test_answers_wait_for_no_acknowledgement() -> None:
    with listener("127.0.0.1", 0) as found:
        assert found.proto == socket.IPPROTO_TCP  # else asyncio leaves Nagle's algorithm on


@pytest.mark.parametrize(("path", "method"), [("/estimate_with_mbridge", "POST"), ("/local-hf-configs", "GET")])
def test_other_methods_of_mbridges_paths_are_refused_with_the_one_they_have(
    client: TestClient, path: str, method: str
) -> None:
    for other in ("OPTIONS", "PUT", "GET" if method == "POST" else "POST"):
        answer = client.request(other, path, headers={"content-type": "application/json"})
        assert (answer.status_code, answer.headers["allow"]) == (405, method) and "is not asked with" in answer.json()[
            "error"
        ]


def test_a_connection_that_never_asks_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The head of a request that does not end, beside one that does; the times are short here."""
    import asyncio

    import uvicorn

    from megatron_memory_estimator.web.protocol import TimedProtocol

    monkeypatch.setattr(TimedProtocol, "seconds", 0.6)

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await asyncio.sleep(1.2)  # longer than a head may take
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    async def played() -> tuple[bytes, bytes]:
        config = uvicorn.Config(app, port=0, http=TimedProtocol, log_level="critical", lifespan="off")
        server = uvicorn.Server(config)
        running = asyncio.create_task(server.serve())
        while not server.started:
            await asyncio.sleep(0.01)
        port = server.servers[0].sockets[0].getsockname()[1]
        slow_in, slow_out = await asyncio.open_connection("127.0.0.1", port)
        slow_out.write(b"GET / HTTP/1.1\r\nHost: a\r\nX-")
        whole_in, whole_out = await asyncio.open_connection("127.0.0.1", port)
        whole_out.write(b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
        found = await asyncio.wait_for(asyncio.gather(slow_in.read(), whole_in.read()), 10)
        server.should_exit = True
        for one in (slow_out, whole_out):
            one.close()
        await running
        return found[0], found[1]

    slow, whole = asyncio.run(played())
    assert slow == b"" and whole.startswith(b"HTTP/1.1 204")
