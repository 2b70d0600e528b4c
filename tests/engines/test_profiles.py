"""What the profiles say: facts that the rest of the house relies on, and judgements on answers."""

from __future__ import annotations

import json

import pytest

from engines import failing
from engines.llamacpp.profile import PROFILE as LLAMACPP
from engines.ninfer.profile import PROFILE as NINFER
from engines.openai.probe import completed
from engines.openai.profile import PROFILE as OPENAI
from engines.profiles import PROFILES
from engines.spec import CHAT, COMPLETIONS, EMBEDDINGS, MESSAGES, Profile
from engines.strata.profile import PROFILE as STRATA

everyone = pytest.mark.parametrize("profile", PROFILES.values(), ids=PROFILES.keys())


def test_the_registry_names_each_profile_as_it_names_itself() -> None:
    assert set(PROFILES) == {"ninfer", "strata", "llamacpp", "openai"}
    assert all(name == profile.name for name, profile in PROFILES.items())


@everyone
def test_no_client_path_unloads_reconfigures_or_spies(profile: Profile) -> None:
    assert CHAT in profile.client_paths
    assert all(path.startswith("/v1/") for path in profile.client_paths)
    assert not {"/unload", "/settings", "/slots", "/metrics", "/props"} & set(profile.client_paths)


@everyone
def test_a_probe_is_a_short_unstreamed_chat_completion_for_the_model_asked_for(profile: Profile) -> None:
    probe = profile.probe("a-model", 3)
    body = json.loads(probe.body)
    assert (body["model"], body["max_tokens"], body.get("stream", False)) == ("a-model", 3, False)
    assert probe.path == CHAT


@everyone
def test_times_are_positive_and_a_sign_has_a_short_timeout(profile: Profile) -> None:
    assert profile.stop_grace > 10
    assert profile.start_deadline > profile.stop_grace
    assert profile.concurrency == 1
    assert profile.sign is None or profile.sign.timeout <= 5


def test_strata_is_asked_to_think_as_little_as_it_can() -> None:
    body = json.loads(STRATA.probe("any", 4).body)
    assert body["reasoning_effort"] == "low"
    assert body["chat_template_kwargs"] == {"enable_thinking": False}


@pytest.mark.parametrize(
    ("status", "body", "ready"),
    [
        (200, b'{"status": "ok", "loaded": true}', True),
        (200, b'{"status": "ok", "loaded": false}', False),
        (200, b'{"status": "ok"}', False),
        (200, b'{"status": "ok", "loaded": "true"}', False),
        (200, b'{"status": "ok", "loaded": 1}', False),
        (200, b"[true]", False),
        (200, b"ok", False),
        (200, b"\xff", False),
        (503, b'{"loaded": true}', False),
    ],
)
def test_strata_is_ready_only_when_it_says_loaded_true(status: int, body: bytes, ready: bool) -> None:
    assert STRATA.sign is not None
    assert STRATA.sign.judge(status, body) is ready


def test_llamacpp_is_ready_when_health_is_200() -> None:
    assert LLAMACPP.sign is not None
    assert LLAMACPP.sign.judge(200, b'{"status":"ok"}')
    assert not LLAMACPP.sign.judge(503, b'{"error":{"code":503,"message":"Loading model"}}')


def test_any_other_server_has_no_sign_but_a_completion() -> None:
    assert OPENAI.sign is None
    assert OPENAI.artifacts(["vllm", "serve", "/models/x.gguf"], {"MODEL": "/models/x.gguf"}) == ()


def test_strata_and_llamacpp_have_the_routes_that_they_have() -> None:
    assert {COMPLETIONS, EMBEDDINGS, MESSAGES} - set(STRATA.client_paths) == {COMPLETIONS, EMBEDDINGS}
    assert {COMPLETIONS, EMBEDDINGS, MESSAGES} <= set(LLAMACPP.client_paths)


@pytest.mark.parametrize(
    ("argv", "env", "found"),
    [
        (["serve/server.py", "--engine", "strata", "--config", "X.json", "--port", "8095"], {}, ()),
        (["server.py", "--model=/p/b.gguf", "/p/a.gguf"], {}, ("/p/b.gguf", "/p/a.gguf")),
        ([], {"MODEL": "/p/a.gguf", "KV": "q8_0", "DRAFT": "/p/d.gguf"}, ("/p/d.gguf", "/p/a.gguf")),
        (["/p/a.gguf"], {"MODEL": "/p/a.gguf"}, ("/p/a.gguf",)),
    ],
)
def test_stratas_artifacts_are_the_gguf_paths(argv: list[str], env: dict[str, str], found: tuple[str, ...]) -> None:
    assert STRATA.artifacts(argv, env) == found


@pytest.mark.parametrize(
    ("argv", "env", "found"),
    [
        (["llama-server", "-m", "/m/plain-name", "--port", "1"], {}, ("/m/plain-name",)),
        (["llama-server", "--model", "/m/x.gguf", "--mmproj", "/m/p.gguf"], {}, ("/m/x.gguf", "/m/p.gguf")),
        (["llama-server", "--model=/m/x"], {}, ("/m/x",)),
        (["llama-server"], {"LLAMA_ARG_MODEL": "/m/x.gguf"}, ("/m/x.gguf",)),
        (["llama-server", "-m", "/m/x", "-md", "/m/draft"], {}, ("/m/x", "/m/draft")),
        (["llama-server", "--model=/m/x", "--model-draft=/m/d", "--lora", "/m/l"], {}, ("/m/x", "/m/d", "/m/l")),
        (["llama-server"], {"LLAMA_ARG_MODEL": "/m/x", "LLAMA_ARG_MODEL_DRAFT": "/m/d"}, ("/m/x", "/m/d")),
        (["llama-server", "/m/a=b.gguf", "--lora-scaled", "/m/l.gguf"], {}, ("/m/a=b.gguf", "/m/l.gguf")),
        (["llama-server", "-m"], {}, ()),
        (["llama-server", "--spec-draft-model", "/m/d"], {"LLAMA_ARG_SPEC_DRAFT_MODEL": "/m/e"}, ("/m/d", "/m/e")),
        (["llama-server", "--lora", "/m/a,/m/b.gguf"], {}, ("/m/a", "/m/b.gguf")),
        (["llama-server", "--lora-scaled", "/m/a.gguf:0.5,/m/b.gguf:1e-2"], {}, ("/m/a.gguf", "/m/b.gguf")),
        (["llama-server", "--control-vector-scaled=/m/c.gguf:-1"], {}, ("/m/c.gguf",)),
        (["sh", "-c", "exec llama-server --port 80 -m /m/x.gguf"], {}, ("/m/x.gguf",)),
    ],
)
def test_llamacpps_artifacts_follow_model_or_end_in_gguf(
    argv: list[str], env: dict[str, str], found: tuple[str, ...]
) -> None:
    assert LLAMACPP.artifacts(argv, env) == found


@pytest.mark.parametrize(
    ("profile", "argv", "env", "found"),
    [
        (LLAMACPP, ["llama-server", "-m", "/m/x.gguf", "--chat-template-file", "/m/t.jinja"], {}, ("/m/t.jinja",)),
        (LLAMACPP, ["llama-server", "--grammar-file=/m/g", "-jf", "/m/s.json"], {}, ("/m/g", "/m/s.json")),
        (LLAMACPP, ["llama-server"], {"LLAMA_ARG_CHAT_TEMPLATE_FILE": "/m/t"}, ("/m/t",)),
        (STRATA, ["server.py", "--config", "/x.json", "--port", "1"], {}, ("/x.json",)),
        (STRATA, ["sh", "-c", "exec server.py --config=/x.json"], {}, ("/x.json",)),
        (STRATA, ["server.py", "--config"], {"CONFIG": "/x.json"}, ()),
        (NINFER, ["ninfer-serve", "--config", "/x.json"], {}, ()),
    ],
)
def test_configuration_that_decides_what_an_engine_answers_is_found(
    profile: Profile, argv: list[str], env: dict[str, str], found: tuple[str, ...]
) -> None:
    assert profile.configuration(argv, env) == found


def test_ninfers_artifact_may_be_a_variables_whole_path() -> None:
    """An image that is given no command takes it from there; a bare name is for compose to fill in."""
    env = {"NINFER_MODEL": "/models/a.ninfer", "NINFER_ARTIFACT": "b.ninfer"}
    assert NINFER.artifacts(["/entrypoint.sh"], env) == ("/models/a.ninfer",)


def answer(message: dict[str, object], finish: object = "length", **more: object) -> bytes:
    return json.dumps({"choices": [{"message": message, "finish_reason": finish}], **more}).encode()


@pytest.mark.parametrize(
    ("status", "body", "works"),
    [
        (200, answer({"content": "OK"}), True),
        (200, answer({"content": None, "reasoning_content": "hm"}), True),
        (200, answer({"content": ""}, usage={"completion_tokens": 4}), True),
        (200, answer({"content": ""}), False),
        (200, answer({"content": "OK"}, None), False),
        (200, answer({"content": "OK"}, error={"message": "dead"}), False),
        (200, b'{"error": {"message": "dead"}}', False),
        (200, b'{"choices": []}', False),
        (200, b'{"choices": null}', False),
        (200, b"[]", False),
        (200, b"", False),
        (503, answer({"content": "OK"}), False),
    ],
)
def test_only_a_real_completion_counts(status: int, body: bytes, works: bool) -> None:
    assert completed(status, body) is works


NINFERS_OWN = {"unavailable": True, "server_overloaded": False, "request_queue_timeout": False}


@pytest.mark.parametrize(("code", "broken"), NINFERS_OWN.items())
def test_of_ninfers_503_only_unavailable_may_mean_that_it_is_broken(code: str, broken: bool) -> None:
    assert NINFER.broken(503, json.dumps({"error": {"message": "x", "code": code}}).encode()) is broken


@everyone
@pytest.mark.parametrize("status", [400, 401, 404, 413, 422, 429, 501, 504, 529])
def test_what_a_client_does_and_what_only_says_later_is_no_failure_of_the_engine(profile: Profile, status: int) -> None:
    assert not profile.broken(status, b'{"error": {"message": "CUDA error", "code": "internal_error"}}')


@everyone
@pytest.mark.parametrize(
    ("status", "body", "broken"),
    [
        (500, b'{"error": {"message": "CUDA error: an illegal memory access was encountered"}}', True),
        (500, b"CUDA error", True),
        (500, b"", True),
        (503, b'{"error": {"message": "the engine process is dead", "type": "server_error", "code": null}}', True),
        (503, b"later", False),
        (502, b"[" * 100_000, True),
        (failing.IN_BAND, b'{"error": {"message": "the engine process is dead", "type": "server_error"}}', True),
        (failing.IN_BAND, b'{"type": "error", "error": {"type": "overloaded_error", "message": "later"}}', False),
        (failing.IN_BAND, b'{"response": {"error": {"code": "server_error", "message": "dead"}}}', True),
    ],
)
def test_an_error_of_the_engines_own_may_mean_that_it_is_broken(
    profile: Profile, status: int, body: bytes, broken: bool
) -> None:
    assert profile.broken(status, body) is broken


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b'{"error": {"message": "the engine\\n has failed"}}', "the engine has failed"),
        (b'{"error": "dead"}', "dead"),
        (b'{"response": {"error": {"message": "dead"}}}', "dead"),
        (b"\xff" * 1000, "\ufffd" * 200),
    ],
)
def test_what_an_error_says_is_one_short_line(body: bytes, said: str) -> None:
    assert failing.told(body) == said
