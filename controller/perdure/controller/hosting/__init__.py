"""A controller on a machine of its own: brought up in a cloud, upgraded, and taken down (`perdure controller up`)."""
