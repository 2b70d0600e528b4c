"""TLS on the client port: a connection's handshake, and then the transport that HTTP is spoken over.

asyncio has TLS, too. This one differs where clients' slots need it: a connection counts from the moment that it was
accepted, and one that doesn't end its handshake is ended; who speaks plain HTTP is told what to do; an answer that
broke off ends without TLS' closing word (close_notify), so that also those who read until the end see that it is none;
and no connection waits for the other side's closing word.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import Callable
from typing import Any, Protocol

_HANDSHAKE_LIMIT = 10.0  # seconds from a connection's first moment until its handshake is over
_FLUSH = 1.0  # seconds that somebody has to read what to do instead
READ = 64 * 1024  # bytes that are read at once: in tiny chunks they keep everybody else waiting for 0.1 s
_A_HANDSHAKE = 22  # a TLS record's first byte, where it is one of a handshake


class Connections(Protocol):
    """Where connections are counted, as uvicorn does: all that are open, which it ends by their `shutdown`."""

    def add(self, connection: Any, /) -> None: ...
    def discard(self, connection: Any, /) -> None: ...
    def __len__(self) -> int: ...


class Handshake(asyncio.Protocol):
    """A connection from its first byte, and what its bytes are read by when they are read by HTTP.

    `make` gives who speaks HTTP over it, once it is secure. `most`: connections that may be open, more are just closed.
    `mistaken` gives what those are told who speak plain HTTP.
    """

    def __init__(
        self,
        context: ssl.SSLContext,
        make: Callable[[], asyncio.Protocol],
        connections: Connections,
        *,
        most: int,
        mistaken: Callable[[], bytes],
    ) -> None:
        self._context = context
        self._make = make
        self._connections = connections
        self._most = most
        self._mistaken = mistaken
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_side=True)
        self._begun = self._over = False
        self._limit: asyncio.TimerHandle | None = None
        self._secure: Secure | None = None

    # -------------------------------------------------------------------------------------------- until it is secure

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._raw = transport
        transport.max_size = READ  # type: ignore[attr-defined]  # asyncio's own, of a plain socket
        self._connections.add(self)
        self._limit = asyncio.get_running_loop().call_later(_HANDSHAKE_LIMIT, transport.abort)
        if len(self._connections) > self._most:
            transport.abort()

    def shutdown(self) -> None:
        """The server ends: nobody waits for a handshake."""
        self._raw.abort()

    def data_received(self, data: bytes) -> None:
        if self._over:
            return
        if not self._begun:
            self._begun = True
            if data[0] != _A_HANDSHAKE:
                self._tell_mistaken()
                return
        self._incoming.write(data)
        if self._secure is None:
            self._shake()
        if self._secure is not None:
            self._hand_on(self._secure)

    def _shake(self) -> None:
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            self._flush()
        except ssl.SSLError:
            self._over = True
            self._flush()  # the alert that says why
            self._raw.close()
        else:
            self._flush()
            self._finish()
            self._secure = Secure(self._raw, self._tls, self._context, self._make(), self._flush)
            self._secure.protocol.connection_made(self._secure)

    def _tell_mistaken(self) -> None:
        """Closed on unread bytes the words would be lost: so what comes is read, and dropped, for a moment."""
        self._over = True
        self._raw.write(self._mistaken())
        self._raw.write_eof()
        asyncio.get_running_loop().call_later(_FLUSH, self._raw.abort)

    def _finish(self) -> None:
        self._connections.discard(self)
        if self._limit is not None:
            self._limit.cancel()
            self._limit = None

    # -------------------------------------------------------------------------------------------- and then

    def _hand_on(self, secure: Secure) -> None:
        """What is clear now, all of it, and that the other side has said its last word."""
        data, ended = self._clear()
        self._flush()  # what TLS itself has to answer
        if data:
            secure.protocol.data_received(data)
        if ended and not secure.is_closing():
            secure.protocol.eof_received()
            secure.close()

    def _clear(self) -> tuple[bytes, bool]:
        pieces: list[bytes] = []
        try:
            while piece := self._tls.read(READ):
                pieces.append(piece)
        except ssl.SSLWantReadError:
            return b"".join(pieces), False
        except ssl.SSLError:  # bytes that nobody with the key has sent, or an alert: nothing more is to be believed
            self._raw.abort()
            return b"".join(pieces), False
        return b"".join(pieces), True

    def _flush(self) -> None:
        if self._outgoing.pending:
            self._raw.write(self._outgoing.read())

    def connection_lost(self, error: Exception | None) -> None:
        self._over = True
        self._finish()
        if self._secure is not None:
            self._secure.lost(error)
            self._secure = None

    def pause_writing(self) -> None:
        if self._secure is not None:
            self._secure.protocol.pause_writing()

    def resume_writing(self) -> None:
        if self._secure is not None:
            self._secure.protocol.resume_writing()


class Secure(asyncio.Transport):
    """What HTTP is spoken over. What it writes is encrypted at once, so all that waits to be sent waits below it."""

    def __init__(
        self,
        raw: asyncio.Transport,
        tls: ssl.SSLObject,
        context: ssl.SSLContext,
        protocol: asyncio.Protocol,
        flush: Callable[[], None],
    ) -> None:
        super().__init__({"sslcontext": context, "ssl_object": tls})
        self.protocol = protocol
        self._raw = raw
        self._tls = tls
        self._flush = flush
        self._closing = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if self._closing or not data:
            return
        left = memoryview(data)
        try:
            while left:
                left = left[self._tls.write(left) :]
        except ssl.SSLError:
            self.abort()
        else:
            self._flush()

    def close(self) -> None:
        """What was written is sent, and that this was all."""
        if not self._closing:
            self.write_eof()
            self._closing = True
            self._raw.close()

    def cut(self) -> None:
        """What was written is sent, and not that this was all."""
        self._closing = True
        self._raw.close()

    def abort(self) -> None:
        self._closing = True
        self._raw.abort()

    def write_eof(self) -> None:
        if not self._closing:
            with contextlib.suppress(ssl.SSLError):  # the other side's last word isn't here yet, nor waited for
                self._tls.unwrap()
            self._flush()

    def lost(self, error: Exception | None) -> None:
        """The connection below is no more."""
        self._closing = True
        self.protocol.connection_lost(error)

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        found = super().get_extra_info(name)
        return self._raw.get_extra_info(name, default) if found is None else found

    def can_write_eof(self) -> bool:
        return True

    def is_closing(self) -> bool:
        return self._closing or self._raw.is_closing()

    def is_reading(self) -> bool:
        return self._raw.is_reading()

    def pause_reading(self) -> None:
        self._raw.pause_reading()

    def resume_reading(self) -> None:
        self._raw.resume_reading()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._raw.set_write_buffer_limits(high, low)

    def get_write_buffer_size(self) -> int:
        return self._raw.get_write_buffer_size()

    def get_write_buffer_limits(self) -> tuple[int, int]:
        return self._raw.get_write_buffer_limits()

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        assert isinstance(protocol, asyncio.Protocol)
        self.protocol = protocol

    def get_protocol(self) -> asyncio.BaseProtocol:
        return self.protocol
