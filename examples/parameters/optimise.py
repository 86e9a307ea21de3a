"""Bayesian optimisation of the parameter ``x``: four points of the largest expected improvement.

Fits a Gaussian process with noise to all results. After each suggested point, the model's own mean
is added there as if measured (a "kriging believer"), so the next point lies elsewhere. Returns
None, which ends the search, if the expected improvement is below 0.001.
"""

try:
    import numpy as np
    from scipy.stats import norm
    from sklearn.gaussian_process import GaussianProcessRegressor
    from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel
except ImportError as error:
    raise ImportError(f"{error}; needs: pip install scikit-learn") from None

AT_ONCE = 4
LEAST_GAIN = 1e-3
FIRST = [0.1, 0.35, 0.6, 0.85]
GRID = np.linspace(0, 1, 1001)[:, None]
KERNEL = ConstantKernel(1.0, (0.1, 100)) * RBF(0.15, (0.03, 0.5)) + WhiteKernel(1e-3, (1e-8, 1))


def next_points(group, index, metrics, results):
    if not results:
        return FIRST
    x = np.array([[row["x"]] for row in results])
    y = np.array([row["y"] for row in results])
    scale = y.std()
    y = (y - y.mean()) / scale
    learned = GaussianProcessRegressor(KERNEL, n_restarts_optimizer=2, random_state=0).fit(x, y)
    model = GaussianProcessRegressor(learned.kernel_, optimizer=None)
    points = []
    for _ in range(AT_ONCE):
        model.fit(x, y)
        gain = scale * expected_gain(model, best=model.predict(x).min())
        gain[np.isin(GRID[:, 0], x[:, 0])] = 0  # another job there would print the same value
        place = int(gain.argmax())
        if gain[place] < LEAST_GAIN:
            break
        points.append(float(GRID[place, 0]))
        x = np.vstack([x, GRID[place]])
        y = np.append(y, model.predict(GRID[place : place + 1]))
    return points or None


def expected_gain(model, best):
    """Return the expected improvement over ``best`` at each point of the grid."""
    mean, std = model.predict(GRID, return_std=True)
    noise = model.kernel_.k2.noise_level
    std = np.sqrt(np.maximum(std**2 - noise, 1e-12))
    z = (best - mean) / std
    return (best - mean) * norm.cdf(z) + std * norm.pdf(z)
