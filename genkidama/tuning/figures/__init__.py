"""Figures are drawn here and written as files, after Figs. 2, 4, 5 and 7 of HyperTrick's paper.

Laws of this folder:
- Nothing is told by colour alone: what colours say, marks or heights say too. Our colours are those
  of Okabe and Ito, which colour-blind readers can tell apart.
- A figure for which there is nothing to draw is left out.
- No setting of Matplotlib is left changed, and no figure open.
"""
