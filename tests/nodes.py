"""A real Ray cluster of this machine's cores, for tests that take nodes away."""

import pytest


@pytest.fixture(scope="module")
def cluster():
    """A cluster whose head trains nothing, and a way to make sure that two nodes of one core each are there."""
    pytest.importorskip("ray", reason="ray is not installed: pip install 'particleaugment[ray]'")
    from ray.cluster_utils import Cluster

    quick = {"health_check_failure_threshold": 3, "health_check_period_ms": 500, "health_check_initial_delay_ms": 500}
    head = {"num_cpus": 0, "num_gpus": 0, "include_dashboard": False, "_system_config": quick}
    made = Cluster(initialize_head=True, head_node_args=head)
    try:
        yield made
    finally:
        made.shutdown()


@pytest.fixture
def two_nodes(cluster):
    while len(cluster.worker_nodes) < 2:
        cluster.add_node(num_cpus=1, num_gpus=0)
    return cluster
