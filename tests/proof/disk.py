"""A disk as a power cut finds it: what a recorded run has done to its files, and all that may be left of that.

A model of what POSIX promises and no more. What was written to a file is durable once the file is synced; a name in a
folder once the folder is. Until then each may be lost alone: content as it was at the last sync, or cut short, and
names that are not there, or still there.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

TRACED = (
    *("openat", "close", "dup", "dup2", "dup3", "lseek", "write", "pwrite64", "writev", "pwritev"),
    *("pwritev2", "ftruncate", "truncate", "fallocate", "copy_file_range", "sendfile", "rename", "renameat"),
    *("renameat2", "link", "linkat", "symlink", "symlinkat", "unlink", "unlinkat", "mkdir", "mkdirat", "rmdir"),
    *("fsync", "fdatasync", "sync_file_range", "sync", "syncfs"),
)
UNKNOWN = (
    *("open", "creat", "fallocate", "copy_file_range", "sendfile", "symlink", "symlinkat", "sync", "syncfs"),
    *("pwritev2", "truncate"),
)
"""What a run of ours does not do; a run that does would be understood wrongly."""
KNOWN_MAX = 1_000
"""Contents that are the same object in all trees that have them."""
KEPT, LOST, TORN = "kept", "lost", "torn"
NOT_ON_DISK = ("-shm",)
"""SQLite's shared memory, which it makes anew."""

_LINE = re.compile(r"(\d+) +(.*)", re.DOTALL)
_CALL = re.compile(r"(\w+)\((.*)\) += (-?\d+)(.*)", re.DOTALL)
_STRING = re.compile(r'"((?:[^"\\]|\\.)*)"')


@dataclass(frozen=True, slots=True)
class Call:
    """One call of the system that went well. `begun` is the number of calls that had ended when it began."""

    name: str
    arguments: str
    result: int
    begun: int

    @property
    def strings(self) -> list[bytes]:
        """What it was given in quotes."""
        return [_plain(text) for text in _STRING.findall(self.arguments)]

    @property
    def descriptor(self) -> int:
        """Its first argument."""
        return int(self.arguments.split(",")[0])


def _plain(text: str) -> bytes:
    return text.encode("latin-1").decode("unicode_escape").encode("latin-1")


def read_calls(lines: Iterable[str]) -> Iterator[Call]:
    """The calls in the output of `strace -f`, in the order in which they ended."""
    begun = dict[str, tuple[str, int]]()
    ended = 0
    for line in lines:
        match = _LINE.fullmatch(line.rstrip("\n"))
        if match is None:
            continue
        thread, text = match.groups()
        if text.endswith("<unfinished ...>"):
            begun[thread] = text.removesuffix("<unfinished ...>").rstrip(), ended
            continue
        first, at = "", ended
        if text.startswith("<... "):
            first, at = begun.pop(thread)
            text = first + text.split(" resumed>", 1)[1]
        call = _CALL.fullmatch(text)
        if call is not None and int(call[3]) >= 0:
            ended += 1
            yield Call(call[1], call[2], int(call[3]), at)


@dataclass(eq=False, slots=True)
class Node:
    """A file or a folder: what is durable of it, and what was done since."""

    is_folder: bool
    content: bytearray = field(default_factory=bytearray)
    durable: bytes = b""
    names: dict[str, Node] = field(default_factory=dict)
    durable_names: dict[str, Node] = field(default_factory=dict)
    changes: list[Change] = field(default_factory=list)


@dataclass(frozen=True, eq=False, slots=True)
class Change:
    """What is not yet durable: bytes of a file at an offset (None: cut to that size), or names of a folder."""

    at: int
    offset: int = 0
    data: bytes | None = None
    names: Mapping[str, Node | None] | None = None


Item = tuple[Node, Change | None]
"""What may be lost alone: all that is unsynced of a file, or one change of a folder's names."""
Tree = dict[str, bytes | None]
"""Paths and their contents; of folders None."""


class Disk:
    """What is on a disk while a run goes on. `forgets` tells of which paths a sync is left out: a planted bug."""

    def __init__(self, root: Path, forgets: Callable[[str], bool] = lambda _: False) -> None:
        self.root, self._prefix, self.forgets = Node(is_folder=True), str(root), forgets
        self._files = dict[int, tuple[Node, str, int]]()
        self._offsets = dict[int, int]()
        self._appends = set[int]()
        self._known = dict[bytes, bytes]()
        self.calls = 0

    def apply(self, call: Call) -> bool:
        """Do what the call did; True when it concerned this disk, and what is on it or durable has changed."""
        self.calls += 1
        work = getattr(self, f"_{call.name}", None)
        if work is not None:
            return bool(work(call))
        inside = any(self._prefix in text.decode("utf-8", "replace") for text in call.strings)
        assert not (inside and call.name in UNKNOWN), f"the run does what the model does not know: {call}"
        return False

    # --- descriptors ------------------------------------------------------------------------------------------------

    def _openat(self, call: Call) -> bool:
        path = self._inside(call.strings[0])
        self._files.pop(call.result, None)
        if path is None:
            return False
        folder, name = self._place(path)
        changed = False
        if folder is not None and name not in folder.names and "O_CREAT" in call.arguments:
            self._rename_in(folder, {name: Node(is_folder=False)})
            changed = True
        node = self._find(path)
        if node is None:
            return changed
        if "O_TRUNC" in call.arguments and node.content:
            self._cut(node, 0)
            changed = True
        self._files[call.result], self._offsets[call.result] = (node, path, self.calls), 0
        (self._appends.add if "O_APPEND" in call.arguments else self._appends.discard)(call.result)
        return changed

    def _close(self, call: Call) -> bool:
        # Another thread may have been given the number before this one went on.
        if call.descriptor in self._files and self._files[call.descriptor][2] <= call.begun:
            del self._files[call.descriptor]
        return False

    def _dup2(self, call: Call) -> bool:
        assert call.descriptor not in self._files, "a file's descriptor is duplicated"
        self._files.pop(call.result, None)
        return False

    _dup = _dup3 = _dup2

    def _lseek(self, call: Call) -> bool:
        self._offsets[call.descriptor] = call.result
        return False

    # --- contents ---------------------------------------------------------------------------------------------------

    def _write(self, call: Call) -> bool:
        return self._put(call.descriptor, b"".join(call.strings)[: call.result], None)

    _writev = _write

    def _pwrite64(self, call: Call) -> bool:
        return self._put(call.descriptor, call.strings[0][: call.result], int(call.arguments.rsplit(",", 1)[1]))

    def _pwritev(self, call: Call) -> bool:
        data = b"".join(call.strings)[: call.result]
        return self._put(call.descriptor, data, int(call.arguments.rsplit(",", 1)[1]))

    def _put(self, descriptor: int, data: bytes, offset: int | None) -> bool:
        if descriptor not in self._files:
            return False
        node, path, _ = self._files[descriptor]
        at = offset
        if at is None:
            at = len(node.content) if descriptor in self._appends else self._offsets[descriptor]
            self._offsets[descriptor] = at + len(data)
        _put(node.content, at, data)
        node.changes.append(Change(self.calls, at, data))
        return not path.endswith(NOT_ON_DISK)

    def _ftruncate(self, call: Call) -> bool:
        if call.descriptor not in self._files:
            return False
        node, path, _ = self._files[call.descriptor]
        self._cut(node, int(call.arguments.rsplit(",", 1)[1]))
        return not path.endswith(NOT_ON_DISK)

    def _cut(self, node: Node, size: int) -> None:
        _cut(node.content, size)
        node.changes.append(Change(self.calls, size))

    # --- names ------------------------------------------------------------------------------------------------------

    def _mkdir(self, call: Call) -> bool:
        return self._name(call.strings[-1], lambda: Node(is_folder=True))

    _mkdirat = _mkdir

    def _link(self, call: Call) -> bool:
        old, new = call.strings
        inside = self._inside(old)
        node = None if inside is None else self._find(inside)
        return node is not None and self._name(new, lambda: node)

    _linkat = _link

    def _rename(self, call: Call) -> bool:
        old, new = (self._inside(text) for text in call.strings)
        if old is None or new is None:
            return False
        (from_folder, from_name), (to_folder, to_name) = self._place(old), self._place(new)
        assert from_folder is not None
        assert to_folder is not None
        node = from_folder.names[from_name]
        if from_folder is to_folder:
            self._rename_in(to_folder, {from_name: None, to_name: node})
        else:
            self._rename_in(to_folder, {to_name: node})
            self._rename_in(from_folder, {from_name: None})
        return True

    _renameat = _renameat2 = _rename

    def _unlink(self, call: Call) -> bool:
        path = self._inside(call.strings[-1])
        folder, name = self._place(path) if path is not None else (None, "")
        if folder is None or name not in folder.names:
            return False
        self._rename_in(folder, {name: None})
        return not name.endswith(NOT_ON_DISK)

    _unlinkat = _rmdir = _unlink

    def _name(self, path: bytes, node: Callable[[], Node]) -> bool:
        inside = self._inside(path)
        folder, name = self._place(inside) if inside is not None else (None, "")
        if folder is None:
            return False
        self._rename_in(folder, {name: node()})
        return True

    def _rename_in(self, folder: Node, names: Mapping[str, Node | None]) -> None:
        _rename(folder.names, names)
        folder.changes.append(Change(self.calls, names=names))

    # --- syncs ------------------------------------------------------------------------------------------------------

    def _fsync(self, call: Call) -> bool:
        if call.descriptor not in self._files:
            return False
        node, path, _ = self._files[call.descriptor]
        if self.forgets(path):
            return False
        # What came while it was under way is not part of it.
        covered = [change for change in node.changes if change.at <= call.begun]
        node.changes = [change for change in node.changes if change.at > call.begun]
        content = bytearray(node.durable)
        for change in covered:
            _apply(change, content, node.durable_names)
        node.durable = bytes(content)
        return bool(covered)

    _fdatasync = _fsync

    def _sync_file_range(self, call: Call) -> bool:
        return False

    # --- what a cut leaves ------------------------------------------------------------------------------------------

    def items(self) -> list[Item]:
        """All that is not durable."""
        found = list[Item]()
        for path, node in self._reachable():
            if path.endswith(NOT_ON_DISK):
                continue
            if node.is_folder:
                found += [(node, change) for change in node.changes]
            elif node.changes:
                found.append((node, None))
        return found

    def _reachable(self) -> Iterator[tuple[str, Node]]:
        """Every file and folder that has a name, or had a durable one."""
        seen, todo = set[int](), [("", self.root)]
        while todo:
            path, node = todo.pop()
            if id(node) in seen:
                continue
            seen.add(id(node))
            yield path, node
            named = [*node.names.items(), *node.durable_names.items()]
            named += [(name, each) for c in node.changes for name, each in (c.names or {}).items() if each is not None]
            todo += [(f"{path}/{name}", each) for name, each in named]

    def left(self, fates: Mapping[Item, str]) -> Tree:
        """What is there after a cut, when each item has met its fate; all others are kept."""
        tree: Tree = {}
        if len(self._known) > KNOWN_MAX:
            self._known.clear()
        self._leave(self.root, "", fates, tree)
        return tree

    def _leave(self, node: Node, path: str, fates: Mapping[Item, str], tree: Tree) -> None:
        names = dict(node.durable_names)
        for change in node.changes:
            if fates.get((node, change), KEPT) == KEPT:
                _rename(names, change.names or {})
        for name, each in names.items():
            if name.endswith(NOT_ON_DISK):
                continue
            if not each.is_folder:
                content = _content(each, fates.get((each, None), KEPT))
                tree[f"{path}/{name}"] = self._known.setdefault(content, content)
            else:
                tree[f"{path}/{name}"] = None
                self._leave(each, f"{path}/{name}", fates, tree)

    # --- paths ------------------------------------------------------------------------------------------------------

    def _inside(self, path: bytes) -> str | None:
        text = path.decode("utf-8", "replace")
        return text if text.startswith(f"{self._prefix}/") or text == self._prefix else None

    def _find(self, path: str) -> Node | None:
        node: Node | None = self.root
        for name in Path(path).relative_to(self._prefix).parts:
            node = None if node is None else node.names.get(name)
        return node

    def _place(self, path: str) -> tuple[Node | None, str]:
        if path == self._prefix:
            return None, ""
        return self._find(str(Path(path).parent)), Path(path).name


def _apply(change: Change, content: bytearray, names: dict[str, Node]) -> None:
    if change.names is not None:
        _rename(names, change.names)
    elif change.data is not None:
        _put(content, change.offset, change.data)
    else:
        _cut(content, change.offset)


def _rename(names: dict[str, Node], changed: Mapping[str, Node | None]) -> None:
    for name, node in changed.items():
        if node is None:
            names.pop(name, None)
        else:
            names[name] = node


def _put(content: bytearray, offset: int, data: bytes) -> None:
    content.extend(bytes(max(0, offset - len(content))))
    content[offset : offset + len(data)] = data


def _cut(content: bytearray, size: int) -> None:
    content.extend(bytes(max(0, size - len(content))))
    del content[size:]


def _content(node: Node, fate: str) -> bytes:
    if fate == KEPT:
        return bytes(node.content)
    content = bytearray(node.durable)
    if fate == TORN:
        # The first half of what was written since.
        left = sum(len(change.data or b"") for change in node.changes) // 2
        for change in node.changes:
            if change.data is None:
                _cut(content, change.offset)
                continue
            _put(content, change.offset, change.data[:left])
            left -= min(left, len(change.data))
            if not left:
                break
    return bytes(content)


def plain_cuts(disk: Disk) -> Iterator[Tree]:
    """What a cut may leave now at most and at least: all, and nothing that is unsynced."""
    yield disk.left({})
    yield disk.left(dict.fromkeys(disk.items(), LOST))


NOTHING_LOST, ALL_LOST, MIXTURE = "nothing lost", "all lost", "a mixture"
KINDS = {NOTHING_LOST, ALL_LOST, f"a file {LOST}", f"a file {TORN}", f"a name {LOST}", MIXTURE}
"""What a cut may do."""


def cuts(disk: Disk, chance: Random, subsets: int) -> Iterator[Tree]:
    """What a cut may leave now: all, nothing unsynced, each item alone lost or torn, and some random fates of all."""
    return (disk.left(fates) for _, fates in fates_of(disk, chance, subsets))


def fates_of(disk: Disk, chance: Random, subsets: int) -> Iterator[tuple[str, Mapping[Item, str]]]:
    """The fates of items that a cut may bring now, and of which kind it is."""
    items = disk.items()
    yield NOTHING_LOST, {}
    yield ALL_LOST, dict.fromkeys(items, LOST)
    for item in items:
        for fate in _fates(item)[1:]:
            yield f"a {'file' if item[1] is None else 'name'} {fate}", {item: fate}
    for _ in range(subsets if len(items) > 1 else 0):
        yield MIXTURE, {item: chance.choice(_fates(item)) for item in items}


def _fates(item: Item) -> Sequence[str]:
    return (KEPT, LOST) if item[1] is not None else (KEPT, LOST, TORN)


def digest(tree: Tree) -> str:
    """The same for the same files with the same contents."""
    summed = hashlib.sha256()
    for path in sorted(tree):
        content = tree[path]
        summed.update(f"{path} {content is None} {len(content or b'')}\n".encode() + (content or b""))
    return summed.hexdigest()


def lay_out(tree: Tree, root: Path) -> None:
    """Make the files and folders, in a folder that is there and empty."""
    for path in sorted(tree):
        content, target = tree[path], root / path.lstrip("/")
        if content is None:
            target.mkdir()
        else:
            target.write_bytes(content)
