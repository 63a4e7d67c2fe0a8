"""The verbs that let machines join a run, as data."""

from __future__ import annotations

from genkidama.cli.options import (
    ALLOW,
    CREDENTIALS,
    HOST,
    LISTEN,
    Verb,
    flag,
    number,
    path,
    setting,
)

__all__ = ["ACCESS"]

ACCESS = {
    "parent": Verb(
        "hold the weights for children on other machines",
        "Holds the weights for children on other machines, with TLS and tokens. "
        "At its first start it makes both, and prints what to type on each of those machines.",
        (
            path("file", "the experiment", metavar="FILE.toml|EXAMPLE"),
            LISTEN,
            HOST,
            CREDENTIALS,
            path("--out", "the run's directory; a run in it goes on (default: a new one)"),
            setting("child.exchange=free"),
        ),
        (
            ("genkidama parent lunarlander --out runs/shelf", "an example, by its name"),
            (
                "genkidama parent mine.toml --host shelf.example --listen 0.0.0.0:9000",
                "children reach it by this name, on another port",
            ),
        ),
    ),
    "join": Verb(
        "train on this machine for a parent somewhere",
        "Trains on this machine for the parent of a join string.",
        (
            (
                "string",
                {
                    "nargs": "?",
                    "help": "what `genkidama parent` or `genkidama token` prints; - reads it from "
                    "standard input (default: $GENKIDAMA_JOIN)",
                },
            ),
            ("--name", {"default": "", "help": "what this child is called"}),
            number("--cores", "core processes (default: what the experiment says)"),
            path("--state", "keep this child's own state there"),
            (
                "--allow",
                {
                    "metavar": "MODULE",
                    "action": "append",
                    "default": [],
                    "help": "a module of your own that the parent may have this child import; "
                    "repeatable, '*' for all (default: none)",
                },
            ),
        ),
        (
            (
                "genkidama join 'wss://*:TOKEN@HOST:8765#FINGERPRINT' --cores 2",
                "what the parent printed, with two cores of this machine",
            ),
            ("genkidama join - < join.txt", "the string stands in no list of processes"),
        ),
    ),
    "token": Verb(
        "let a machine join, or no longer",
        "Makes a token, writes its hash into the parent's tokens, and prints a join string. "
        "The parent reads its tokens at every handshake, so it need not be started again.",
        (
            (
                "name",
                {
                    "nargs": "?",
                    "default": "*",
                    "metavar": "NAME",
                    "help": "whose token it is (default: * for any name)",
                },
            ),
            number("--days", "the token ends after so many days (default: never)"),
            number(
                "--rotate",
                "the name's other tokens end after so many days (default of N: 7)",
                nargs="?",
                const=7,
            ),
            flag("--viewer", "a token that shows the run, and a link; it admits no child"),
            flag("--revoke", "take the name's tokens out, and make none"),
            flag("--list", "show whose tokens there are, and make none"),
            LISTEN,
            HOST,
            CREDENTIALS,
            path("--tokens-file", "the parent's tokens, if they lie elsewhere", metavar="FILE"),
            path("--certificate-file", "its certificate, if it lies elsewhere", metavar="FILE"),
        ),
        (
            ("genkidama token pi-01 --days 30", "for one machine, for a month"),
            ("genkidama token --viewer", "a link to the run's page"),
            ("genkidama token pi-01 --revoke", "that machine may no longer join"),
        ),
    ),
    "top": Verb(
        "show a run of a parent somewhere in this terminal",
        "Shows how a run goes, attached from anywhere; connects again when the parent was away.",
        (
            (
                "url",
                {
                    "nargs": "?",
                    "metavar": "URL",
                    "help": "http://HOST:PORT, or what `genkidama token --viewer` prints; - reads "
                    "it from standard input (default: $GENKIDAMA_VIEW)",
                },
            ),
            flag("--once", "print it once, and end"),
        ),
        (("genkidama top http://127.0.0.1:8765", "a parent on this machine"),),
    ),
    "serve": Verb(
        "show runs in a browser, without a parent",
        "Shows runs in directories in a browser on this machine: one run, or several to compare.",
        (
            path("runs", "run directories, or folders of such, as runs/", nargs="+"),
            (
                "--listen",
                {
                    "metavar": "HOST:PORT",
                    "default": "127.0.0.1:8766",
                    "help": "where the page is, on this machine alone (default: 127.0.0.1:8766)",
                },
            ),
        ),
        (("genkidama serve runs/", "all runs in this folder, side by side"),),
    ),
    "signature": Verb(
        "which network an experiment has",
        "Prints the digest of an experiment's network, for parent.signature, and its parts.",
        (
            path("file", "the experiment", metavar="FILE.toml|EXAMPLE"),
            ALLOW,
            setting("network.hidden=[32]"),
        ),
        (("genkidama signature mine.toml", "what parent.signature may be set to"),),
    ),
}
