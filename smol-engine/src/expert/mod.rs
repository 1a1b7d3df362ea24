//! Experts of mixtures that are larger than memory.

pub mod policy;
pub mod routing;
pub mod scope;

pub use policy::Policy;
pub use scope::Scope;
