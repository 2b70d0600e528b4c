"""The event log in memory."""

from __future__ import annotations

from structlog.testing import capture_logs

from swap.decisions import Decision, Decisions, Kind


def test_the_last_decisions_are_kept_and_the_oldest_forgotten() -> None:
    decisions = Decisions(kept=3)
    for count in range(5):
        decisions.add(Kind.SERVING, f"serves {count}")
    assert [one.text for one in decisions.last()] == ["serves 2", "serves 3", "serves 4"]
    assert [one.text for one in decisions.last(2)] == ["serves 3", "serves 4"]
    assert decisions.last(0) == []


def test_what_an_earlier_daemon_decided_stands_before_and_is_heard_by_nobody() -> None:
    earlier = Decisions()
    for count in range(3):
        earlier.add(Kind.SERVING, f"earlier {count}")
    decisions, heard = Decisions(kept=3), list[Decision]()
    decisions.add(Kind.STARTED, "slotproxy is up")
    decisions.hear(heard.append)
    decisions.remember(earlier.last())
    assert [one.text for one in decisions.last()] == ["earlier 1", "earlier 2", "slotproxy is up"]
    assert heard == []


def test_each_decision_is_a_line_of_the_log_with_its_reason() -> None:
    with capture_logs() as lines:
        Decisions().add(Kind.DARK, "nothing serves", why="the card is full", passing=True)
    [line] = lines
    assert (line["event"], line["kind"], line["why"]) == ("nothing serves", "dark", "the card is full")
    assert (line["log_level"], line["facts"]) == ("warning", {"passing": True})


def test_listeners_hear_each_decision_until_they_leave() -> None:
    decisions, heard = Decisions(), list[Decision]()
    leave = decisions.hear(heard.append)
    first = decisions.add(Kind.HOLD, "requests are held")
    leave()
    decisions.add(Kind.RELEASED, "released")
    assert heard == [first]


def test_a_listener_that_breaks_costs_the_others_nothing() -> None:
    def broken(_: Decision) -> None:
        raise RuntimeError("broken")

    decisions, heard = Decisions(), list[Decision]()
    decisions.hear(broken)
    decisions.hear(heard.append)
    with capture_logs() as lines:
        decisions.add(Kind.SERVING, "strata:v1 serves")
    assert [one.text for one in heard] == ["strata:v1 serves"]
    assert [line["event"] for line in lines] == ["strata:v1 serves", "a listener of the event log broke"]


def test_the_words_of_others_are_kept_short() -> None:
    decided = Decisions().add(Kind.FAILED, "it failed", why="x" * 10**6)
    assert len(decided.why) == 2000
