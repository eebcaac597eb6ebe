from pathlib import Path

import pytest

from rdzv_server.storage import mounts
from rdzv_server.storage.base import StorageError

MOUNTS = """\
22 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw
30 22 0:40 / /data rw shared:2 - nfs4 server:/export rw,vers=4.2
31 30 254:1 / /data/local rw - xfs /dev/vdb rw
32 22 0:41 / /with\\040blank rw - cifs //server/share rw
33 22 0:42 / /twice rw - ext4 /dev/vdc rw
34 22 0:43 / /twice rw master:3 - fuse.sshfs user@host: rw
not a line of a mount
"""


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/var/lib/rdzv", "ext4"),
        ("/data", "nfs4"),
        ("/data/a/b", "nfs4"),
        ("/data/local/a", "xfs"),
        ("/database", "ext4"),
        ("/with blank/a", "cifs"),
        ("/twice/a", "fuse.sshfs"),
    ],
)
def test_the_nearest_mount_counts_and_the_later_of_two(path: str, kind: str) -> None:
    assert mounts.file_system(Path(path), MOUNTS) == kind


@pytest.mark.parametrize(
    "kind", ["nfs", "nfs4", "cifs", "smb3", "lustre", "gpfs", "ceph", "9p", "fuse.sshfs", "fuse"]
)
def test_network_file_systems_are_known(kind: str) -> None:
    assert mounts.is_network(kind)


@pytest.mark.parametrize("kind", ["ext4", "xfs", "btrfs", "tmpfs", "overlay", "zfs", "fuseblk"])
def test_local_ones_are_let_through(kind: str) -> None:
    assert not mounts.is_network(kind)


def test_the_refusal_says_why_and_how_to_force(tmp_path: Path) -> None:
    table = tmp_path / "mountinfo"
    table.write_text(f"30 22 0:40 / {tmp_path.resolve()} rw - nfs4 server:/export rw\n")
    with pytest.raises(StorageError) as caught:
        mounts.refuse_network(tmp_path, table)
    assert caught.value.cause == "network"
    for word in (str(tmp_path), "nfs4", "shared memory", "--force-network-fs", "--state memory"):
        assert word in str(caught.value)


def test_a_system_that_does_not_tell_is_believed(tmp_path: Path) -> None:
    mounts.refuse_network(tmp_path, tmp_path / "none")
    mounts.refuse_network(tmp_path)
