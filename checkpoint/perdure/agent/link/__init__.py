"""The connection to the controller: what is sent, received and acknowledged."""
