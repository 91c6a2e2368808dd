"""Who calls, what they may do, and whose things they may see or change."""
