"""The local cloud: machines are process trees on this computer, offered in three zones. Keep this file free of imports.

Two halves meet in an instance's directory (`layout`). The controller's half launches and describes instances: `cloud`
with `settings`, `zones`, `capacity`, `launch_errors`, `instances`, `machine/{isolation,machine_spec}` and
`host/launcher`. The machine's half is one host process per instance, which outlives the controller: `host/hypervisor`
with `machine/{metadata,process_tree,rootfs,init,syscalls}`. A host process starts with every launch, so it imports only
these modules and few of the standard library.
"""
