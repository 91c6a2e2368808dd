"""Prices and sizes of machines: one table per cloud and region, and its cache."""
