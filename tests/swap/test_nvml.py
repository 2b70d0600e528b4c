"""NvmlCard over a fake libnvidia-ml.so.1 (tests/shim) keeps the contract of every card."""

from __future__ import annotations

import ctypes
import importlib.metadata
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pynvml
import pytest

from engines.spec import GiB, MiB
from swap import proc
from swap.nvml import NvmlCard
from swap.ports import CardUnknown
from tests.shim.build import LIBRARY, build_shim
from tests.swap.card_contract import CardBed, CardContract

ROOT = Path(__file__).parents[2]
UUID = "GPU-8f2c0000-0000-4000-8000-000000000001"
ASK = """
import asyncio, sys
from swap.nvml import NvmlCard
from swap.ports import CardUnknown
try:
    print(asyncio.run(NvmlCard("0").memory()).free)
except CardUnknown as error:
    print(error.what)
"""


@pytest.fixture(scope="session")
def shim(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_shim(tmp_path_factory.mktemp("shim"))


@pytest.fixture
def folder(shim: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the card that pynvml sees in this process, for this test."""
    monkeypatch.setattr(pynvml, "nvmlLib", ctypes.CDLL(str(shim / LIBRARY)))
    monkeypatch.setattr(pynvml, "_nvmlGetFunctionPointer_cache", {})
    monkeypatch.setenv("SLOTPROXY_SHIM_CARD", str(tmp_path))
    (tmp_path / "uuid").write_text(f"{UUID}\n")
    return tmp_path


class TestNvmlCard(CardContract):
    @pytest.fixture
    def bed(self, folder: Path) -> CardBed:
        return CardBed(folder, NvmlCard(UUID), slow=lambda bound: NvmlCard("0", bound=bound))


@pytest.mark.parametrize("gpu", [UUID, "0"])
async def test_a_card_is_named_by_uuid_or_index(folder: Path, gpu: str) -> None:
    identity = await NvmlCard(gpu).identity()
    assert identity.uuid == UUID
    assert not identity.simulated


@pytest.mark.parametrize("gpu", ["GPU-00000000-dead-4000-8000-000000000000", "1"])
async def test_a_card_that_isnt_there_is_a_matter_of_configuration(folder: Path, gpu: str) -> None:
    with pytest.raises(CardUnknown, match="no such card") as error:
        await NvmlCard(gpu).memory()
    assert "nvidia-smi -L" in error.value.mend
    assert not error.value.passing


@pytest.mark.parametrize("code", [3, 13, 25])
async def test_case_30_used_means_another_thing_in_the_first_version_and_free_the_same(folder: Path, code: int) -> None:
    """An older driver is asked for the first version, which counts as used what the second calls reserved."""
    (folder / "reserved").write_text(f"{500 * MiB}")
    second = await NvmlCard("0").memory()
    (folder / "errors").mkdir()
    (folder / "errors/memory_v2").write_text(f"{code}")
    first = await NvmlCard("0").memory()
    assert (first.free, first.used, first.reserved) == (second.free, 500 * MiB, 0)
    assert (second.used, second.reserved) == (0, 500 * MiB)


async def test_a_desktop_that_only_draws_is_named_too_and_who_does_both_once(folder: Path) -> None:
    for kind, name, pid in (("foreign", "both", 1), ("drawing", "Xorg", 2), ("drawing", "both", 1)):
        (folder / kind).mkdir(exist_ok=True)
        (folder / kind / name).write_text(f"{GiB} {pid} {name}")
    assert sorted((one.pid, one.bytes) for one in await NvmlCard("0").processes()) == [(1, GiB), (2, GiB)]
    (folder / "errors").mkdir()
    (folder / "errors/graphics").write_text("3")
    assert [one.pid for one in await NvmlCard("0").processes()] == [1]


def test_the_library_is_found_as_a_driver_would_install_it(shim: Path, tmp_path: Path) -> None:
    env = os.environ | {"LD_LIBRARY_PATH": str(shim), "SLOTPROXY_SHIM_CARD": str(tmp_path)}
    assert _python("-c", ASK, env=env) == f"{32 * GiB}"


def test_a_machine_without_the_library_is_told_to_install_it() -> None:
    env = {name: value for name, value in os.environ.items() if name != "LD_LIBRARY_PATH"}
    if _python("-c", "import ctypes.util; print(ctypes.util.find_library('nvidia-ml'))", env=env) != "None":
        pytest.skip("this machine has an NVIDIA driver")
    assert "libnvidia-ml.so.1 is missing" in _python("-c", ASK, env=env)


def test_case_31_pynvml_is_the_one_of_nvidia_ml_py() -> None:
    """The package called pynvml has the same module, and warns at every import."""
    dependencies = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    assert [one for one in dependencies if "nvml" in one or "nvidia-ml" in one] == ["nvidia-ml-py>=12.560"]
    assert importlib.metadata.packages_distributions()["pynvml"] == ["nvidia-ml-py"]
    assert (
        _python("-W", "error::FutureWarning", "-c", "import swap.nvml; print('fine')", env=dict(os.environ)) == "fine"
    )


def test_the_container_of_a_process_is_read_from_its_control_groups(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(proc, "PROC", tmp_path)
    for pid, line in (
        (1, f"0::/system.slice/docker-{'ab' * 32}.scope"),
        (2, f"4:memory:/docker/{'cd' * 32}"),
        (3, "0::/"),
    ):
        (tmp_path / str(pid)).mkdir()
        (tmp_path / str(pid) / "cgroup").write_text(f"{line}\n")
    assert [proc.container(pid) for pid in (1, 2, 3, 4)] == ["ab" * 6, "cd" * 6, "", ""]


def test_a_process_is_named_without_its_secrets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proc, "PROC", tmp_path)
    commands = {
        1: ["/usr/bin/llama-server", "--api-key", "sk-secret"],
        2: ["python3", "/srv/server.py", "--api-key", "sk-secret"],
        3: ["python3", "-m", "vllm.entrypoints", "sk-secret"],
    }
    for pid, words in commands.items():
        (tmp_path / str(pid)).mkdir()
        (tmp_path / str(pid) / "cmdline").write_text("\0".join([*words, ""]))
    assert [proc.name(pid) for pid in (1, 2, 3, 4)] == [
        "llama-server",
        "python3 server.py",
        "python3 vllm.entrypoints",
        "",
    ]


def _python(*arguments: str, env: dict[str, str]) -> str:
    command = [sys.executable, *arguments]
    return subprocess.run(command, env=env, capture_output=True, text=True, check=True, timeout=60).stdout.strip()
