"""Tables, times, prompts and progress on a terminal."""
