"""`BIREME_ADAPTERS`: names and directories, and what is no such list."""

from pathlib import Path

import pytest

from bireme.names import Env
from bireme_worker.identity import BadIdentity, read_identity


def environment(folder: Path, adapters: str) -> dict[str, str]:
    (folder / "token").write_text("ab" * 32)
    return {
        Env.GROUP_UID: "g",
        Env.STAGE: "0",
        Env.LEADER_ADDRESS: "127.0.0.1",
        Env.POD_IP: "127.0.0.1",
        Env.TOKEN_FILE: str(folder / "token"),
        Env.STATE_DIR: str(folder),
        Env.MODEL_NAME: "m",
        Env.MODEL_PATH: "/m",
        Env.ADAPTERS: adapters,
    }


def test_adapters_keep_their_order(tmp_path: Path) -> None:
    identity = read_identity(environment(tmp_path, "b=/x,a=/y"))
    assert identity.adapters == (("b", Path("/x")), ("a", Path("/y")))
    assert read_identity(environment(tmp_path, "")).adapters == ()


@pytest.mark.parametrize("adapters", ["a", "a=", "=/x", "a=/x,a=/y"])
def test_a_list_that_can_not_be_right_is_refused(tmp_path: Path, adapters: str) -> None:
    with pytest.raises(BadIdentity, match="write name=directory, each name once"):
        read_identity(environment(tmp_path, adapters))
