"""Stands in for a stage's supervisor: a real process that does what the environment variable SCRIPT says.

    exit CODE          end at once (with what TERMINATION says, if set, and a line in the log)
    sleep              wait for SIGTERM, then exit 0
    stubborn           ignore SIGTERM
    parent             as sleep, with a child of its own
    stage              what a stage does: an admin port with /watch, /drain, /leader and /reload; serves at once

A stage obeys files in its state directory: `requests` has the number of running requests, `state` another state; with
`deaf` it answers probes only, as if nobody but its own node could reach it; `unheard` names a stage that the leader
lost and is not ready for, `ranks` has stages with their ranks, as JSON; with `unfit` it can't load what a reload is about; `version` has the
wire version that it speaks, for the next document. With BIREME_STANDBY it is nobody until `/adopt` tells it who it is.
"""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

from bireme.process import child_environment, die_with_parent
from bireme.wire import WIRE_VERSION

STATE_DIR = Path(os.environ["BIREME_STATE_DIR"])
WHO = {name: value for name, value in os.environ.items() if name.startswith("BIREME_") or name == "SCRIPT"}


class Facts:
    draining = False
    leader = ""
    revision = ""
    source = ""
    reload: ClassVar[dict[str, object]] = {}


def document() -> bytes:
    override, requests = STATE_DIR / "state", STATE_DIR / "requests"
    state = override.read_text() if override.exists() else "Draining" if Facts.draining else "Serving"
    incarnation, version = int(WHO["BIREME_INCARNATION"]), STATE_DIR / "version"
    content = {
        "v": int(version.read_text()) if version.exists() else WIRE_VERSION,
        "seq": 1,
        "group": WHO["BIREME_GROUP_UID"],
        "stage": int(WHO["BIREME_STAGE"]),
        "incarnation": incarnation,
        "boot": str(os.getpid()),
        "epoch": (incarnation << 20) + 1,
        "state": state,
        "reason": "None",
        "message": "",
        "retry_after_s": 0.0,
        "revision": WHO["BIREME_REVISION"],
        "model_revision": Facts.revision or WHO["BIREME_MODEL_REVISION"],
        "generation": 0,
        "reload": Facts.reload,
        "running": int(requests.read_text()) if requests.exists() else 0,
        "waiting": 0,
        "queued_prefill_tokens": 0,
        "kv_blocks_used": 0,
        "kv_blocks": 10,
        "block_size": 16,
        "step": 0,
        "step_age_s": 0.0,
        "draining": Facts.draining,
        "limits": {"context": 144, "running": 4, "queue": 4, "wanted": 512},
        "stages": unheard() + ranks(),
        "source": Facts.source or WHO["BIREME_MODEL_PATH"],
    }
    return json.dumps(content).encode() + b"\n"


def take(asked: dict[str, Any]) -> None:
    """Serve the checkpoint at once, unless it is said to be no good."""
    name, source = asked["model_revision"], asked["source"]
    if (STATE_DIR / "unfit").exists():
        failed = {"phase": "Failed", "model_revision": name, "message": "truncated", "source": source}
        Facts.reload = {**failed, "final": True, "wish": asked["wish"]}
    else:
        Facts.revision, Facts.source, Facts.reload = name, source, {}


def unheard() -> list[dict[str, object]]:
    path = STATE_DIR / "unheard"
    stages = path.read_text().split() if path.exists() else []
    return [{"stage": int(stage), "incarnation": 1, "boot": "", "last_heard_s": 60.0, "ranks": []} for stage in stages]


def ranks() -> list[dict[str, object]]:
    path = STATE_DIR / "ranks"
    found: list[dict[str, object]] = json.loads(path.read_text()) if path.exists() else []
    return found


def become(asked: dict[str, object]) -> None:
    token = STATE_DIR / "adopted-token"
    token.write_text(str(asked["token"]))
    WHO["BIREME_TOKEN_FILE"] = str(token)
    for name, key in (("GROUP_UID", "group"), ("GROUP_INDEX", "index"), ("INCARNATION", "incarnation")):
        WHO[f"BIREME_{name}"] = str(asked[key])
    WHO["BIREME_MODEL_REVISION"] = str(asked["model_revision"])
    WHO["BIREME_STAGE"] = str(asked["stage"])


def note(name: str, body: bytes) -> None:
    """Leave a word for the test, whole as soon as it is there."""
    partial = STATE_DIR / f".{name}.partial"
    partial.write_bytes(body)
    partial.rename(STATE_DIR / name)


def wait_while_deaf() -> None:
    while (STATE_DIR / "deaf").exists():
        time.sleep(0.05)


class Admin(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        if self.path in {"/livez", "/readyz"}:
            self.send_response(503 if self.path == "/readyz" and unheard() else 200)
            self.end_headers()
            return
        wait_while_deaf()
        if "BIREME_STAGE" not in WHO:
            self.send_error(404)
            return
        token = Path(WHO["BIREME_TOKEN_FILE"]).read_text()
        if self.headers["authorization"] != f"Bearer {token}":
            self.send_error(401)
            return
        self.send_response(200)
        self.end_headers()
        said, at = b"", 0.0
        while True:
            wait_while_deaf()
            now = document()
            if now != said or time.monotonic() - at > 1:
                said, at = now, time.monotonic()
                self.wfile.write(now)
            time.sleep(0.02)

    def do_POST(self) -> None:
        wait_while_deaf()
        body = self.rfile.read(int(self.headers["content-length"]))
        if self.path == "/adopt" and "BIREME_STAGE" not in WHO:
            become(json.loads(body))
        elif self.path == "/adopt" or "BIREME_STAGE" not in WHO:
            self.send_error(409)
            return
        note(self.path.strip("/"), body)  # before anybody can see what comes of it
        if self.path == "/drain":
            Facts.draining = True
        if self.path == "/undrain":
            Facts.draining = False
        if self.path == "/reload":
            take(json.loads(body))
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


def serve() -> None:
    class Server(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, request: object, client_address: object) -> None:
            pass  # a watcher that left

    server = Server((WHO["BIREME_POD_IP"], 8001), Admin)
    threading.Thread(target=server.serve_forever, daemon=True).start()


def main() -> None:
    die_with_parent()
    note("environment.json", json.dumps(WHO).encode())
    word, _, argument = os.environ.get("SCRIPT", "sleep").partition(" ")
    if word == "exit":
        if "TERMINATION" in os.environ:
            told = {"exit_code": int(argument), "reason": "Told", "message": os.environ["TERMINATION"]}
            (STATE_DIR / "termination").write_text(json.dumps(told))
        print("the last line of the log", flush=True)
        sys.exit(int(argument))
    # Blocked in all threads and waited for in this one: a handler could be run by a thread that then tells nobody.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    if word == "parent":
        child = subprocess.Popen([sys.executable, __file__], env=child_environment({"SCRIPT": "sleep"}))
        note("child", str(child.pid).encode())
    if word == "stage":
        serve()
    (STATE_DIR / "ready").touch()
    signal.sigwait({signal.SIGTERM} if word != "stubborn" else {signal.SIGUSR1})
    os._exit(0)


if __name__ == "__main__":
    main()
