//! How the pager's memory is divided.

use super::config::{ExpertLayer, ExpertTensor, PagerConfig};
use super::scope::{Pools, Scope};
use super::{Error, Result};
use crate::io::readers::{self, DEFAULT_READERS, MOST_READERS};
use crate::io::{ReadAt, arena};
use std::sync::Arc;

/// Least buffers for experts that find no place in the pool: one is read while another is used.
const LEAST_RING: usize = 2;
/// What the kernels' vector loads like.
const LEAST_ALIGNMENT: usize = 64;
/// What a ring may take of the budget if it is larger than the least one.
const RING_SHARE: u64 = 8;

/// How the pager's memory is divided, for one description of experts and one set of options.
#[derive(Debug)]
pub(super) struct Plan {
    pub(super) layers: Vec<LayerPlan>,
    pub(super) pools: Vec<PoolPlan>,
    /// What starts of reads in memory are multiples of, in bytes.
    pub(super) alignment: usize,
    pub(super) readers: usize,
    /// Number of ring buffers.
    pub(super) ring: usize,
    /// Bytes of a ring buffer.
    pub(super) ring_room: usize,
    /// Bytes of each reader's buffer for what is to be packed.
    pub(super) bounce_room: usize,
    /// Bytes of each reader's buffer for second reads.
    pub(super) second_room: usize,
}

#[derive(Debug)]
pub(super) struct LayerPlan {
    pub(super) pool: usize,
    /// Key of the first expert in the pool.
    pub(super) first_key: u32,
    /// Number of the first expert among those of all layers.
    pub(super) first: u32,
    pub(super) experts: u32,
    pub(super) used: u32,
    pub(super) tensors: usize,
}

/// One pool: slots that each hold one expert of one of its layers.
#[derive(Debug)]
pub(super) struct PoolPlan {
    /// Bytes of each tensor's region in a slot.
    pub(super) rooms: Vec<usize>,
    /// Bytes of a slot.
    pub(super) slot: u64,
    /// Experts of all its layers.
    pub(super) keys: usize,
    /// Least slots.
    pub(super) floor: usize,
    /// Number of layers: its weight when memory is divided.
    pub(super) layers: u64,
}

impl Plan {
    /// Makes the plan for a budget.
    pub(super) fn new(
        files: &[Arc<dyn ReadAt>],
        layers: &[ExpertLayer],
        config: &PagerConfig,
    ) -> Result<Self> {
        let mut plan = Self::least(files, layers, config)?;
        if plan.floor() > config.budget {
            return Err(Error::Budget { floor: plan.floor(), budget: config.budget });
        }
        plan.size_readers(config.readers, config.budget);
        plan.size_ring(config.budget);
        Ok(plan)
    }

    /// Makes the plan that takes the least memory.
    pub(super) fn least(
        files: &[Arc<dyn ReadAt>],
        layers: &[ExpertLayer],
        config: &PagerConfig,
    ) -> Result<Self> {
        if layers.is_empty() {
            return Err(Error::Layers("there are no experts to page".to_owned()));
        }
        for layer in layers {
            check(files, layer)?;
        }
        let alignment = files.iter().map(|file| file.alignment()).max().unwrap_or(1);
        let alignment = alignment.max(LEAST_ALIGNMENT);

        let class = |layer: &ExpertLayer| -> Vec<(usize, u64)> {
            layer.tensors.iter().map(|tensor| (tensor.bytes, tensor.stride)).collect()
        };
        let pools =
            Pools::new(config.scope, layers.iter().map(|layer| (class(layer), layer.experts)));
        let mut first = 0;
        let layer_plans = layers.iter().enumerate().map(|(number, layer)| {
            first += layer.experts;
            LayerPlan {
                pool: pools.pool(number),
                first_key: pools.key(number, 0),
                first: first - layer.experts,
                experts: layer.experts,
                used: layer.used,
                tensors: layer.tensors.len(),
            }
        });
        let layer_plans = layer_plans.collect();
        let rooms = |layer: &ExpertLayer| -> Vec<usize> {
            layer.tensors.iter().map(|tensor| tensor_room(files, layer, tensor)).collect()
        };
        let pool_plans = (0..pools.len()).map(|pool| {
            let members: Vec<_> = pools.layers(pool).map(|number| &layers[number]).collect();
            let rooms = members.iter().map(|layer| rooms(layer)).reduce(|mut most, other| {
                most.iter_mut().zip(other).for_each(|(most, other)| *most = other.max(*most));
                most
            });
            let rooms = rooms.unwrap_or_default();
            let keys = pools.keys(pool);
            let used = members.iter().map(|layer| layer.used as usize).max().unwrap_or(1);
            let floor = if config.scope == Scope::Global { 2 * used } else { used };
            Some(PoolPlan {
                slot: arena::block_len(&rooms, alignment)? as u64,
                rooms,
                keys,
                floor: floor.min(keys),
                layers: members.len() as u64,
            })
        });
        let too_large = || Error::Layers("the experts are larger than the address space".into());
        let pools: Vec<_> = pool_plans.collect::<Option<_>>().ok_or_else(too_large)?;

        let all = || layers.iter().flat_map(|layer| layer.tensors.iter().map(move |t| (layer, t)));
        let read = |(layer, tensor)| read_room(files, layer, tensor);
        let packed = all().filter(|(_, tensor)| tensor.packer.is_some());
        let mut plan = Self {
            layers: layer_plans,
            alignment,
            readers: 1,
            ring: LEAST_RING,
            ring_room: pools.iter().flat_map(|pool| &pool.rooms).copied().max().unwrap_or(0),
            bounce_room: packed.map(read).max().unwrap_or(0),
            second_room: if config.verify { all().map(read).max().unwrap_or(0) } else { 0 },
            pools,
        };
        plan.size_readers(config.readers, 0);
        Ok(plan)
    }

    /// Takes as many readers as are asked for, or as many as the budget has buffers for.
    fn size_readers(&mut self, asked: usize, budget: u64) {
        self.readers = if asked == 0 { DEFAULT_READERS } else { asked.min(MOST_READERS) };
        while asked == 0 && self.readers > 1 && self.floor() > budget {
            self.readers -= 1;
        }
    }

    /// Takes as many ring buffers as keep all readers busy, unless they are much of the budget.
    fn size_ring(&mut self, budget: u64) {
        let most = self.readers + LEAST_RING;
        let fits = budget / RING_SHARE / self.buffer_bytes(self.ring_room).max(1);
        self.ring = usize::try_from(fits).unwrap_or(most).clamp(LEAST_RING, most);
        while self.ring > LEAST_RING && self.floor() > budget {
            self.ring -= 1;
        }
    }

    fn buffer_bytes(&self, room: usize) -> u64 {
        if room == 0 {
            return 0;
        }
        arena::block_len(&[room], self.alignment).map_or(u64::MAX, |len| len as u64)
    }

    /// Returns the bytes of all that is not a slot: ring and readers' buffers.
    pub(super) fn fixed(&self) -> u64 {
        let ring = self.buffer_bytes(self.ring_room).saturating_mul(self.ring as u64);
        let reader = self.buffer_bytes(self.bounce_room) + self.buffer_bytes(self.second_room);
        ring.saturating_add(reader.saturating_mul(self.readers as u64))
    }

    /// Returns the least bytes that the pager can work with.
    pub(super) fn floor(&self) -> u64 {
        let slots = self.pools.iter().map(|pool| pool.slot.saturating_mul(pool.floor as u64));
        slots.fold(self.fixed(), u64::saturating_add)
    }

    /// Returns the bytes that the pager takes with so many slots in each pool.
    pub(super) fn bytes(&self, slots: impl IntoIterator<Item = usize>) -> u64 {
        let slots =
            slots.into_iter().zip(&self.pools).map(|(slots, pool)| slots as u64 * pool.slot);
        self.fixed() + slots.sum::<u64>()
    }

    /// Divides `budget` bytes, but no less than the floor, among the pools: the same number of
    /// bytes for each layer, until each pool has slots for all its experts.
    pub(super) fn divide(&self, budget: u64) -> Vec<usize> {
        let budget = budget.max(self.floor());
        let at = |bytes: u64| -> Vec<usize> {
            let slots = |pool: &PoolPlan| {
                let slots = u128::from(bytes) * u128::from(pool.layers) / u128::from(pool.slot);
                usize::try_from(slots).unwrap_or(pool.keys).clamp(pool.floor, pool.keys)
            };
            self.pools.iter().map(slots).collect()
        };
        // The most bytes a layer that fit in all.
        let most = self.pools.iter().map(|pool| pool.slot * pool.keys as u64).max().unwrap_or(0);
        let (mut fits, mut over) = (0, most + 1);
        while over - fits > 1 {
            let middle = fits + (over - fits) / 2;
            if self.bytes(at(middle)) <= budget { fits = middle } else { over = middle }
        }
        let mut slots = at(fits);
        // What is left by rounding down.
        let mut left = budget - self.bytes(slots.iter().copied());
        for (slots, pool) in slots.iter_mut().zip(&self.pools) {
            if *slots < pool.keys && pool.slot <= left {
                *slots += 1;
                left -= pool.slot;
            }
        }
        slots
    }
}

/// Returns the room that reading any expert of the tensor takes.
fn read_room(files: &[Arc<dyn ReadAt>], layer: &ExpertLayer, tensor: &ExpertTensor) -> usize {
    let file = &*files[tensor.file];
    let offset = |expert| tensor.offset + u64::from(expert) * tensor.stride;
    let room = |expert| readers::room(file, offset(expert), tensor.stride as usize);
    (0..layer.experts).map(room).max().unwrap_or(0)
}

/// Returns the room that any expert of the tensor takes in a slot.
fn tensor_room(files: &[Arc<dyn ReadAt>], layer: &ExpertLayer, tensor: &ExpertTensor) -> usize {
    match tensor.packer {
        Some(_) => tensor.bytes,
        None => read_room(files, layer, tensor),
    }
}

fn check(files: &[Arc<dyn ReadAt>], layer: &ExpertLayer) -> Result<()> {
    let block = layer.block;
    let wrong = |what: String| Err(Error::Layers(format!("experts of block {block}: {what}")));
    if layer.experts == 0 || layer.used == 0 || layer.used > layer.experts {
        return wrong(format!("{} of {} experts are used", layer.used, layer.experts));
    }
    if !(1..=8).contains(&layer.tensors.len()) {
        return wrong(format!("they have {} tensors instead of 1 to 8", layer.tensors.len()));
    }
    for tensor in &layer.tensors {
        let name = &tensor.name;
        let Some(file) = files.get(tensor.file) else {
            return wrong(format!("`{name}` lies in file {} of {}", tensor.file, files.len()));
        };
        if !file.alignment().is_power_of_two() {
            return wrong(format!("{} is read in odd steps", file.path().display()));
        }
        let fits = usize::try_from(tensor.stride)
            .is_ok_and(|stride| stride > 0 && stride <= isize::MAX as usize / 4);
        if !fits || tensor.bytes == 0 || tensor.bytes > isize::MAX as usize / 4 {
            let (stride, bytes) = (tensor.stride, tensor.bytes);
            return wrong(format!("`{name}` has {stride} bytes in the file, {bytes} in memory"));
        }
        if tensor.packer.is_none() && tensor.bytes as u64 != tensor.stride {
            let (stride, bytes) = (tensor.stride, tensor.bytes);
            return wrong(format!("`{name}` is not packed but has {bytes} bytes of {stride}"));
        }
        let len = tensor.stride.checked_mul(u64::from(layer.experts));
        let end = len.and_then(|len| tensor.offset.checked_add(len));
        if end.is_none_or(|end| end > file.len()) {
            let error = crate::io::Error::Truncated {
                path: file.path().to_owned(),
                offset: tensor.offset,
                len: len.and_then(|len| usize::try_from(len).ok()).unwrap_or(usize::MAX),
                file_len: file.len(),
            };
            return Err(error.into());
        }
    }
    Ok(())
}
