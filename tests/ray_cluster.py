"""A Ray cluster of several nodes on this machine: a program that a test tells what to do.

    python -m tests.ray_cluster '{"num_cpus": 0}' '{"num_cpus": 1}' …

One node for each argument, the head first. It prints a line of JSON with the cluster's address and
its nodes' ids. For each line of JSON that it reads it prints one more with the ids, when that is
done: `{"remove": N}` kills a node's processes, `{"add": {"num_cpus": 1}}` adds a node. At the end
of its standard input it ends them all.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from ray.cluster_utils import Cluster

#: Each of these would be a process more, which nobody asks anything: an autoscaler, and one that
#: carries the logs to drivers.
SPARE: dict[str, Any] = {
    "include_dashboard": False,
    "include_log_monitor": False,
    "no_monitor": True,
}


def main(head: dict[str, Any], *others: dict[str, Any]) -> None:
    cluster = Cluster(initialize_head=True, head_node_args={**SPARE, **head})
    nodes = [cluster.head_node, *(cluster.add_node(**other) for other in others)]
    print(
        json.dumps({"address": cluster.address, "nodes": [node.node_id for node in nodes]}),
        flush=True,
    )
    for line in sys.stdin:
        told = json.loads(line)
        if "remove" in told:
            cluster.remove_node(nodes[told["remove"]], allow_graceful=False)
        else:
            nodes.append(cluster.add_node(**told["add"]))
        print(json.dumps({"nodes": [node.node_id for node in nodes]}), flush=True)
    cluster.shutdown()


if __name__ == "__main__":
    main(*map(json.loads, sys.argv[1:]))
