"""Omniglot, 28×28: bounds against the number of components, Figures 3 and 4 of Paquet et al. (2018).

    python examples/omniglot_sweep.py --data-root DIR --out omniglot-rows
    python examples/omniglot_sweep.py --data-root DIR --out omniglot-rows --rows K32-seed0
    python examples/omniglot_sweep.py --out omniglot-rows --report --figure figure3.png

As ``mnist_sweep.py``, with K = 32 and 256 and a N(0, I) prior. Greys are binarised again at each visit. The
data are ``chardata.mat``, the split of most papers, if the folder has it. Otherwise they are the background
set of Lake et al. (2015), with results that are not comparable. Afterwards, ``pyro-fmvae draw
omniglot-rows/runs/K32-seed0 clusters`` draws Figure 4.
"""

from sweep import main
from sweep_bounds import Bounds, add_options

SETTING = Bounds(data="omniglot", mixtures={(256,): (0,), (32,): (0,)}, published={256: -90.89})

if __name__ == "__main__":
    main(__doc__, "omniglot-rows", SETTING.rows, SETTING.report, add=add_options)
