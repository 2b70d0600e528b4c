"""The server's life: probe the port, start the engine, *then* bind; serve until SIGTERM; leave with the engine."""

from __future__ import annotations

import signal
import socket
import socketserver
import sys
import threading
import time
from typing import Any

from engines.strata.simulator.handler import Handler, House
from engines.strata.simulator.knobs import Knobs, faults
from engines.strata.simulator.requestlog import RequestLog
from engines.strata.simulator.settings import Settings
from engines.strata.simulator.supervisor import EngineGone, Supervisor

LOOK = 0.05  # seconds between looks whether a signal came
LAST_WORDS = 2.0  # seconds for the stream that was cut to send its end


class Server(socketserver.ThreadingMixIn, socketserver.TCPServer):
    """A thread for each connection, as Python's own HTTP server has it."""

    daemon_threads = True
    allow_reuse_address = True

    def __init__(self, address: tuple[str, int], house: House) -> None:
        self.house = house
        super().__init__(address, Handler)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that goes away is no news; anything else is printed."""
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)


def serve(settings: Settings, knobs: Knobs) -> int:
    """Run until SIGTERM or SIGINT; returns the exit code. While it loads there is no handler for either."""
    address = (settings.host, settings.port)
    supervisor = Supervisor(knobs)
    try:
        probe_port(address)
        ending = faults(knobs)
        supervisor.load()
        if "exit-after-load" in ending:
            supervisor.kill()
            return failed("simulated failure after the load", ending["exit-after-load"])
        house = House(settings, knobs, supervisor, RequestLog(knobs.request_log))
        server = Server(address, house)
    except (EngineGone, ValueError) as error:
        return failed(str(error))
    except OSError as error:
        supervisor.quit()
        return failed(f"cannot listen on {settings.host}:{settings.port}: {error.strerror}")
    return run(server, house)


def probe_port(address: tuple[str, int]) -> None:
    """Raises OSError when somebody listens there: known before minutes are spent on loading."""
    with socket.socket() as trial:
        trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        trial.bind(address)


def run(server: Server, house: House) -> int:
    told: list[int] = []
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda number, _: told.append(number))
    threading.Thread(target=server.serve_forever, args=(LOOK,), name="accept", daemon=True).start()
    print(f"strata (simulated) serves on {server.server_address}", flush=True)
    while not told:  # a wait without an end could miss a signal that comes just before it
        time.sleep(LOOK)
    house.supervisor.stopping = True
    server.shutdown()
    server.server_close()
    house.supervisor.quit()
    house.turn.acquire(timeout=LAST_WORDS)
    return 0


def failed(why: str, code: int = 1) -> int:
    print(f"error: {why}", file=sys.stderr, flush=True)
    return code
