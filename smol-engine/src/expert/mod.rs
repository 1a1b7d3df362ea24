//! Experts of mixtures that are larger than memory.

pub mod policy;

pub use policy::Policy;
