"""HyperTrick and its improved forms against other methods, simulated at equal wall time on 8 nodes.

Claim: no method finds better configurations in the same time than the best form of HyperTrick
here, by more than the standard error of the difference. That the adaptive controller keeps to
equation 9, and what equation 8 should be, is in `tests/plugins/hypertrick/test_rule.py`.

Method: four kinds of learning curves (`problems.py`), 27 phases, each seed another draw of
all four; in `costly` and `unstable` the nodes' speeds differ by up to 2.2. All methods get the same
draws and the same time: that in which the 8 nodes could run what the paper's Hyperband runs, 46
configurations to 32.61 % (times `--budget`). Phases under way at its end are lost. Regret is (f* −
f(c)) / (f* − f_worst) in percent, f the true final value and c the configuration whose trial's last
report is the highest, the same rule for all. `all` is the mean over the four problems, ± its
standard error over the seeds; `behind` the paired difference to the best form of HyperTrick.

What the methods are:
- published: the paper's rule, W₀ = 46, r from equation 9. adaptive: with the controller.
- geometric: decisions after 1, 3, 9 phases, r = 2/3, trials as long as there is time. cohort: a
  cohort of 16 collects data, and all later trials are compared with all before them. cohorts anew:
  each 16 trials are a population of their own. halves: decisions after 1, 2, 4, 8, 16 phases and r
  = 1/2. Adaptive with a cohort and no end of trials has nothing to plan for.
- Hyperband: its brackets side by side, rounds go on where they stopped, begun again whenever a node
  would be idle. ASHA with promotions. Both may move trials between nodes at no cost, which
  HyperTrick never does.
- Optuna's pruners in an in-memory study that is asked in the order of virtual time:
  SuccessiveHalving from the first phase on with factors 3 and 2, Hyperband with the resource set to
  the 27 phases and its factor of 3, Median and Wilcoxon as they come. As Wilcoxon's documentation
  asks, its trials are told the average of their reports, stopped or not.
- TPE: Optuna's TPESampler as it comes (multivariate) proposes new trials; it is told stopped trials
  as pruned. For ASHA and Hyperband, whose trials wait rather than end, it is told each rung. 1/4
  random: every fourth trial is drawn at random, which keeps TPE from settling too soon.

    python -m studies.hypertrick                            about 12 minutes on one core
    python -m studies.hypertrick --quick                    seconds, to see that it runs
    python -m studies.hypertrick --results results.json     goes on where it was stopped
"""

from __future__ import annotations

import warnings
from pathlib import Path

import optuna

from benchmarks import store
from studies.hypertrick.tables import compare, table


def main() -> None:
    parser = store.parser("hypertrick", __doc__)
    parser.add_argument("--seeds", type=int, default=32)
    parser.add_argument(
        "--budget", type=float, default=1.0, help="of time, in units of the paper's Hyperband"
    )
    parser.add_argument(
        "--results",
        type=Path,
        help="a JSON file that keeps results, so that the run can be stopped and go on",
    )
    parser.add_argument("--quick", action="store_true", help="two seeds and a quarter of the time")
    arguments = parser.parse_args()
    seeds, budget = (2, 0.25) if arguments.quick else (arguments.seeds, arguments.budget)
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    warnings.simplefilter("ignore")
    results = compare(seeds, budget, arguments.results)
    print(table(results, seeds, budget))


if __name__ == "__main__":
    main()
