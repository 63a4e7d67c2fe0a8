"""A child: one orchestrator process that owns the socket and never computes, and its core processes."""
