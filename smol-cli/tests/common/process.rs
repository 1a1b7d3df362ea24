//! What a child process is doing, so that tests need not guess how long it takes.

#![allow(dead_code, reason = "each test file uses a part of it")]

use std::path::Path;
use std::process::Child;
use std::time::Duration;

const STEP: Duration = Duration::from_millis(10);

/// The fields of a `/proc` file `stat` behind the name: the first is the state. `None`: no such file.
fn stat(path: &Path) -> Option<Vec<String>> {
    let text = std::fs::read_to_string(path).ok()?;
    let (_, fields) = text.rsplit_once(") ")?;
    Some(fields.split(' ').map(str::to_owned).collect())
}

/// Waits until the process has computed for this long, or has ended. Where the system has no `/proc`, that time passes.
pub fn let_compute(child: &Child, time: Duration) {
    let path = format!("/proc/{}/stat", child.id());
    // A hundred ticks a second, on every Linux.
    let ticks = |field: &String| Duration::from_millis(10 * field.parse::<u64>().unwrap());
    let mut passed = Duration::ZERO;
    while match stat(path.as_ref()) {
        Some(fields) => fields[0] != "Z" && ticks(&fields[11]) + ticks(&fields[12]) < time,
        None => passed < time,
    } {
        std::thread::sleep(STEP);
        passed += STEP;
    }
}

/// Waits until all threads of the process have been waiting for something for a while, or have ended. Where the system has no `/proc`,
/// some time passes.
pub fn let_wait(child: &Child) {
    let tasks = format!("/proc/{}/task", child.id());
    let mut quiet = 0;
    while quiet < 30 {
        let busy = std::fs::read_dir(&tasks).is_ok_and(|tasks| {
            tasks.flatten().any(|task| {
                stat(&task.path().join("stat"))
                    .is_some_and(|fields| !["S", "Z"].contains(&fields[0].as_str()))
            })
        });
        quiet = if busy { 0 } else { quiet + 1 };
        std::thread::sleep(STEP);
    }
}
