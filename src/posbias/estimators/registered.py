"""The estimators, a line for each, in the order of menus and tables: adding one is its file and its line here.

`posbias.estimators` reads these lines for what to import, and when: only what is used. Type checkers read them as they
are. The name on the command line is the module's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    # isort: off
    # From a harvest.
    from posbias.estimators.cross_fit import CrossFit as CrossFit
    from posbias.estimators.all_pairs import AllPairs as AllPairs
    from posbias.estimators.pivot_one import PivotOne as PivotOne
    from posbias.estimators.adjacent_chain import AdjacentChain as AdjacentChain

    # From the rows of a log.
    from posbias.estimators.swap_one import SwapOne as SwapOne
    from posbias.estimators.swap_adjacent import SwapAdjacent as SwapAdjacent
    from posbias.estimators.random_traffic import RandomTraffic as RandomTraffic
    from posbias.estimators.naive_ctr import NaiveCTR as NaiveCTR
    from posbias.estimators.pbm_em import PBMEM as PBMEM
    from posbias.estimators.regression_em import RegressionEM as RegressionEM
