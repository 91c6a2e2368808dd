"""The results of a simulation: `report` as plain data, `plot` as figures."""
