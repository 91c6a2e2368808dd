"""What a new machine needs before it can call home: the files that the controller serves to nodes."""
