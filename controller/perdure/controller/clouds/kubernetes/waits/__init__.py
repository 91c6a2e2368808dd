"""Pods that wait: for admission to a queue, for a node, for their image. Why, and what autoscalers say about it."""
