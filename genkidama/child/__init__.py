"""A child: one orchestrator process, which owns the socket and never computes, and its cores."""
