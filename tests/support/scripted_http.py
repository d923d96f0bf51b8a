"""An HTTP process that only accepts: enough for a supervisor to call its front up."""

import signal
import socket
import sys

from bireme.names import Port
from bireme.process import die_with_parent
from bireme_worker.identity import read_identity


def main() -> None:
    die_with_parent()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        listener.bind((read_identity().pod_ip, Port.HTTP))
        listener.listen()
        while True:
            listener.accept()[0].close()


if __name__ == "__main__":
    main()
