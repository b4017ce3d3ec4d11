-- A store as schema version 7 has written it: transaction 1 is committed, 2 in flight. It is never written again.
CREATE TABLE transactional_attempts (
    topology_id TEXT NOT NULL,
    attempt_id BIGINT NOT NULL,
    txid BIGINT NOT NULL,
    phase TEXT NOT NULL,
    batch TEXT NOT NULL,
    rows BIGINT,
    issued_at_ms BIGINT NOT NULL,
    planned_at_ms BIGINT NOT NULL,
    processed_at_ms BIGINT,
    commit_started_at_ms BIGINT,
    committed_at_ms BIGINT,
    failed_at_ms BIGINT,
    error TEXT,
    details TEXT,
    PRIMARY KEY (topology_id, attempt_id)
);
INSERT INTO "transactional_attempts" VALUES('carriers',2,1,'committed','{"version": 4, "partitions": [["flights", 0, 0, 10, 10, 7, 640, 7000]], "metadata": [["flights", 0, {"file": "x"}]], "split_records": 5, "excluded": [["bolt", "0123", "no"]], "letters": [[1, 0, "bolt", "flights", "default", "{\"n\": 1}", "no"]], "facts": [1000, 5000, 900, null], "behind": [["total", 4000, null]], "last_rows": [["total", 950]], "event_times": [["flights", 0, 7000, 1000]], "listed": [["flights", 1, 900, "empty", false]], "pending": [["flights", 0, 3, 2, 1400, "no"]], "again": [["flights", 0, 1, 1, 900, ""]], "lost": 3, "static_versions": {"prices": "0e5f@7", "users": "12"}}',10,1000,1001,1002,1003,1004,NULL,NULL,'{"lag": 4, "letters": 1}');
INSERT INTO "transactional_attempts" VALUES('carriers',3,2,'failed','{"version": 4, "partitions": [["flights", 0, 10, 20, null, null, null]]}',NULL,1000,1001,NULL,NULL,NULL,1005,'processing: no',NULL);
INSERT INTO "transactional_attempts" VALUES('carriers',4,2,'given up','{"version": 4, "partitions": [["flights", 0, 10, 20, null, null, null]]}',NULL,1000,1001,NULL,NULL,NULL,NULL,NULL,NULL);
CREATE TABLE transactional_fences (
    topology_id TEXT NOT NULL,
    component_id TEXT NOT NULL,
    attempt_id BIGINT NOT NULL,
    txid BIGINT NOT NULL,
    PRIMARY KEY (topology_id, component_id, attempt_id)
);
INSERT INTO "transactional_fences" VALUES('carriers','total',1,0);
CREATE TABLE transactional_minutes (
    topology_id TEXT NOT NULL,
    at_ms BIGINT NOT NULL,
    epoch BIGINT NOT NULL,
    transactions BIGINT NOT NULL,
    rows BIGINT NOT NULL,
    failures BIGINT NOT NULL,
    latencies TEXT NOT NULL,
    lag_sum BIGINT NOT NULL,
    lag_max BIGINT NOT NULL,
    planning_ms BIGINT,
    processing_ms BIGINT,
    waiting_ms BIGINT,
    committing_ms BIGINT,
    PRIMARY KEY (topology_id, at_ms, epoch)
);
INSERT INTO "transactional_minutes" VALUES('carriers',60000,1,1,10,1,'[0, 1]',4,4,1,20,3,40);
CREATE TABLE transactional_outbox (
    topology_id TEXT NOT NULL,
    sink TEXT NOT NULL,
    txid BIGINT NOT NULL,
    attempt_id BIGINT NOT NULL,
    run TEXT NOT NULL,
    records BIGINT NOT NULL,
    payload BYTEA NOT NULL,
    PRIMARY KEY (topology_id, sink, txid)
);
CREATE TABLE transactional_runs (
    topology_id TEXT NOT NULL,
    epoch BIGINT NOT NULL,
    owner TEXT NOT NULL,
    name TEXT,
    version TEXT NOT NULL,
    described TEXT NOT NULL,
    settings TEXT NOT NULL,
    began_at_ms BIGINT NOT NULL,
    began_at_txid BIGINT NOT NULL,
    ended_at_ms BIGINT,
    ended_at_txid BIGINT,
    ended_how TEXT,
    ended_code TEXT,
    ended_reason TEXT,
    sources TEXT NOT NULL,
    PRIMARY KEY (topology_id, epoch)
);
INSERT INTO "transactional_runs" VALUES('carriers',1,'first','flights-7','0.1.0','{"components": [{"id": "flights"}]}','{"lease_ms": 60000}',1795868056639,0,1795868056792,1,'stopped',NULL,NULL,'{"lease_ms": "default"}');
CREATE TABLE transactional_savepoints (
    topology_id TEXT NOT NULL,
    name TEXT NOT NULL,
    txid BIGINT NOT NULL,
    noted_at_ms BIGINT NOT NULL,
    PRIMARY KEY (topology_id, name)
);
INSERT INTO "transactional_savepoints" VALUES('carriers','before',1,1795868056686);
CREATE TABLE transactional_schema (
    version BIGINT NOT NULL,
    PRIMARY KEY (version)
);
INSERT INTO "transactional_schema" VALUES(7);
CREATE TABLE transactional_sinks (
    topology_id TEXT NOT NULL,
    sink TEXT NOT NULL,
    txid BIGINT NOT NULL,
    attempt_id BIGINT NOT NULL,
    run TEXT NOT NULL,
    PRIMARY KEY (topology_id, sink)
);
INSERT INTO "transactional_sinks" VALUES('carriers','alerts',1,2,'first#1');
CREATE TABLE transactional_topologies (
    topology_id TEXT NOT NULL,
    epoch BIGINT NOT NULL,
    owner TEXT,
    leased_until_ms BIGINT,
    attempt_id BIGINT NOT NULL,
    committed_txid BIGINT NOT NULL,
    committed_attempt_id BIGINT,
    fingerprint TEXT NOT NULL,
    name TEXT,
    desired TEXT DEFAULT 'active' NOT NULL,
    stop_at_ms BIGINT,
    failing_since_ms BIGINT,
    failing_txid BIGINT,
    failing_error TEXT,
    rewinding_to BIGINT,
    store_id TEXT,
    PRIMARY KEY (topology_id)
);
INSERT INTO "transactional_topologies" VALUES('carriers',1,NULL,NULL,4,1,2,'{"committers": {"total": {"table": "tables/total"}}, "spout": {"kind": "kafka", "topics": ["flights"]}}','flights-7','active',NULL,1005,2,'processing: no',NULL,'7a7989b511d8441cb206cd028f518e44');
CREATE TABLE transactional_transactions (
    topology_id TEXT NOT NULL,
    txid BIGINT NOT NULL,
    attempt_id BIGINT NOT NULL,
    PRIMARY KEY (topology_id, txid),
    FOREIGN KEY(topology_id, attempt_id) REFERENCES transactional_attempts (topology_id, attempt_id)
);
INSERT INTO "transactional_transactions" VALUES('carriers',2,4);
CREATE INDEX transactional_attempts_by_txid ON transactional_attempts (topology_id, txid);
