"""`perdure simulate`: `command` has the options, `simulation_output` prints the results."""
