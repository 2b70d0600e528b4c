"""An engine that quotes whatever it was sent, in every place where an answer has room: `python quoting.py PORT`.

How it answers is the request's `x-how`. Without one it is well, so that questions of slotproxy's own are answered.
"""

from __future__ import annotations

import json
import os
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

WELL = json.dumps({"choices": [{"message": {"content": "hi"}, "finish_reason": "stop"}]}).encode()


class Quoting(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self._whole(200, json.dumps({"data": [{"id": "m"}]}).encode())

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"] or 0))
        quoted = f"{self.path} {self.headers} {body.decode(errors='replace')}"
        error = json.dumps({"error": {"message": quoted, "type": quoted, "code": quoted, "param": quoted}})
        self.close_connection = True
        match self.headers.get("x-how", "well").split(" "):
            case ["well"]:
                self._whole(200, WELL)
            case ["echo"]:
                self._whole(200, json.dumps({"choices": [], "echo": quoted}).encode())
            case ["status", status]:
                self._whole(int(status), error.encode())
            case ["page", status]:
                self._whole(int(status), quoted.encode())
            case ["stream", *parts]:
                event = json.dumps({"choices": [{"delta": {"content": quoted}}]})
                said = {"delta": f"data: {event}\n\n", "error": f"data: {error}\n\n", "done": "data: [DONE]\n\n"}
                self._stream([said[part] for part in parts])
            case ["no-http"]:
                self.wfile.write(f"HTTP/1.1 200 OK\r\n{quoted!r}\r\n{quoted!r}: {quoted!r}\r\n\r\n".encode())
            case ["no-chunk"]:
                self.wfile.write(f"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n{quoted!r}\r\n".encode())
            case ["no-media-type"]:
                self._whole(200, WELL, media=repr(quoted))
            case ["silence"]:
                time.sleep(60)
            case ["death"]:
                print("error:", quoted, file=sys.stderr, flush=True)
                os._exit(1)

    def _whole(self, status: int, body: bytes, media: str = "application/json") -> None:
        self.send_response(status)
        self.send_header("Content-Type", media)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _stream(self, events: list[str]) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()
        self.wfile.write("".join(events).encode())

    def log_message(self, *_: object) -> None:
        """Nothing: what it writes is nobody's but its own."""


if __name__ == "__main__":
    ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Quoting).serve_forever()
