//! Arguments that several commands share, and what is made of them.

mod answer;
mod compute;
mod layouts;
mod load;
mod memory;
mod output;
mod pack_cache;
mod pager;
mod prompt;
mod sampling;
mod statistics;
mod stream;

pub use answer::AnswerArgs;
pub use compute::{ComputeArgs, clamped_threads};
pub use layouts::{LayoutArgs, LayoutReport, measured};
pub use load::{bits_per_weight, load_model, load_vocabulary};
pub use memory::MemoryArgs;
pub use output::check_output;
pub use pager::pager_line;
pub use prompt::{MAX_TEXT, PromptArgs, read_text};
pub use sampling::{GrammarArgs, SamplingArgs};
pub use statistics::EngineStatistics;
