"""Where nodes enter: their sessions, connections and reports, and the interruption queues of clouds."""
