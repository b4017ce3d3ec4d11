-- A store as schema version 2 was written: transaction 1 is committed, 2 in flight, and nobody runs it.
CREATE TABLE transactional_schema (
    version BIGINT NOT NULL,
    PRIMARY KEY (version)
);
INSERT INTO "transactional_schema" VALUES(2);
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
    PRIMARY KEY (topology_id)
);
INSERT INTO "transactional_topologies" VALUES('carriers',1,NULL,NULL,3,1,2,'{"committers": {"total": {"table": "tables/total"}}, "spout": {"kind": "kafka", "topics": ["flights"]}}',NULL,'active',NULL);
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
    PRIMARY KEY (topology_id, attempt_id)
);
INSERT INTO "transactional_attempts" VALUES('carriers',2,1,'committed','{"version": 2, "partitions": [["flights", 0, 10, 20, 10, 7, 0]]}',10,1000,1001,1002,1003,1004,NULL,NULL);
INSERT INTO "transactional_attempts" VALUES('carriers',3,2,'processing','{"version": 2, "partitions": [["flights", 0, 20, 30, null, null, null]]}',NULL,1000,1001,NULL,NULL,NULL,NULL,NULL);
CREATE TABLE transactional_transactions (
    topology_id TEXT NOT NULL,
    txid BIGINT NOT NULL,
    attempt_id BIGINT NOT NULL,
    PRIMARY KEY (topology_id, txid),
    FOREIGN KEY(topology_id, attempt_id) REFERENCES transactional_attempts (topology_id, attempt_id)
);
INSERT INTO "transactional_transactions" VALUES('carriers',2,3);
CREATE TABLE transactional_fences (
    topology_id TEXT NOT NULL,
    component_id TEXT NOT NULL,
    attempt_id BIGINT NOT NULL,
    txid BIGINT NOT NULL,
    PRIMARY KEY (topology_id, component_id, attempt_id)
);
INSERT INTO "transactional_fences" VALUES('carriers','total',1,1);
