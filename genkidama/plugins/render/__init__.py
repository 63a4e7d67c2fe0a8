"""Policies on a screen: window, overlay, film, explanation."""

from __future__ import annotations

from typing import Any

from genkidama._version import pip_install
from genkidama.cli.options import ALLOW, DETERMINISTIC, WEIGHTS, Verb, number, option, path
from genkidama.config.plugin import Plugin

PLUGIN = Plugin(
    verbs={"play": "genkidama.plugins.render:PLAY"},
    run_methods={"video": "genkidama.plugins.render.playback:play"},
    exports={
        "Playback": "genkidama.plugins.render.playback:Playback",
        "play": "genkidama.plugins.render.playback:play",
    },
)

PLAY = Verb(
    "watch a policy play, in a window or as a film",
    "Shows a policy that plays: in a window or, with --video, as a film.",
    (
        path(
            "target",
            "a run directory, a search's (its best trial plays), a checkpoint file, or zoo:NAME; "
            "with --controller an experiment, too",
            metavar="DIR_OR_CHECKPOINT|zoo:NAME|FILE.toml",
        ),
        path("--video", "write a film, MP4 or GIF", metavar="FILE.mp4|gif"),
        path(
            "--record",
            "write the steps for train --demonstrations; a file *.json: play yourself, and write "
            "starts for evaluate --starts",
            metavar="FILE",
        ),
        option(
            "--controller",
            "who plays instead of the policy: 'keyboard', 'gamepad', or a function of yours from "
            "an observation to an action, 'module:function'",
            metavar="WHO",
        ),
        number("--episodes", "number of episodes (default: 1)", default=1),
        number("--seed", "seed of the episodes (default: 0)", default=0),
        *WEIGHTS,
        DETERMINISTIC,
        option(
            "--fps", "pictures a second (default: the environment's pace)", type=float, metavar="N"
        ),
        number("--every", "show one step of every N (default: 1)", default=1),
        ALLOW,
        option(
            "--set",
            "one setting of an experiment, as environment.options.speed=2; repeatable",
            action="append",
            default=[],
            metavar="KEY=VALUE",
        ),
        option(
            "--environment", "play in this environment instead of the experiment's", metavar="ID"
        ),
    ),
    (
        ("genkidama play runs/first", "a window, where there is a screen"),
        ("genkidama play zoo:lunarlander", "a trained policy of the package (zoo: lists them)"),
        (
            "genkidama play runs/first --video landing.mp4 --episodes 3",
            f"a film ({pip_install('video')})",
        ),
        ("genkidama play runs/first --video small.gif --every 3", "a small one"),
        (
            "genkidama play mine.toml --controller keyboard --record mine.steps",
            "your own steps, to learn from (docs/notes/demonstrations.md)",
        ),
    ),
    run="genkidama.plugins.render:run_play",
)


def run_play(options: Any) -> int:
    from genkidama.config.decoding import parse_settings
    from genkidama.plugins.render.playback import play
    from genkidama.runtime import descendants

    given = {key: value for key, value in vars(options).items() if key not in ("verb", "target")}
    given["changes"] = parse_settings(given.pop("set"))
    with descendants.ended():
        play(options.target, **given, say=lambda line: print(line, flush=True))
    return 0
