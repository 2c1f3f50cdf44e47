"""Statically binarised MNIST: bounds against the number of components, Figure 3 of Paquet et al. (2018).

    python examples/mnist_sweep.py --data-root DIR --out mnist-rows
    python examples/mnist_sweep.py --data-root DIR --out mnist-rows --rows K64-seed0,normal-seed0
    python examples/mnist_sweep.py --out mnist-rows --report --figure figure3.png

One factor of 64 dimensions with the paper's networks and batches of 64. Rows are K = 2 to 512, a N(0, I)
prior with as many updates of the same networks, two factors of 32 dimensions, and longer runs of K = 512 and
of the two factors. All rows of a seed start from the same pretrained networks, which run in bfloat16 (use
``--float32`` on processors without instructions for it). Finished rows are not run again: the command can be
interrupted and repeated, and rows can be run one by one. It ends with a table of all finished rows. With
``OMP_NUM_THREADS=1`` several can run side by side after ``--rows pretrained-seed0``.
"""

from sweep import main
from sweep_bounds import Bounds, add_options

SETTING = Bounds(
    data="mnist-static",
    mixtures={
        (512,): (0,),
        (64,): (0, 1, 2),
        (2,): (0,),
        (256,): (0,),
        (16,): (0,),
        (64, 64): (0,),
        (128,): (0,),
        (32,): (0,),
        (8,): (0,),
    },
    long={(512,): (0, 1, 2), (64, 64): (0,)},
    published={512: -85.77},
)

if __name__ == "__main__":
    main(__doc__, "mnist-rows", SETTING.rows, SETTING.report, add=add_options)
