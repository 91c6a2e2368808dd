"""The local cloud: real machines as process trees of this one, sold in three zones. Keep this file free of imports.

Two halves meet in an instance's directory (`layout`). The controller's half (`cloud`, over `settings`, `zones`,
`refusals`, `isolation`, `blueprint`, `launcher`, `instances`) sells and describes. The machine's half (`host`, over
`metadata`, `machine`, `rootfs`, `init`, `syscalls`) is a process per instance that outlives the controller. One starts
with every launch, so it loads few modules of the standard library, and of ours these alone.
"""
