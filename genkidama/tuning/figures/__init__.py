"""Figures are drawn here and written as files, after Figs. 2, 4, 5 and 7 of HyperTrick's paper.

    draw.py        all of them, into a folder
    timeline.py    what each node ran when, and how many of them were busy (Figs. 2 and 6)
    curves.py      learning_curves: scores by phase with the decisions; all trials' curves (Fig. 4)
    survivors.py   active_trials: which of them run on, in the space of the settings (Fig. 5)
    optunas.py     what Optuna draws: settings (Fig. 7), best_score and importances
    style.py       what they have in common

Laws of this folder:
- Nothing is told by colour alone: what colours say, marks or heights say too. Our colours are those
  of Okabe and Ito, which colour-blind readers can tell apart.
- A figure for which there is nothing to draw is left out.
- No setting of Matplotlib is left changed, and no figure open.
"""
