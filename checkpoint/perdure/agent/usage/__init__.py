"""How much of the machine the workload uses: processors, memory, disk, network and GPUs."""
