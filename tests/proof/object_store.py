"""A real object store for proofs: SeaweedFS, with its S3 interface, on loopback."""

from __future__ import annotations

import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

BUCKET = "tables"
START_S_MAX = 60
OWN = Path(__file__).parents[2] / ".venv" / "weed" / "bin"
"""Where tools/ensure.sh puts it, if it is not on this machine."""
KEY, SECRET = "transactional", "only-on-loopback"
_USERS = (
    '{"identities": [{"name": "t", "credentials": [{"accessKey": "%s", "secretKey": "%s"}], "actions": ["Admin"]}]}'
)


@contextmanager
def object_store(folder: Path) -> Iterator[dict[str, str]]:
    """Its storage options, while it runs over a folder; there is a bucket."""
    program = shutil.which("weed") or shutil.which("weed", path=str(OWN))
    assert program is not None, "these proofs need SeaweedFS: tools/ensure.sh weed"
    users = folder / "users.json"
    users.write_text(_USERS % (KEY, SECRET))
    master, volume, filer, s3 = _free_ports(4)
    ports = {"-master.port": master, "-volume.port": volume, "-filer.port": filer, "-s3.port": s3}
    server = [program, "server", f"-dir={folder}", "-ip=127.0.0.1", "-ip.bind=127.0.0.1", "-s3", f"-s3.config={users}"]
    # Each has a second port, for itself alone, ten thousand above unless it is told which.
    inner = dict(zip(("-master", "-volume", "-filer", "-s3"), _free_ports(4), strict=True))
    given = [f"{name}={port}" for name, port in ports.items()] + [f"{n}.port.grpc={p}" for n, p in inner.items()]
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(
            [*server, *given, "-volume.max=20", "-master.volumeSizeLimitMB=64"],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
        )
    try:
        _make_bucket(program, f"127.0.0.1:{master}.{inner['-master']}", folder / "log")
        yield {
            "aws_access_key_id": KEY,
            "aws_secret_access_key": SECRET,
            "aws_region": "us-east-1",
            "aws_endpoint_url": f"http://127.0.0.1:{s3}",
            "aws_allow_http": "true",
        }
    finally:
        process.kill()
        process.wait()


def _make_bucket(program: str, master: str, log: Path) -> None:
    until_s = time.monotonic() + START_S_MAX
    while time.monotonic() < until_s:
        said = subprocess.run(
            [program, "shell", f"-master={master}"],
            input=f"s3.bucket.create -name {BUCKET}\ns3.bucket.list\n",
            capture_output=True,
            text=True,
            timeout=START_S_MAX,
            check=False,
        ).stdout
        if f"created bucket {BUCKET}" in said or f"  {BUCKET}" in said:
            return
    raise RuntimeError(f"the object store did not start within {START_S_MAX} s: {log.read_text()[-2_000:]}")


def _free_ports(number: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(number)]
    try:
        return [each.getsockname()[1] for each in sockets]
    finally:
        for each in sockets:
            each.close()
