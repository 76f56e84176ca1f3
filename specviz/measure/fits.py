"""From measured points to the best draft size: the paper's fit, a plain grid, and one that can only rise.

UniSpec (Do et al.), equations 3 and 4 and Table 14. Each fit gives s(g) and τ(g) at every whole draft size
between the smallest and the largest measured one, and the size where their ratio is largest.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from specviz.calibration import Fit
from specviz.errors import SpecvizError, install

LEAST = 4  # sizes: a cubic through fewer is not determined


def needed() -> None:
    """Check that the libraries are there.

    Raises
    ------
    SpecvizError
        Naming what to install.
    """
    try:
        import scipy.optimize  # noqa: F401
        import sklearn.linear_model  # noqa: F401
    except ModuleNotFoundError as error:
        raise SpecvizError(
            f"{error.name} is not installed; calibration fits with it: {install('calibrate')}"
        ) from None


def paper(g: np.ndarray, s: np.ndarray, tau: np.ndarray) -> Fit:
    """Table 14: a quadratic spline with 8 knots for s, a cubic for τ, differential evolution for g*.

    The optimum is a real number; of its two neighbours the better one by the same curves is taken.
    """
    from scipy.optimize import differential_evolution
    from sklearn.linear_model import LinearRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import PolynomialFeatures, SplineTransformer

    x = np.asarray(g, np.float64)[:, None]
    f_time = make_pipeline(SplineTransformer(degree=2, n_knots=8), LinearRegression()).fit(x, s)
    f_accept = make_pipeline(PolynomialFeatures(degree=3), LinearRegression()).fit(x, tau)

    def speed(at: np.ndarray) -> np.ndarray:
        """Equation 4; where a spline swings below zero there is no speed."""
        at = np.atleast_1d(at)[:, None]
        time = f_time.predict(at)
        return np.where(time > 0, f_accept.predict(at) / np.where(time > 0, time, 1), 0)

    low, high = float(g[0]), float(g[-1])
    optimum = differential_evolution(
        lambda at: -float(speed(at)[0]), [(low, high)], seed=42, maxiter=1000, atol=1e-6, tol=1e-6
    )
    whole = np.unique([np.floor(optimum.x[0]), np.ceil(optimum.x[0])])
    best = int(whole[speed(whole).argmax()])
    every = np.arange(g[0], g[-1] + 1, dtype=np.float64)[:, None]
    return Fit(best, f_time.predict(every).tolist(), f_accept.predict(every).tolist())


def grid(g: np.ndarray, s: np.ndarray, tau: np.ndarray) -> Fit:
    """Table 16's rival: the best of the measured sizes; between them straight lines, to be drawn."""
    every = np.arange(g[0], g[-1] + 1)
    best = int(g[np.argmax(tau / s)])
    return Fit(best, np.interp(every, g, s).tolist(), np.interp(every, g, tau).tolist())


def monotone(g: np.ndarray, s: np.ndarray, tau: np.ndarray) -> Fit:
    """What both must be: s never falls; τ never falls and grows ever more slowly.

    s is isotonic regression. τ is the least-squares function that is concave and does not fall, with its
    bends at the measured sizes: a constant less a sum of falling ramps (g_j - g)+ whose weights cannot be
    negative, which is a non-negative least-squares problem. Between sizes both are straight, and the best
    whole size is found by looking at all.
    """
    from scipy.optimize import nnls
    from sklearn.isotonic import IsotonicRegression

    every = np.arange(g[0], g[-1] + 1)
    rising = IsotonicRegression().fit(g, s).predict(g)
    ramps = np.maximum(g[1:] - g[:, None], 0).astype(np.float64)  # [sizes, bends]
    top = 2 * float(np.max(np.abs(tau))) + 1  # any constant above the level that is looked for
    scale = np.append(ramps.max(0), 1.0)
    basis = np.column_stack([ramps, np.ones(len(g))]) / scale
    weights, _ = nnls(basis, top - tau)
    concave = top - basis @ weights
    time, accept = np.interp(every, g, rising), np.interp(every, g, concave)
    return Fit(int(every[np.argmax(accept / time)]), time.tolist(), accept.tolist())


FITS: dict[str, Callable[[np.ndarray, np.ndarray, np.ndarray], Fit]] = {
    "paper": paper,
    "grid": grid,
    "monotone": monotone,
}
# By `specviz bench calibrate`: in seven calibrations of 1 to 20 prompts the sizes that monotone and grid took
# were within 3 % of the best of every size, the paper's in three; the others lay where its spline swings.
# Beyond grid, monotone looks between the points and does not follow one lucky point.
CHOSEN = "monotone"


def fit(g: np.ndarray, s: np.ndarray, tau: np.ndarray) -> dict[str, Fit]:
    """Every fit of the same points; `g` ascending, at least `LEAST` of them."""
    return {name: make(g, s, tau) for name, make in FITS.items()}
