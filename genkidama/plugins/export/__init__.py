"""Export: policies leave, as C for robots, JavaScript for pages, and ONNX."""

from __future__ import annotations

from typing import Any

from genkidama._version import pip_install
from genkidama.cli.options import ALLOW, WEIGHTS, Verb, option, path
from genkidama.config.plugin import Plugin

PLUGIN = Plugin(verbs={"export": "genkidama.plugins.export:EXPORT"})

#: Those of `genkidama.runs.export`, which imports NumPy, and the ends of their files' names.
FORMS = {"c": ".h", "js": ".js", "onnx": ".onnx"}

EXPORT = Verb(
    "write a policy as C, JavaScript or ONNX",
    "Writes a trained policy for use without Genkidama: as a C header for a robot's firmware, as a "
    "JavaScript module for a page, or as ONNX. Before that it is compared with NumPy, by cc, node "
    "or onnxruntime.",
    (
        path(
            "target",
            "a run directory, a search's (its best trial is taken), a checkpoint file, or zoo:NAME",
            metavar="DIR_OR_CHECKPOINT",
        ),
        option("--as", "the form", choices=FORMS, required=True, dest="form"),
        path(
            "--out",
            "the file (default: policy.h, policy.js or policy.onnx in the run's directory, of a "
            "checkpoint file here); names in C begin with its name",
            metavar="FILE",
        ),
        *WEIGHTS,
        ALLOW,
    ),
    (
        ("genkidama export runs/first --as c", "runs/first/policy.h, with policy_act()"),
        ("genkidama export runs/first --as js --out web/policy.js", "a module that exports act()"),
        ("genkidama export runs/first --as onnx", f"for ONNX Runtime ({pip_install('onnx')})"),
    ),
    run="genkidama.plugins.export:run_export",
)


def run_export(options: Any) -> int:
    """Writes a policy, and prints its weights, its file with sizes, and how it was compared."""
    from genkidama.runs.export import export
    from genkidama.runs.policy import Policy
    from genkidama.runs.run import weights_of

    weights = weights_of(options.target, best=options.best)
    policy = Policy(weights.checkpoint, allow=options.allow)
    name = f"policy{FORMS[options.form]}"
    default = options.target / name if options.target.is_dir() else name
    done = export(policy, options.form, options.out or default)
    print(f"{policy.experiment.environment.id}: {weights} ({weights.path})")
    print(f"{done.path}: {done.size}")
    print(done.checked)
    return 0
