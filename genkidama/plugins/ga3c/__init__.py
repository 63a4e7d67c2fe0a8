"""GA3C: many agents, one model (Babaeizadeh et al. 2017). The backend `"ga3c"`.

Here processes and threads wait for each other and share memory. Only the engine's process imports
torch and computes. Nothing here opens a file, or a socket to another machine.

    orchestrator process (asyncio; owns the socket; never computes): `backend.GA3C`
      ├── forkserver without torch ── agents    step environments, know no model: `agent.Agent`
      └── engine process, all of torch        one model on a CPU or a GPU: `engine.Engine`
            ├── predictors (threads)          prediction queue → one forward pass → actions
            └── trainers (threads)            training queue → losses → updates of the one vector

Observations, actions and rewards are in shared memory (`slots.Slots`). The two queues are pipes,
which carry numbers of lanes and slots and nothing else. `adjustment` is the rule for the numbers of
agents, predictors and trainers.
"""

from __future__ import annotations

from genkidama.config.plugin import Plugin

PLUGIN = Plugin(
    sections={"ga3c": "genkidama.plugins.ga3c.settings:GA3CSettings"},
    checks={"ga3c": "genkidama.plugins.ga3c.settings:check"},
    backends={"ga3c": "genkidama.plugins.ga3c.backend:GA3C"},
    exports={"GA3C": "genkidama.plugins.ga3c.backend:GA3C"},
)
