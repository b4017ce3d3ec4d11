"""The SQL of a rewind in the coordinator's store: it is begun, and finished in one write."""

from __future__ import annotations

from typing import Final

from sqlalchemy import BigInteger, Text, bindparam, delete, func, insert, or_, select, update

from transactional.core.store.rules import COMMITTED, REWOUND
from transactional.core.store.sql.schema import NowMs, attempts, savepoints, topologies
from transactional.core.store.sql.statements import HOLD

_TOPOLOGY = bindparam("topology", type_=Text)
_NUMBER = bindparam("number", type_=BigInteger)

_COMMITTED_BY = select(func.max(attempts.c.attempt_id)).where(
    attempts.c.topology_id == _TOPOLOGY, attempts.c.txid == _NUMBER, attempts.c.phase == COMMITTED
)
BEGIN: Final = HOLD.where(
    topologies.c.committed_txid >= _NUMBER,
    or_(_NUMBER == 0, _COMMITTED_BY.scalar_subquery().is_not(None)),
).values(rewinding_to=_NUMBER, attempt_id=topologies.c.attempt_id + 1)
FINISH: Final = HOLD.where(topologies.c.rewinding_to == _NUMBER).values(
    committed_txid=_NUMBER,
    committed_attempt_id=_COMMITTED_BY.scalar_subquery(),
    rewinding_to=None,
    failing_since_ms=None,
    failing_txid=None,
    failing_error=None,
)
SAVEPOINTS: Final = select(savepoints).where(savepoints.c.topology_id == _TOPOLOGY).order_by(savepoints.c.txid)
IS_COMMITTED: Final = select(_COMMITTED_BY.scalar_subquery())
ADD_SAVEPOINT: Final = insert(savepoints).values(noted_at_ms=NowMs())
DROP_SAVEPOINT: Final = delete(savepoints).where(
    savepoints.c.topology_id == _TOPOLOGY, savepoints.c.name == bindparam("named")
)
DROP_LATER_SAVEPOINTS: Final = delete(savepoints).where(
    savepoints.c.topology_id == _TOPOLOGY, savepoints.c.txid >= _NUMBER
)
MARK: Final = (
    update(attempts)
    .where(attempts.c.topology_id == _TOPOLOGY, attempts.c.txid >= _NUMBER, attempts.c.phase == COMMITTED)
    .values(phase=REWOUND)
)
