"""A small server for pods of the tests: it says who it is, and can be told to crash, to be unwell and to take its time.

python server.py PORT [LINGER_SECONDS], which end early when the file LEAVE is there
"""

import os
import signal
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import FrameType

WELL = {"/healthz": True}


class Handler(BaseHTTPRequestHandler):
    """Answers `/healthz`, `/env/NAME`, `/file/PATH`; `/crash/CODE` ends the process, `/unwell` fails `/healthz`."""

    def do_GET(self) -> None:
        words = self.path.strip("/").split("/", 1)
        match words:
            case ["crash", code]:
                os._exit(int(code))
            case ["unwell"]:
                WELL["/healthz"] = False
                self._answer(200, "")
            case ["env", name]:
                self._answer(200, os.environ.get(name, ""))
            case ["prestop"]:
                print("preStop", flush=True)
                self._answer(200, "")
            case _:
                self._answer(200 if WELL["/healthz"] else 500, "")

    def _answer(self, code: int, text: str) -> None:
        self.send_response(code)
        self.send_header("content-length", str(len(text.encode())))
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Say nothing: the log is for what the tests look for."""


def main() -> None:
    linger = float(sys.argv[2]) if len(sys.argv) > 2 else 0.0

    def leave(number: int, frame: FrameType | None) -> None:
        print("SIGTERM", flush=True)
        until, word = time.monotonic() + linger, os.environ.get("LEAVE")
        while time.monotonic() < until and not (word and Path(word).exists()):
            time.sleep(0.05)
        os._exit(0)

    signal.signal(signal.SIGTERM, leave)
    print("started", flush=True)
    ThreadingHTTPServer((os.environ["POD_IP"], int(sys.argv[1])), Handler).serve_forever()


if __name__ == "__main__":
    main()
