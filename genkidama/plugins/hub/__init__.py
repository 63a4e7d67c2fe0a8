"""Hub: trained policies go to the Hugging Face Hub, and training begins with those from there."""

from __future__ import annotations

from typing import Any

from genkidama.cli.options import ALLOW, Verb, flag, option, path
from genkidama.config.plugin import Plugin

PLUGIN = Plugin(
    verbs={"share": "genkidama.plugins.hub:SHARE"},
    weights={"hub": "genkidama.plugins.hub.repository:fetch"},
    run_methods={"share": "genkidama.plugins.hub.repository:share"},
)

SHARE = Verb(
    "put a trained policy on the Hugging Face Hub",
    "Puts a run's best weights on the Hugging Face Hub, with its settings, its evaluation, a film "
    "and a model card. `hf auth login`, or a token in HF_TOKEN, lets it in.",
    (
        path("run", "a run directory, or a search's (its best trial is shared)"),
        option("repository", "the repository, which is made if needed", metavar="NAME/REPO"),
        flag("--private", "make a repository that only you see"),
        flag("--no-film", "leave the film of an episode out"),
        ALLOW,
    ),
    (
        ("genkidama share runs/first ada/lander", "weights, settings, figures and film"),
        ("genkidama train --from ada/lander", "train on from there, on any machine"),
    ),
    run="genkidama.plugins.hub:run_share",
)


def run_share(options: Any) -> int:
    """Puts a run on the Hub, and prints its address."""
    from genkidama.config.allowlist import allowing
    from genkidama.plugins.hub.repository import share
    from genkidama.runs.run import Run

    run = Run.open(options.run, options.allow)
    address = share(
        run,
        options.repository,
        private=options.private,
        film=not options.no_film,
        say=lambda line: print(line, flush=True),
    )
    print(address)
    print(f"  train on:   genkidama train --from {options.repository}{allowing(run.allow)}")
    return 0
