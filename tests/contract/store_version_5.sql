-- A store as schema version 5 was written: transaction 1 is committed, 2 in flight, one run has ended.
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
    error TEXT, details TEXT,
    PRIMARY KEY (topology_id, attempt_id)
);
INSERT INTO "transactional_attempts" VALUES('carriers',2,1,'committed','{"version": 2, "partitions": [["flights", 0, 10, 20, 10, 7, 0]]}',10,1000,1001,1002,1003,1004,NULL,NULL,NULL);
INSERT INTO "transactional_attempts" VALUES('carriers',3,2,'processing','{"version": 2, "partitions": [["flights", 0, 20, 30, null, null, null]]}',NULL,1000,1001,NULL,NULL,NULL,NULL,NULL,NULL);
CREATE INDEX transactional_attempts_by_txid ON transactional_attempts (topology_id, txid);
CREATE TABLE transactional_fences (
    topology_id TEXT NOT NULL,
    component_id TEXT NOT NULL,
    attempt_id BIGINT NOT NULL,
    txid BIGINT NOT NULL,
    PRIMARY KEY (topology_id, component_id, attempt_id)
);
INSERT INTO "transactional_fences" VALUES('carriers','total',1,1);
CREATE TABLE transactional_minutes (
    topology_id TEXT NOT NULL, at_ms BIGINT NOT NULL, epoch BIGINT NOT NULL, transactions BIGINT NOT NULL,
    rows BIGINT NOT NULL, failures BIGINT NOT NULL, latencies TEXT NOT NULL, lag_sum BIGINT NOT NULL,
    lag_max BIGINT NOT NULL, phases_ms TEXT NOT NULL,
    planning_ms BIGINT, processing_ms BIGINT, waiting_ms BIGINT, committing_ms BIGINT,
    PRIMARY KEY (topology_id, at_ms, epoch)
);
INSERT INTO "transactional_minutes" VALUES('carriers',0,1,1,10,0,'[1]',3,3,'{"planning": 1}',NULL,NULL,NULL,NULL);
CREATE TABLE transactional_runs (
    topology_id TEXT NOT NULL, epoch BIGINT NOT NULL, owner TEXT NOT NULL, name TEXT, version TEXT NOT NULL,
    described TEXT NOT NULL, settings TEXT NOT NULL, began_at_ms BIGINT NOT NULL, began_at_txid BIGINT NOT NULL,
    ended_at_ms BIGINT, ended_at_txid BIGINT, ended_how TEXT, ended_code TEXT, ended_reason TEXT,
    sources TEXT DEFAULT '{}' NOT NULL,
    PRIMARY KEY (topology_id, epoch)
);
INSERT INTO "transactional_runs" VALUES('carriers',1,'worker-1:11','deploy-6','0.2.0','{"topology": "carriers", "components": []}','{"lease_ms": 20000}',1000,0,2000,1,'stopped',NULL,NULL,'{}');
CREATE TABLE transactional_savepoints (
    topology_id TEXT NOT NULL, name TEXT NOT NULL, txid BIGINT NOT NULL, noted_at_ms BIGINT NOT NULL,
    PRIMARY KEY (topology_id, name)
);
CREATE TABLE transactional_schema (
    version BIGINT NOT NULL,
    PRIMARY KEY (version)
);
INSERT INTO "transactional_schema" VALUES(5);
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
    stop_at_ms BIGINT, failing_since_ms BIGINT, failing_txid BIGINT, failing_error TEXT, rewinding_to BIGINT,
    PRIMARY KEY (topology_id)
);
INSERT INTO "transactional_topologies" VALUES('carriers',1,NULL,NULL,3,1,2,'{"committers": {"total": {"table": "tables/total"}}, "spout": {"kind": "kafka", "topics": ["flights"]}}',NULL,'active',NULL,NULL,NULL,NULL,NULL);
CREATE TABLE transactional_transactions (
    topology_id TEXT NOT NULL,
    txid BIGINT NOT NULL,
    attempt_id BIGINT NOT NULL,
    PRIMARY KEY (topology_id, txid),
    FOREIGN KEY(topology_id, attempt_id) REFERENCES transactional_attempts (topology_id, attempt_id)
);
INSERT INTO "transactional_transactions" VALUES('carriers',2,3);
