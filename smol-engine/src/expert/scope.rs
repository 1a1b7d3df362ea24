//! Which experts share a pool.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// Which experts compete for the same places in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum Scope {
    /// Those of one layer: each layer has places of its own. Misses least where fewer than half
    /// of the experts fit.
    #[default]
    Layer,
    /// Those of all layers whose experts have tensors of the same sizes. Misses up to a tenth
    /// less where more than half of the experts fit.
    Global,
}

impl Scope {
    /// All scopes.
    pub const ALL: [Self; 2] = [Self::Layer, Self::Global];

    /// Returns the name, as [`FromStr`] reads it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Layer => "layer",
            Self::Global => "global",
        }
    }

    /// Returns the fewest places that a pool works with if a token uses `used` experts of a layer:
    /// they are in it together, and where layers share it, those of the next one as well.
    pub const fn least_slots(self, used: usize) -> usize {
        match self {
            Self::Layer => used,
            Self::Global => 2 * used,
        }
    }
}

impl fmt::Display for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// No scope has this name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("there is no scope `{0}`: it must be layer or global")]
pub struct UnknownScope(String);

impl FromStr for Scope {
    type Err = UnknownScope;

    fn from_str(name: &str) -> Result<Self, UnknownScope> {
        let found = Self::ALL.into_iter().find(|scope| scope.name() == name);
        found.ok_or_else(|| UnknownScope(name.to_owned()))
    }
}

/// The pools of a model: which of them each layer's experts lie in, and as which keys.
///
/// ```
/// use smol_engine::expert::scope::{Pools, Scope};
///
/// // Two layers with experts of the same size, one with larger ones.
/// let pools = Pools::new(Scope::Global, [(100, 8), (100, 8), (130, 16)]);
/// assert_eq!(pools.pool(1), 0);
/// assert_eq!(pools.key(1, 3), 11);
/// assert_eq!(pools.pool(2), 1);
/// assert_eq!(pools.keys(1), 16);
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pools {
    /// Of each layer: its pool and the key of its first expert.
    layers: Vec<(usize, u32)>,
    /// Of each pool: the number of keys.
    keys: Vec<u32>,
}

impl Pools {
    /// Sorts layers into pools, given each layer's class and number of experts.
    ///
    /// Layers of one class have experts that fit in each other's places.
    pub fn new<C: PartialEq>(scope: Scope, layers: impl IntoIterator<Item = (C, u32)>) -> Self {
        let mut pools = Self { layers: Vec::new(), keys: Vec::new() };
        let mut classes: Vec<C> = Vec::new();
        for (class, experts) in layers {
            let known = classes.iter().position(|other| *other == class);
            let pool = match (scope, known) {
                (Scope::Global, Some(pool)) => pool,
                _ => {
                    classes.push(class);
                    pools.keys.push(0);
                    pools.keys.len() - 1
                }
            };
            pools.layers.push((pool, pools.keys[pool]));
            pools.keys[pool] += experts;
        }
        pools
    }

    /// Returns the number of pools.
    pub fn len(&self) -> usize {
        self.keys.len()
    }

    /// Returns whether there is no pool, as there is no layer.
    pub fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }

    /// Returns the pool that the layer's experts lie in.
    pub fn pool(&self, layer: usize) -> usize {
        self.layers[layer].0
    }

    /// Returns the key of an expert in its layer's pool.
    pub fn key(&self, layer: usize, expert: u32) -> u32 {
        self.layers[layer].1 + expert
    }

    /// Returns the number of keys of a pool: the experts of all its layers.
    pub fn keys(&self, pool: usize) -> usize {
        self.keys[pool] as usize
    }

    /// Returns the layers whose experts lie in a pool.
    pub fn layers(&self, pool: usize) -> impl Iterator<Item = usize> + '_ {
        let layers = self.layers.iter().enumerate();
        layers.filter(move |(_, (other, _))| *other == pool).map(|(layer, _)| layer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_layer_has_its_own_pool_or_shares_it_with_its_class() {
        let layers = [("a", 4), ("b", 6), ("a", 3)];
        let own = Pools::new(Scope::Layer, layers);
        assert_eq!((own.len(), own.is_empty()), (3, false));
        for (layer, (_, experts)) in layers.into_iter().enumerate() {
            assert_eq!((own.pool(layer), own.key(layer, 2)), (layer, 2));
            assert_eq!(own.keys(layer), experts as usize);
            assert_eq!(own.layers(layer).collect::<Vec<_>>(), [layer]);
        }
        let shared = Pools::new(Scope::Global, layers);
        assert_eq!(shared.len(), 2);
        assert_eq!([0, 1, 2].map(|layer| shared.pool(layer)), [0, 1, 0]);
        assert_eq!([0, 1, 2].map(|layer| shared.key(layer, 0)), [0, 0, 4]);
        assert_eq!([0, 1].map(|pool| shared.keys(pool)), [7, 6]);
        assert_eq!(shared.layers(0).collect::<Vec<_>>(), [0, 2]);
        assert!(Pools::new(Scope::Global, [("a", 1); 0]).is_empty());
    }

    #[test]
    fn names_are_read_as_they_are_shown() {
        for scope in Scope::ALL {
            assert_eq!(scope.to_string().parse(), Ok(scope));
            assert_eq!(serde_json::to_string(&scope).unwrap(), format!("\"{scope}\""));
        }
        assert!("layers".parse::<Scope>().unwrap_err().to_string().contains("layer or global"));
    }
}
