//! Engines of smolmaxxing that need no llama.cpp: machine probes, I/O, the expert pager and
//! weight streaming.
//!
//! - [`machine`] tells what the running machine offers: cores by speed class, CPU limits,
//!   memory and its limits, and what this process has used so far. Everything that the
//!   system does not tell is `None`, never a guess.
//! - [`io`] reads files past the page cache ([`io::DirectFile`]), measures how fast
//!   that is ([`io::measure_read_speed`]), and frees parts of files ([`io::HolePunch`]).
//! - [`expert`] keeps the experts of a mixture that is larger than memory in a pool
//!   ([`expert::Pager`]): policies, routing with regard to what is there, reading ahead,
//!   traces and their simulation.
//! - [`pack_cache`] keeps weights that were packed once on flash and maps them at the next load.
//! - [`stream`] reads the weights of a dense model that is larger than memory in the order in
//!   which a graph uses them ([`stream::Stream`]).
//! - [`threads`] shares a piece of work, where the system may not allow as many threads.
//!
//! ```
//! let machine = smol_engine::machine::Machine::probe();
//! assert!(machine.cpu.default_threads() >= 1);
//! ```

pub mod expert;
pub mod io;
pub mod machine;
pub mod pack_cache;
pub mod stream;
pub mod threads;
