"""The local backend: "pods" are processes on loopback addresses, the planner is the same as in a cluster.

``kubelet`` runs and restarts processes, ``watcher`` listens to leaders, ``router`` keeps the router, ``runner`` is the
loop, ``rundir`` is what lies on the disk. Linux only: parent-death signals and the whole of 127.0.0.0/8.
"""
