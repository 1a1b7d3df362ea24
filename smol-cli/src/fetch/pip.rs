//! Fetches Python packages with the user's own pip, which knows the user's package index.

use super::{Error, wheel};
use crate::catalogue::PackagePart;
use crate::progress;
use anyhow::{Context as _, anyhow};
use indicatif::ProgressBar;
use std::io::{BufRead as _, BufReader, Read as _};
use std::path::Path;
use std::process::{Command, Stdio};

/// Names under which Python is installed.
const PYTHONS: [&str; 2] = ["python3", "python"];
/// The first pip that prints its progress for programs.
const RAW_PROGRESS: (u32, u32) = (24, 1);

/// Downloads the wheels of `parts` that are not there yet into `folder`.
pub(super) fn download(parts: &[PackagePart], folder: &Path) -> Result<(), Error> {
    std::fs::create_dir_all(folder)
        .with_context(|| format!("cannot create {}", folder.display()))
        .map_err(Error::Local)?;
    let missing: Vec<_> = parts.iter().filter(|part| wheel::find(folder, part).is_none()).collect();
    if missing.is_empty() {
        return Ok(());
    }
    let pip = Pip::find().map_err(Error::Source)?;
    for (i, part) in missing.iter().enumerate() {
        let what = match missing.len() {
            1 => part.package.clone(),
            count => format!("{} ({} of {count})", part.package, i + 1),
        };
        pip.download(part, folder, &what).map_err(Error::Source)?;
    }
    Ok(())
}

struct Pip {
    python: &'static str,
    version: (u32, u32),
}

impl Pip {
    /// Finds a Python that has pip.
    fn find() -> anyhow::Result<Self> {
        let mut without_pip = None;
        for python in PYTHONS {
            let output =
                Command::new(python).args(["-m", "pip", "--version"]).stdin(Stdio::null()).output();
            match output {
                Ok(output) if output.status.success() => {
                    let version = version(&String::from_utf8_lossy(&output.stdout));
                    return Ok(Self { python, version: version.unwrap_or((0, 0)) });
                }
                Ok(_) => without_pip = without_pip.or(Some(python)),
                Err(_) => {}
            }
        }
        Err(match without_pip {
            Some(python) => anyhow!("`{python}` has no pip"),
            None => anyhow!("there is no Python"),
        })
    }

    fn download(&self, part: &PackagePart, folder: &Path, what: &str) -> anyhow::Result<()> {
        let raw = self.version >= RAW_PROGRESS;
        let mut child = Command::new(self.python)
            .args(["-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--no-input"])
            .args(["--disable-pip-version-check", "--no-cache-dir", "--no-color"])
            .arg(if raw { "--progress-bar=raw" } else { "--progress-bar=off" })
            .arg("--dest")
            .arg(folder)
            .arg(format!("{}=={}", part.package, part.version))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .with_context(|| format!("cannot start `{}`", self.python))?;
        let mut stderr = child.stderr.take().expect("stderr is piped");
        // Both pipes are read at once, as a full one would stop pip.
        let read = move || {
            let mut bytes = Vec::new();
            let _ = stderr.read_to_end(&mut bytes);
            String::from_utf8_lossy(&bytes).into_owned()
        };
        let errors = match std::thread::Builder::new().name("pip".into()).spawn(read) {
            Ok(errors) => errors,
            Err(error) => {
                let _ = child.kill();
                let _ = child.wait();
                return Err(error).context("cannot start the thread that reads what pip says");
            }
        };
        let stdout = BufReader::new(child.stdout.take().expect("stdout is piped"));
        let bar = if raw {
            progress::bytes(what, part.size)
        } else {
            progress::spinner(format!("{what}: pip is downloading"))
        };
        for line in stdout.split(b'\n').map_while(Result::ok) {
            show_progress(&String::from_utf8_lossy(&line), &bar);
        }
        let status = child.wait().context("cannot wait for pip")?;
        bar.finish_and_clear();
        let errors = errors.join().unwrap_or_default();
        if status.success() {
            return Ok(());
        }
        Err(anyhow!("pip cannot download {}: {}", part.package, reason(&errors)))
    }
}

/// Parses `pip 24.1 from ...`.
fn version(text: &str) -> Option<(u32, u32)> {
    let mut numbers = text.strip_prefix("pip ")?.split_whitespace().next()?.split('.');
    Some((numbers.next()?.parse().ok()?, numbers.next().map_or(Some(0), |n| n.parse().ok())?))
}

/// Takes `Progress 100 of 200` over to the bar.
fn show_progress(line: &str, bar: &ProgressBar) {
    let Some(numbers) = line.trim().strip_prefix("Progress ") else { return };
    let Some((done, total)) = numbers.split_once(" of ") else { return };
    if let (Ok(done), Ok(total)) = (done.parse(), total.parse()) {
        bar.set_length(total);
        bar.set_position(done);
    }
}

/// Returns the line of pip's messages that says most: its last error.
fn reason(messages: &str) -> &str {
    let lines = || messages.lines().map(str::trim).rev();
    lines()
        .find_map(|line| line.strip_prefix("ERROR: "))
        // What follows this is a traceback, which ends with the reason.
        .filter(|&error| error != "Exception:")
        .or_else(|| lines().find(|line| !line.is_empty()))
        .unwrap_or("it gives no reason")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_of_pip() {
        assert_eq!(version("pip 23.2.1 from /usr/lib (python 3.11)\n"), Some((23, 2)));
        assert_eq!(version("pip 25.0 from /usr/lib"), Some((25, 0)));
        assert_eq!(version("No module named pip"), None);
    }

    #[test]
    fn progress_lines() {
        let bar = ProgressBar::hidden();
        show_progress("Progress 100 of 200", &bar);
        show_progress("Saved ./x.whl", &bar);
        assert_eq!((bar.position(), bar.length()), (100, Some(200)));
    }

    #[test]
    fn the_last_error_is_the_reason() {
        let messages = "WARNING: Retrying\nERROR: Could not find a version\n\
            ERROR: No matching distribution found for x==1\n\n";
        assert_eq!(reason(messages), "No matching distribution found for x==1");
        assert_eq!(reason("Traceback\nboom\n"), "boom");
        let messages = "ERROR: Exception:\nTraceback:\n  at x\nOSError: File too large\n";
        assert_eq!(reason(messages), "OSError: File too large");
        assert_eq!(reason(""), "it gives no reason");
    }
}
