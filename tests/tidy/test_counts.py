"""tools/counts.py: a small checkout, of which every figure is known."""

from pathlib import Path

from tools import counts

FILES = {
    "transactional/core/ports/states.py": """
@runtime_checkable
class Port(Protocol):
    def version(self): ...
    def begin(self): ...
class Spout(Protocol):
    def plan(self): ...
class State(Port):
    def rows(self): ...
""",
    "state/delta/state.py": """
class TableState(Port):
    def version(self): ...
    def _walk(self): ...
class DeltaMapState(TableState[int]):
    def _walk(self): ...
    def own(self): return isinstance(self, Port) or isinstance(self, (int, Port)) or isinstance(self, int)
""",
    "state/rows/stored_value.py": """
def before(row, txid): return row.value if txid > row.txid else row.prev_value
def combined(how, one, other): return one + other if how == "sum" else max(one, other)
""",
    "state/sql.py": """
def before(name, txid): return f"CASE WHEN txid < {txid} THEN {name} ELSE prev_{name} END"
WORDS = {"sum": add, "min": min, "max": max}
""",
    "verifier/compactions.py": "def no_rule(how): return how == 'last'\n",
    "spouts/memory.py": "",
    "bench/grid.py": "ROWS = 3\n",
    "tests/contract/writing.py": "WAYS = {'an entry': 1, 'a fence': 2}\nBY_SPARK = {'rows': 3}\n",
}


def test_figures_of_a_checkout(tmp_path: Path) -> None:
    for name, text in FILES.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    checkout = counts.Checkout(tmp_path)
    figures = {name: figure(checkout) for name, figure in counts.FIGURES.items()}
    assert {name: len(value) if isinstance(value, list) else value for name, value in figures.items()} == {
        "ways of a Delta commit": 3,
        "modules of states that state the opaque rule": 2,
        "modules of states that combine two values": 2,
        "and of the verifier": 0,
        "names of DeltaMapState with its bases": 3,
        "and without those of a port": 2,
        "methods of Spout": 1,
        "methods of State": 1,
        "protocols to look for at run time": 1,
        "places that look": 2,
        "questions of states": 0,
        "lines of the product": 23,
        "lines of bench": 1,
        "lines of tests": 2,
    }
