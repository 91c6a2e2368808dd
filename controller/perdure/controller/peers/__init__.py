"""Controllers that share a database: leases, ownership of jobs, messages between daemons, takeover.

Users' clusters are elsewhere: `submit.cluster.clusters`, `maintenance.cluster_upkeep`, `reconcile.slot_grants`.
"""
