//! How much memory a pager needs, before there is one.

use super::config::{ExpertLayer, PagerConfig};
use super::plan::Plan;
use super::{Error, Pager, Result};
use crate::io::ReadAt;
use std::sync::Arc;

impl Pager {
    /// Returns the least budget in bytes that a pager of these experts works with.
    ///
    /// # Errors
    /// If the layers make no sense or reach past the end of a file.
    pub fn least_budget(
        files: &[Arc<dyn ReadAt>],
        layers: &[ExpertLayer],
        config: &PagerConfig,
    ) -> Result<u64> {
        match Plan::new(files, layers, &PagerConfig { budget: 0, ..config.clone() }) {
            Ok(plan) => Ok(plan.floor()),
            Err(Error::Budget { floor, .. }) => Ok(floor),
            Err(error) => Err(error),
        }
    }

    /// Returns the budget in bytes with which each layer has `slots` experts in memory, or where layers share a pool as
    /// many as that makes for all of them. No fewer than the least, and no more than there are.
    ///
    /// # Errors
    /// As [`least_budget`](Self::least_budget).
    pub fn budget_of_slots(
        files: &[Arc<dyn ReadAt>],
        layers: &[ExpertLayer],
        config: &PagerConfig,
        slots: u32,
    ) -> Result<u64> {
        // A smaller budget has smaller buffers beside the slots: until that settles.
        let mut budget = u64::MAX;
        loop {
            let plan = Plan::new(files, layers, &PagerConfig { budget, ..config.clone() })?;
            let of_pool = |pool: &super::plan::PoolPlan| {
                let slots = u64::from(slots).saturating_mul(pool.layers);
                usize::try_from(slots).unwrap_or(pool.keys).clamp(pool.floor, pool.keys)
            };
            let bytes = plan.bytes(plan.pools.iter().map(of_pool));
            if bytes >= budget {
                return Ok(budget);
            }
            budget = bytes;
        }
    }
}

/// The memory that a pager will hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct PoolSize {
    /// Bytes of slots and buffers.
    pub bytes: u64,
    /// Experts that there is room for.
    pub slots: u64,
    /// Experts of all layers.
    pub experts: u64,
}

impl PoolSize {
    /// Returns what a pager of these experts will hold with the budget of `config`.
    ///
    /// # Errors
    /// As [`Pager::new`], without memory or threads.
    pub fn new(
        files: &[Arc<dyn ReadAt>],
        layers: &[ExpertLayer],
        config: &PagerConfig,
    ) -> Result<Self> {
        let plan = Plan::new(files, layers, config)?;
        let slots = plan.divide(config.budget);
        Ok(Self {
            bytes: plan.bytes(slots.iter().copied()),
            slots: slots.iter().map(|slots| *slots as u64).sum(),
            experts: plan.pools.iter().map(|pool| pool.keys as u64).sum(),
        })
    }
}
