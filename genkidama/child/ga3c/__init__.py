"""GA3C: many agents, one model (Babaeizadeh et al. 2017). The backend `"ga3c"`.

    orchestrator process (asyncio; owns the socket; never computes): `backend.GA3C`
      ├── nursery without torch ── agents     step environments, know no model: `agent.Agent`
      └── engine process, all of torch        one model on a CPU or a GPU: `engine.Engine`
            ├── predictors (threads)          prediction queue → one forward pass → actions
            └── trainers (threads)            training queue → losses → updates of the one vector

Observations, actions and rewards lie in shared memory (`slots.Slots`). The two queues are pipes,
which carry numbers of lanes and slots (`queues`) and nothing else.
"""
