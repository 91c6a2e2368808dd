"""The process that hosts one local machine, and the code that starts it."""
