"""Severities and the bridges to and from logging."""

from __future__ import annotations

import logging

import pytest

from smelt import logger
from smelt.logger import Logger, LoggingLogger, Severity, forward_to, show_on_console


class Recorder:
    """Remembers what it was told."""

    def __init__(self) -> None:
        self.messages: list[tuple[Severity, str]] = []

    def log(self, severity: Severity, message: str, /) -> None:
        self.messages.append((severity, message))


ROOM = logging.getLogger("smelt.some_room")


@pytest.mark.requirement("GX-1")
def test_severities_have_the_documented_numbers() -> None:
    assert [severity.value for severity in list(Severity)[:4]] == [0, 1, 2, 3]
    assert [severity.name for severity in list(Severity)[:4]] == [
        "INTERNAL_ERROR",
        "ERROR",
        "WARNING",
        "INFO",
    ]


@pytest.mark.parametrize("severity", list(Severity))
def test_a_severity_survives_the_way_through_logging(severity: Severity) -> None:
    assert Severity.of_level(severity.level) is severity


def test_a_level_in_between_counts_as_the_lesser() -> None:
    assert Severity.of_level(35) is Severity.WARNING
    assert Severity.of_level(1) is Severity.VERBOSE


@pytest.mark.requirement("G-35")
def test_a_logger_hears_the_rooms_down_to_its_minimum() -> None:
    recorder = Recorder()
    assert isinstance(recorder, Logger)
    with forward_to(recorder, minimum=Severity.WARNING):
        ROOM.info("left %s", "out")
        ROOM.warning("kept %d", 1)
        ROOM.error("kept %d", 2)
    ROOM.error("too late")
    assert recorder.messages == [(Severity.WARNING, "kept 1"), (Severity.ERROR, "kept 2")]


def test_information_passes_by_default_and_levels_are_restored() -> None:
    before = logging.getLogger("smelt").level
    first, second = Recorder(), Recorder()
    with forward_to(first), forward_to(second, minimum=Severity.VERBOSE):
        ROOM.info("both")
        ROOM.debug("second")
    assert [message for _, message in first.messages] == ["both"]
    assert [message for _, message in second.messages] == ["both", "second"]
    assert logging.getLogger("smelt").level == before


def test_a_level_that_the_user_chose_is_respected() -> None:
    root = logging.getLogger("smelt")
    root.setLevel(logging.DEBUG)
    try:
        with forward_to(Recorder(), minimum=Severity.ERROR):
            assert root.level == logging.DEBUG
        assert root.level == logging.DEBUG
    finally:
        root.setLevel(logging.NOTSET)


def test_a_handler_of_a_signal_may_show_messages_while_a_block_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The level of what it attached was forgotten."""
    root = logging.getLogger("smelt")
    remove, before = root.removeHandler, root.level
    interrupts = iter([Severity.VERBOSE])

    def interrupted(handler: logging.Handler) -> None:
        remove(handler)
        for minimum in interrupts:
            show_on_console(minimum)

    with monkeypatch.context() as patch:
        patch.setattr(root, "removeHandler", interrupted)
        with forward_to(Recorder()):
            pass
    try:
        assert root.level == logging.DEBUG
    finally:
        logger._detach(root.handlers[-1])  # pyright: ignore[reportPrivateUsage]
    assert root.level == before


def test_a_logging_logger_writes_into_logging(caplog: pytest.LogCaptureFixture) -> None:
    LoggingLogger().log(Severity.ERROR, "100 % wrong")
    assert caplog.record_tuples == [("smelt", logging.ERROR, "100 % wrong")]


def test_a_logging_logger_drops_what_matters_less_than_its_minimum(
    caplog: pytest.LogCaptureFixture,
) -> None:
    LoggingLogger(minimum=Severity.ERROR).log(Severity.WARNING, "unimportant")
    assert not caplog.records


def test_the_two_bridges_together_make_no_loop(caplog: pytest.LogCaptureFixture) -> None:
    class Both:
        def __init__(self) -> None:
            self.heard = 0
            self.onward = LoggingLogger()

        def log(self, severity: Severity, message: str, /) -> None:
            self.heard += 1
            self.onward.log(severity, message)

    both = Both()
    with forward_to(both), forward_to(LoggingLogger()):
        ROOM.warning("once")
    assert both.heard == 1
    assert [record.name for record in caplog.records].count("smelt") == 1


def test_the_console_shows_room_severity_and_message(
    capsys: pytest.CaptureFixture[str],
) -> None:
    show_on_console(Severity.VERBOSE)
    handler = show_on_console(Severity.INFO)  # replaces the first
    try:
        ROOM.info("hello")
        assert capsys.readouterr().err == "smelt.some_room: INFO: hello\n"
    finally:
        logging.getLogger("smelt").removeHandler(handler)
        logging.getLogger("smelt").setLevel(logging.NOTSET)
