"""`bireme up` as a process of its own, with scripted stages: driver.py FILE PORT [QUESTION ANSWER].

The router is the real one, or with a question one that gives the answer itself.
"""

import asyncio
import sys
from pathlib import Path

from bireme.api import load
from bireme.cli.errors import Refused
from bireme.cli.up import up
from bireme_operator.local.errors import LocalError
from bireme_operator.local.mounts import Mounts
from bireme_operator.local.session import Place

HERE = Path(__file__).parent
STAGE = (sys.executable, str(HERE / "scripted_stage.py"))


def main() -> int:
    file, port, *scene = sys.argv[1:]
    router = (sys.executable, str(HERE / "scripted_router.py"), port, scene[1]) if scene else None
    place = Place("127.0.0.1", int(port), Mounts(), supervisor=STAGE, router=router)
    try:
        return asyncio.run(up(load(Path(file)), place, *scene[:1]))
    except (LocalError, Refused) as error:
        print(error, file=sys.stderr)
        return error.exit_code


if __name__ == "__main__":
    sys.exit(main())
