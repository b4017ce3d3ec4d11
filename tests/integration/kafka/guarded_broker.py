"""A broker that asks who is there: a listener with SASL PLAIN, one with TLS for both sides; keys made by keytool."""

from __future__ import annotations

import socket
import subprocess
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from spouts.local_broker import LocalBroker
from transactional.runtime.spark.jars import find_java

USER, PASSWORD = "reader", "hunter2-password"
STORE_PASSWORD = "hunter2-keystore"

_PROTOCOLS = ("PLAINTEXT", "SASL_PLAINTEXT", "SSL", "CONTROLLER")
_SAME = ("PLAINTEXT", "SASL_PLAINTEXT", "SSL")
_LOGIN = "org.apache.kafka.common.security.plain.PlainLoginModule required"


@dataclass(frozen=True, slots=True)
class GuardedBroker:
    """A broker with three listeners: for the test itself, for a user with password, for a client with certificate."""

    broker: LocalBroker
    sasl: str
    tls: str
    folder: Path

    @property
    def sasl_options(self) -> dict[str, str]:
        """What gets a client in at `sasl`."""
        login = {"sasl.mechanism": "PLAIN", "sasl.username": USER, "sasl.password": PASSWORD}
        return {"security.protocol": "SASL_PLAINTEXT", **login}

    @property
    def tls_options(self) -> dict[str, str]:
        """What gets a client in at `tls`."""
        return {
            "security.protocol": "SSL",
            "ssl.ca.location": str(self.folder / "server.pem"),
            "ssl.keystore.location": str(self.folder / "client.p12"),
            "ssl.keystore.password": STORE_PASSWORD,
        }


def guarded_broker(folder: Path) -> GuardedBroker:
    """The broker, not yet started, and the keys for it in `folder`."""
    _make_keys(folder)
    ports = dict(zip(_PROTOCOLS, _free_ports(len(_PROTOCOLS)), strict=True))
    addresses = {name: f"{name}://127.0.0.1:{port}" for name, port in ports.items()}
    overrides = {
        "listeners": ",".join(addresses.values()),
        "advertised.listeners": ",".join(address for name, address in addresses.items() if name != "CONTROLLER"),
        "controller.quorum.voters": f"1@127.0.0.1:{ports['CONTROLLER']}",
        "listener.security.protocol.map": ",".join(["CONTROLLER:PLAINTEXT", *(f"{name}:{name}" for name in _SAME)]),
        "sasl.enabled.mechanisms": "PLAIN",
        "listener.name.sasl_plaintext.plain.sasl.jaas.config": f'{_LOGIN} user_{USER}="{PASSWORD}";',
        "ssl.client.auth": "required",
        "ssl.keystore.location": str(folder / "server.p12"),
        "ssl.keystore.password": STORE_PASSWORD,
        "ssl.keystore.type": "PKCS12",
        "ssl.truststore.location": str(folder / "trusted.p12"),
        "ssl.truststore.password": STORE_PASSWORD,
        "ssl.truststore.type": "PKCS12",
    }
    broker = LocalBroker(port=ports["PLAINTEXT"], overrides=overrides)
    return GuardedBroker(broker, f"127.0.0.1:{ports['SASL_PLAINTEXT']}", f"127.0.0.1:{ports['SSL']}", folder)


def _make_keys(folder: Path) -> None:
    """A key and its certificate for each side, and what makes the server trust the client."""
    for name in ("server", "client"):
        subject = ["-dname", f"CN={name}", "-ext", "san=ip:127.0.0.1,dns:localhost", "-validity", "2"]
        _keytool(folder, f"{name}.p12", "-genkeypair", "-alias", name, "-keyalg", "EC", *subject)
        _keytool(folder, f"{name}.p12", "-exportcert", "-rfc", "-alias", name, "-file", f"{name}.pem")
    _keytool(folder, "trusted.p12", "-importcert", "-noprompt", "-alias", "client", "-file", "client.pem")


def _keytool(folder: Path, store: str, *arguments: str) -> None:
    keytool = Path(find_java().path).resolve().with_name("keytool")
    kept = ["-keystore", store, "-storetype", "PKCS12", "-storepass", STORE_PASSWORD]
    subprocess.run([keytool, *arguments, *kept], cwd=folder, check=True, capture_output=True, timeout=240)


def _free_ports(count: int) -> list[int]:
    with ExitStack() as opened:
        listeners = [opened.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [int(listener.getsockname()[1]) for listener in listeners]
