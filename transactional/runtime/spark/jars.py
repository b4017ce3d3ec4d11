"""Jars that are downloaded once, checked against a lock, and cached: Delta's for Spark, Kafka's for a local broker.

A fresh machine only has Python and Java. Missing jars are downloaded with the Ivy that PySpark contains, compared with
the SHA-256 in a lock file, and kept in the user's cache folder. This is quieter and faster than `spark.jars.packages`,
which queries every repository at every start. `python -m transactional.runtime.spark.jars NAME ORG:NAME:REVISION …`
prints a new lock.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from transactional.model.errors import ConfigError, OperatingError

JAVA_OLDEST = 17
_FETCH_TIMEOUT_S = 300


@dataclass(frozen=True, slots=True)
class Java:
    """A Java launcher that is known to work."""

    #: The `java` executable.
    path: str
    #: The full output of `java -version`: distinguishes builds.
    version: str


@dataclass(frozen=True, slots=True)
class Jar:
    """One line of a lock: coordinates in a Maven repository, and the file's SHA-256 in hex. Other files than plain jars
    also have a classifier and an extension."""

    organisation: str
    name: str
    revision: str
    sha256: str
    classifier: str = ""
    extension: str = "jar"

    @property
    def file_name(self) -> str:
        """The name of the file in the cache."""
        return f"{self.name}-{self.revision}{self.classifier and '-'}{self.classifier}.{self.extension}"

    @property
    def artifact(self) -> str:
        """The element that names the file in a module descriptor of Ivy."""
        classifier = f' m:classifier="{self.classifier}"' if self.classifier else ""
        return f'<artifact name="{self.name}" type="{self.extension}" ext="{self.extension}"{classifier}/>'


@dataclass(frozen=True, slots=True)
class JarSet:
    """The jars of a lock file. `name` is their name in messages, and the name of their cache folder."""

    name: str
    lock: Path

    def jars(self) -> tuple[Jar, ...]:
        """Return the jars of the lock, in its order."""
        lines = self.lock.read_text("utf-8").splitlines()
        return tuple(Jar(*line.split()) for line in lines if line and not line.startswith("#"))

    def folder(self) -> Path:
        """Return the cache folder of the jars, below `XDG_CACHE_HOME` if that is set, otherwise below `~/.cache`."""
        base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        return base / "transactional" / self.name

    def files(self, java: Java | None = None) -> list[Path]:
        """Return the jars' files, and download missing ones. Raises `ConfigError`, or `OperatingError` if that
        fails."""
        jars, folder = self.jars(), self.folder()
        missing = [jar for jar in jars if not (folder / jar.file_name).is_file()]
        if missing:
            folder.mkdir(parents=True, exist_ok=True)
            # Inside the cache, so that a finished file is moved by one atomic rename.
            with tempfile.TemporaryDirectory(prefix="fetch-", dir=folder) as workspace:
                self._download(java or find_java(), missing, Path(workspace))
                self.install(missing, Path(workspace, "libs"))
        return [folder / jar.file_name for jar in jars]

    def install(self, jars: Iterable[Jar], downloaded: Path) -> None:
        """Check the `downloaded` files of `jars`, and move them into the folder, one atomic rename each.

        Two processes that download concurrently write equal files. Raises `OperatingError` for a file that differs from
        the locked one, which is not installed.
        """
        for jar in jars:
            source = downloaded / jar.file_name
            digest = _sha256(source)
            if digest != jar.sha256:
                raise OperatingError(
                    f"{jar.file_name} was downloaded with SHA-256 {digest}, but {self.lock.name} says {jar.sha256}: "
                    f"nothing of it was installed; check what is between this machine and Maven Central."
                )
            source.replace(self.folder() / jar.file_name)

    def _download(self, java: Java, jars: Sequence[Jar], workspace: Path) -> None:
        dependencies = "".join(
            f'<dependency org="{jar.organisation}" name="{jar.name}" rev="{jar.revision}" transitive="false">'
            f"{jar.artifact}</dependency>"
            for jar in jars
        )
        _run_ivy(self.name, java, workspace, dependencies, "[artifact]-[revision](-[classifier]).[ext]", use_poms=False)


def find_java(path: str | None = None) -> Java:
    """Return the Java to use: `path`, or the one of `JAVA_HOME`, or the first on the `PATH`.

    Raises `ConfigError` if there is none, or it is too old.
    """
    home = os.environ.get("JAVA_HOME")
    command = path or (str(Path(home, "bin", "java")) if home else "java")
    executable = shutil.which(command)
    remedy = f"install Java {JAVA_OLDEST} or newer and set JAVA_HOME, or put it on the PATH"
    if executable is None:
        raise ConfigError(f"Java {JAVA_OLDEST} or newer is needed, and there is none at {command!r}: {remedy}.")
    version = subprocess.run([executable, "-version"], capture_output=True, text=True, check=False).stderr.strip()
    major = re.search(r'version "(\d+)', version)
    if major is None or int(major[1]) < JAVA_OLDEST:
        raise ConfigError(f"Java {JAVA_OLDEST} or newer is needed, but {executable} says {version!r}: {remedy}.")
    return Java(executable, version)


def make_lock(name: str, roots: Sequence[str], java: Java) -> str:
    """Resolve the roots (`organisation:name:revision`) with all their dependencies, and return the text of a new
    lock."""
    with tempfile.TemporaryDirectory(prefix="lock-") as workspace:
        dependencies = "".join(
            '<dependency org="{}" name="{}" rev="{}" conf="default->runtime(*),master(*)"/>'.format(*root.split(":"))
            for root in roots
        )
        _run_ivy(name, java, Path(workspace), dependencies, "[organisation] [artifact] [revision]", use_poms=True)
        files = sorted(Path(workspace, "libs").iterdir())
        lines = [f"{file.name} {_sha256(file)}\n" for file in files]
    return f"# The jars of {name}: organisation, name, revision, SHA-256.\n{''.join(lines)}"


def _run_ivy(name: str, java: Java, workspace: Path, dependencies: str, pattern: str, *, use_poms: bool) -> None:
    # `ibiblio` without a root is Maven Central. Without POMs and their checksums it takes 4 s instead of 30:
    # the lock already lists what is needed, and has a better hash.
    checksums = "sha1" if use_poms else ""
    Path(workspace, "settings.xml").write_text(
        '<ivysettings><settings defaultResolver="central"/><resolvers><ibiblio name="central" m2compatible="true" '
        f'usepoms="{str(use_poms).lower()}" checksums="{checksums}"/></resolvers></ivysettings>'
    )
    Path(workspace, "ivy.xml").write_text(
        '<ivy-module version="2.0" xmlns:m="http://ant.apache.org/ivy/maven">'
        '<info organisation="local" module="jars"/><configurations>'
        f'<conf name="default"/></configurations><dependencies>{dependencies}</dependencies></ivy-module>'
    )
    # The JVM's home follows the user's entry, not $HOME: it is set, so that nothing outside is touched.
    options = ["-XX:TieredStopAtLevel=1", f"-Duser.home={workspace}", f"-Divy.default.ivy.user.dir={workspace}"]
    arguments = ["-settings", "settings.xml", "-ivy", "ivy.xml", "-cache", "cache", "-retrieve", f"libs/{pattern}"]
    command = [java.path, *options, "-jar", str(_ivy_jar()), *arguments, "-types", "jar", "bundle", "tar.gz"]
    log = Path(workspace, "ivy.log")
    with log.open("wb") as output:
        try:
            code = subprocess.run(
                command, cwd=workspace, stdout=output, stderr=output, timeout=_FETCH_TIMEOUT_S, check=False
            ).returncode
        except subprocess.TimeoutExpired:
            code = -1
    if code != 0:
        raise OperatingError(
            f"The jars of {name} could not be downloaded: the first start on a machine needs access to Maven Central, "
            f"and takes {_FETCH_TIMEOUT_S} s at most. Ivy's last lines:\n{tail(log)}"
        )


def _ivy_jar() -> Path:
    # Located, not imported: importing PySpark takes longer than starting the broker.
    spec = importlib.util.find_spec("pyspark")
    for location in (spec.submodule_search_locations or []) if spec else []:
        for jar in sorted(Path(location, "jars").glob("ivy-*.jar")):
            return jar
    raise ConfigError(
        "Jars are downloaded with the Ivy inside PySpark, which is missing: install pyspark with its jars."
    )


def tail(log: Path, *, start: int = 0, lines_max: int = 20) -> str:
    """Return the last lines of a log file, beginning no earlier than at the byte `start`."""
    with log.open("rb") as stream:
        stream.seek(start)
        text = stream.read().decode("utf-8", "replace")
    return "\n".join([line for line in text.splitlines() if line.strip()][-lines_max:])


def _sha256(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


if __name__ == "__main__":
    print(make_lock(sys.argv[1], sys.argv[2:], find_java()), end="")
