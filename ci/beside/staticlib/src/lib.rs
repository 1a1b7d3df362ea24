//! One C function that runs tiny models.

#[path = "../../src/ours.rs"]
mod ours;

/// Prints what [`ours::run`] gives; returns 0, or 1 after a failure.
#[unsafe(no_mangle)]
pub extern "C" fn second_run() -> i32 {
    match ours::run() {
        Ok(text) => {
            print!("{text}");
            0
        }
        Err(error) => {
            eprintln!("{error}");
            1
        }
    }
}
