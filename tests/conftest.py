"""The rules that hold for every test: the event loop is never blocked, no task is left behind, no skip is silent.

SLOTPROXY_TEST_DOCKER  the address of the Docker daemon that tests marked `docker` use; unset: they are skipped.
SLOTPROXY_TEST_STRICT  `1`: a skipped test or module counts as a failure.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Generator, Iterator
from contextlib import contextmanager

import hypothesis
import pytest
from blockbuster import BlockBuster, BlockingError
from pytest_asyncio import is_async_test
from xdist.remote import Producer
from xdist.scheduler import LoadFileScheduling

# How long an example takes says how busy the machine is, nothing of the code.
hypothesis.settings.register_profile(
    "slotproxy", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("slotproxy")

WITH_DOCKER = ("tests/system/", "tests/faults/test_docker", "tests/soak/")
FIRST = (*WITH_DOCKER, "tests/swap/test_machine_walk.py")  # they take longest: nobody waits for them at the end
OURS = ["slotproxy", "swap", "engines"]
_blockbuster = BlockBuster(OURS)  # a blocking call counts if it comes from our own code


@pytest.fixture(autouse=True)
def rules(request: pytest.FixtureRequest) -> Iterator[None]:
    """Hold every asynchronous test to the rules; a synchronous one has no loop to block and no tasks to leave."""
    if not is_async_test(request.node):
        yield
        return
    request.getfixturevalue("no_tasks_left")
    with loop_never_blocked():
        yield


@contextmanager
def loop_never_blocked() -> Iterator[None]:
    """Our code can't block the event loop in here: it gets a BlockingError, and if it swallows that, the test fails.

    The error is remembered as it is made, because a daemon's job is to survive what its parts raise.
    """
    seen: list[str] = []

    class Remembered(BlockingError):
        def __init__(self, call: str) -> None:
            super().__init__(call)
            seen.append(call)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("blockbuster.blockbuster.BlockingError", Remembered)
        _blockbuster.activate()
        try:
            yield
        finally:
            _blockbuster.deactivate()
    assert not seen, f"the event loop was blocked by {', '.join(seen)}: call it in a thread, see swap.threads"


@pytest.fixture
async def no_tasks_left() -> AsyncIterator[None]:
    """Fail a test whose tasks are still there a second after it and its other fixtures have ended."""
    yield
    left = asyncio.all_tasks() - {asyncio.current_task()}
    if left:
        _, left = await asyncio.wait(left, timeout=1.0)
    assert not left, f"the test left tasks behind: {', '.join(repr(task) for task in left)}"


class ByFile(LoadFileScheduling):  # type: ignore[misc]  # it is untyped
    """Several processes run the tests: a file stays in one of them, and so does all that a Docker daemon is asked.

    They are three, on two cores: many a test waits.
    """

    def _split_scope(self, nodeid: str) -> str:
        file: str = super()._split_scope(nodeid)
        return "docker" if file.startswith(WITH_DOCKER) else file


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> ByFile:
    return ByFile(config, log)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: not item.nodeid.startswith(FIRST))
    if os.environ.get("SLOTPROXY_TEST_DOCKER"):
        return
    reason = "SLOTPROXY_TEST_DOCKER is unset: set it to a Docker daemon's address, such as unix:///var/run/docker.sock"
    for item in items:
        if item.get_closest_marker("docker"):
            item.add_marker(pytest.mark.skip(reason=reason))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if not hasattr(report, "wasxfail"):
        _forbid_skip(report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    report = yield
    _forbid_skip(report)
    return report


def _forbid_skip(report: pytest.TestReport | pytest.CollectReport) -> None:
    if report.skipped and os.environ.get("SLOTPROXY_TEST_STRICT") == "1":
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr
        report.outcome = "failed"
        report.longrepr = f"{reason} (SLOTPROXY_TEST_STRICT=1: a skip is a failure)"
