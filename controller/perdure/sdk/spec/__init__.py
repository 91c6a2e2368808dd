"""The fields of the task YAML: their types, rules and messages."""
