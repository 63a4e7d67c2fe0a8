"""What learns: networks, heads, losses, optimizers and environments, on torch and NumPy.

A module here may build environments and step them, and compute on tensors that it is given. It
opens no file and no socket, starts no process, and waits for nobody. It knows nothing of parents
and children: where the tensors lie, and with whom they are shared, is the caller's business. `play`
alone is also a command, which reads a checkpoint: one process' share of an evaluation.

    environments.py   environments by name, with their wrappers
    lanes.py          environments that one process steps together
    actions.py        what an environment takes as an action
    heads.py          a network's outputs as a distribution over actions
    networks.py       networks that act and value
    perceptron.py     one of them in NumPy, and the way back
    model.py          a network over one flat vector
    normalization.py  running means and deviations within that vector
    rollout.py        what a learner is given: rollouts, samples, advantages
    learners.py       the plug `algorithm.name`, which turns a rollout into losses
    a3c.py, ppo.py    learners that are built in
    dqn.py            values of actions, from samples of the replay tensor
    off_policy.py     an actor-critic from the same samples
    experience.py     learning from rows that others have sent
    vtrace.py         what the steps of an older policy are worth
    optimizers.py     the update rules
    play.py           episodes with fixed weights
    starts.py         how they begin
"""
