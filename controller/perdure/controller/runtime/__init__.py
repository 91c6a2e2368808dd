"""What every part of the daemon uses: clocks, configuration, security, batching."""
