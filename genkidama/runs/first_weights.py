"""The weights of an experiment before any training.

`genkidama.runs.warm_start` starts `python -m genkidama.runs.first_weights FILE`. The experiment
comes as TOML on standard input.
"""

from __future__ import annotations

import sys
import tomllib

from genkidama.config.experiment import Experiment
from genkidama.errors import GenkidamaError
from genkidama.learning.environments import make_environment, played
from genkidama.learning.model import Model
from genkidama.runs.checkpoint import save
from genkidama.runs.warm_start import first_snapshot
from genkidama.runtime.log import fail


def main() -> int:
    """Writes the checkpoint; the exit code."""
    try:
        experiment = Experiment.from_dict(tomllib.loads(sys.stdin.read()))
        environment = make_environment(played(experiment.environment))
        model = Model(experiment, environment)
        environment.close()
        save(sys.argv[1], model.signature, model.numbers, first_snapshot(experiment))
    except GenkidamaError as error:
        return fail(error)
    return 0


if __name__ == "__main__":
    sys.exit(main())
