//! Packed layouts of weights and their kernels: which there are, whether they are right, and how fast they are.
//!
//! Models use them without being asked; this module is for looking at them apart from a model. [`layouts`] lists those
//! of the CPU level that runs. [`Layout::verify`] compares the kernels of one with each other, [`check`] does so with
//! many inputs and compares them with ggml's own way. [`Pair::measure`] times both by turns. A [`Matrix`] is one weight
//! in memory, a [`Product`] what a model does with it.
//!
//! # Examples
//! ```
//! use llama_rs::kernels::{self, CheckOptions};
//!
//! for layout in kernels::layouts()? {
//!     let findings = kernels::check(layout, &CheckOptions::default())?;
//!     assert!(findings.iter().all(|finding| finding.fault.is_none()), "{findings:?}");
//! }
//! # Ok::<(), llama_rs::Error>(())
//! ```

mod check;
mod choice;
mod layout;
mod matrix;
mod pair;
mod product;
mod random;
mod verify;

pub(crate) use choice::slower_than_stock;

pub use check::{CheckOptions, Finding, check};
pub use layout::{Layout, layouts};
pub use matrix::{Matrix, MatrixShape, Storage};
pub use pair::{Comparison, MeasureOptions, Measurement, Pair, Times};
pub use product::{Operation, Product};
pub use verify::Verification;
