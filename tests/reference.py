"""A textbook Gaussian process: dense n x n matrices in float64, written from the definition."""

import math

import torch


class DenseGP:
    """y ~ N(0, Z Z' + diag(noise)) by the formulas of Rasmussen and Williams, chapter 2."""

    def __init__(self, features, targets, noise):
        self.features = features.double()
        self.targets = targets.double().reshape(len(targets), -1)
        self.noise = torch.as_tensor(noise, dtype=torch.float64).expand(len(features))
        self.covariance = self.features @ self.features.T + torch.diag(self.noise)

    def total_nlml(self):
        n, t = self.targets.shape
        fit = torch.trace(self.targets.T @ torch.linalg.solve(self.covariance, self.targets))
        return 0.5 * (fit + t * torch.linalg.slogdet(self.covariance)[1] + n * t * math.log(2 * math.pi))

    def predict(self, features):
        features = features.double()
        cross = features @ self.features.T
        solved = torch.linalg.solve(self.covariance, cross.T)
        mean = solved.T @ self.targets
        covariance = features @ features.T - cross @ solved
        return mean.squeeze(1) if mean.shape[1] == 1 else mean, covariance

    def leave_one_out(self):
        """Mean and variance of each observation given all others, by really leaving it out."""
        means, variances = [], []
        for i in range(len(self.features)):
            keep = [j for j in range(len(self.features)) if j != i]
            rest = DenseGP(self.features[keep], self.targets[keep], self.noise[keep])
            mean, covariance = rest.predict(self.features[i : i + 1])
            means.append(mean[0])
            variances.append(covariance[0, 0] + self.noise[i])
        return torch.stack(means), torch.stack(variances)
