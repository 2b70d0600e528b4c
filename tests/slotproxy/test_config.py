"""The configuration file: what it becomes, and that every fault in it is one line that names the key."""

from __future__ import annotations

import copy
import datetime
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from engines.spec import GiB, MiB
from slotproxy.config import ConfigError, Settings, check_fits, control_of, load, schema
from slotproxy.keys import digests
from swap.decisions import Kind

SAMPLE = Path(__file__).parents[2] / "deploy" / "slotproxy.yml"
Document = dict[str, Any]
Edit = Callable[[Document], object]


def box() -> Document:
    """A file for the first user's box, with a process engine beside the two containers."""
    return {
        "listen": "127.0.0.1:8080",
        "card": {"gpu": 0, "headroom": "256MiB"},
        "default": "strata",
        "models": {"qwen": {"ninfer": "qwen3.8-27b", "strata": "flash"}, "*": True},
        "engines": {
            "strata": {
                "profile": "strata",
                "url": "http://127.0.0.1:8090/",
                "container": "strata",
                "compose": {"file": "strata.yml", "service": "strata"},
                "vram": "30.5GiB",
                "host_memory": "40GiB",
                "pairs": {"current": {"image": "strata:0.1.42", "artifact": ["/srv/a.gguf"], "config_files": "b.json"}},
            },
            "ninfer": {
                "profile": "ninfer",
                "url": "http://127.0.0.1:8095",
                "container": "ninfer-eval",
                "vram": "30.5GiB",
                "deployed": "v2",
                "api_key_file": "keys/engine",
                "passthrough": ["/v1/embeddings"],
                "pairs": {
                    "v2": {
                        "image": "ninfer:local",
                        "artifact": "/srv/v2.ninfer",
                        "reads": 2,
                        "source": {"tree": "/srv/src", "commit": "1f2e3d4"},
                    },
                    "v3": {"image": "ninfer:v3", "artifact": "/srv/v3.ninfer", "env": {"IMAGE": "ninfer:v3"}},
                },
            },
            "llama": {
                "profile": "llamacpp",
                "url": "http://127.0.0.1:8099",
                "command": ["/usr/bin/llama-server", "--port", "8099"],
                "env": {"HOME": "/nowhere"},
                "vram": "20GiB",
                "concurrency": 4,
                "stop_grace": "250ms",
                "pairs": {"small": {"artifact": "/srv/small.gguf"}},
            },
        },
        "slots": {
            "voice": {"key_file": "keys/voice", "priority": 10, "max_hold": "5s", "defaults": {"a": {"b": False}}},
            "agents": {"key_file": "keys/agents", "max_in_flight": 1, "max_waiting": 32},
            "anonymous": {},
        },
        "limits": {"max_body": "16MiB"},
        "drain": "2m",
    }


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the file stands, with the files beside it that it names."""
    folder = tmp_path_factory.mktemp("box")
    (folder / "keys").mkdir()
    for name in ("voice", "agents", "engine"):
        (folder / "keys" / name).write_text(f"sk-{name}\n")
    (folder / "strata.yml").write_text("services: {}\n")
    return folder


def read(folder: Path, document: object) -> Settings:
    file = folder / "slotproxy.yml"
    file.write_text(document if isinstance(document, str) else yaml.safe_dump(document, sort_keys=False))
    return load(file)


def refusal(folder: Path, document: object) -> str:
    """The one line that it is refused with, after the file's name."""
    with pytest.raises(ConfigError) as refused:
        read(folder, document)
    line = str(refused.value)
    assert len(line.splitlines()) == 1
    prefix = f"{folder / 'slotproxy.yml'}: "
    assert line.startswith(prefix)
    return line.removeprefix(prefix)


def put(path: str, value: object) -> Edit:
    """An edit that sets (or with `...` removes) the key at a dotted path."""

    def edit(document: Document) -> None:
        *groups, last = path.split(".")
        for group in groups:
            document = document.setdefault(group, {})
        if value is ...:
            del document[last]
        else:
            document[last] = value

    return edit


def test_a_path_with_an_end_of_line_in_it_is_shown_on_one_line(folder: Path) -> None:
    document = box()
    put("slots.agents.key_file", "a\rb\u2028c")(document)
    assert refusal(folder, document).startswith(f"slots.agents.key_file: {folder}/a\\rb\\u2028c: No such file")


def test_a_file_becomes_settings_with_the_profiles_facts_and_our_defaults(folder: Path) -> None:
    settings = read(folder, box())
    ninfer, strata, llama = (settings.engines[name] for name in ("ninfer", "strata", "llama"))
    assert (settings.host, settings.port, settings.drain, settings.freeing) == ("127.0.0.1", 8080, 120.0, 60.0)
    assert settings.control == Path("/run/slotproxy/control.sock")
    assert (settings.card.gpu, settings.card.headroom) == ("0", 256 * MiB)
    assert settings.limits.max_body == 16 * MiB
    assert ninfer.deployed_pair.label == "ninfer:v2"
    assert ninfer.deployed_pair.source is not None
    assert ninfer.deployed_pair.source.commit == "1f2e3d4"
    assert (ninfer.api_key, ninfer.passthrough) == ("sk-engine", frozenset({"/v1/embeddings"}))
    assert (ninfer.concurrency, ninfer.stop_grace) == (ninfer.profile.concurrency, ninfer.profile.stop_grace)
    assert strata.url == "http://127.0.0.1:8090"
    assert strata.vram == int(30.5 * GiB)
    assert strata.deployed == "current"
    assert strata.compose is not None
    assert strata.compose.file == folder / "strata.yml"
    assert strata.deployed_pair.config_files == (folder / "b.json",)
    assert (llama.concurrency, llama.stop_grace, llama.env) == (4, 0.25, {"HOME": "/nowhere"})
    assert llama.deployed_pair.image == "/usr/bin/llama-server"
    assert llama.deployed_pair.command == llama.command == ("/usr/bin/llama-server", "--port", "8099")
    voice = settings.slots["voice"]
    assert (voice.keys, voice.priority, voice.max_hold, voice.defaults) == (
        digests("sk-voice"),
        10,
        5.0,
        {"a": {"b": False}},
    )
    assert not settings.slots["anonymous"].keys
    assert settings.models == {"qwen": {"ninfer": "qwen3.8-27b", "strata": "flash"}, "*": {}}


def test_a_small_file_gets_everything_else_by_default(folder: Path) -> None:
    engine = {"profile": "openai", "container": "x", "vram": "1GiB", "pairs": {"p": {"image": "x", "artifact": []}}}
    settings = read(folder, {"card": {"simulated": "32GiB"}, "engines": {"x": engine}})
    assert settings.default == "x"
    assert settings.models == {"*": {}}
    assert list(settings.slots) == ["anonymous"]
    assert settings.card.folder == Path("/var/lib/slotproxy/card")
    assert settings.engines["x"].url == f"http://127.0.0.1:{settings.engines['x'].profile.default_port}"


def test_who_hears_of_what_is_as_configured(folder: Path) -> None:
    document = box()
    put("notify", {"command": ["/bin/sh", "-c", "true"]})(document)
    told = read(folder, document).notify
    assert (told.command, told.webhook) == (("/bin/sh", "-c", "true"), "")
    assert told.on == {Kind.DARK, Kind.RECOVERED, Kind.RESTORED, Kind.FAILED, Kind.USELESS}
    put("notify", {"webhook": "https://x/y", "on": ["ended", "dark"]})(document)
    told = read(folder, document).notify
    assert (told.command, told.webhook) == ((), "https://x/y")
    assert told.on == {Kind.ENDED, Kind.DARK}


REFUSALS: list[tuple[Edit, str]] = [
    (put("engines.ninfer.vram", 30.5), "engines.ninfer.vram: 30.5 has no unit; write a size such as 30.5GiB"),
    (put("drain", 120), "drain: 120 has no unit; write a duration such as 120s"),
    (put("slot", {}), "slot: unknown key; the nearest known one is slots"),
    (put("engines.ninfer.vrm", 1), "engines.ninfer.vrm: unknown key; the nearest known one is vram"),
    (
        put("engines.ninfer.pairs.v2.artefact", "/a"),
        "engines.ninfer.pairs.v2.artefact: unknown key; the nearest known one is artifact",
    ),
    (put("engines.ninfer.vram", ...), "engines.ninfer.vram: is missing: the memory of the card that it needs"),
    (put("card", ...), "card: is missing: the one card: gpu or simulated"),
    (
        put("state", "~root/state"),
        "state: '~root/state': whose home? write the whole path: /root/state",
    ),
    (put("engines.strata.compose.file", "gone.yml"), "engines.strata.compose.file: {folder}/gone.yml: No such file"),
    (put("engines.strata.compose.file", "a\0b"), "engines.strata.compose.file: 'a\\x00b' holds a character that no"),
    (put("slots.voice.key_file", "\ud800"), "slots.voice.key_file: '\\ud800' holds a character that no name, file"),
    (put("slots.voice.key_file", "keys/gone"), "slots.voice.key_file: {folder}/keys/gone: No such file"),
    (put("slots.agents.key_file", "keys/voice"), "slots.agents.key_file: holds the same key as voice's"),
    (put("slots.agents", {}), "slots.agents.key_file: is missing"),
    (put("listen", "0.0.0.0:8080"), "slots.anonymous: listen is 0.0.0.0, so everyone on the network could use"),
    (put("listen", 8080), "listen: 8080 is not text"),
    (put("listen", "localhost"), "listen: 'localhost' is no address; write HOST:PORT"),
    (put("engines.ninfer.url", "http://localhost:8090"), "engines.ninfer.url: http://localhost:8090 is strata's, too"),
    (
        put("engines.ninfer.url", "http://127.0.0.1:8080"),
        "engines.ninfer.url: http://127.0.0.1:8080 is where the proxy",
    ),
    (put("engines.ninfer.url", "127.0.0.1:8095"), "engines.ninfer.url: '127.0.0.1:8095' is no engine's address"),
    (put("engines.ninfer.container", "strata"), "engines.ninfer.container: strata is strata's, too"),
    (put("engines.ninfer.container", ...), "engines.ninfer: has neither container nor command"),
    (put("engines.llama.container", "x"), "engines.llama: has container and command"),
    (put("engines.llama.command", ["llama-server"]), "engines.llama.command: 'llama-server' is no path"),
    (put("engines.ninfer.env", {"A": "1"}), "engines.ninfer.env: a container's environment is declared by its compose"),
    (put("engines.ninfer.deployed", ...), "engines.ninfer.deployed: is missing: which of v2, v3 does"),
    (put("engines.ninfer.deployed", "v4"), "engines.ninfer.deployed: ninfer has no pair 'v4'; there are: v2, v3"),
    (put("engines.ninfer.pairs", {}), "engines.ninfer.pairs: names no pair"),
    (put("engines.ninfer.pairs.v2.image", ...), "engines.ninfer.pairs.v2.image: is missing"),
    (put("engines.ninfer.pairs.v2.artifact", ...), "engines.ninfer.pairs.v2.artifact: is missing"),
    (put("engines.ninfer.pairs.v3.env", {"A": 1}), "engines.ninfer.pairs.v3.env.A: 1 is not text; write it in quotes"),
    (
        put("engines.ninfer.pairs.v2.source.commit", 1234567),
        "engines.ninfer.pairs.v2.source.commit: 1234567 is not text",
    ),
    (
        put("engines.ninfer.pairs.v2.source.commit", "main"),
        "engines.ninfer.pairs.v2.source.commit: 'main' is no commit; write its hash, 7 to 40 hexadecimal digits",
    ),
    (put("engines.ninfer.pairs.v2.source.commit", "1f2e3d"), "engines.ninfer.pairs.v2.source.commit: '1f2e3d' is no"),
    (put("engines.ninfer.pairs.v2.source.commit", "a" * 41), "engines.ninfer.pairs.v2.source.commit: 'aaaaaaaa"),
    (put("engines.ninfer.profile", "ninja"), "engines.ninfer.profile: no profile is named 'ninja'; there are: "),
    (put("engines.ninfer.concurrency", 0), "engines.ninfer.concurrency: 0 is too small; write at least 1"),
    (put("engines.ninfer.useless_after", -1), "engines.ninfer.useless_after: -1 is too small; write at least 0"),
    (put("engines.ninfer.health_every", 10), "engines.ninfer.health_every: 10 has no unit; write a duration such as"),
    (put("engines.to-strata", {"profile": "openai", "vram": 0, "pairs": {}}), "engines.to-strata: `slotctl swap to-"),
    (put("engines", {}), "engines: names no engine"),
    (put("default", "stratum"), "default: no engine is named 'stratum'; there are: "),
    (put("models.qwen.ninja", "x"), "models.qwen.ninja: no engine is named 'ninja'; there are: "),
    (put("models.*", {"ninfer": "x"}), "models.*: {'ninfer': 'x'}: every name is passed on as it is"),
    (put("models.empty", {}), "models.empty: says for no engine what it is sent"),
    (put("card", {"gpu": 0, "simulated": "32GiB"}), "card: needs exactly one of gpu"),
    (put("card.folder", "/x"), "card.folder: belongs to a simulated card"),
    (put("slots.voice.allow_remote", True), "slots.voice.allow_remote: belongs to anonymous"),
    (put("slots.anonymous.key_file", "keys/voice"), "slots.anonymous.key_file: anonymous is the slot of those without"),
    (
        put("slots.voice.defaults", {"when": datetime.date(2026, 1, 1)}),
        "slots.voice.defaults.when: can't be sent as JSON",
    ),
    (put("limits.max_body", "1GiB"), "limits.max_waiting_bytes: 256MiB can't hold one body of max_body, 1GiB"),
    (put("docker", "/var/run/docker.sock"), "docker: '/var/run/docker.sock' is no address; write one such as unix:"),
    (put("notify", {}), "notify: names nobody who hears of it; write command: [PATH, …] or webhook: URL"),
    (put("notify", {"on": ["dark"]}), "notify: names nobody who hears of it"),
    (put("notify.command", ["keys/gone"]), "notify.command: {folder}/keys/gone: No such file"),
    (put("notify.command", ["keys/voice"]), "notify.command: {folder}/keys/voice can't be run; `chmod +x` it"),
    (put("notify.webhook", "ftp://x/s3cret"), "notify.webhook: must begin with http:// or https:// and name a host"),
    (put("notify.webhook", "http://[::"), "notify.webhook: is no URL; write one such as https://"),
    (put("notify", {"webhook": "http://x", "on": []}), "notify.on: is empty; write which events it hears of, such as"),
    (
        put("notify", {"webhook": "http://x", "on": ["darkness"]}),
        "notify.on: 'darkness' is no kind of event; the nearest known one is dark",
    ),
    (put("notify", {"webhook": "http://x", "on": ["notice"]}), "notify.on: 'notice' is no kind of event"),
    (put("control", "/" + "x" * 120), "control: /x"),
    (
        put("card", {"simulated": "32GiB", "baseline": "2GiB"}),
        "engines.strata.vram: 30.5GiB can't fit the card: of its 32GiB it leaves 29.75GiB",
    ),
]


@pytest.mark.parametrize(("edit", "words"), REFUSALS, ids=[words.split(":")[0] for _, words in REFUSALS])
def test_a_fault_is_refused_with_the_keys_path_and_what_to_write(folder: Path, edit: Edit, words: str) -> None:
    document = box()
    edit(document)
    assert refusal(folder, document).startswith(words.format(folder=folder) if "{folder}" in words else words)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a: [1\nb: 2\n", "line 2, column 2: broken YAML: while parsing a flow sequence, expected ',' or ']'"),
        ("listen: a\ncard: {gpu: 0}\nlisten: b\n", "line 3: the key 'listen' stands twice (first in line 1); keep one"),
        ("card: {gpu: 0, gpu: 1}\n", "line 1: the key 'gpu' stands twice (first in line 1); keep one"),
        ("", "is empty"),
        ("- a\n", "['a'] stands where keys are expected"),
        ("a: &a {b: *a}\n", "a: unknown key"),
        ("a: 2026-99-99\n", "isn't YAML that can be read: month must be in 1..12"),
        ("a: !!python/name:os.system x\n", "line 1, column 4: broken YAML: could not determine a constructor"),
        ("[" * 5000, "is nested too deeply"),
    ],
)
def test_text_that_is_not_a_configuration_is_refused_with_its_line(folder: Path, text: str, words: str) -> None:
    assert refusal(folder, text).startswith(words)


def test_an_alias_within_itself_is_no_default_for_requests(folder: Path) -> None:
    text = yaml.safe_dump(box()).replace("b: false", "b: &me {again: *me}")
    assert refusal(folder, text).startswith("slots.voice.defaults.a: can't be sent as JSON")


def test_a_file_that_is_missing_or_no_text_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"gone\.yml: can't be read: No such file or directory; .*is a sample$"):
        load(tmp_path / "gone.yml")
    (tmp_path / "binary.yml").write_bytes(b"a: \xff\n")
    with pytest.raises(ConfigError, match="is not UTF-8 text"):
        load(tmp_path / "binary.yml")


def test_anonymous_may_be_let_in_from_elsewhere_on_purpose(folder: Path) -> None:
    document = box()
    document["listen"] = "[::]:8080"
    document["slots"]["anonymous"] = {"allow_remote": True}
    assert "anonymous" in read(folder, document).slots


def test_when_an_engine_is_useless_can_be_said_and_switched_off(folder: Path) -> None:
    document = box()
    document["engines"]["ninfer"] |= {"useless_after": 0, "health_failures": 5, "health_every": "2s"}
    engines = read(folder, document).engines
    told = [
        (one.useless_after, one.health_failures, one.health_every) for one in (engines["ninfer"], engines["strata"])
    ]
    assert told == [(0, 5, 2.0), (3, 3, 10.0)]


def test_no_slots_at_all_on_an_open_port_is_refused(folder: Path) -> None:
    document = box()
    document["listen"] = "192.168.1.2:8080"
    del document["slots"]
    assert refusal(folder, document).startswith("slots.anonymous: listen is 192.168.1.2")


def test_a_pairs_own_command_wins_over_its_engines(folder: Path) -> None:
    document = box()
    document["engines"]["llama"]["pairs"]["big"] = {"artifact": "/srv/big.gguf", "command": ["bin/serve", "big"]}
    document["engines"]["llama"]["deployed"] = "big"
    llama = read(folder, document).engines["llama"]
    assert llama.deployed_pair.command == (str(folder / "bin/serve"), "big")
    assert llama.deployed_pair.image == str(folder / "bin/serve")
    assert llama.pairs["small"].command == llama.command


def test_a_real_cards_room_is_checked_with_what_its_driver_reserves(folder: Path) -> None:
    settings = read(folder, box())
    assert check_fits(settings, 32607 * MiB, 507 * MiB) == []
    problems = check_fits(settings, 32607 * MiB, 1807 * MiB)
    assert [line.split(":")[0] for line in problems] == ["engines.strata.vram", "engines.ninfer.vram"]


def test_the_control_socket_is_found_without_reading_keys(folder: Path) -> None:
    document = box() | {"control": "run/control.sock"}
    document["slots"]["voice"]["key_file"] = "keys/gone"
    (folder / "slotproxy.yml").write_text(yaml.safe_dump(document))
    assert control_of(folder / "slotproxy.yml") == folder / "run/control.sock"


# ------------------------------------------------------------------------------------------------- any mutation


def leaves(node: object, path: tuple[object, ...] = ()) -> Iterator[tuple[object, ...]]:
    """The path of every value in a document, groups included."""
    if path:
        yield path
    items = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    for key, value in items:
        yield from leaves(value, (*path, key))


VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=8),
    st.dates(),
    st.binary(max_size=4),
    st.sampled_from(["~", "~nobody/x", "1GiB", "5s", "http://[::1]:1", "http://a:99999", "a\0b", "\ud800", "x" * 5000]),
    st.sampled_from([{}, [], {"": ""}, {1: 2}, {"a": {"b": []}}, [[]], [{}], [1, "a"], {"*": None}]),
)


@st.composite
def mutations(draw: st.DrawFn) -> object:
    """The valid document with one to three values replaced, keys renamed, or values removed."""
    document = copy.deepcopy(box())
    for _ in range(draw(st.integers(1, 3))):
        *groups, last = draw(st.sampled_from(list(leaves(document))))
        parent: Any = document
        for group in groups:
            parent = parent[group]
        value = draw(VALUES)
        match draw(st.sampled_from(["replace", "remove", "rename"])):
            case "replace":
                parent[last] = value
            case "rename" if isinstance(parent, dict):
                parent[draw(st.one_of(st.text(max_size=6), st.integers(), st.booleans()))] = parent.pop(last)
            case _ if len(parent) > 1 or len(groups) > 0:
                del parent[last]
    return document


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(document=mutations())
def test_every_mutation_is_settings_or_one_line(folder: Path, document: object) -> None:
    check_settings_or_one_line(folder, yaml.safe_dump(document, allow_unicode=False).encode())


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(at=st.integers(0, 1800), length=st.integers(0, 40), put=st.text(max_size=5))
def test_every_edit_of_the_text_is_settings_or_one_line(folder: Path, at: int, length: int, put: str) -> None:
    text = yaml.safe_dump(box(), sort_keys=False)
    edited = text[:at] + put + text[at + length :]
    check_settings_or_one_line(folder, edited.encode("utf-8", "surrogatepass"))


def check_settings_or_one_line(folder: Path, text: bytes) -> None:
    file = folder / "mutated.yml"
    file.write_bytes(text)
    assert len(outcome(file).splitlines()) == 1


def outcome(file: Path) -> str:
    try:
        return f"listens at port {load(file).port}"
    except ConfigError as refused:
        return str(refused)


# ------------------------------------------------------------------------------------------------- sample, schema


def test_the_sample_fits_the_schema_and_loads_once_its_files_are_there(tmp_path: Path) -> None:
    document = yaml.safe_load(SAMPLE.read_text())
    jsonschema.validate(document, schema())
    for key in re.findall(r"key_file: (\S+)", SAMPLE.read_text()):
        (tmp_path / key).parent.mkdir(exist_ok=True)
        (tmp_path / key).write_text(f"sk-{key}")
    for engine in document["engines"].values():
        engine["compose"]["file"] = "compose.yml"
    (tmp_path / "compose.yml").write_text("services: {}\n")
    settings = read(tmp_path, document)
    assert {pair.label for engine in settings.engines.values() for pair in engine.pairs.values()} == {
        "strata:current",
        "ninfer:v2",
        "ninfer:v3",
    }


def test_the_schema_is_a_schema_and_refuses_what_the_loader_refuses(folder: Path) -> None:
    jsonschema.Draft202012Validator.check_schema(schema())
    jsonschema.validate(box(), schema())
    for edit in (put("engines.ninfer.vram", 30.5), put("slot", {}), put("state", "~/state"), put("drain", "soon")):
        document = box()
        edit(document)
        assert not jsonschema.Draft202012Validator(schema()).is_valid(document)
        refusal(folder, document)


def test_every_key_of_the_schema_says_what_it_means() -> None:
    for group in json.loads(json.dumps(schema()))["$defs"].values():
        for key, described in group["properties"].items():
            assert described.get("description"), key
