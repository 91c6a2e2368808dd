"""A controller on a machine of its own: brought up in a cloud, upgraded, and taken down (`holdfast controller up`)."""
