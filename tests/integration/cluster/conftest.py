"""The cluster of all tests in this folder, and a driver that several of them share."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest

from tests.integration.cluster.one_driver import OneDriver
from tests.integration.cluster.spark_cluster import Cluster, spark_cluster


@pytest.fixture(scope="session")
def shared_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A master and two workers with a core each, on hosts of their own: Spark runs no two copies of a task on one."""
    with spark_cluster(tmp_path_factory.mktemp("cluster"), hosts=("127.0.0.1", "127.0.0.2")) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def driver(shared_cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[OneDriver]:
    """Runs a topology on the cluster."""
    with closing(OneDriver(tmp_path_factory.mktemp("driver"), shared_cluster.master)) as driver:
        yield driver


@pytest.fixture
def cluster(shared_cluster: Cluster, driver: OneDriver) -> Cluster:
    """For a driver of the test's own, which needs the cores of the shared one."""
    driver.close()
    return shared_cluster
