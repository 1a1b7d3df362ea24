//! Routers for experts that all do the same: their choices have to look like a real model's.
//!
//! Real routing is uneven over experts and stable over neighbouring tokens. Here the logits of a
//! router are random combinations of two kinds of features of the hidden state, plus a bias:
//! slow features (those that change least from token to token), leading principal components, and
//! a bias that falls with the logarithm of an expert's rank.

use std::collections::HashSet;

use anyhow::{Context, Result, ensure};
use nalgebra::{Cholesky, DMatrix, DVector, RowDVector, SymmetricEigen};

use crate::forward::States;
use crate::rng::Rng;

/// How a router chooses.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RouterOptions {
    /// The share of the logits' variance that comes from slow features.
    pub slow: f32,
    /// The deviation of the logits.
    pub spread: f32,
    /// How fast the bias falls with the logarithm of the rank; 0 uses all experts alike.
    pub skew: f32,
    /// Added to all logits: a sigmoid far below zero spreads its outputs like a softmax.
    pub offset: f32,
}

impl RouterOptions {
    /// Suits a softmax router.
    pub const SOFTMAX: Self = Self { slow: 0.6, spread: 1.6, skew: 0.5, offset: 0.0 };
    /// Suits a sigmoid router with a selection bias.
    pub const SIGMOID: Self = Self { slow: 0.3, spread: 1.6, skew: 0.0, offset: -4.0 };
}

/// Fits a router with `experts` rows to the hidden states of one layer, given text by text.
///
/// # Errors
/// If there are fewer than 64 states.
pub fn fit(
    texts: &[States],
    experts: usize,
    options: &RouterOptions,
    rng: &mut Rng,
) -> Result<DMatrix<f32>> {
    let count: usize = texts.iter().map(States::nrows).sum();
    ensure!(count >= 64, "{count} hidden states are too few to fit a router");
    let width = texts[0].ncols();
    let mut mean = RowDVector::<f32>::zeros(width);
    texts.iter().for_each(|states| mean += states.row_sum() / count as f32);
    let mut covariance = DMatrix::<f32>::zeros(width, width);
    let mut steps = DMatrix::<f32>::zeros(width, width);
    let mut n_steps = 0;
    for states in texts {
        let mut centred = states.clone();
        centred.row_iter_mut().for_each(|mut row| row -= &mean);
        covariance += centred.transpose() * &centred / count as f32;
        let last = centred.nrows() - 1;
        let step = centred.rows(1, last) - centred.rows(0, last);
        n_steps += last;
        steps += step.transpose() * &step;
    }
    steps /= n_steps as f32;
    // Few states leave directions without variance; a little everywhere keeps the inverse tame.
    let ridge = 0.05 * covariance.trace() / width as f32;
    (0..width).for_each(|i| covariance[(i, i)] += ridge);
    let cholesky = Cholesky::new(covariance.clone()).context("the states do not vary")?;

    // Slow features: in coordinates where all variance is 1, the directions whose steps vary least.
    let lower = cholesky.l();
    let whitened = lower.solve_lower_triangular(&steps).context("singular covariance")?;
    let whitened =
        lower.solve_lower_triangular(&whitened.transpose()).context("singular covariance")?;
    let slow = eigenvectors(whitened, Order::Smallest, (width / 4).min(24));
    let slow = lower.tr_solve_lower_triangular(&slow.0).context("singular covariance")?;
    let (mut leading, variances) =
        eigenvectors(covariance.clone(), Order::Largest, (width / 4).min(48));
    for (mut column, variance) in leading.column_iter_mut().zip(variances.iter()) {
        column /= variance.sqrt();
    }

    let slow_part = unit_rows(experts, slow.ncols(), rng) * slow.transpose();
    let leading_part = unit_rows(experts, leading.ncols(), rng) * leading.transpose();
    let mut router = (slow_part * options.slow.sqrt() + leading_part * (1.0 - options.slow).sqrt())
        * options.spread;

    // A direction whose product with a state is about 1 carries the bias, and takes out what the
    // mean state would add.
    let mean = mean.transpose();
    let constant = cholesky.solve(&mean);
    let constant = &constant / mean.dot(&constant).max(1e-6);
    let ranks = rng.permutation(experts);
    let bias = DVector::from_iterator(
        experts,
        ranks.iter().map(|rank| -options.skew * ((1 + rank) as f32).ln()),
    );
    let bias = bias.add_scalar(options.offset - bias.mean());
    let correction = bias - &router * &mean;
    router += correction * constant.transpose();
    Ok(router)
}

enum Order {
    Smallest,
    Largest,
}

/// Returns `count` eigenvectors of a symmetric matrix as columns, and their eigenvalues.
fn eigenvectors(matrix: DMatrix<f32>, order: Order, count: usize) -> (DMatrix<f32>, DVector<f32>) {
    let eigen = SymmetricEigen::new(matrix);
    let mut sorted: Vec<usize> = (0..eigen.eigenvalues.len()).collect();
    sorted.sort_by(|&a, &b| eigen.eigenvalues[a].total_cmp(&eigen.eigenvalues[b]));
    if matches!(order, Order::Largest) {
        sorted.reverse();
    }
    sorted.truncate(count);
    let values = DVector::from_iterator(count, sorted.iter().map(|&i| eigen.eigenvalues[i]));
    (eigen.eigenvectors.select_columns(&sorted), values)
}

fn unit_rows(rows: usize, columns: usize, rng: &mut Rng) -> DMatrix<f32> {
    let mut matrix = DMatrix::from_fn(rows, columns, |_, _| rng.normal());
    for mut row in matrix.row_iter_mut() {
        let norm = row.norm();
        row /= norm;
    }
    matrix
}

/// What the choices of routers look like, averaged over layers.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct RoutingStats {
    /// The number of layers.
    pub layers: usize,
    /// The share of choices that the token before made too.
    pub reuse: f64,
    /// The share of tokens that use a layer's most popular expert.
    pub most_popular: f64,
    /// The share of choices found in a least-recently-used cache, by the cache's share of experts.
    pub hit_rates: Vec<(f64, f64)>,
}

/// The cache sizes that are simulated, as shares of a layer's experts.
const CACHE_SHARES: [f64; 5] = [0.125, 0.25, 1.0 / 3.0, 0.5, 0.75];
/// The first tokens of a text fill the cache and don't count.
const WARM_UP: usize = 64;

impl RoutingStats {
    /// Adds the choices of one layer's router for states that it was not fitted to.
    ///
    /// With a `selection_bias` the router is a sigmoid one.
    pub fn add(
        &mut self,
        router: &DMatrix<f32>,
        texts: &[States],
        used: usize,
        selection_bias: Option<&[f32]>,
    ) {
        let experts = router.nrows();
        let mut choices: Vec<Vec<usize>> = Vec::new();
        for states in texts {
            let logits = states * router.transpose();
            choices.extend(logits.row_iter().map(|row| {
                let score = |expert: usize| match selection_bias {
                    Some(bias) => 1.0 / (1.0 + (-row[expert]).exp()) + bias[expert],
                    None => row[expert],
                };
                let mut order: Vec<usize> = (0..experts).collect();
                order.sort_by(|&a, &b| score(b).total_cmp(&score(a)));
                order.truncate(used);
                order
            }));
        }
        let mut uses = vec![0usize; experts];
        choices.iter().flatten().for_each(|&expert| uses[expert] += 1);
        let shared: usize = choices
            .windows(2)
            .map(|pair| {
                let before: HashSet<_> = pair[0].iter().collect();
                pair[1].iter().filter(|expert| before.contains(expert)).count()
            })
            .sum();
        let reuse = shared as f64 / ((choices.len() - 1) * used) as f64;
        let most = uses.iter().copied().max().unwrap_or(0) as f64 / choices.len() as f64;
        let rates = CACHE_SHARES.map(|share| {
            let capacity = ((experts as f64 * share) as usize).max(used);
            (share, hit_rate(&choices, capacity))
        });
        self.average(reuse, most, &rates);
    }

    fn average(&mut self, reuse: f64, most_popular: f64, rates: &[(f64, f64)]) {
        let weight = 1.0 / (self.layers + 1) as f64;
        let update = |mean: &mut f64, value: f64| *mean += (value - *mean) * weight;
        if self.layers == 0 {
            self.hit_rates = rates.iter().map(|(share, _)| (*share, 0.0)).collect();
        }
        update(&mut self.reuse, reuse);
        update(&mut self.most_popular, most_popular);
        for ((_, mean), (_, value)) in self.hit_rates.iter_mut().zip(rates) {
            update(mean, *value);
        }
        self.layers += 1;
    }
}

impl std::fmt::Display for RoutingStats {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        writeln!(f, "choices that the token before made too: {:.0} %", self.reuse * 100.0)?;
        writeln!(f, "tokens that use the most popular expert: {:.0} %", self.most_popular * 100.0)?;
        write!(f, "hits in a least-recently-used cache:")?;
        for (share, rate) in &self.hit_rates {
            write!(f, " {:.0} % with {:.0} % of the experts;", rate * 100.0, share * 100.0)?;
        }
        Ok(())
    }
}

/// Returns the share of choices found in a cache of the `capacity` experts used last.
fn hit_rate(choices: &[Vec<usize>], capacity: usize) -> f64 {
    let mut cache: Vec<usize> = Vec::new();
    let (mut hits, mut total) = (0u32, 0u32);
    for (token, chosen) in choices.iter().enumerate() {
        for &expert in chosen {
            let found = cache.iter().position(|&cached| cached == expert);
            if token >= WARM_UP {
                total += 1;
                hits += u32::from(found.is_some());
            }
            if let Some(at) = found {
                cache.remove(at);
            } else if cache.len() == capacity {
                cache.remove(0);
            }
            cache.push(expert);
        }
    }
    f64::from(hits) / f64::from(total.max(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// States of slowly drifting and of fast features around a mean.
    fn states(n: usize, width: usize, seed: u64) -> States {
        let mut rng = Rng::new(seed);
        let mut drift = vec![0.0f32; width];
        DMatrix::from_fn(n, width, |_, _| 0.0).map_with_location(|_, column, _: f32| {
            let slow = column < width / 2;
            drift[column] = if slow { 0.95 * drift[column] } else { 0.0 } + rng.normal();
            drift[column] * if slow { 0.31 } else { 1.0 } + 0.5
        })
    }

    #[test]
    fn hit_rate_counts_what_a_cache_would_hold() {
        let same = vec![vec![1, 2]; 100];
        assert_eq!(hit_rate(&same, 2), 1.0);
        let cycle: Vec<_> = (0..100).map(|token| vec![token % 3]).collect();
        assert_eq!(hit_rate(&cycle, 2), 0.0);
        assert_eq!(hit_rate(&cycle, 3), 1.0);
    }

    #[test]
    fn routing_is_uneven_and_local() {
        let (train, test) = (states(2000, 64, 1), states(1000, 64, 2));
        let mut stats = RoutingStats::default();
        let mut rng = Rng::new(3);
        let router = fit(&[train], 32, &RouterOptions::SOFTMAX, &mut rng).unwrap();
        stats.add(&router, &[test], 4, None);
        // By chance 12.5 % would repeat.
        assert!(stats.reuse > 0.2, "{stats}");
        assert!(stats.most_popular > 0.2, "{stats}");
        let rates: Vec<f64> = stats.hit_rates.iter().map(|rate| rate.1).collect();
        assert!(rates.is_sorted() && rates[4] < 1.0, "{stats}");
    }

    #[test]
    fn the_bias_holds_for_the_mean_state() {
        let train = states(2000, 64, 1);
        let mean = train.row_mean().transpose();
        let options = RouterOptions { skew: 0.0, ..RouterOptions::SIGMOID };
        let router = fit(&[train], 16, &options, &mut Rng::new(3)).unwrap();
        for logit in (router * mean).iter() {
            assert!((logit + 4.0).abs() < 0.05, "{logit}");
        }
    }
}
