"""What a person sees of a run from outside: the page, its feed, and what monitors read.

    document.py     pure: how a run stands, as one JSON document, gathered from events
    series.py       pure: curves that stay short, and know which rows were sent
    searched.py     pure: the part of the document that a search has
    answers.py      pure: what a plain HTTP request is answered
    viewers.py      pure: who may look: tokens, links that open once, cookies
    filming.py      films of new best policies
    watchers.py     the feed: one message a second, encoded once for all who watch
    files.py        what the page is made of
    metrics.py      the document for Prometheus
    gallery.py      the same page over finished runs
    table.py        the same in a terminal
    folded.py       pure: the document again, out of the feed

Nothing here changes a run. Modules of `parent/` bring events in and answers out.
"""
